//! Prioritized: items are chosen with probability proportional to `priority ^ exponent` (Schaul et al. 2016,
//! equation 1).

use super::dense::DenseSlots;
use super::{DrawDistribution, Pick, TableRng, uniform_unit};
use crate::item::Slot;
use crate::pages::CopyablePages;
use crate::sum_tree::{SumTree, Sums};

/// Maximum weight of an item: the sum of 2^32 such weights is finite.
pub const MAX_WEIGHT: f64 = 1e290;

/// The weight of a priority. A priority of 0 has weight 0 for every exponent.
pub(crate) fn weight(priority: f64, exponent: f64) -> f64 {
    if priority == 0.0 {
        0.0
    } else {
        priority.powf(exponent)
    }
}

/// An array of slots, and a sum tree of their weights in the same order.
#[derive(Debug)]
pub struct Prioritized {
    dense: DenseSlots,
    tree: SumTree,
    exponent: f64,
}

impl Prioritized {
    pub(super) fn new(exponent: f64) -> Self {
        Self {
            dense: DenseSlots::default(),
            tree: SumTree::default(),
            exponent,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.dense.len()
    }

    pub(super) fn slots(&mut self) -> &mut CopyablePages<Slot> {
        self.dense.slots()
    }

    pub(super) fn insert(&mut self, slot: Slot, priority: f64) {
        let position = self.dense.insert(slot);
        self.tree.ensure_index(position);
        self.tree.set(position, weight(priority, self.exponent));
    }

    pub(super) fn update(&mut self, slot: Slot, priority: f64) {
        self.tree
            .set(self.dense.position(slot), weight(priority, self.exponent));
    }

    /// Prefetches the weights of these slots, and those of their siblings in the tree.
    pub(super) fn prefetch(&self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            self.tree.prefetch(self.dense.position(slot));
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        let (position, last) = self.dense.swap_remove(slot);
        if position != last {
            self.tree.set(position, self.tree.weight(last));
        }
        self.tree.set(last, 0.0);
    }

    pub(super) fn distribution(&mut self) -> DrawDistribution {
        distribution(&mut self.tree, self.dense.len())
    }

    /// Chooses `n` slots by weight; uniformly if all weights are 0.
    pub(super) fn pick(&mut self, n: usize, rng: &mut TableRng, picks: &mut Vec<Pick>) {
        let total = self.tree.total();
        if total <= 0.0 {
            return self.dense.pick(n, rng, picks);
        }
        let positions = draw(&mut self.tree, n, rng);
        for position in &positions {
            self.dense.prefetch(*position);
        }
        picks.extend(positions.into_iter().map(|position| Pick {
            slot: self.dense.slot(position),
            probability: self.tree.weight(position) / total,
        }));
    }
}

/// The distribution of a draw from `len` items by their weights; uniform if all weights are 0.
pub(crate) fn distribution(tree: &mut SumTree<impl Sums>, len: usize) -> DrawDistribution {
    let total = tree.total();
    if total <= 0.0 {
        return DrawDistribution {
            total_weight: 0.0,
            ..DrawDistribution::uniform(len)
        };
    }
    DrawDistribution {
        total_weight: total,
        candidates: tree.non_zero() as u64,
        min_probability: tree.min_weight() / total,
    }
}

/// Draws `n` leaves of a tree by weight, with replacement. The sum of all weights must be above 0.
pub(crate) fn draw(tree: &mut SumTree<impl Sums>, n: usize, rng: &mut TableRng) -> Vec<usize> {
    let total = tree.total();
    let masses: Vec<f64> = (0..n).map(|_| uniform_unit(rng) * total).collect();
    let mut leaves = Vec::with_capacity(n);
    tree.find(&masses, &mut leaves);
    leaves
}
