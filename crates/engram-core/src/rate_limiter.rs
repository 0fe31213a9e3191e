//! How far inserts and samples may run ahead of each other.

use crate::error::{Error, Result};

/// Bounds on `inserts * samples_per_insert - samples`.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimits {
    /// Name of the form it was made from, for messages: `MinSize`, `Queue`, ...
    pub kind: String,
    /// How many samples each insert pays for.
    pub samples_per_insert: f64,
    /// Items the table must hold before the first sample.
    pub min_size: u64,
    /// Samples wait where they would take the difference below this.
    pub min_diff: f64,
    /// Inserts wait where they would take the difference above this.
    pub max_diff: f64,
}

impl RateLimits {
    /// Samples wait for `min_size` items; nothing else waits.
    #[must_use]
    pub fn min_size(min_size: u64) -> Self {
        Self {
            kind: "MinSize".into(),
            samples_per_insert: 1.0,
            min_size,
            min_diff: -f64::MAX,
            max_diff: f64::MAX,
        }
    }

    /// Each item is sampled once, at most `size` items wait.
    #[must_use]
    pub fn queue(size: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        let max_diff = size as f64;
        let kind = "Queue".into();
        Self {
            kind,
            samples_per_insert: 1.0,
            min_size: 1,
            min_diff: 0.0,
            max_diff,
        }
    }

    /// Rejects limits under which nothing could ever be sampled.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] saying which bound is impossible and what would do.
    pub fn check(&self, table: &str, max_size: u64) -> Result<()> {
        let Self {
            kind,
            samples_per_insert: spi,
            min_size,
            min_diff,
            max_diff,
        } = self;
        let problem = if !(spi.is_finite() && *spi > 0.0) {
            format!("samples_per_insert is {spi}; it must be finite and above 0")
        } else if *min_size == 0 {
            "min_size is 0; it must be at least 1".into()
        } else if *min_size > max_size {
            format!("min_size is {min_size}, but the table holds at most {max_size} items")
        } else if min_diff.is_nan() || max_diff.is_nan() || min_diff > max_diff {
            format!(
                "min_diff is {min_diff} and max_diff is {max_diff}; min_diff must not exceed max_diff"
            )
        } else {
            return Ok(());
        };
        Err(Error::InvalidArgument(format!(
            "rate limiter {kind} of table `{table}`: {problem}"
        )))
    }
}

/// The limits together with what has happened so far.
///
/// Inserts of new keys, samples, and deletes of any kind are counted since creation or reset.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    /// The bounds; may be changed at any time.
    pub limits: RateLimits,
    /// Items inserted.
    pub inserts: u64,
    /// Samples taken.
    pub samples: u64,
    /// Items deleted, whatever the reason.
    pub deletes: u64,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
