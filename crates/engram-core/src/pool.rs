//! A pool of batch buffers. A dropped buffer returns to the pool and is reused.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};
use crate::text::count;

/// Maximum bytes of unused buffers in a pool; buffers beyond that are freed.
const MAX_UNUSED_BYTES: usize = 256 << 20;

/// Minimum bytes of a pooled buffer. Smaller ones are allocated and freed instead, which is faster than a shared list.
const MIN_POOLED_BYTES: usize = 64 << 10;

/// A pool of batch buffers.
#[derive(Debug, Default)]
pub struct Pool {
    unused: Mutex<UnusedBuffers>,
    /// Maximum bytes of one batch. `None`: unlimited.
    max_batch_bytes: Option<usize>,
}

#[derive(Debug, Default)]
struct UnusedBuffers {
    /// The first buffer has been unused for longest.
    buffers: Vec<AlignedBytes>,
    /// Bytes of all buffers.
    bytes: usize,
}

/// A buffer that returns to its pool when dropped. It is freed instead if it is small, or the pool is full or locked.
/// Its initial contents are arbitrary.
#[derive(Debug)]
pub struct PooledBytes {
    /// `None` only while the buffer is dropped. May be longer than `len`.
    bytes: Option<AlignedBytes>,
    len: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// Creates a pool for batches of at most `max_batch_bytes` bytes.
    #[must_use]
    pub fn with_max_batch(max_batch_bytes: usize) -> Self {
        Self {
            max_batch_bytes: Some(max_batch_bytes),
            ..Self::default()
        }
    }

    /// Rejects a batch that is too large; `bytes` is `None` if its size overflows `usize`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the size of the batch and the limit.
    pub fn check_batch_size(&self, items: usize, bytes: Option<usize>) -> Result<()> {
        let Some(max) = self.max_batch_bytes else {
            return Ok(());
        };
        let needed = match bytes {
            Some(bytes) if bytes <= max => return Ok(()),
            Some(bytes) => format!("at least {bytes}"),
            None => "2^64 or more".into(),
        };
        Err(Error::OutOfMemory(format!(
            "a batch of {} takes {needed} bytes, but at most {max} are allowed; sample fewer items at \
             once",
            count(items, "item")
        )))
    }

    /// Returns a buffer of `len` bytes, reused or new; `None` if the allocation fails.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: usize) -> Option<PooledBytes> {
        let reused = (len >= MIN_POOLED_BYTES)
            .then(|| self.take_unused(len))
            .flatten();
        let bytes = reused.or_else(|| AlignedBytes::zeroed(len))?;
        Some(PooledBytes {
            bytes: Some(bytes),
            len,
            pool: Arc::clone(self),
        })
    }

    /// Locks and returns the unused buffers; `None` if they are locked already. Never waits: in a
    /// forked child, the lock may be held by a thread that only the parent has.
    fn unused(&self) -> Option<MutexGuard<'_, UnusedBuffers>> {
        match self.unused.try_lock() {
            Ok(unused) => Some(unused),
            Err(TryLockError::Poisoned(unused)) => Some(unused.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes a buffer of suitable size out of the pool. If there is none, frees the buffer that has
    /// been unused for longest, so that sizes no longer requested leave the pool, and returns `None`. Also returns
    /// `None` if the pool is locked.
    fn take_unused(&self, len: usize) -> Option<AlignedBytes> {
        let mut unused = self.unused()?;
        // At most about 1.5 times the bytes needed: more would waste memory.
        let fits = |buffer: &AlignedBytes| buffer.len() >= len && buffer.len() / 3 <= len / 2;
        let index = unused.buffers.iter().rposition(fits);
        let buffer =
            (!unused.buffers.is_empty()).then(|| unused.buffers.remove(index.unwrap_or(0)))?;
        unused.bytes -= buffer.len();
        drop(unused);
        index.map(|_| buffer)
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        let Some(bytes) = self
            .bytes
            .take()
            .filter(|bytes| bytes.len() >= MIN_POOLED_BYTES)
        else {
            return;
        };
        let Some(mut unused) = self.pool.unused() else {
            return;
        };
        if unused.bytes + bytes.len() <= MAX_UNUSED_BYTES {
            unused.bytes += bytes.len();
            unused.buffers.push(bytes);
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
    fn a_large_buffer_is_reused() {
        let pool = Arc::new(Pool::default());
        let first = pool.take(1 << 20).unwrap();
        let address = first.as_ptr();
        drop(first);
        let again = pool.take((1 << 20) - 5).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (address, (1 << 20) - 5));
        assert_ne!(pool.take(1 << 20).unwrap().as_ptr(), address);
    }

    #[test]
    fn sizes_no_longer_requested_are_freed() {
        let pool = Arc::new(Pool::default());
        let buffers: Vec<_> = (1..=4).map(|n| pool.take(n << 20).unwrap()).collect();
        drop(buffers);
        let unused = || pool.unused().unwrap().bytes >> 20;
        assert_eq!(unused(), 1 + 2 + 3 + 4);
        drop(pool.take(4 << 20));
        assert_eq!(unused(), 1 + 2 + 3 + 4);
        // No unused buffer fits: each request frees the oldest.
        let large = pool.take(16 << 20);
        assert_eq!(unused(), 2 + 3 + 4);
        let small = pool.take(64 << 10);
        assert_eq!(unused(), 3 + 4);
        drop((large, small));
        assert_eq!(unused(), 3 + 4 + 16);
    }
}
