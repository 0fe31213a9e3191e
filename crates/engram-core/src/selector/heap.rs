//! `MinHeap` and `MaxHeap`: lowest or highest priority first. Of items with equal priorities, the one whose insert or
//! last update is oldest is first.

use std::cmp::Ordering;

use crate::item::{Rank, Slot};
use crate::pages::Pages;

/// Children per entry.
const ARITY: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Negated for a max-heap, so that the smallest value is always first.
    priority: f64,
    /// Number of the insert or last priority update.
    update_number: u64,
    slot: Slot,
}

impl Entry {
    /// True if this entry is chosen before `other`.
    fn precedes(&self, other: &Self) -> bool {
        match self.priority.total_cmp(&other.priority) {
            Ordering::Equal => self.update_number < other.update_number,
            order => order == Ordering::Less,
        }
    }
}

/// A 4-ary heap that stores the position of every slot, so that entries can be updated and removed.
#[derive(Debug)]
pub struct Heap {
    entries: Pages<Entry>,
    /// Position of each slot in `entries`.
    positions: Pages<u32>,
    len: usize,
    /// 1 for a min-heap, -1 for a max-heap.
    sign: f64,
}

impl Heap {
    pub(super) fn lowest_first() -> Self {
        Self {
            entries: Pages::new(Entry {
                priority: 0.0,
                update_number: 0,
                slot: 0,
            }),
            positions: Pages::new(0),
            len: 0,
            sign: 1.0,
        }
    }

    pub(super) fn highest_first() -> Self {
        Self {
            sign: -1.0,
            ..Self::lowest_first()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Slot {
        self.entries[0].slot
    }

    pub(super) fn insert(&mut self, slot: Slot, rank: Rank) {
        self.positions.ensure_index(slot as usize);
        self.entries.ensure_index(self.len);
        self.len += 1;
        let entry = self.entry(slot, rank);
        self.sift(self.len - 1, entry);
    }

    pub(super) fn update(&mut self, slot: Slot, rank: Rank) {
        let entry = self.entry(slot, rank);
        self.sift(self.positions[slot as usize] as usize, entry);
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        let position = self.positions[slot as usize] as usize;
        self.len -= 1;
        if position < self.len {
            let last = self.entries[self.len];
            self.sift(position, last);
        }
    }

    fn entry(&self, slot: Slot, rank: Rank) -> Entry {
        // Adding 0 turns -0 into 0: `total_cmp` orders them differently, though they are equal.
        Entry {
            priority: self.sign * rank.priority + 0.0,
            update_number: rank.update_number,
            slot,
        }
    }

    /// Places `entry` at `position`, then moves it up or down until the heap is ordered.
    fn sift(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if !entry.precedes(&self.entries[parent]) {
                break;
            }
            self.set(position, self.entries[parent]);
            position = parent;
        }
        loop {
            let children = position * ARITY + 1..(position * ARITY + 1 + ARITY).min(self.len);
            let first_child = children.reduce(|best, child| {
                if self.entries[child].precedes(&self.entries[best]) {
                    child
                } else {
                    best
                }
            });
            match first_child {
                Some(child) if self.entries[child].precedes(&entry) => {
                    self.set(position, self.entries[child]);
                    position = child;
                }
                _ => break,
            }
        }
        self.set(position, entry);
    }

    fn set(&mut self, position: usize, entry: Entry) {
        self.entries[position] = entry;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "slots are u32, so positions are too"
        )]
        let position = position as u32;
        self.positions[entry.slot as usize] = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_sorting(
            ops in prop::collection::vec((0..40_u32, -3..4_i32, 0..3_u8), 1..200),
            highest in any::<bool>(),
        ) {
            let mut heap = if highest { Heap::highest_first() } else { Heap::lowest_first() };
            let mut model: Vec<(Slot, f64, u64)> = Vec::new();
            for (update_number, (slot, priority, op)) in (0_u64..).zip(ops) {
                let priority = f64::from(priority);
                let rank = Rank { seq: 0, update_number, priority };
                match (model.iter().position(|entry| entry.0 == slot), op) {
                    (None, _) => {
                        heap.insert(slot, rank);
                        model.push((slot, priority, update_number));
                    }
                    (Some(position), 0) => {
                        heap.remove(slot);
                        model.remove(position);
                    }
                    (Some(position), _) => {
                        heap.update(slot, rank);
                        model[position] = (slot, priority, update_number);
                    }
                }
                model.sort_by(|a, b| {
                    let order = a.1.total_cmp(&b.1);
                    (if highest { order.reverse() } else { order }).then(a.2.cmp(&b.2))
                });
                prop_assert_eq!(heap.len(), model.len());
                if let Some(first) = model.first() {
                    prop_assert_eq!(heap.first(), first.0);
                }
            }
        }
    }
}
