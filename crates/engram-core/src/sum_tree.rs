//! A tree of partial sums, with which leaves are drawn with probability proportional to their weights.

use std::fmt;
use std::ops::{Index, IndexMut};

use crate::aligned::AlignedBytes;
use crate::pages::Pages;
use crate::prefetch::prefetch_line;

/// Children per node: two cache lines of sums, and six levels of sums above ten million leaves.
const FANOUT: usize = 16;

/// Number of draws that descend the tree together, so that their cache misses overlap.
const DRAWS_TOGETHER: usize = 64;

/// Maximum number of changed parents before their sums are recomputed.
const MAX_STALE_PARENTS: usize = 1024;

/// Number of changed parents whose memory is prefetched before their sums are recomputed.
const PREFETCHED_PARENTS: usize = 16;

/// An array of sums, whose entries begin as 0.
pub trait Sums: IndexMut<usize, Output = f64> + fmt::Debug {
    /// The `FANOUT` entries from `index` on, a multiple of `FANOUT`.
    fn group(&self, index: usize) -> &[f64];
}

/// Grows page by page.
impl Sums for Pages<f64> {
    fn group(&self, index: usize) -> &[f64] {
        Self::group(self, index, FANOUT)
    }
}

/// An array of fixed length. The system provides its memory as entries are written.
#[derive(Debug)]
pub struct FixedSums(AlignedBytes);

impl FixedSums {
    /// An array of at least `len` entries, in whole groups of `FANOUT`; `None` if the allocation fails.
    fn new(len: usize) -> Option<Self> {
        let bytes = len
            .checked_next_multiple_of(FANOUT)?
            .checked_mul(size_of::<f64>())?;
        AlignedBytes::zeroed(bytes).map(Self)
    }
}

impl Index<usize> for FixedSums {
    type Output = f64;

    fn index(&self, index: usize) -> &f64 {
        &self.0.as_f64s()[index]
    }
}

impl IndexMut<usize> for FixedSums {
    fn index_mut(&mut self, index: usize) -> &mut f64 {
        &mut self.0.as_f64s_mut()[index]
    }
}

impl Sums for FixedSums {
    fn group(&self, index: usize) -> &[f64] {
        &self.0.as_f64s()[index..index + FANOUT]
    }
}

/// The weights of leaves. Each entry above the leaves has the sum of the weights below it, and the smallest of those
/// above 0.
///
/// A parent is always recomputed from all its children, so rounding errors do not accumulate, and the sums depend only
/// on the current weights.
#[derive(Debug)]
pub struct SumTree<S = Pages<f64>> {
    /// `levels[0]` has the leaves. The children of entry `i` of a level are the entries `16 * i..16 * i + 16` of the
    /// level below.
    levels: Vec<Level<S>>,
    /// Number of leaves with a weight above 0.
    non_zero: usize,
    /// Parents of leaves that changed since the last refresh. Neighbouring leaves share a parent, so one refresh after
    /// many changes costs less than a refresh after each change.
    stale: Vec<usize>,
    /// Number of leaves. Each has an ancestor on every other level.
    leaf_count: usize,
}

#[derive(Debug)]
struct Level<S> {
    /// Sum of the weights below each entry; on level 0, the weights of the leaves.
    sums: S,
    /// Smallest weight above 0 below each entry; 0 if there is none. Unused on level 0.
    mins: S,
}

impl Level<Pages<f64>> {
    fn new() -> Self {
        Self {
            sums: Pages::new(0.0),
            mins: Pages::new(0.0),
        }
    }
}

impl Default for SumTree {
    fn default() -> Self {
        let mut tree = Self {
            levels: vec![Level::new(), Level::new()],
            non_zero: 0,
            stale: Vec::new(),
            leaf_count: 0,
        };
        tree.ensure_index(0);
        tree
    }
}

impl SumTree<FixedSums> {
    /// A tree with this number of leaves, which does not grow; `None` if the allocation fails.
    #[must_use]
    pub fn with_leaves(leaf_count: usize) -> Option<Self> {
        let mut levels = vec![Level {
            sums: FixedSums::new(leaf_count)?,
            mins: FixedSums::new(0)?,
        }];
        let mut entries = leaf_count;
        while entries > 1 || levels.len() < 2 {
            entries = entries.div_ceil(FANOUT).max(1);
            levels.push(Level {
                sums: FixedSums::new(entries)?,
                mins: FixedSums::new(entries)?,
            });
        }
        Some(Self {
            levels,
            non_zero: 0,
            stale: Vec::new(),
            leaf_count,
        })
    }

