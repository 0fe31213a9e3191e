//! What a reader of a stream was handed and may still give back.

use std::collections::VecDeque;

/// Leases of batches that were handed over, oldest first.
///
/// A reader says how many of all the items it was handed it has used: those of the first batches.
#[derive(Debug)]
pub struct Handed<L> {
    leases: VecDeque<(u64, L)>,
    /// Items of batches that are not in `leases` any more: they were used.
    settled: u64,
}

/// What becomes of the leases of a reader that is done.
#[derive(Debug)]
pub enum Fate<L> {
    /// All items were used.
    Used(L),
    /// The first so many items were.
    Partly(usize, L),
    /// None was.
    Unused(L),
}

impl<L> Default for Handed<L> {
    fn default() -> Self {
        Self {
            leases: VecDeque::new(),
            settled: 0,
        }
    }
}

impl<L> Handed<L> {
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
    pub fn take_back(&mut self) -> Option<L> {
        self.leases.pop_back().map(|(_, lease)| lease)
    }

    /// The oldest batch, whether it was used or not; it counts as used.
    pub fn oldest(&mut self) -> Option<L> {
        let (items, lease) = self.leases.pop_front()?;
        self.settled += items;
        Some(lease)
    }

    /// The oldest batch, if all its items are among the first `used`.
    pub fn next_used(&mut self, used: u64) -> Option<L> {
        let (items, _) = self.leases.front()?;
        if *items > used.saturating_sub(self.settled) {
            return None;
        }
        self.oldest()
    }

    /// All batches, oldest first, of a reader that has used the first `used` items and no more.
    pub fn end(&mut self, used: u64) -> impl Iterator<Item = Fate<L>> {
        let mut left = used.saturating_sub(self.settled);
        let leases = std::mem::take(&mut self.leases);
        leases.into_iter().map(move |(items, lease)| {
            let of_this = left.min(items);
            left -= of_this;
            match usize::try_from(of_this) {
                _ if of_this == items => Fate::Used(lease),
                Ok(0) | Err(_) => Fate::Unused(lease),
                Ok(some) => Fate::Partly(some, lease),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed() -> Handed<char> {
        let mut handed = Handed::default();
        for (items, lease) in [(2, 'a'), (3, 'b'), (1, 'c')] {
            handed.push(items, lease);
        }
        handed
    }

    fn told(fates: impl Iterator<Item = Fate<char>>) -> String {
        let word = |fate| match fate {
            Fate::Used(lease) => format!("{lease} used"),
            Fate::Partly(some, lease) => format!("{lease} {some}"),
            Fate::Unused(lease) => format!("{lease} back"),
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
            assert_eq!(told(handed().end(used)), expected);
        }
    }

    #[test]
    fn batches_are_settled_as_a_whole() {
        let mut handed = handed();
        assert_eq!(handed.next_used(1), None);
        assert_eq!(handed.next_used(4), Some('a'));
        assert_eq!(handed.next_used(4), None);
        assert_eq!(handed.take_back(), Some('c'));
        handed.push(2, 'd');
        assert_eq!(told(handed.end(6)), "b used, d 1");
        assert!(handed.is_empty());
    }

    #[test]
    fn what_was_settled_unasked_does_not_count_twice() {
        let mut handed = handed();
        assert_eq!(handed.oldest(), Some('a'));
        assert_eq!(handed.next_used(0), None);
        assert_eq!(handed.len(), 2);
        assert_eq!(told(handed.end(3)), "b 1, c back");
        assert_eq!(handed.oldest(), None);
    }
}
