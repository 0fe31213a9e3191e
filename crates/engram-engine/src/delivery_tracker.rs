//! Leases of the batches that a reader has received and not completely acknowledged.

use std::collections::VecDeque;

/// Leases of the batches that a reader has received, oldest first.
///
/// A reader acknowledges items with one number, which counts all items acknowledged so far. These are
/// always the first items that it received, so the count determines which batches are acknowledged.
#[derive(Debug)]
pub struct DeliveryTracker<L> {
    /// Number of items and lease of each batch.
    leases: VecDeque<(u64, L)>,
    /// Number of items in the batches removed from the front of `leases`: all count as acknowledged.
    items_of_popped_batches: u64,
}

/// How much of a lease was acknowledged when its reader ended.
#[derive(Debug)]
pub enum LeaseOutcome<L> {
    /// All items.
    Acknowledged(L),
    /// Only this many items, counted from the first.
    PartlyAcknowledged(usize, L),
    /// No item.
    Unacknowledged(L),
}

impl<L> Default for DeliveryTracker<L> {
    fn default() -> Self {
        Self {
            leases: VecDeque::new(),
            items_of_popped_batches: 0,
        }
    }
}

impl<L> DeliveryTracker<L> {
    /// Adds a batch of this many items, which the reader receives now.
    pub fn push(&mut self, items: usize, lease: L) {
        self.leases.push_back((items as u64, lease));
    }

    /// Number of batches that were added and not removed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// True if all batches were removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Removes the newest batch, for example because it did not reach its reader; returns its lease.
    pub fn pop_newest(&mut self) -> Option<L> {
        self.leases.pop_back().map(|(_, lease)| lease)
    }

    /// Removes the oldest batch; returns its lease. Its items count as acknowledged from now on.
    pub fn pop_oldest(&mut self) -> Option<L> {
        let (items, lease) = self.leases.pop_front()?;
        self.items_of_popped_batches += items;
        Some(lease)
    }

    /// Removes the oldest batch if all its items are among the first `acknowledged` items that the reader
    /// received; returns its lease.
    pub fn pop_acknowledged(&mut self, acknowledged: u64) -> Option<L> {
        let (items, _) = self.leases.front()?;
        if *items > acknowledged.saturating_sub(self.items_of_popped_batches) {
            return None;
        }
        self.pop_oldest()
    }

    /// Removes all batches, oldest first, for a reader that has acknowledged exactly the first
    /// `acknowledged` items.
    pub fn finish(&mut self, acknowledged: u64) -> impl Iterator<Item = LeaseOutcome<L>> {
        let mut left = acknowledged.saturating_sub(self.items_of_popped_batches);
        let leases = std::mem::take(&mut self.leases);
        leases.into_iter().map(move |(items, lease)| {
            let count = left.min(items);
            left -= count;
            if count == items {
                return LeaseOutcome::Acknowledged(lease);
            }
            match usize::try_from(count) {
                Ok(count) if count > 0 => LeaseOutcome::PartlyAcknowledged(count, lease),
                // An `Err` is impossible: `push` received the batch's size as `usize`.
                _ => LeaseOutcome::Unacknowledged(lease),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_batches() -> DeliveryTracker<char> {
        let mut deliveries = DeliveryTracker::default();
        for (items, lease) in [(2, 'a'), (3, 'b'), (1, 'c')] {
            deliveries.push(items, lease);
        }
        deliveries
    }

    fn describe(outcomes: impl Iterator<Item = LeaseOutcome<char>>) -> String {
        let describe_one = |outcome| match outcome {
            LeaseOutcome::Acknowledged(lease) => format!("{lease} all"),
            LeaseOutcome::PartlyAcknowledged(count, lease) => format!("{lease} {count}"),
            LeaseOutcome::Unacknowledged(lease) => format!("{lease} none"),
        };
        outcomes.map(describe_one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_count_acknowledges_the_first_items() {
        for (acknowledged, expected) in [
            (0, "a none, b none, c none"),
            (1, "a 1, b none, c none"),
            (2, "a all, b none, c none"),
            (4, "a all, b 2, c none"),
            (5, "a all, b all, c none"),
            (6, "a all, b all, c all"),
            (u64::MAX, "a all, b all, c all"),
        ] {
            assert_eq!(describe(three_batches().finish(acknowledged)), expected);
        }
    }

    #[test]
    fn only_completely_acknowledged_batches_are_popped() {
        let mut deliveries = three_batches();
        assert_eq!(deliveries.pop_acknowledged(1), None);
        assert_eq!(deliveries.pop_acknowledged(4), Some('a'));
        assert_eq!(deliveries.pop_acknowledged(4), None);
        assert_eq!(deliveries.pop_newest(), Some('c'));
        deliveries.push(2, 'd');
        assert_eq!(describe(deliveries.finish(6)), "b all, d 1");
        assert!(deliveries.is_empty());
    }

    #[test]
    fn items_of_a_popped_batch_count_once() {
        let mut deliveries = three_batches();
        assert_eq!(deliveries.pop_oldest(), Some('a'));
        assert_eq!(deliveries.pop_acknowledged(0), None);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(describe(deliveries.finish(3)), "b 1, c none");
        assert_eq!(deliveries.pop_oldest(), None);
    }
}
