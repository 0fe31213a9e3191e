//! Strategies that choose among a table's items: for sampling or for removal, any for either.

mod dense;
mod heap;
mod order;
mod prioritized;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::error::{Error, Result};
use crate::item::{Rank, Slot};
use crate::pages::CopyablePages;
use dense::Dense;
use heap::Heap;
use order::Order;
use prioritized::Prioritized;

/// The generator behind every random choice of a table.
pub type TableRng = Xoshiro256PlusPlus;

/// Which strategy, and its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SelectorKind {
    /// Oldest first.
    Fifo,
    /// Newest first.
    Lifo,
    /// Every item alike.
    Uniform,
    /// In proportion to `priority ^ exponent`.
    Prioritized {
        /// 0 makes all non-zero priorities alike.
        exponent: f64,
    },
    /// Lowest priority first.
    MinHeap,
    /// Highest priority first.
    MaxHeap,
}

impl SelectorKind {
    /// Checks one priority.
    ///
    /// # Errors
    /// [`Error::Priority`]: NaN anywhere; negative, infinite or too heavy where it is a weight.
    pub fn check_priority(&self, table: &str, priority: f64) -> Result<()> {
        if priority.is_nan() {
            return Err(Error::Priority(format!(
                "priority for table `{table}` is NaN; it must be a number"
            )));
        }
        let Self::Prioritized { exponent } = *self else {
            return Ok(());
        };
        if !(priority.is_finite() && priority >= 0.0) {
            return Err(Error::Priority(format!(
                "priority for table `{table}` is {priority}; a Prioritized selector takes finite values from 0"
            )));
        }
        // Powers are slow, and hardly any priority comes near the limit.
        if exponent.abs() <= 2.0 && (1e-140..1e140).contains(&priority) {
            return Ok(());
        }
        let weight = prioritized::weight(priority, exponent);
        if weight <= prioritized::MAX_WEIGHT {
            return Ok(());
        }
        Err(Error::Priority(format!(
            "priority {priority} for table `{table}` weighs {weight} (exponent {exponent}); at most {} is allowed",
            prioritized::MAX_WEIGHT
        )))
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the exponent is not finite.
    pub fn check(&self, table: &str) -> Result<()> {
        match self {
            Self::Prioritized { exponent } if !exponent.is_finite() => {
                Err(Error::InvalidArgument(format!(
                    "exponent of Prioritized of table `{table}` is {exponent}; it must be finite"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// One chosen item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// Where it is.
    pub slot: Slot,
    /// With what probability it was chosen: 1 for the deterministic strategies.
    pub probability: f64,
}

/// A strategy and the items it chooses among.
#[derive(Debug)]
pub enum Selector {
    /// Both ends of one order.
    Order(Order),
    /// Uniform.
    Dense(Dense),
    /// Weighted.
    Prioritized(Prioritized),
    /// Either end of the priorities.
    Heap(Heap),
}

impl Selector {
    /// A strategy with nothing to choose from.
    #[must_use]
    pub fn new(kind: SelectorKind) -> Self {
        match kind {
            SelectorKind::Fifo => Self::Order(Order::oldest_first()),
            SelectorKind::Lifo => Self::Order(Order::newest_first()),
            SelectorKind::Uniform => Self::Dense(Dense::default()),
            SelectorKind::Prioritized { exponent } => Self::Prioritized(Prioritized::new(exponent)),
            SelectorKind::MinHeap => Self::Heap(Heap::lowest_first()),
            SelectorKind::MaxHeap => Self::Heap(Heap::highest_first()),
        }
    }

    /// Adds an item that is newer than all others.
    pub fn insert(&mut self, slot: Slot, rank: Rank) {
        match self {
            Self::Order(order) => order.push_newest(slot, rank.seq),
            Self::Dense(dense) => {
                dense.insert(slot);
            }
            Self::Prioritized(prioritized) => prioritized.insert(slot, rank.priority),
            Self::Heap(heap) => heap.insert(slot, rank),
        }
    }

    /// Adds an item that was here before, at its old place.
    pub fn reinsert(&mut self, slot: Slot, rank: Rank) {
        match self {
            Self::Order(order) => order.reinsert(slot, rank.seq),
            _ => self.insert(slot, rank),
        }
    }

    /// Takes an item out.
    pub fn remove(&mut self, slot: Slot) {
        match self {
            Self::Order(order) => order.remove(slot),
            Self::Dense(dense) => dense.remove(slot),
            Self::Prioritized(prioritized) => prioritized.remove(slot),
            Self::Heap(heap) => heap.remove(slot),
        }
    }

    /// Takes note of a new priority.
    pub fn update(&mut self, slot: Slot, rank: Rank) {
        match self {
            Self::Order(_) | Self::Dense(_) => {}
            Self::Prioritized(prioritized) => prioritized.update(slot, rank.priority),
            Self::Heap(heap) => heap.update(slot, rank),
        }
    }

    /// Asks for the memory that an update of these slots will need.
    pub fn prefetch(&self, slots: impl Iterator<Item = Slot>) {
        if let Self::Prioritized(prioritized) = self {
            prioritized.prefetch(slots);
        }
    }

    /// True where chance plays a part: picking moves the generator on.
    #[must_use]
    pub fn is_random(&self) -> bool {
        matches!(self, Self::Dense(_) | Self::Prioritized(_))
    }

    /// The slots in the order that random draws depend on, if they do.
    pub(crate) fn slots(&mut self) -> Option<&mut CopyablePages<Slot>> {
        match self {
            Self::Dense(dense) => Some(dense.slots()),
            Self::Prioritized(prioritized) => Some(prioritized.slots()),
            Self::Order(_) | Self::Heap(_) => None,
        }
    }

    /// How many items there are to choose from.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Order(order) => order.len(),
            Self::Dense(dense) => dense.len(),
            Self::Prioritized(prioritized) => prioritized.len(),
            Self::Heap(heap) => heap.len(),
        }
    }

    /// True when there is nothing to choose.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many items could be chosen next, and the probability of the least likely of them.
    #[must_use]
    pub fn odds(&mut self) -> Odds {
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        match self {
            Self::Prioritized(prioritized) => prioritized.odds(),
            Self::Dense(dense) => Odds {
                candidates: dense.len() as u64,
                min_probability: 1.0 / dense.len() as f64,
            },
            Self::Order(_) | Self::Heap(_) => Odds {
                candidates: 1,
                min_probability: 1.0,
            },
        }
    }

    /// Chooses `n` times, with replacement. There must be something to choose.
    pub fn pick(&mut self, n: usize, rng: &mut TableRng, picks: &mut Vec<Pick>) {
        match self {
            Self::Order(order) => picks.extend(std::iter::repeat_n(
                Pick {
                    slot: order.first(),
                    probability: 1.0,
                },
                n,
            )),
            Self::Heap(heap) => picks.extend(std::iter::repeat_n(
                Pick {
                    slot: heap.first(),
                    probability: 1.0,
                },
                n,
            )),
            Self::Dense(dense) => dense.pick(n, rng, picks),
            Self::Prioritized(prioritized) => prioritized.pick(n, rng, picks),
        }
    }
}

/// What importance weights need to know about a draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odds {
    /// Items that could have been drawn.
    pub candidates: u64,
    /// Probability of the least likely of them.
    pub min_probability: f64,
}

/// Uniform in `[0, 1)`.
fn uniform_unit(rng: &mut TableRng) -> f64 {
    const STEP: f64 = 1.0 / 9_007_199_254_740_992.0; // 2^-53
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let bits = (rng.next_u64() >> 11) as f64;
    bits * STEP
}

/// Uniform in `0..n`. The bias of the multiply is below 2^-32 for any table.
fn uniform_below(rng: &mut TableRng, n: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the high half is below n")]
    let at = ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize;
    at
}
