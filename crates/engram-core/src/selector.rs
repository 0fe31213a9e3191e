//! Strategies that choose among a table's items, for sampling and for removal.

mod dense;
mod heap;
mod order;
mod pick;
mod prioritized;

use std::fmt;

use crate::error::{Error, Result};
use crate::item::{Rank, Slot};
use crate::pages::CopyablePages;
use dense::DenseSlots;
use heap::Heap;
use order::InsertionOrder;
pub use pick::{DrawDistribution, Pick, TableRng};
pub(crate) use pick::{uniform_below, uniform_unit};
pub use prioritized::MAX_WEIGHT;
use prioritized::Prioritized;
pub(crate) use prioritized::{distribution, draw, weight};

/// A strategy and its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SelectorKind {
    /// Oldest first.
    Fifo,
    /// Newest first.
    Lifo,
    /// All items with equal probability.
    Uniform,
    /// With probability proportional to `priority ^ exponent`.
    Prioritized {
        /// The power that priorities are raised to. With 0, all items of non-zero priority are equally
        /// likely.
        exponent: f64,
    },
    /// Lowest priority first.
    MinHeap,
    /// Highest priority first.
    MaxHeap,
}

/// Makes a list of all selectors and a `match` of the same kinds, so that a list without one of them does not compile.
macro_rules! list_selectors {
    ($($kind:ident $({ $($parameters:tt)* })?),+) => {
        /// A selector of each kind. New kinds are appended: their numbers on disk are the positions in this list.
        pub const ALL: &[Self] = &[$(Self::$kind $({ $($parameters)* })?),+];

        /// Name of the kind.
        #[must_use]
        pub const fn name(self) -> &'static str {
            match self {
                $(Self::$kind { .. } => stringify!($kind)),+
            }
        }
    };
}

impl SelectorKind {
    list_selectors!(
        Fifo,
        Lifo,
        Uniform,
        Prioritized { exponent: 0.6 },
        MinHeap,
        MaxHeap
    );

    /// The exponent, if this kind has one.
    #[must_use]
    pub const fn exponent(self) -> Option<f64> {
        match self {
            Self::Prioritized { exponent } => Some(exponent),
            Self::Fifo | Self::Lifo | Self::Uniform | Self::MinHeap | Self::MaxHeap => None,
        }
    }

    /// The same kind with this exponent, which a kind without one ignores.
    #[must_use]
    pub const fn with_exponent(self, exponent: f64) -> Self {
        match self {
            Self::Prioritized { .. } => Self::Prioritized { exponent },
            Self::Fifo | Self::Lifo | Self::Uniform | Self::MinHeap | Self::MaxHeap => self,
        }
    }

    /// True if it draws items at random, by weight; false if it returns the first of an order.
    #[must_use]
    pub const fn is_random(self) -> bool {
        match self {
            Self::Uniform | Self::Prioritized { .. } => true,
            Self::Fifo | Self::Lifo | Self::MinHeap | Self::MaxHeap => false,
        }
    }

    /// Checks one priority.
    ///
    /// # Errors
    /// [`Error::Priority`] if the priority is NaN; for `Prioritized` also if it is negative or infinite, or its weight
    /// is too large.
    pub fn check_priority(&self, table: &str, priority: f64) -> Result<()> {
        self.check_priority_for(format_args!("table `{table}`"), priority)
    }

