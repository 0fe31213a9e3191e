//! Rate limiters: how far inserts and samples may get ahead of each other.

mod allowed;
mod blocking;
mod reasons;

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::text::MAX_NAME_BYTES;

/// Limits of `diff = inserts * samples_per_insert - samples`, the number of samples by which the
/// writers are ahead of the learner, and of the number of items.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimits {
    /// Name of the limiter's class, for infos and error texts: `MinSize`, `Queue`, ...
    pub kind: String,
    /// Number of samples that each insert allows.
    pub samples_per_insert: f64,
    /// Number of items that the table must have before it can be sampled.
    pub min_size: u64,
    /// A sample is blocked if it would make `diff` smaller than this.
    pub min_diff: f64,
    /// An insert is blocked if it would make `diff` larger than this, unless the table has at most
    /// `min_size` items afterwards that are not hidden.
    pub max_diff: f64,
}

impl RateLimits {
    /// Blocks samples until the table has `min_size` items; never blocks inserts.
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

    /// Allows one sample per insert. Blocks inserts while `size` inserted items are unsampled, unless no item can be
    /// sampled.
    #[must_use]
    pub fn queue(size: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        let max_diff = size as f64;
        Self {
            kind: "Queue".into(),
            samples_per_insert: 1.0,
            min_size: 1,
            min_diff: 0.0,
            max_diff,
        }
    }

    /// True if these limits never block an insert, up to numbers that no table reaches.
    #[must_use]
    pub fn never_block_inserts(&self) -> bool {
        RateLimiter::new(self.clone()).inserts_allowed_if_undone(0, 0) == u64::MAX
    }

    /// Name of the limiter, with the ratio if it has one.
    fn label(&self) -> String {
        match &*self.kind {
            "SampleToInsertRatio" => format!("{}({})", self.kind, self.samples_per_insert),
            _ => self.kind.clone(),
        }
    }

    /// Checks the values for a table of at most `max_size` items.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the invalid value and the values allowed.
    pub fn check(&self, table: &str, max_size: u64) -> Result<()> {
        let Self {
            kind,
            samples_per_insert: spi,
            min_size,
            min_diff,
            max_diff,
        } = self;
        let problem = if !(spi.is_finite() && *spi > 0.0) {
            format!("`samples_per_insert` must be finite and above 0; got {spi}")
        } else if *min_size == 0 {
            "`min_size` must be at least 1; got 0".into()
        } else if *min_size > max_size {
            format!("`min_size` must be at most the table's `max_size`, {max_size}; got {min_size}")
        } else if min_diff.is_nan() || max_diff.is_nan() || min_diff > max_diff {
            let rule = "`min_diff` must be at most `max_diff`, and neither may be NaN";
            format!("{rule}; got {min_diff} and {max_diff}")
        } else {
            return Ok(());
        };
        Err(Error::InvalidArgument(format!(
            "rate limiter {kind} of table `{table}`: {problem}"
        )))
    }

    /// Checks the number of bytes of `kind`, which infos and error texts repeat.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the size and the maximum.
    pub fn check_kind_bytes(&self, table: &str) -> Result<()> {
        let bytes = self.kind.len();
        if bytes <= MAX_NAME_BYTES {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "the `kind` of the rate limiter of table `{table}` must have at most {MAX_NAME_BYTES} bytes; got {bytes}"
        )))
    }
}

/// Limits, and the counts that they apply to. The counts begin at the creation or the last reset of the table.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    /// The limits; they may change at any time.
    pub limits: RateLimits,
    /// Number of items inserted. Inserts of existing keys do not count.
    pub inserts: u64,
    /// Number of samples taken, leased ones included; a returned sample no longer counts.
    pub samples: u64,
    /// Number of items removed, for any reason.
    pub deletes: u64,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
impl RateLimiter {
    /// A limiter with all counts 0.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        Self {
            limits,
            inserts: 0,
            samples: 0,
            deletes: 0,
        }
    }

    /// Number of items in the table: inserts minus deletes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inserts.saturating_sub(self.deletes)
    }

    /// `inserts * samples_per_insert - samples`: how far writers are ahead of the learner; below 0 if they are behind.
    #[must_use]
    pub fn diff(&self) -> f64 {
        self.inserts as f64 * self.limits.samples_per_insert - self.samples as f64
    }

    /// True if `n` samples may be taken now.
    #[must_use]
    pub fn can_sample(&self, n: u64) -> bool {
        self.size() >= self.limits.min_size && self.diff() - n as f64 >= self.limits.min_diff
    }

    /// True if `n` items may be inserted now. Hidden items ([`crate::TableStats::hidden_items`]) make room for others: a
    /// sample that waits holds those that it has drawn, and they must not block the inserts that it waits for.
    #[must_use]
    pub fn can_insert(&self, n: u64, hidden_items: u64) -> bool {
        self.can_insert_if_undone(n, 0, hidden_items)
    }

    /// True if `n` items could be inserted now if `samples` of the samples were undone and `hidden_items` were still hidden.
    #[must_use]
    pub fn can_insert_if_undone(&self, n: u64, samples: u64, hidden_items: u64) -> bool {
        let visible = self.size().saturating_sub(hidden_items);
        let remaining_samples = self.samples.saturating_sub(samples);
        let allowed_samples =
            self.inserts.saturating_add(n) as f64 * self.limits.samples_per_insert;
        visible.saturating_add(n) <= self.limits.min_size
            || allowed_samples - remaining_samples as f64 <= self.limits.max_diff
    }
}

