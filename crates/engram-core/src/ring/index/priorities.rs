//! The priorities of items.

use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};
use crate::prefetch::prefetch_line;
use crate::ring::changed_rows::ChangedRows;
use crate::ring::largest::Largest;
use crate::selector::weight;
use crate::sum_tree::{FixedSums, SumTree};

/// Priority of a new item if no item has a priority above 0.
const DEFAULT_PRIORITY: f64 = 1.0;

/// Priority of a row with which no item begins. It equals 0, but its sign differs from that of an item's priority 0, also
/// for the next buffer in this memory.
pub(super) const NO_ITEM: f64 = -0.0;

/// About the maximum number of rows whose weights are not in the tree yet. Computing the weights of these rows, and the sums,
/// takes about 2 ms.
const MAX_CHANGED: usize = 1 << 15;

/// Number of rows whose memory is prefetched before their weights are computed.
const PREFETCHED_ROWS: usize = 16;

/// The priorities of items, by the row of the step that they begin with.
///
/// A change of a priority only stores it. The weights are computed when the tree is used next, once per row that has
/// changed.
#[derive(Debug)]
pub struct Priorities {
    pub(super) exponent: f64,
    /// One number per row; [`NO_ITEM`] or 0 for rows with which no item begins.
    pub(super) values: AlignedBytes,
    /// `values` raised to `exponent`, except for the rows in `changed`.
    tree: SumTree<FixedSums>,
    changed: ChangedRows,
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
            changed: ChangedRows::new(rows)?,
            largest: Largest::new(rows)?,
        })
    }

    /// The memory of the priorities and of the tree.
    pub(super) fn memory(&mut self) -> impl Iterator<Item = &mut AlignedBytes> {
        std::iter::once(&mut self.values).chain(self.tree.memory())
    }

    pub(super) fn get(&self, row: usize) -> f64 {
        self.values.as_f64s()[row]
    }

    /// Sets a priority. Its weight, `priority ** exponent`, must be finite and at least 0.
    pub fn set(&mut self, row: usize, priority: f64) {
        let old = std::mem::replace(&mut self.values.as_f64s_mut()[row], priority);
        self.record(row, old, priority);
    }

    /// Records that the priority of a row was `old` and is `new` now, which is stored already.
    pub(super) fn record(&mut self, row: usize, old: f64, new: f64) {
        self.largest.change(row, old, new);
        self.changed.insert(row);
        if self.changed.len() >= MAX_CHANGED {
            self.compute_weights();
        }
    }

    /// Updates the weights of the changed rows.
    fn compute_weights(&mut self) {
        let (values, tree) = (self.values.as_f64s(), &mut self.tree);
        self.changed.take(|rows| {
            let prefetch = |tree: &SumTree<FixedSums>, row: usize| {
                tree.prefetch(row);
                prefetch_line(&raw const values[row]);
            };
            for row in rows.iter().take(PREFETCHED_ROWS) {
                prefetch(tree, *row);
            }
            for (number, row) in rows.iter().enumerate() {
                if let Some(later) = rows.get(number + PREFETCHED_ROWS) {
                    prefetch(tree, *later);
                }
                tree.set(*row, weight(values[*row], self.exponent));
            }
        });
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
        self.compute_weights();
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_tree_has_the_weights_of_the_last_priorities(
            parts in prop::collection::vec(
                prop::collection::vec((0..500_usize, 0..6_u32), 0..100),
                1..4,
            ),
        ) {
            let mut priorities = Priorities::new(2.0, 500).unwrap();
            let mut model = vec![0.0; 500];
            for changes in parts {
                for (row, priority) in changes {
                    priorities.set(row, f64::from(priority));
                    model[row] = f64::from(priority);
                    let largest = model.iter().copied().fold(0.0, f64::max);
                    prop_assert!(priorities.largest().total_cmp(&largest).is_eq());
                }
                prop_assert_eq!(priorities.values.as_f64s(), &model);
                let tree = priorities.tree();
                let total: f64 = model.iter().map(|priority| priority * priority).sum();
                prop_assert!(tree.total().total_cmp(&total).is_eq()); // small integers
                prop_assert_eq!(tree.non_zero(), model.iter().filter(|it| **it > 0.0).count());
                for (row, priority) in model.iter().enumerate() {
                    prop_assert!(tree.weight(row).total_cmp(&(priority * priority)).is_eq());
                }
            }
        }
    }

    #[test]
    fn the_number_of_rows_without_a_weight_is_limited() {
        let mut priorities = Priorities::new(1.0, 2 * MAX_CHANGED).unwrap();
        let rows = 2 * MAX_CHANGED;
        let mut most = 0;
        for row in 0..rows {
            priorities.set(row, 1.0);
            most = most.max(row + 1 - priorities.tree.non_zero());
        }
        assert_eq!((most, priorities.tree.non_zero()), (MAX_CHANGED - 1, rows));
    }
}