    /// [`SelectorKind::check_priority`] for an item of `owner`, a table or a replay buffer.
    pub(crate) fn check_priority_for(&self, owner: impl fmt::Display, priority: f64) -> Result<()> {
        if priority.is_nan() {
            return Err(Error::Priority(format!(
                "priority for {owner} is NaN; it must be a number"
            )));
        }
        let exponent = match *self {
            Self::Prioritized { exponent } => exponent,
            Self::Fifo | Self::Lifo | Self::Uniform | Self::MinHeap | Self::MaxHeap => {
                return Ok(());
            }
        };
        if !(priority.is_finite() && priority >= 0.0) {
            return Err(Error::Priority(format!(
                "priority for {owner} is {priority}; a Prioritized selector needs a finite value that is not negative"
            )));
        }
        if has_usual_weights(exponent) && is_usual(priority) {
            return Ok(());
        }
        let weight = prioritized::weight(priority, exponent);
        if weight <= prioritized::MAX_WEIGHT {
            return Ok(());
        }
        Err(Error::Priority(format!(
            "priority {priority:?} for {owner}: its weight, `priority ** {exponent}` (the exponent of the \
             Prioritized selector), must be at most {:e}; got {weight:e}; give a priority closer to 1 or an exponent \
             closer to 0",
            prioritized::MAX_WEIGHT
        )))
    }

