//! Large buffers that were freed, kept for the next: each page of fresh memory costs a fault.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Smaller ones come from memory that the allocator keeps.
const WORTH_KEEPING: usize = 32 << 10;

/// Bytes that a process keeps at most.
const KEEP: usize = 64 << 20;

/// What is kept, by size.
static SPARE: Mutex<Spare> = Mutex::new(Spare {
    buffers: BTreeMap::new(),
    bytes: 0,
});

struct Spare {
    /// Addresses of what nobody else refers to.
    buffers: BTreeMap<usize, Vec<usize>>,
    bytes: usize,
}

/// A buffer of `len` bytes, or up to an eighth more: its address and its size.
pub(crate) fn take(len: usize) -> Option<(usize, usize)> {
    if len < WORTH_KEEPING {
        return None;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let (&size, addresses) = spare.buffers.range_mut(len..=len + len / 8).next()?;
    let address = addresses.pop()?;
    if addresses.is_empty() {
        spare.buffers.remove(&size);
    }
    spare.bytes -= size;
    Some((address, size))
}

/// Keeps a buffer; false when it is to be freed.
pub(crate) fn keep(address: usize, size: usize) -> bool {
    if size < WORTH_KEEPING {
        return false;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    if spare.bytes + size > KEEP {
        return false;
    }
    spare.bytes += size;
    spare.buffers.entry(size).or_default().push(address);
    true
}
