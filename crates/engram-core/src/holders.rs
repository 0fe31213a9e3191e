//! A chunk's reference counts, one per table: how many items of the table refer to the chunk.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Identifies a table in the reference counts. A reset gives the table a new id, so that its new items do not share
/// counts with its old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderId(u32);

impl HolderId {
    /// Returns an id that this process has not used before. After 2^32 - 1 calls, ids repeat.
    #[must_use]
    pub fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        loop {
            let id = NEXT.fetch_add(1, Ordering::Relaxed);
            if id != 0 {
                return Self(id);
            }
        }
    }
}

/// Reference counts, one per table. Most chunks have references from one table: its count is stored
/// inline.
///
/// The count of a [`HolderId`] changes only under its table's lock, or when the contents with this id are dropped,
/// which no call can use any more: after a reset, or with the table. No two threads change the same count at once: the
/// atomics only order changes by different tables.
#[derive(Debug, Default)]
pub struct Holders {
    /// Id and count of one table, `id << 32 | count`; 0 if unused.
    first: AtomicU64,
    /// Ids and counts of further tables.
    others: OnceLock<Mutex<Vec<(u32, u32)>>>,
}

impl Holders {
    /// Adds a reference by a table; returns true if it is the table's first.
    pub fn hold(&self, id: HolderId) -> bool {
        let mut word = self.first.load(Ordering::Acquire);
        loop {
            if holder_id(word) == id.0 {
                // While the word contains this id, only this table changes it.
                self.first.store(word + 1, Ordering::Release);
                return false;
            }
            if let Some(others) = self.others.get() {
                let mut others = others.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(entry) = others.iter_mut().find(|entry| entry.0 == id.0) {
                    entry.1 += 1;
                    return false;
                }
            }
            if word != 0 {
                let others = self.others.get_or_init(Mutex::default);
                others
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((id.0, 1));
                return true;
            }
            let claimed = u64::from(id.0) << 32 | 1;
            match self
                .first
                .compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(current) => word = current,
            }
        }
    }

    /// True if any table has a reference.
    #[must_use]
    pub fn any(&self) -> bool {
        self.first.load(Ordering::Acquire) != 0
            || self.others.get().is_some_and(|others| {
                let others = others.lock().unwrap_or_else(PoisonError::into_inner);
                !others.is_empty()
            })
    }

    /// Removes a reference by a table; returns true if it was the table's last, false if the table has
    /// more or had none.
    pub fn release(&self, id: HolderId) -> bool {
        let word = self.first.load(Ordering::Acquire);
        if holder_id(word) == id.0 {
            let last = word & 0xffff_ffff == 1;
            self.first
                .store(if last { 0 } else { word - 1 }, Ordering::Release);
            return last;
        }
        let Some(others) = self.others.get() else {
            return false;
        };
        let mut others = others.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = others.iter().position(|entry| entry.0 == id.0) else {
            return false;
        };
        others[index].1 -= 1;
        let last = others[index].1 == 0;
        if last {
            others.swap_remove(index);
        }
        last
    }
}

/// The id in a value of [`Holders::first`].
const fn holder_id(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_has_its_own_count() {
        let holders = Holders::default();
        let [a, b, c] = [HolderId::fresh(), HolderId::fresh(), HolderId::fresh()];
        assert!(!holders.any());
        assert!(holders.hold(a) && !holders.hold(a) && holders.any());
        assert!(holders.hold(b) && !holders.hold(b));
        assert!(!holders.release(a) && holders.release(a) && holders.any());
        // The inline count is unused again: `c` gets it; `b` stays in the list.
        assert!(holders.hold(c) && !holders.hold(b));
        assert!(!holders.release(b) && !holders.release(b) && holders.release(b));
        assert!(holders.release(c));
        assert!(!holders.release(c) && !holders.any());
    }
}