    /// [`SelectorKind::check_priority_for`] for each of `priorities`, in order.
    pub(crate) fn check_priorities_for(
        &self,
        owner: impl fmt::Display + Copy,
        priorities: &[f64],
    ) -> Result<()> {
        // Without branches, so that the compiler uses vector instructions.
        let all_usual = |all, priority: &f64| all & is_usual(*priority);
        if self.exponent().is_some_and(has_usual_weights) && priorities.iter().fold(true, all_usual)
        {
            return Ok(());
        }
        let mut priorities = priorities.iter();
        priorities.try_for_each(|priority| self.check_priority_for(owner, *priority))
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the exponent is not finite.
    pub fn check(&self, table: &str) -> Result<()> {
        match self.exponent() {
            Some(exponent) if !exponent.is_finite() => Err(Error::InvalidArgument(format!(
                "exponent of the {} selector of table `{table}` must be finite; got {exponent}",
                self.name()
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

/// True if the weights of all priorities that are [usual](is_usual) stay below the limit with this exponent. Computing the
/// weights would be slow.
fn has_usual_weights(exponent: f64) -> bool {
    exponent.abs() <= 2.0
}

/// True unless a priority is very large or small, or not a number above 0.
fn is_usual(priority: f64) -> bool {
    (1e-140..1e140).contains(&priority)
}

/// A strategy and the items it chooses among.
#[derive(Debug)]
pub enum Selector {
    /// `Fifo` and `Lifo`.
    Order(InsertionOrder),
    /// `Uniform`.
    Uniform(DenseSlots),
    /// `Prioritized`.
    Prioritized(Prioritized),
    /// `MinHeap` and `MaxHeap`.
    Heap(Heap),
}

impl Selector {
    /// A selector without items.
    #[must_use]
    pub fn new(kind: SelectorKind) -> Self {
        match kind {
            SelectorKind::Fifo => Self::Order(InsertionOrder::oldest_first()),
            SelectorKind::Lifo => Self::Order(InsertionOrder::newest_first()),
            SelectorKind::Uniform => Self::Uniform(DenseSlots::default()),
            SelectorKind::Prioritized { exponent } => Self::Prioritized(Prioritized::new(exponent)),
            SelectorKind::MinHeap => Self::Heap(Heap::lowest_first()),
            SelectorKind::MaxHeap => Self::Heap(Heap::highest_first()),
        }
    }

    /// Adds an item. For `Fifo` and `Lifo`, it must be newer than all others.
    pub fn insert(&mut self, slot: Slot, rank: Rank) {
        match self {
            Self::Order(order) => order.push_newest(slot, rank.seq),
            Self::Uniform(slots) => {
                slots.insert(slot);
            }
            Self::Prioritized(prioritized) => prioritized.insert(slot, rank.priority),
            Self::Heap(heap) => heap.insert(slot, rank),
        }
    }

    /// Adds an item again that was removed. It regains its position in the insertion order.
    pub fn reinsert(&mut self, slot: Slot, rank: Rank) {
        match self {
            Self::Order(order) => order.reinsert(slot, rank.seq),
            Self::Uniform(_) | Self::Prioritized(_) | Self::Heap(_) => self.insert(slot, rank),
        }
    }

    /// Removes an item.
    pub fn remove(&mut self, slot: Slot) {
        match self {
            Self::Order(order) => order.remove(slot),
            Self::Uniform(slots) => slots.remove(slot),
            Self::Prioritized(prioritized) => prioritized.remove(slot),
            Self::Heap(heap) => heap.remove(slot),
        }
    }

    /// Updates an item's priority.
    pub fn update(&mut self, slot: Slot, rank: Rank) {
        match self {
            Self::Order(_) | Self::Uniform(_) => {}
            Self::Prioritized(prioritized) => prioritized.update(slot, rank.priority),
            Self::Heap(heap) => heap.update(slot, rank),
        }
    }

    /// Prefetches the memory that updates of these slots will access, if the strategy needs it.
    pub fn prefetch(&self, slots: impl Iterator<Item = Slot>) {
        match self {
            Self::Prioritized(prioritized) => prioritized.prefetch(slots),
            Self::Order(_) | Self::Uniform(_) | Self::Heap(_) => {}
        }
    }

    /// The slots that the next choices are likely to have, as far as that is known without work: those of `Fifo` and
    /// `Lifo`, if no slot was reinserted.
    pub(crate) fn next_choices(&self) -> impl Iterator<Item = Slot> {
        match self {
            Self::Order(order) => Some(order.linked(order.newest_first)),
            Self::Uniform(_) | Self::Prioritized(_) | Self::Heap(_) => None,
        }
        .into_iter()
        .flatten()
    }

    /// True if choices are random: [`Selector::pick`] advances the generator, whose state is therefore recorded with
    /// each change.
    #[must_use]
    pub fn is_random(&self) -> bool {
        match self {
            Self::Uniform(_) | Self::Prioritized(_) => true,
            Self::Order(_) | Self::Heap(_) => false,
        }
    }

    /// The slots in an order that choices depend on and that snapshots therefore save: every visible item once. A
    /// checkpoint is restored by inserting the items in this order. `None` if choices depend only on the ranks of the items;
    /// then they are inserted from oldest to newest. Independent of [`Selector::is_random`].
    pub(crate) fn slots(&mut self) -> Option<&mut CopyablePages<Slot>> {
        match self {
            Self::Uniform(slots) => Some(slots.slots()),
            Self::Prioritized(prioritized) => Some(prioritized.slots()),
            Self::Order(_) | Self::Heap(_) => None,
        }
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Order(order) => order.len(),
            Self::Uniform(slots) => slots.len(),
            Self::Prioritized(prioritized) => prioritized.len(),
            Self::Heap(heap) => heap.len(),
        }
    }

    /// True if there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The distribution of the next choice.
    #[must_use]
    pub fn distribution(&mut self) -> DrawDistribution {
        match self {
            Self::Prioritized(prioritized) => prioritized.distribution(),
            Self::Uniform(slots) => DrawDistribution::uniform(slots.len()),
            Self::Order(order) => DrawDistribution::first_of(order.len()),
            Self::Heap(heap) => DrawDistribution::first_of(heap.len()),
        }
    }

    /// Chooses an item `n` times, with replacement, and appends the choices to `picks`; a strategy that is not random
    /// chooses the same item each time. The selector must not be empty.
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
            Self::Uniform(slots) => slots.pick(n, rng, picks),
            Self::Prioritized(prioritized) => prioritized.pick(n, rng, picks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exponent_that_is_not_finite_is_rejected() {
        let selector = SelectorKind::Prioritized { exponent: f64::NAN };
        assert_eq!(
            selector.check("t").unwrap_err().to_string(),
            "exponent of the Prioritized selector of table `t` must be finite; got NaN"
        );
        assert!(SelectorKind::ALL.iter().all(|each| each.check("t").is_ok()));
    }
}
