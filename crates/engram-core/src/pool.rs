//! Buffers for batches, used again once their reader is done with them.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};

/// Bytes a pool keeps for later; more is freed at once.
const KEEP: usize = 256 << 20;

/// Buffers below this come faster from the allocator than from a shared list.
const WORTH_POOLING: usize = 64 << 10;

/// Buffers waiting to be used again.
#[derive(Debug, Default)]
pub struct Pool {
    free: Mutex<Free>,
    /// Bytes of one batch; `None` for as many as the system gives.
    most: Option<usize>,
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
    /// A pool for batches of at most so many bytes.
    #[must_use]
    pub fn with_max_batch(most: usize) -> Self {
        Self {
            most: Some(most),
            ..Self::default()
        }
    }

    /// Refuses a batch that is too large; `None` for more bytes than can be counted.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] saying what was asked for, and what is allowed.
    pub fn check(&self, items: usize, bytes: Option<usize>) -> Result<()> {
        let Some(most) = self.most else {
            return Ok(());
        };
        let needed = match bytes {
            Some(bytes) if bytes <= most => return Ok(()),
            Some(bytes) => format!("at least {bytes}"),
            None => "more than 2^64".into(),
        };
        Err(Error::OutOfMemory(format!(
            "a batch of {items} items takes {needed} bytes; at most {most} are allowed: ask \
             for fewer items"
        )))
    }

    /// A buffer of `len` bytes; `None` when the system does not give so many.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: usize) -> Option<PooledBytes> {
        let found = (len >= WORTH_POOLING).then(|| self.find(len)).flatten();
        let bytes = found.or_else(|| AlignedBytes::zeroed(len))?;
        Some(PooledBytes {
            bytes: Some(bytes),
            len,
            pool: Arc::clone(self),
        })
    }

    /// Never waits: a forked child may find it locked by a thread that it does not have.
    fn free(&self) -> Option<MutexGuard<'_, Free>> {
        match self.free.try_lock() {
            Ok(free) => Some(free),
            Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A buffer that fits. Where none does, the one that has waited for longest is freed: sizes that
    /// nobody asks for any more give way.
    fn find(&self, len: usize) -> Option<AlignedBytes> {
        let mut free = self.free()?;
        // Half as much again would waste what another batch could use.
        let fits = |buffer: &AlignedBytes| buffer.len() >= len && buffer.len() / 3 <= len / 2;
        let at = free.buffers.iter().rposition(fits);
        let found = (!free.buffers.is_empty()).then(|| free.buffers.remove(at.unwrap_or(0)))?;
        free.bytes -= found.len();
        drop(free);
        at.map(|_| found)
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
        let Some(mut free) = self.pool.free() else {
            return;
        };
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

    #[test]
    fn sizes_that_nobody_asks_for_give_way() {
        let pool = Arc::new(Pool::default());
        let held: Vec<_> = (1..=4).map(|n| pool.take(n << 20).unwrap()).collect();
        drop(held);
        let kept = || pool.free().unwrap().bytes >> 20;
        assert_eq!(kept(), 1 + 2 + 3 + 4);
        drop(pool.take(4 << 20));
        assert_eq!(kept(), 1 + 2 + 3 + 4);
        // None of them fits: the oldest goes for each that is new.
        let large = pool.take(16 << 20);
        assert_eq!(kept(), 2 + 3 + 4);
        let small = pool.take(64 << 10);
        assert_eq!(kept(), 3 + 4);
        drop((large, small));
        assert_eq!(kept(), 3 + 4 + 16);
    }
}
