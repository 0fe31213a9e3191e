//! Large buffers that were freed, kept for the next of their size: each page of fresh memory costs a
//! fault.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};

use smallvec::SmallVec;

/// Smaller ones come from memory that the allocator keeps.
const WORTH_KEEPING: usize = 32 << 10;

/// Bytes that a process keeps at most.
const KEEP: usize = 64 << 20;

/// An address that nobody else refers to, and how many bytes lie there.
pub(crate) type Block = (usize, usize);

/// Blocks that have to be freed.
pub(crate) type Freed = SmallVec<[Block; 1]>;

static SPARE: Mutex<Spare> = Mutex::new(Spare {
    addresses: BTreeMap::new(),
    bytes: 0,
    evicted: 0,
});

/// The address of a block of that size.
pub(crate) fn take(size: usize) -> Option<usize> {
    if size < WORTH_KEEPING {
        return None;
    }
    spare()?.take(size)
}

/// Keeps a block; returns what is to be freed in its place, perhaps itself.
pub(crate) fn keep(block: Block) -> Freed {
    let spare = (block.1 >= WORTH_KEEPING).then(spare).flatten();
    spare.map_or_else(|| Freed::from_elem(block, 1), |mut spare| spare.keep(block))
}

/// Never waits: a forked child may find it locked by a thread that it does not have.
fn spare() -> Option<MutexGuard<'static, Spare>> {
    match SPARE.try_lock() {
        Ok(spare) => Some(spare),
        Err(TryLockError::Poisoned(spare)) => Some(spare.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

struct Spare {
    /// By size; no entry is empty.
    addresses: BTreeMap<usize, Vec<usize>>,
    bytes: usize,
    /// The size that gave way last.
    evicted: usize,
}

impl Spare {
    fn take(&mut self, size: usize) -> Option<usize> {
        let addresses = self.addresses.get_mut(&size)?;
        let address = addresses.pop()?;
        if addresses.is_empty() {
            self.addresses.remove(&size);
        }
        self.bytes -= size;
        Some(address)
    }

    fn keep(&mut self, (address, size): Block) -> Freed {
        if size > KEEP {
            return Freed::from_elem((address, size), 1);
        }
        let mut freed = Freed::new();
        while self.bytes + size > KEEP {
            // One size after the other gives way, so that none stays that nobody asks for.
            let after = self.addresses.range(self.evicted + 1..).next();
            let Some((&next, _)) = after.or_else(|| self.addresses.first_key_value()) else {
                break;
            };
            self.evicted = next;
            freed.extend(self.take(next).map(|address| (address, next)));
        }
        self.bytes += size;
        self.addresses.entry(size).or_default().push(address);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Spare {
        Spare {
            addresses: BTreeMap::new(),
            bytes: 0,
            evicted: 0,
        }
    }

    #[test]
    fn what_nobody_asks_for_gives_way() {
        let mut spare = empty();
        assert!(spare.keep((1, KEEP / 2)).is_empty());
        assert!(spare.keep((2, KEEP / 4)).is_empty());
        assert_eq!(spare.take(KEEP / 2 - 1), None);
        // There is no room for both of another size beside these.
        assert!(spare.keep((3, KEEP / 5)).is_empty());
        assert_eq!(spare.keep((4, KEEP / 5))[..], [(3, KEEP / 5)]);
        assert_eq!(spare.keep((5, KEEP / 5))[..], [(2, KEEP / 4)]);
        assert_eq!(spare.keep((6, KEEP / 5))[..], [(1, KEEP / 2)]);
        assert_eq!(spare.bytes, 3 * (KEEP / 5));
        assert_eq!(spare.keep((7, KEEP + 1))[..], [(7, KEEP + 1)]);
        for address in [6, 5, 4] {
            assert_eq!(spare.take(KEEP / 5), Some(address));
        }
        assert_eq!((spare.take(KEEP / 5), spare.bytes), (None, 0));
    }

    #[test]
    fn nobody_waits_for_its_lock() {
        let held = SPARE.lock();
        assert_eq!(take(WORTH_KEEPING), None);
        assert_eq!(keep((1, WORTH_KEEPING))[..], [(1, WORTH_KEEPING)]);
        drop(held);
    }
}