impl RateLimiter {
    /// A limiter that has seen nothing.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        Self {
            limits,
            inserts: 0,
            samples: 0,
            deletes: 0,
        }
    }

    /// Items present, as the limiter counts them.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inserts.saturating_sub(self.deletes)
    }

    /// `inserts * samples_per_insert - samples`.
    #[must_use]
    pub fn diff(&self) -> f64 {
        self.inserts as f64 * self.limits.samples_per_insert - self.samples as f64
    }

    /// May `n` samples be taken now?
    #[must_use]
    pub fn can_sample(&self, n: u64) -> bool {
        self.size() >= self.limits.min_size && self.diff() - n as f64 >= self.limits.min_diff
    }

    /// May `n` items be inserted now?
    #[must_use]
    pub fn can_insert(&self, n: u64) -> bool {
        let ahead = self.inserts.saturating_add(n) as f64 * self.limits.samples_per_insert;
        self.size().saturating_add(n) <= self.limits.min_size
            || ahead - self.samples as f64 <= self.limits.max_diff
    }

    /// May an item be inserted now, had `samples` of those taken not been taken?
    #[must_use]
    pub fn can_insert_without(&self, samples: u64) -> bool {
        let samples = self.samples.saturating_sub(samples);
        let ahead = (self.inserts + 1) as f64 * self.limits.samples_per_insert;
        self.size() < self.limits.min_size || ahead - samples as f64 <= self.limits.max_diff
    }

    /// How many of `n` samples may be taken now, if none of them deletes its item.
    #[must_use]
    pub fn samples_allowed(&self, n: u64) -> u64 {
        if self.can_sample(n) {
            return n;
        }
        if !self.can_sample(1) {
            return 0;
        }
        // `can_sample(1)` holds and `can_sample(n)` does not: the bound lies between.
        let room = (self.diff() - self.limits.min_diff).floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "1 <= room < n"
        )]
        let room = room as u64;
        room.min(n)
    }

    /// Why a sample waits, in words; `None` when it would not.
    #[must_use]
    pub fn why_sampling_waits(&self) -> Option<String> {
        if self.can_sample(1) {
            return None;
        }
        let RateLimits {
            kind,
            samples_per_insert: spi,
            min_size,
            min_diff,
            ..
        } = &self.limits;
        let size = self.size();
        Some(if size < *min_size {
            format!("sampling waits: {size} of {min_size} items ({kind})")
        } else {
            format!(
                "sampling waits for inserts: {} inserts x {spi} - {} samples = {}, and one more \
                 sample would go below {min_diff} ({kind})",
                self.inserts,
                self.samples,
                self.diff()
            )
        })
    }

    /// Why an insert waits, in words; `None` when it would not.
    #[must_use]
    pub fn why_inserting_waits(&self) -> Option<String> {
        if self.can_insert(1) {
            return None;
        }
        let RateLimits {
            kind,
            samples_per_insert: spi,
            max_diff,
            ..
        } = &self.limits;
        Some(format!(
            "inserting waits for samples: {} inserts x {spi} - {} samples = {}, and one more \
             insert would go above {max_diff} ({kind})",
            self.inserts,
            self.samples,
            self.diff()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ratio(samples_per_insert: f64, min_size: u64, min_diff: f64, max_diff: f64) -> RateLimits {
        RateLimits {
            kind: "SampleToInsertRatio".into(),
            samples_per_insert,
            min_size,
            min_diff,
            max_diff,
        }
    }

    #[test]
    fn a_queue_holds_its_size_and_hands_out_each_item_once() {
        let mut limiter = RateLimiter::new(RateLimits::queue(2));
        assert!(limiter.can_insert(1) && limiter.can_insert(2) && !limiter.can_insert(3));
        assert!(!limiter.can_sample(1));
        limiter.inserts = 2;
        assert!(limiter.can_sample(2) && !limiter.can_sample(3) && !limiter.can_insert(1));
        assert_eq!(limiter.samples_allowed(5), 2);
        limiter.samples = 1;
        limiter.deletes = 1;
        assert!(limiter.can_insert(1) && limiter.can_sample(1));
    }

    #[test]
    fn blocked_in_words() {
        let mut limiter = RateLimiter::new(RateLimits::min_size(100));
        limiter.inserts = 37;
        assert_eq!(
            limiter.why_sampling_waits().unwrap(),
            "sampling waits: 37 of 100 items (MinSize)"
        );
        assert_eq!(limiter.why_inserting_waits(), None);
        let mut limiter = RateLimiter::new(ratio(4.0, 1, 0.0, 8.0));
        limiter.inserts = 2;
        assert_eq!(
            limiter.why_inserting_waits().unwrap(),
            "inserting waits for samples: 2 inserts x 4 - 0 samples = 8, and one more insert \
             would go above 8 (SampleToInsertRatio)"
        );
        limiter.samples = 8;
        assert_eq!(
            limiter.why_sampling_waits().unwrap(),
            "sampling waits for inserts: 2 inserts x 4 - 8 samples = 0, and one more sample \
             would go below 0 (SampleToInsertRatio)"
        );
    }

    #[test]
    fn impossible_limits_are_named() {
        let text = |limits: RateLimits| limits.check("t", 10).unwrap_err().to_string();
        assert_eq!(
            text(RateLimits::min_size(11)),
            "rate limiter MinSize of table `t`: min_size is 11, but the table holds at most 10 items"
        );
        assert_eq!(
            text(RateLimits::min_size(0)),
            "rate limiter MinSize of table `t`: min_size is 0; it must be at least 1"
        );
        assert!(text(ratio(0.0, 1, 0.0, 1.0)).contains("samples_per_insert is 0; it must be"));
        assert!(text(ratio(1.0, 1, 2.0, 1.0)).contains("min_diff must not exceed max_diff"));
        assert_eq!(RateLimits::queue(10).check("t", 10), Ok(()));
    }

    proptest! {
        #[test]
        fn samples_allowed_is_what_one_by_one_would_give(
            spi in 0.1..8.0_f64, min_size in 1..20_u64, low in -30.0..30.0_f64, width in 0.0..40.0_f64,
            inserts in 0..60_u64, samples in 0..200_u64, n in 0..100_u64,
        ) {
            let mut limiter = RateLimiter::new(ratio(spi, min_size, low, low + width));
            limiter.inserts = inserts;
            limiter.samples = samples;
            let allowed = limiter.samples_allowed(n);
            let mut one_by_one = 0;
            while one_by_one < n && limiter.can_sample(1) {
                limiter.samples += 1;
                one_by_one += 1;
            }
            prop_assert_eq!(allowed, one_by_one);
        }
    }
}
