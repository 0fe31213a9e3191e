//! What a table tells about itself.

use std::collections::VecDeque;
use std::sync::Arc;

use engram_core::{TableOptions, TableStats};

/// Everything worth knowing about a table at one moment.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// What it was made with; `stats` has the limits of now.
    pub options: Arc<TableOptions>,
    /// Sizes and counters.
    pub stats: TableStats,
    /// Inserts per second over the last few seconds.
    pub inserts_per_s: f64,
    /// Samples per second over the last few seconds.
    pub samples_per_s: f64,
    /// Insert calls waiting now.
    pub waiting_inserts: usize,
    /// Sample calls waiting now.
    pub waiting_samples: usize,
    /// Why an insert would wait now, in words.
    pub inserting_blocked: Option<String>,
    /// Why a sample would wait now, in words.
    pub sampling_blocked: Option<String>,
}

/// Readings closer together than this tell nothing new.
const SPACING: u64 = 250_000_000;

/// Rates are averages over the last few seconds.
const WINDOW: u64 = 5_000_000_000;

/// Totals that survive resets, and their recent history.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) inserts: u64,
    pub(crate) samples: u64,
    readings: VecDeque<(u64, u64, u64)>,
}

impl Meter {
    /// Takes a reading, if the last one is old enough.
    pub(crate) fn tick(&mut self, now: u64) {
        if self
            .readings
            .back()
            .is_none_or(|last| last.0 + SPACING <= now)
        {
            self.readings.push_back((now, self.inserts, self.samples));
            while self.readings.len() > 1 && self.readings[1].0 + WINDOW < now {
                self.readings.pop_front();
            }
        }
    }

    /// Inserts and samples per second lately.
    pub(crate) fn rates(&mut self, now: u64) -> (f64, f64) {
        self.tick(now);
        let Some(&(then, inserts, samples)) = self.readings.front() else {
            return (0.0, 0.0);
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "rates need no more than 53 bits"
        )]
        let per_second = |count: u64| count as f64 * 1e9 / (now - then).max(SPACING) as f64;
        (
            per_second(self.inserts - inserts),
            per_second(self.samples - samples),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_the_last_seconds_only() {
        let mut meter = Meter::default();
        for second in 0..=20 {
            meter.tick(second * 1_000_000_000);
            meter.inserts += if second < 10 { 1000 } else { 10 };
        }
        let (inserts, samples) = meter.rates(20_000_000_000);
        assert!((inserts - 10.0).abs() < 3.0, "{inserts}");
        assert!(samples.abs() < 1e-9);
    }
}