    /// The memory of the sums of each level.
    pub(crate) fn memory(&mut self) -> impl Iterator<Item = &mut AlignedBytes> {
        let levels = self.levels.iter_mut();
        levels.flat_map(|level| [&mut level.sums.0, &mut level.mins.0])
    }
}

impl SumTree {
    /// Grows the tree until leaf `index` exists. New leaves have weight 0.
    pub fn ensure_index(&mut self, index: usize) {
        if index < self.leaf_count {
            return;
        }
        self.leaf_count = index + 1;
        let mut entry = index;
        for depth in 0.. {
            if depth == self.levels.len() {
                self.levels.push(Level::new());
                self.levels[depth].sums.ensure_index(0);
                self.levels[depth].mins.ensure_index(0);
                self.refresh(depth, 0);
            }
            let level = &mut self.levels[depth];
            level.sums.ensure_index(entry);
            if depth > 0 {
                level.mins.ensure_index(entry);
                if entry == 0 && depth + 1 == self.levels.len() {
                    return;
                }
            }
            entry /= FANOUT;
        }
    }
}

impl<S: Sums> SumTree<S> {
    /// Sets the weight of leaf `index`, which must exist. The weight must be finite and at least 0.
    pub fn set(&mut self, index: usize, weight: f64) {
        let old = std::mem::replace(&mut self.levels[0].sums[index], weight);
        self.non_zero += usize::from(weight > 0.0);
        self.non_zero -= usize::from(old > 0.0);
        if self.stale.last() != Some(&(index / FANOUT)) {
            self.stale.push(index / FANOUT);
            if self.stale.len() == MAX_STALE_PARENTS {
                self.refresh_stale();
            }
        }
    }

    /// Recomputes all entries above the leaves that changed since the last refresh.
    fn refresh_stale(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let mut stale = std::mem::take(&mut self.stale);
        stale.sort_unstable();
        for depth in 1..self.levels.len() {
            stale.dedup();
            for number in 0..stale.len() {
                if let Some(later) = stale.get(number + PREFETCHED_PARENTS) {
                    prefetch_group(&self.levels[depth - 1].sums, *later);
                    if depth > 1 {
                        prefetch_group(&self.levels[depth - 1].mins, *later);
                    }
                    prefetch_line(&raw const self.levels[depth].sums[*later]);
                    prefetch_line(&raw const self.levels[depth].mins[*later]);
                }
                self.refresh(depth, stale[number]);
                stale[number] /= FANOUT;
            }
        }
        stale.clear();
        self.stale = stale;
    }

    /// Recomputes an entry from its children.
    fn refresh(&mut self, depth: usize, index: usize) {
        let below = &self.levels[depth - 1];
        let sums = below.sums.group(index * FANOUT);
        let mins = if depth == 1 {
            sums
        } else {
            below.mins.group(index * FANOUT)
        };
        let (sum, min) = sum_and_min(sums, mins);
        self.levels[depth].sums[index] = sum;
        self.levels[depth].mins[index] = if min.is_finite() { min } else { 0.0 };
    }

    /// Prefetches leaf `index` and its siblings.
    pub fn prefetch(&self, index: usize) {
        prefetch_group(&self.levels[0].sums, index / FANOUT);
    }

    /// Weight of leaf `index`.
    #[must_use]
    pub fn weight(&self, index: usize) -> f64 {
        self.levels[0].sums[index]
    }

    /// Sum of all weights.
    #[must_use]
    pub fn total(&mut self) -> f64 {
        self.refresh_stale();
        self.levels[self.levels.len() - 1].sums[0]
    }

    /// Smallest non-zero weight; infinite if all are 0.
    #[must_use]
    pub fn min_weight(&mut self) -> f64 {
        self.refresh_stale();
        let min = self.levels[self.levels.len() - 1].mins[0];
        if min > 0.0 { min } else { f64::INFINITY }
    }

