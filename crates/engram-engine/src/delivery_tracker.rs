//! What a reader of a stream was deliveries and may still give back.

use std::collections::VecDeque;

/// Leases of batches that were deliveries over, oldest first.
///
/// A reader says how many of all the items it was deliveries it has used: those of the first batches.
#[derive(Debug)]
pub struct DeliveryTracker<L> {
    leases: VecDeque<(u64, L)>,
    /// Items of batches that are not in `leases` any more: they were used.
    settled: u64,
}

/// What becomes of the leases of a reader that is done.
#[derive(Debug)]
pub enum LeaseOutcome<L> {
    /// All items were used.
    Used(L),
    /// The first so many items were.
    PartlyUsed(usize, L),
    /// None was.
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
    /// A batch of so many items goes to the reader.
    pub fn push(&mut self, items: usize, lease: L) {
        self.leases.push_back((items as u64, lease));
    }

    /// Batches that may still come back.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// True where no batch may come back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The newest batch, which did not reach its reader.
    pub fn pop_newest(&mut self) -> Option<L> {
        self.leases.pop_back().map(|(_, lease)| lease)
    }

    /// The oldest batch, whether it was used or not; it counts as used.
    pub fn pop_oldest(&mut self) -> Option<L> {
        let (items, lease) = self.leases.pop_front()?;
        self.settled += items;
        Some(lease)
    }

    /// The oldest batch, if all its items are among the first `used`.
    pub fn pop_used(&mut self, used: u64) -> Option<L> {
        let (items, _) = self.leases.front()?;
        if *items > used.saturating_sub(self.settled) {
            return None;
        }
        self.pop_oldest()
    }

    /// All batches, oldest first, of a reader that has used the first `used` items and no more.
    pub fn finish(&mut self, used: u64) -> impl Iterator<Item = LeaseOutcome<L>> {
        let mut left = used.saturating_sub(self.settled);
        let leases = std::mem::take(&mut self.leases);
        leases.into_iter().map(move |(items, lease)| {
            let of_this = left.min(items);
            left -= of_this;
            match usize::try_from(of_this) {
                _ if of_this == items => LeaseOutcome::Used(lease),
                Ok(0) | Err(_) => LeaseOutcome::Unused(lease),
                Ok(some) => LeaseOutcome::PartlyUsed(some, lease),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliveries() -> DeliveryTracker<char> {
        let mut deliveries = DeliveryTracker::default();
        for (items, lease) in [(2, 'a'), (3, 'b'), (1, 'c')] {
            deliveries.push(items, lease);
        }
        deliveries
    }

    fn told(fates: impl Iterator<Item = LeaseOutcome<char>>) -> String {
        let word = |fate| match fate {
            LeaseOutcome::Used(lease) => format!("{lease} used"),
            LeaseOutcome::PartlyUsed(some, lease) => format!("{lease} {some}"),
            LeaseOutcome::Unused(lease) => format!("{lease} back"),
        };
        fates.map(word).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_first_items_are_used() {
        for (used, expected) in [
            (0, "a back, b back, c back"),
            (1, "a 1, b back, c back"),
            (2, "a used, b back, c back"),
            (4, "a used, b 2, c back"),
            (5, "a used, b used, c back"),
            (6, "a used, b used, c used"),
            (u64::MAX, "a used, b used, c used"),
        ] {
            assert_eq!(told(deliveries().finish(used)), expected);
        }
    }

    #[test]
    fn batches_are_settled_as_a_whole() {
        let mut deliveries = deliveries();
        assert_eq!(deliveries.pop_used(1), None);
        assert_eq!(deliveries.pop_used(4), Some('a'));
        assert_eq!(deliveries.pop_used(4), None);
        assert_eq!(deliveries.pop_newest(), Some('c'));
        deliveries.push(2, 'd');
        assert_eq!(told(deliveries.finish(6)), "b used, d 1");
        assert!(deliveries.is_empty());
    }

    #[test]
    fn what_was_settled_unasked_does_not_count_twice() {
        let mut deliveries = deliveries();
        assert_eq!(deliveries.pop_oldest(), Some('a'));
        assert_eq!(deliveries.pop_used(0), None);
        assert_eq!(deliveries.len(), 2);
        assert_eq!(told(deliveries.finish(3)), "b 1, c back");
        assert_eq!(deliveries.pop_oldest(), None);
    }
}
