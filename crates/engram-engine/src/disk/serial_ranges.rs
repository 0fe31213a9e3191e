//! Sets of serials: mostly neighbours, so that a few ranges say all.

/// SerialRanges of numbers, in order, none touching the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SerialRanges(pub(crate) Vec<(u64, u64)>);

impl SerialRanges {
    /// The ranges of these numbers.
    pub(crate) fn from_serials(mut numbers: Vec<u64>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == number => *count += 1,
                _ => ranges.push((number, 1)),
            }
        }
        Self(ranges)
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .is_some_and(|(first, count)| number - first < *count)
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_they_were_made_of() {
        let ranges = SerialRanges::from_serials(vec![7, 3, 4, 9, 8, 4, 20]);
        assert_eq!(ranges.0, [(3, 2), (7, 3), (20, 1)]);
        let held: Vec<u64> = (0..30).filter(|n| ranges.contains(*n)).collect();
        assert_eq!(held, [3, 4, 7, 8, 9, 20]);
        assert_eq!(
            (ranges.len(), SerialRanges::default().contains(0)),
            (6, false)
        );
    }
}