    /// Number of leaves with a weight above 0.
    #[must_use]
    pub fn non_zero(&self) -> usize {
        self.non_zero
    }

    /// For each of `masses`, numbers in `[0, total]`, appends to `leaves` the first leaf for which the sum of all
    /// weights up to and including its own exceeds the mass; if the mass equals the total, the last leaf with a weight
    /// above 0. Rounding of the sums can shift the choice to a leaf nearby.
    ///
    /// The appended leaves always have a weight above 0. The total must be above 0.
    pub fn find(&mut self, masses: &[f64], leaves: &mut Vec<usize>) {
        self.refresh_stale();
        for masses in masses.chunks(DRAWS_TOGETHER) {
            // Per draw, the mass minus the weights of all leaves before the entry reached so far.
            let mut remaining = [0.0; DRAWS_TOGETHER];
            remaining[..masses.len()].copy_from_slice(masses);
            let mut indices = [0_usize; DRAWS_TOGETHER];
            for depth in (1..self.levels.len()).rev() {
                let below = &self.levels[depth - 1].sums;
                let next = depth.checked_sub(2).map(|depth| &self.levels[depth].sums);
                for (index, mass) in indices.iter_mut().zip(&mut remaining).take(masses.len()) {
                    if let Some(group) = below.group(*index * FANOUT).first_chunk() {
                        let (child, rest) = descend(group, *mass);
                        *index = *index * FANOUT + child;
                        *mass = rest;
                    }
                    if let Some(next) = next {
                        prefetch_group(next, *index);
                    }
                }
            }
            leaves.extend_from_slice(&indices[..masses.len()]);
        }
    }
}

/// The sum of `sums`, and the smallest of `mins` above 0, or infinity.
fn sum_and_min(sums: &[f64], mins: &[f64]) -> (f64, f64) {
    // Four lanes and no branches, so that the compiler uses vector instructions.
    let (mut sum, mut min) = ([0.0; 4], [f64::INFINITY; 4]);
    let quads = sums.as_chunks::<4>().0.iter().zip(mins.as_chunks::<4>().0);
    for (sums, mins) in quads.take(FANOUT / 4) {
        for lane in 0..4 {
            sum[lane] += sums[lane];
            let positive = if mins[lane] > 0.0 {
                mins[lane]
            } else {
                f64::INFINITY
            };
            min[lane] = smaller(positive, min[lane]);
        }
    }
    let min = [smaller(min[0], min[2]), smaller(min[1], min[3])];
    (
        (sum[0] + sum[1]) + (sum[2] + sum[3]),
        smaller(min[0], min[1]),
    )
}

