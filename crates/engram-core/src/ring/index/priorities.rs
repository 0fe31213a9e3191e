//! The priorities of items.

use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};
use crate::prefetch::prefetch_line;
use crate::ring::largest::Largest;
use crate::selector::weight;
use crate::sum_tree::{FixedSums, SumTree};

/// Priority of a new item if no item has a priority above 0.
pub(super) const DEFAULT_PRIORITY: f64 = 1.0;

/// Priority of a row with which no item begins. It equals 0, but its sign differs from that of an item's priority 0, also
/// for the next buffer in this memory.
pub(super) const NO_ITEM: f64 = -0.0;

/// The priorities of items, by the row of the step that they begin with.
#[derive(Debug)]
pub struct Priorities {
    pub(super) exponent: f64,
    /// One number per row; [`NO_ITEM`] or 0 for rows with which no item begins.
    pub(super) values: AlignedBytes,
    /// `values` raised to `exponent`.
    pub(super) tree: SumTree<FixedSums>,
    largest: Largest,
}

impl Priorities {
    /// The priorities of this many rows, at least one; all are 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(exponent: f64, rows: usize) -> Result<Self> {
        Self::in_memory(exponent, rows, None)
    }

    /// [`Self::new`] in `memory` or, for `None`, on the heap.
    pub(super) fn in_memory(
        exponent: f64,
        rows: usize,
        memory: Option<AlignedBytes>,
    ) -> Result<Self> {
        let bytes = rows.checked_mul(size_of::<f64>());
        let too_large = || Error::out_of_memory("the sampler of the replay buffer", bytes);
        Ok(Self {
            exponent,
            values: memory
                .or_else(|| bytes.and_then(AlignedBytes::zeroed))
                .ok_or_else(too_large)?,
            tree: SumTree::with_leaves(rows).ok_or_else(too_large)?,
            largest: Largest::new(rows)?,
        })
    }

    /// The memory of the priorities and of the tree, for settings such as huge pages.
    pub(super) fn memory(&mut self) -> impl Iterator<Item = &mut [u8]> {
        std::iter::once(&mut *self.values).chain(self.tree.memory())
    }

    pub(super) fn get(&self, row: usize) -> f64 {
        self.values.as_f64s()[row]
    }

    /// Sets a priority. Its weight, `priority ** exponent`, must be finite and at least 0.
    pub fn set(&mut self, row: usize, priority: f64) {
        let old = std::mem::replace(&mut self.values.as_f64s_mut()[row], priority);
        self.record(row, old, priority);
    }

    /// Records that the priority of a row was `old` and is `new` now.
    pub(super) fn record(&mut self, row: usize, old: f64, new: f64) {
        self.largest.change(row, old, new);
        self.tree.set(row, weight(new, self.exponent));
    }

    /// Prefetches the priority of this row.
    pub(super) fn prefetch(&self, row: usize) {
        prefetch_line(&raw const self.values.as_f64s()[row]);
    }

    /// The largest priority.
    pub fn largest(&mut self) -> f64 {
        self.largest.get(self.values.as_f64s())
    }

    /// The tree of the weights, one leaf per row. They must not be changed.
    pub fn tree(&mut self) -> &mut SumTree<FixedSums> {
        &mut self.tree
    }

    /// The priority of a new item.
    pub(super) fn initial(&mut self) -> f64 {
        let largest = self.largest();
        if largest > 0.0 {
            largest
        } else {
            DEFAULT_PRIORITY
        }
    }
}
