//! Rates of inserts and samples.

use std::collections::VecDeque;

/// Minimum time between two readings, in nanoseconds.
const READING_INTERVAL: u64 = 250_000_000;

/// Time over which rates are averaged, in nanoseconds.
const WINDOW: u64 = 5_000_000_000;

/// Counts inserts and samples, to compute rates. A table's reset does not reset these counts, and draws that are
/// returned later stay counted.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) inserts: u64,
    pub(crate) samples: u64,
    /// Earlier values of the counts as (time in nanoseconds, inserts, samples), oldest first.
    readings: VecDeque<(u64, u64, u64)>,
}

impl Meter {
    /// Records a reading if the last one is at least `READING_INTERVAL` old; drops readings that are
    /// older than `WINDOW`, except for the newest of them.
    pub(crate) fn tick(&mut self, now: u64) {
        if self
            .readings
            .back()
            .is_none_or(|last| last.0 + READING_INTERVAL <= now)
        {
            self.readings.push_back((now, self.inserts, self.samples));
            while self.readings.len() > 1 && self.readings[1].0 + WINDOW < now {
                self.readings.pop_front();
            }
        }
    }

    /// Returns inserts and samples per second over the last `WINDOW`.
    pub(crate) fn rates(&mut self, now: u64) -> (f64, f64) {
        self.tick(now);
        let Some(&(first_time, inserts, samples)) = self.readings.front() else {
            return (0.0, 0.0);
        };
        // Another thread may have read the clock later than the caller and recorded a reading before.
        let elapsed = now.saturating_sub(first_time).max(READING_INTERVAL);
        #[expect(clippy::cast_precision_loss, reason = "53 bits are enough for a rate")]
        let per_second = |count: u64| count as f64 * 1e9 / elapsed as f64;
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
    fn rates_cover_only_the_last_seconds() {
        let mut meter = Meter::default();
        for second in 0..=20 {
            meter.tick(second * 1_000_000_000);
            meter.inserts += if second < 10 { 1000 } else { 10 };
        }
        let (inserts, samples) = meter.rates(20_000_000_000);
        assert!((inserts - 10.0).abs() < 3.0, "{inserts}");
        assert!(samples.abs() < 1e-9);
    }

    #[test]
    fn a_reading_may_be_later_than_the_time_of_the_rates() {
        let mut meter = Meter::default();
        meter.tick(5);
        meter.inserts += 1;
        assert!(meter.rates(4).0 > 0.0);
    }
}
