//! Buffers for batches, used again once their reader is done with them.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::aligned::AlignedBytes;

/// Bytes a pool keeps for later; more is freed at once.
const KEEP: usize = 256 << 20;

/// Buffers below this come faster from the allocator than from a shared list.
const WORTH_POOLING: usize = 64 << 10;

/// Buffers waiting to be used again.
#[derive(Debug, Default)]
pub struct Pool {
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<AlignedBytes>,
    bytes: usize,
}

/// A buffer that goes back to its pool when dropped. Its first contents are arbitrary.
#[derive(Debug)]
pub struct PooledBytes {
    bytes: Option<AlignedBytes>,
    len: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// A buffer of `len` bytes; `None` when the system does not give so many.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: usize) -> Option<PooledBytes> {
        let found = (len >= WORTH_POOLING).then(|| self.find(len)).flatten();
        let bytes = found.or_else(|| AlignedBytes::arbitrary(len))?;
        Some(PooledBytes {
            bytes: Some(bytes),
            len,
            pool: Arc::clone(self),
        })
    }

    fn find(&self, len: usize) -> Option<AlignedBytes> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // Half as much again would waste what another batch could use.
        let fits = |buffer: &AlignedBytes| buffer.len() >= len && buffer.len() / 3 <= len / 2;
        let at = free.buffers.iter().rposition(fits)?;
        let bytes = free.buffers.swap_remove(at);
        free.bytes -= bytes.len();
        Some(bytes)
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        let Some(bytes) = self
            .bytes
            .take()
            .filter(|bytes| bytes.len() >= WORTH_POOLING)
        else {
            return;
        };
        let mut free = self
            .pool
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if free.bytes + bytes.len() <= KEEP {
            free.bytes += bytes.len();
            free.buffers.push(bytes);
        }
    }
}

impl Deref for PooledBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
            .as_deref()
            .map_or(&[], |bytes| &bytes[..self.len])
    }
}

impl DerefMut for PooledBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
            .as_deref_mut()
            .map_or(&mut [], |bytes| &mut bytes[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_used_again() {
        let pool = Arc::new(Pool::default());
        let first = pool.take(1 << 20).unwrap();
        let address = first.as_ptr();
        drop(first);
        let again = pool.take((1 << 20) - 5).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (address, (1 << 20) - 5));
        assert_ne!(pool.take(1 << 20).unwrap().as_ptr(), address);
    }
}