/// The smaller of two numbers, none of which is NaN. Unlike `f64::min`, it is one instruction.
fn smaller(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// Prefetches the children of an entry: two cache lines.
fn prefetch_group(sums: &impl Sums, parent: usize) {
    let group = sums.group(parent * FANOUT);
    prefetch_line(&raw const group[0]);
    prefetch_line(&raw const group[FANOUT / 2]);
}

/// Returns the first child for which the sum of `sums` up to and including its own exceeds `mass`, and the mass minus
/// the sums before this child.
///
/// Instead of searching, counts the prefix sums that the mass has passed, first those of "quads" of four children, then
/// those within one quad. Without branches that can be mispredicted, the processor overlaps several draws.
fn descend(sums: &[f64; FANOUT], mass: f64) -> (usize, f64) {
    let (quads, _) = sums.as_chunks::<4>();
    let [a, b, c, d] =
        [0, 1, 2, 3].map(|i| (quads[i][0] + quads[i][1]) + (quads[i][2] + quads[i][3]));
    let ends = [a, a + b, (a + b) + c];
    let (quad, remaining) = count_passed(ends, mass);
    let [a, b, c, _] = quads[quad];
    let (child, remaining) = count_passed([a, a + b, (a + b) + c], remaining);
    let child = quad * 4 + child;
    if remaining < sums[child] && mass < ends[2] + d {
        return (child, remaining);
    }
    child_after_rounding(sums, quad)
}

/// The number of prefix sums that are at most `mass`, and `mass` minus the largest of these.
fn count_passed(prefix_sums: [f64; 3], mass: f64) -> (usize, f64) {
    let [a, b, c] = prefix_sums;
    let passed = usize::from(mass >= a) + usize::from(mass >= b) + usize::from(mass >= c);
    (passed, mass - [0.0, a, b, c][passed])
}

/// Returns the child for a mass that, through rounding, is in no child's range: the last non-zero child up to the end
/// of quad `quad`, or else the first non-zero child. Also returns the child's whole sum as the remaining mass, so that
/// the levels below choose their last non-zero child, too.
#[cold]
fn child_after_rounding(sums: &[f64; FANOUT], quad: usize) -> (usize, f64) {
    let is_positive = |sum: &f64| *sum > 0.0;
    let last = sums[..quad * 4 + 4].iter().rposition(is_positive);
    let child = last
        .or_else(|| sums.iter().position(is_positive))
        .unwrap_or(0);
    (child, sums[child])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(tree: &mut SumTree<impl Sums>, mass: f64) -> usize {
        let mut leaves = Vec::new();
        tree.find(&[mass], &mut leaves);
        leaves[0]
    }

    #[test]
    fn a_mass_at_the_end_finds_the_last_non_zero_leaf() {
        let mut tree = SumTree::with_leaves(10).unwrap();
        assert!(tree.min_weight().is_infinite());
        for leaf in 0..9 {
            tree.set(leaf, 0.1);
        }
        tree.set(9, 0.0);
        assert_eq!(
            {
                let total = tree.total();
                find(&mut tree, total)
            },
            8
        );
        assert_eq!((tree.non_zero(), tree.min_weight()), (9, 0.1));
    }

    #[test]
    fn grows_without_losing_weight() {
        let mut tree = SumTree::default();
        for (leaf, weight) in [(0, 1.0), (1_000_000, 2.0), (17, 4.0)] {
            tree.ensure_index(leaf);
            tree.set(leaf, weight);
        }
        assert!((tree.total() - 7.0).abs() < 1e-12);
        assert_eq!(find(&mut tree, 0.5), 0);
        assert_eq!(find(&mut tree, 1.5), 17);
        assert_eq!(find(&mut tree, 6.5), 1_000_000);
    }

    proptest! {
        #[test]
        fn agrees_with_a_running_sum(
            sets in prop::collection::vec((0..600_usize, 0..5_u32), 1..200),
            units in prop::collection::vec(0.0..1.0_f64, 1..80),
        ) {
            let last = sets.iter().map(|(leaf, _)| *leaf).max().unwrap();
            let mut growing = SumTree::default();
            for (leaf, _) in &sets {
                growing.ensure_index(*leaf);
            }
            check(&mut growing, &sets, &units)?;
            check(&mut SumTree::with_leaves(last + 1).unwrap(), &sets, &units)?;
        }
    }

    /// Sets weights and compares the tree with a list of them.
    fn check(
        tree: &mut SumTree<impl Sums>,
        sets: &[(usize, u32)],
        units: &[f64],
    ) -> Result<(), TestCaseError> {
        let mut model = vec![0.0_f64; 600];
        for (leaf, weight) in sets {
            tree.set(*leaf, f64::from(*weight));
            model[*leaf] = f64::from(*weight);
        }
        // Small integers: every sum is exact.
        let total: f64 = model.iter().sum();
        prop_assert!(tree.total().total_cmp(&total).is_eq());
        prop_assert_eq!(tree.non_zero(), model.iter().filter(|w| **w > 0.0).count());
        let positive = model.iter().copied().filter(|w| *w > 0.0);
        let min = positive.fold(f64::INFINITY, f64::min);
        prop_assert!(tree.min_weight().total_cmp(&min).is_eq());
        if total > 0.0 {
            let masses: Vec<f64> = units.iter().map(|u| u * total).collect();
            let mut leaves = Vec::new();
            tree.find(&masses, &mut leaves);
            for (mass, leaf) in masses.iter().zip(leaves) {
                let mut before = 0.0;
                let expected = model.iter().position(|w| {
                    before += w;
                    *mass < before
                });
                prop_assert_eq!(Some(leaf), expected);
            }
        }
        Ok(())
    }
}
