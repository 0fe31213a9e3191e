//! How many inserts or samples a limiter allows now.

use crate::rate_limiter::RateLimiter;

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
impl RateLimiter {
    /// Number of items that could be inserted now if `samples` of the samples were undone, `hidden_items` were
    /// still hidden, and no item were removed meanwhile; `u64::MAX` if there is practically no limit.
    #[must_use]
    pub fn inserts_allowed_if_undone(&self, samples: u64, hidden_items: u64) -> u64 {
        /// From here on, f64 does not represent all integers.
        const UNLIMITED: f64 = (1_u64 << 53) as f64;
        let remaining_samples = self.samples.saturating_sub(samples) as f64;
        let inserts = (self.limits.max_diff + remaining_samples) / self.limits.samples_per_insert;
        if inserts >= UNLIMITED {
            return u64::MAX;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below 2^53, and a negative number becomes 0"
        )]
        let by_diff = (inserts as u64).saturating_sub(self.inserts);
        // This division and the product of `can_insert_if_undone` can round differently.
        let can_insert = |n| self.can_insert_if_undone(n, samples, hidden_items);
        let by_diff = if can_insert(by_diff + 1) {
            by_diff + 1
        } else if by_diff == 0 || can_insert(by_diff) {
            by_diff
        } else {
            by_diff - 1
        };
        let visible = self.size().saturating_sub(hidden_items);
        by_diff.max(self.limits.min_size.saturating_sub(visible))
    }

    /// Number of samples, up to `n`, that may be taken now, provided that none of them removes its item.
    #[must_use]
    pub fn samples_allowed(&self, n: u64) -> u64 {
        if self.can_sample(n) {
            return n;
        }
        if !self.can_sample(1) {
            return 0;
        }
        // `can_sample(1)` is true and `can_sample(n)` is false, so the result is in `1..n`.
        let allowed = (self.diff() - self.limits.min_diff).floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range"
        )]
        let allowed = (allowed as u64).clamp(1, n - 1);
        // This subtraction and that of `can_sample` can round differently.
        if self.can_sample(allowed + 1) {
            allowed + 1
        } else if self.can_sample(allowed) {
            allowed
        } else {
            allowed - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate_limiter::RateLimits;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exactly_the_allowed_inserts_are_possible(
            samples_per_insert in prop_oneof![Just(1.0), Just(0.1), Just(3.0), 0.01_f64..100.0],
            min_size in 1_u64..50,
            max_diff in prop_oneof![-50.0_f64..1_000.0, Just(0.0), Just(16_000.0)],
            inserts in 0_u64..2_000,
            deletes in 0_u64..2_000,
            samples in 0_u64..5_000,
            undone in 0_u64..100,
            hidden in 0_u64..100,
        ) {
            let limits = RateLimits { samples_per_insert, min_size, max_diff, ..RateLimits::queue(1) };
            let limiter = RateLimiter { limits, inserts, samples, deletes: deletes.min(inserts) };
            let allowed = limiter.inserts_allowed_if_undone(undone, hidden);
            prop_assert!(allowed == 0 || limiter.can_insert_if_undone(allowed, undone, hidden));
            prop_assert!(!limiter.can_insert_if_undone(allowed + 1, undone, hidden));
        }
    }

    #[test]
    fn a_limiter_that_never_blocks_inserts_allows_any_number() {
        let mut limiter = RateLimiter::new(RateLimits::min_size(3));
        limiter.limits.samples_per_insert = 16.0;
        limiter.inserts = 1_000_000;
        assert_eq!(limiter.inserts_allowed_if_undone(0, 0), u64::MAX);
    }
}
