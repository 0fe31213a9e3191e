//! One choice of a selector: random numbers, result and distribution.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::item::Slot;

/// The random generator of a table.
pub type TableRng = Xoshiro256PlusPlus;

/// One choice of a selector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// Slot of the chosen item.
    pub slot: Slot,
    /// The probability of the choice; 1 for deterministic strategies.
    pub probability: f64,
}

/// Properties of the distribution of a draw, as needed for importance weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawDistribution {
    /// Number of items with a non-zero probability.
    pub candidates: u64,
    /// Smallest non-zero probability.
    pub min_probability: f64,
    /// Sum of the weights of all items, except hidden ones. Each weighs 1, unless the selector is Prioritized.
    pub total_weight: f64,
}

impl DrawDistribution {
    /// All of `candidates` items are equally likely.
    #[must_use]
    pub fn uniform(candidates: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        let total_weight = candidates as f64;
        Self {
            candidates: candidates as u64,
            min_probability: 1.0 / total_weight,
            total_weight,
        }
    }

    /// One of this many items is certain.
    pub(super) fn first_of(items: usize) -> Self {
        Self {
            total_weight: Self::uniform(items).total_weight,
            ..Self::uniform(1)
        }
    }

    /// The importance weight of an item of this probability, `(1 / (candidates * probability)) ^ beta` (Schaul et al.
    /// 2016, section 3.4), not divided by a largest weight.
    #[must_use]
    pub fn importance_weight(&self, probability: f64, beta: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        let candidates = self.candidates as f64;
        (1.0 / (candidates * probability)).powf(beta)
    }
}

/// A random number, uniform in `[0, 1)`.
pub(crate) fn uniform_unit(rng: &mut TableRng) -> f64 {
    const STEP: f64 = 1.0 / 9_007_199_254_740_992.0; // 2^-53
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let bits = (rng.next_u64() >> 11) as f64;
    bits * STEP
}

/// A random number, uniform in `0..n` with a bias below 2^-32 for any table size.
pub(crate) fn uniform_below(rng: &mut TableRng, n: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the high half is below n")]
    let number = ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize;
    number
}
