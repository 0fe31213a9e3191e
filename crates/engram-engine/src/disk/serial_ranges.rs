//! Sets of serials: numbers of chunks in their store. Serials in use are mostly consecutive, so a few ranges describe
//! them.

/// Sorted ranges of serials as (first, count), with a gap between neighbours.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SerialRanges(pub(crate) Vec<(u64, u64)>);

impl SerialRanges {
    pub(crate) fn from_serials(mut serials: Vec<u64>) -> Self {
        serials.sort_unstable();
        serials.dedup();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for serial in serials {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == serial => *count += 1,
                _ => ranges.push((serial, 1)),
            }
        }
        Self(ranges)
    }

    pub(crate) fn contains(&self, serial: u64) -> bool {
        let index_after = self.0.partition_point(|(first, _)| *first <= serial);
        index_after
            .checked_sub(1)
            .and_then(|index| self.0.get(index))
            .is_some_and(|(first, count)| serial - first < *count)
    }

    /// Number of serials in the set.
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
    fn ranges_contain_exactly_their_serials() {
        let ranges = SerialRanges::from_serials(vec![7, 3, 4, 9, 8, 4, 20]);
        assert_eq!(ranges.0, [(3, 2), (7, 3), (20, 1)]);
        let contained: Vec<u64> = (0..30).filter(|n| ranges.contains(*n)).collect();
        assert_eq!(contained, [3, 4, 7, 8, 9, 20]);
        assert_eq!(
            (ranges.len(), SerialRanges::default().contains(0)),
            (6, false)
        );
    }
}
