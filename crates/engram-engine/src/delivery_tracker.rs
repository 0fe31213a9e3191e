//! Leases of the batches that a stream has delivered and whose items are not yet acknowledged.

use std::collections::VecDeque;

/// Leases of delivered batches, oldest first.
///
/// A reader reports one number: how many items it has used of all those delivered to it. These are
/// always the first ones, so the count determines which leases are used up.
#[derive(Debug)]
pub struct DeliveryTracker<L> {
    /// Number of items and lease of each batch.
    leases: VecDeque<(u64, L)>,
    /// Items of batches that were removed from the front of `leases`: all of them count as used.
    settled: u64,
}

/// How much of a lease was used when its reader ended.
#[derive(Debug)]
pub enum LeaseOutcome<L> {
    /// All items were used.
    Used(L),
    /// Only this many items were used, from the first on.
    PartlyUsed(usize, L),
    /// No item was used.
    Unused(L),
}

impl<L> Default for DeliveryTracker<L> {
    fn default() -> Self {
        Self {
            leases: VecDeque::new(),
            settled: 0,
        }
    }
}

impl<L> DeliveryTracker<L> {
    /// Adds a batch of this many items, which is delivered to the reader now.
    pub fn push(&mut self, items: usize, lease: L) {
        self.leases.push_back((items as u64, lease));
    }

    /// Number of batches whose leases are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// True if no lease is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Removes the newest batch, which did not reach its reader.
    pub fn pop_newest(&mut self) -> Option<L> {
        self.leases.pop_back().map(|(_, lease)| lease)
    }

    /// Removes the oldest batch; its items count as used from now on, even if they were not.
    pub fn pop_oldest(&mut self) -> Option<L> {
        let (items, lease) = self.leases.pop_front()?;
        self.settled += items;
        Some(lease)
    }

    /// Removes the oldest batch if all its items are among the first `used`.
    pub fn pop_used(&mut self, used: u64) -> Option<L> {
        let (items, _) = self.leases.front()?;
        if *items > used.saturating_sub(self.settled) {
            return None;
        }
        self.pop_oldest()
    }

    /// Removes all batches, oldest first, for a reader that has used exactly the first `used` items.
    pub fn finish(&mut self, used: u64) -> impl Iterator<Item = LeaseOutcome<L>> {
        let mut left = used.saturating_sub(self.settled);
        let leases = std::mem::take(&mut self.leases);
        leases.into_iter().map(move |(items, lease)| {
            let used_of_batch = left.min(items);
            left -= used_of_batch;
            match usize::try_from(used_of_batch) {
                _ if used_of_batch == items => LeaseOutcome::Used(lease),
                Ok(0) | Err(_) => LeaseOutcome::Unused(lease),
                Ok(count) => LeaseOutcome::PartlyUsed(count, lease),
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
        let word = |outcome| match outcome {
            LeaseOutcome::Used(lease) => format!("{lease} used"),
            LeaseOutcome::PartlyUsed(count, lease) => format!("{lease} {count}"),
            LeaseOutcome::Unused(lease) => format!("{lease} unused"),
        };
        outcomes.map(word).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_first_items_are_used() {
        for (used, expected) in [
            (0, "a unused, b unused, c unused"),
            (1, "a 1, b unused, c unused"),
            (2, "a used, b unused, c unused"),
            (4, "a used, b 2, c unused"),
            (5, "a used, b used, c unused"),
            (6, "a used, b used, c used"),
            (u64::MAX, "a used, b used, c used"),
        ] {
            assert_eq!(describe(three_batches().finish(used)), expected);
        }
    }

    #[test]
    fn batches_are_settled_as_a_whole() {
        let mut deliveries = three_batches();
        assert_eq!(deliveries.pop_used(1), None);
        assert_eq!(deliveries.pop_used(4), Some('a'));
        assert_eq!(deliveries.pop_used(4), None);
        assert_eq!(deliveries.pop_newest(), Some('c'));
        deliveries.push(2, 'd');
        assert_eq!(describe(deliveries.finish(6)), "b used, d 1");
        assert!(deliveries.is_empty());
    }

    #[test]
    fn items_of_a_popped_batch_count_once() {
        let mut deliveries = three_batches();
        assert_eq!(deliveries.pop_oldest(), Some('a'));
        assert_eq!(deliveries.pop_used(0), None);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(describe(deliveries.finish(3)), "b 1, c unused");
        assert_eq!(deliveries.pop_oldest(), None);
    }
}
