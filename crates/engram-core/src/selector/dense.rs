//! Uniform: all items are equally likely.

use super::pick::{Pick, TableRng, uniform_below};
use crate::item::Slot;
use crate::pages::{CopyablePages, Pages};
use crate::prefetch::prefetch_line;

/// An unordered array of slots without gaps: removing a slot moves the last one into its position.
#[derive(Debug)]
pub struct DenseSlots {
    slots: CopyablePages<Slot>,
    /// Position of each slot in `slots`.
    positions: Pages<u32>,
    len: usize,
}

impl Default for DenseSlots {
    fn default() -> Self {
        Self {
            slots: CopyablePages::new(0),
            positions: Pages::new(0),
            len: 0,
        }
    }
}

impl DenseSlots {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slots, in the order that random choices depend on. Only the first `len` positions are in use.
    pub(super) fn slots(&mut self) -> &mut CopyablePages<Slot> {
        &mut self.slots
    }

    /// Adds a slot; returns its position.
    pub(super) fn insert(&mut self, slot: Slot) -> usize {
        let position = self.len;
        self.slots.set(position, slot);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "slots are u32, so positions are too"
        )]
        self.positions.set(slot as usize, position as u32);
        self.len += 1;
        position
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.swap_remove(slot);
    }

    /// Removes a slot; the slot at the last position moves into its position. Returns both positions: that of the
    /// removed slot, and the last one.
    pub(super) fn swap_remove(&mut self, slot: Slot) -> (usize, usize) {
        let position = self.positions[slot as usize];
        self.len -= 1;
        let moved = self.slots[self.len];
        self.slots[position as usize] = moved;
        self.positions[moved as usize] = position;
        (position as usize, self.len)
    }

    pub(super) fn position(&self, slot: Slot) -> usize {
        self.positions[slot as usize] as usize
    }

    pub(super) fn slot(&self, position: usize) -> Slot {
        self.slots[position]
    }

    /// Prefetches the slot at a position.
    pub(super) fn prefetch(&self, position: usize) {
        prefetch_line(&raw const self.slots[position]);
    }

    pub(super) fn pick(&self, n: usize, rng: &mut TableRng, picks: &mut Vec<Pick>) {
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        let probability = 1.0 / self.len as f64;
        picks.extend((0..n).map(|_| Pick {
            slot: self.slots[uniform_below(rng, self.len)],
            probability,
        }));
    }
}
