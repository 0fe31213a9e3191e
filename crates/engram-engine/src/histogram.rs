//! Histograms of a table's items.

use std::sync::Arc;

use engram_core::table::ItemNumbers;
use engram_core::{Error, Result};

use crate::table::Table;

/// Maximum number of bins.
pub const MAX_BINS: u32 = 1024;

/// What a histogram counts the items by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistogramOf {
    /// The priorities.
    Priority,
    /// The numbers of items that were inserted after them.
    Age,
    /// The numbers of samples.
    TimesSampled,
}

/// How many items have which values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Number of items per bin.
    pub counts: Vec<u64>,
    /// Bin `i` is from edge `i` to edge `i + 1`, which only the last bin includes. One more than bins.
    pub edges: Vec<f64>,
    /// Number of items with the value minus infinity.
    pub below: u64,
    /// Number of items with the value infinity.
    pub above: u64,
    /// Number of items in the table. If it is larger than the counts together, the items were chosen at random.
    pub table_size: u64,
}

impl Histogram {
    /// Counts the items of a table by a value, in at most `bins` bins of equal width. Of a table with more than
    /// [`MAX_SURVEYED_ITEMS`](crate::MAX_SURVEYED_ITEMS) items, about as many are counted, in parts of the table chosen
    /// at random. Changes nothing, and other calls can use the table meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::InvalidArgument`] if `bins` is not from 1 to [`MAX_BINS`].
    pub fn of_table(table: &Arc<Table>, of: HistogramOf, bins: u32) -> Result<Self> {
        if !(1..=MAX_BINS).contains(&bins) {
            return Err(Error::InvalidArgument(format!(
                "`bins` must be from 1 to {MAX_BINS}; got {bins}"
            )));
        }
        let survey = table.survey()?;
        let last_seq = survey.size.next_seq.saturating_sub(1);
        #[expect(clippy::cast_precision_loss, reason = "ages are below 2^53")]
        let value = |item: &ItemNumbers| match of {
            HistogramOf::Priority => item.priority,
            HistogramOf::Age => last_seq.saturating_sub(item.seq) as f64,
            HistogramOf::TimesSampled => f64::from(item.times_sampled),
        };
        let values: Vec<f64> = survey.items.iter().map(value).collect();
        let edges = edges(&values, of != HistogramOf::Priority, bins);
        let mut histogram = Self::count(&values, edges);
        // Items that were inserted during the survey are counted too.
        let counted = values.len() as u64;
        let is_complete = survey.size.items <= crate::MAX_SURVEYED_ITEMS;
        histogram.table_size = if is_complete {
            counted
        } else {
            survey.size.items.max(counted)
        };
        Ok(histogram)
    }

    fn count(values: &[f64], edges: Vec<f64>) -> Self {
        let bins = edges.len() - 1;
        let mut histogram = Self {
            counts: vec![0; bins],
            ..Self::default()
        };
        for value in values {
            if *value == f64::NEG_INFINITY {
                histogram.below += 1;
            } else if *value == f64::INFINITY {
                histogram.above += 1;
            } else {
                let bin = edges
                    .partition_point(|edge| edge <= value)
                    .saturating_sub(1);
                histogram.counts[bin.min(bins - 1)] += 1;
            }
        }
        histogram.edges = edges;
        histogram
    }
}

/// The edges of bins that include all finite values. Those of counts are whole numbers.
fn edges(values: &[f64], are_counts: bool, bins: u32) -> Vec<f64> {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = (
        finite().fold(f64::INFINITY, f64::min),
        finite().fold(f64::NEG_INFINITY, f64::max),
    );
    if low > high {
        return vec![0.0, 1.0];
    }
    if are_counts {
        let width = ((high - low + 1.0) / f64::from(bins)).ceil();
        let bins = ((high - low + 1.0) / width).ceil();
        return (0..=bins_as_integer(bins))
            .map(|bin| low + width * f64::from(bin))
            .collect();
    }
    if low >= high {
        let half = (low.abs() / 2.0).max(0.5);
        return vec![(low - half).max(f64::MIN), (low + half).min(f64::MAX)];
    }
    let edge = |bin: u32| {
        let part = f64::from(bin) / f64::from(bins);
        // Not `low + (high - low) * part`, where the difference can be infinite.
        low * (1.0 - part) + high * part
    };
    let mut edges = Vec::with_capacity(bins as usize + 1);
    let mut last = low;
    for bin in 0..bins {
        // Rounding can give an edge less than the one before it, or more than `high`.
        last = edge(bin).clamp(last, high);
        edges.push(last);
    }
    edges.push(high);
    edges
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 1 to MAX_BINS"
)]
fn bins_as_integer(bins: f64) -> u32 {
    bins as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_priorities_have_equal_width() {
        let values = [0.0, 1.0, 2.0, 3.9, 4.0, f64::INFINITY, f64::NEG_INFINITY];
        let histogram = Histogram::count(&values, edges(&values, false, 4));
        assert_eq!(histogram.edges, [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(histogram.counts, [1, 1, 1, 2]);
        assert_eq!((histogram.below, histogram.above), (1, 1));
    }

    #[test]
    fn bins_of_counts_are_whole_numbers() {
        let values = [0.0, 0.0, 1.0, 5.0];
        assert_eq!(
            edges(&values, true, 32),
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        );
        let histogram = Histogram::count(&values, edges(&values, true, 4));
        assert_eq!(histogram.edges, [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(histogram.counts, [3, 0, 1]);
    }

    #[test]
    fn edges_of_almost_equal_priorities_are_sorted() {
        for low in [1.0_f64, 1.0 / 3.0, -5.0, 1e-310, 0.7] {
            let mut high = low;
            for _ in 0..5 {
                high = high.next_up();
                let values = [low, low.next_up(), high];
                for bins in [2, 3, 7, 1000, MAX_BINS] {
                    let edges = edges(&values, false, bins);
                    assert!(edges.is_sorted(), "{low} {high} {bins}");
                    assert_eq!((edges[0], edges[bins as usize]), (low, high));
                    let histogram = Histogram::count(&values, edges);
                    let first = histogram.edges.partition_point(|edge| *edge <= low) - 1;
                    assert!(histogram.counts[first] >= 1, "{low} {high} {bins}");
                }
            }
        }
    }

    #[test]
    fn extreme_values_have_bins_too() {
        for values in [
            vec![],
            vec![f64::INFINITY],
            vec![0.0],
            vec![f64::MAX],
            vec![-f64::MAX, f64::MAX],
            vec![-0.0, 5e-324],
        ] {
            for bins in [1, 3, MAX_BINS] {
                let histogram = Histogram::count(&values, edges(&values, false, bins));
                let total: u64 = histogram.counts.iter().sum();
                let total = total + histogram.below + histogram.above;
                assert_eq!(total, values.len() as u64);
                assert_eq!(histogram.edges.len(), histogram.counts.len() + 1);
                assert!(histogram.edges.is_sorted());
                assert!(histogram.edges.iter().all(|edge| edge.is_finite()));
            }
        }
    }
}