/// Compares two numbers that are not NaN; -0 equals 0.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn ratio(
        samples_per_insert: f64,
        min_size: u64,
        min_diff: f64,
        max_diff: f64,
    ) -> RateLimits {
        RateLimits {
            kind: "SampleToInsertRatio".into(),
            samples_per_insert,
            min_size,
            min_diff,
            max_diff,
        }
    }

    #[test]
    fn a_queue_has_at_most_its_size_and_yields_each_item_once() {
        let mut limiter = RateLimiter::new(RateLimits::queue(2));
        assert!(limiter.can_insert(1, 0) && limiter.can_insert(2, 0) && !limiter.can_insert(3, 0));
        assert!(!limiter.can_sample(1));
        limiter.inserts = 2;
        assert!(limiter.can_sample(2) && !limiter.can_sample(3) && !limiter.can_insert(1, 0));
        assert_eq!(limiter.samples_allowed(5), 2);
        limiter.samples = 1;
        limiter.deletes = 1;
        assert!(limiter.can_insert(1, 0) && limiter.can_sample(1));
    }

    #[test]
    fn hidden_items_make_room_for_as_many_as_sampling_needs() {
        let mut limiter = RateLimiter::new(ratio(2.0, 10, 10.0, 30.0));
        (limiter.inserts, limiter.samples) = (15, 10);
        limiter.deletes = 5;
        assert!(!limiter.can_insert(6, 0) && limiter.can_insert(5, 0));
        limiter.inserts = 20;
        limiter.deletes = 10;
        assert!(!limiter.can_insert(1, 0));
        assert!(limiter.can_insert(3, 3) && !limiter.can_insert(4, 3));
        assert!(!limiter.can_insert_if_undone(1, 3, 0), "all leases return");
        assert_eq!(limiter.inserts_allowed_if_undone(0, 3), 3);
        assert_eq!(limiter.why_inserting_waits(3), None);
    }

    #[test]
    fn a_sample_that_is_allowed_is_counted_despite_rounding() {
        let mut limiter = RateLimiter::new(ratio(0.1, 1, -1.9, 2.1));
        (limiter.inserts, limiter.samples) = (1, 1);
        assert!(limiter.can_sample(1) && !limiter.can_sample(2));
        // -0.9 + 1.9 is less than 1.
        assert_eq!(limiter.samples_allowed(2), 1);
    }

    #[test]
    fn invalid_limits_are_rejected() {
        let text = |limits: RateLimits| limits.check("t", 10).unwrap_err().to_string();
        assert_eq!(
            text(RateLimits::min_size(11)),
            "rate limiter MinSize of table `t`: `min_size` must be at most the table's `max_size`, 10; got 11"
        );
        assert_eq!(
            text(RateLimits::min_size(0)),
            "rate limiter MinSize of table `t`: `min_size` must be at least 1; got 0"
        );
        assert!(
            text(ratio(0.0, 1, 0.0, 1.0))
                .contains("`samples_per_insert` must be finite and above 0; got 0")
        );
        assert!(text(ratio(1.0, 1, 2.0, 1.0)).contains("`min_diff` must be at most `max_diff`"));
        assert_eq!(RateLimits::queue(10).check("t", 10), Ok(()));
    }

    proptest! {
        #[test]
        fn samples_allowed_is_the_largest_number_that_may_be_sampled(
            // Multiples of 0.1, which floating-point numbers round.
            [spi, low, width] in [1..80_i32, -300..300, 0..400].prop_map(|tenths| tenths.map(|it| f64::from(it) / 10.0)),
            min_size in 1..20_u64, inserts in 0..60_u64, samples in 0..200_u64, hidden in 0..60_u64, n in 0..100_u64,
        ) {
            let mut limiter = RateLimiter::new(ratio(spi, min_size, low, low + width));
            limiter.inserts = inserts;
            limiter.samples = samples;
            let allowed = limiter.samples_allowed(n);
            let expected = (1..=n).take_while(|k| limiter.can_sample(*k)).count();
            prop_assert_eq!(allowed, expected as u64);
            prop_assert_eq!(limiter.why_sampling_waits().is_none(), limiter.can_sample(1));
            prop_assert_eq!(limiter.why_inserting_waits(hidden).is_none(), limiter.can_insert(1, hidden));
        }
    }
}
