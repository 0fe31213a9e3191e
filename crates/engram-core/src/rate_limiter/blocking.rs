//! Bounds between which neither side can proceed.

use crate::error::{Error, Result};
use crate::rate_limiter::RateLimits;

/// From here (2^53) on, a bound is never reached.
const UNLIMITED: f64 = 9_007_199_254_740_992.0;

/// Largest denominator of `samples_per_insert` for which single differences are considered. With larger ones, they are so
/// close to each other that some are in any range.
const MAX_DENOMINATOR: i64 = 1 << 18;

/// Bounds below this are considered with single differences.
const MAX_BOUND: f64 = 34_359_738_368.0; // 2^35: with `MAX_DENOMINATOR`, the numbers of differences stay below 2^53

/// Differences whose floating-point value is not exact must be at least this far inside the bounds.
const MARGIN: f64 = 1e-6;

impl RateLimits {
    /// Checks that an insert or a sample is allowed at each difference of inserts and samples that can be reached.
    ///
    /// With `samples_per_insert` = p / q in lowest terms, differences are multiples of 1 / q. An insert adds p of them, a
    /// sample subtracts q. From a difference within the bounds, at most one of both is allowed if there are fewer than p +
    /// q differences within the bounds, and each difference is reached from one other at most. So the differences that are
    /// reached would repeat only if they were all p + q of them modulo p + q: there are too few, so both sides block at
    /// last. If there are p + q or more, one side can always proceed.
    ///
    /// Not part of [`Self::check`], so that stores that already contain such limits still open, and because dm-reverb
    /// accepts them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the bounds that would be allowed.
    pub fn check_progress(&self) -> Result<()> {
        let (low, high) = (self.min_diff, self.max_diff);
        let ratio = self.samples_per_insert;
        let is_valid = ratio.is_finite() && ratio > 0.0 && !low.is_nan() && !high.is_nan();
        if !is_valid || low <= -UNLIMITED || high >= UNLIMITED {
            return Ok(()); // `check` rejects what is not valid
        }
        let Some((lowest_high, highest_low)) = self.allowed_bounds() else {
            return Ok(());
        };
        Err(Error::InvalidArgument(format!(
            "`max_diff` must be at least {lowest_high} with `samples_per_insert` = {} and `min_diff` = {low}, or inserts \
             and samples would block each other forever; got {high}; raise `max_diff` to {lowest_high}, or lower \
             `min_diff` to {highest_low}",
            self.samples_per_insert
        )))
    }

    /// `None` if one side can always proceed, else a maximum with which that would be true, and a minimum.
    fn allowed_bounds(&self) -> Option<(f64, f64)> {
        let (low, high) = (self.min_diff, self.max_diff);
        let differences = Differences::of(self.samples_per_insert)
            .filter(|_| low.abs().max(high.abs()) < MAX_BOUND);
        let Some(differences) = differences else {
            let needed = 1.0 + self.samples_per_insert;
            return (high - low < needed).then_some((low + needed, high - needed));
        };
        let Differences { p, q } = differences;
        let (first, last) = (differences.first_from(low), differences.last_until(high));
        let more = p + q - 1;
        (last - first < more).then(|| {
            (
                differences.bound(first + more, 0.5),
                differences.bound(last - more, -0.5),
            )
        })
    }
}

/// The multiples of 1 / q.
#[derive(Clone, Copy, Debug)]
struct Differences {
    p: i64,
    q: i64,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "all numbers are below 2^53"
)]
impl Differences {
    /// The fraction with a small denominator that this ratio is the closest number to.
    fn of(ratio: f64) -> Option<Self> {
        let (mut previous, mut fraction) = ((0_i64, 1_i64), (1_i64, 0_i64));
        let mut rest = ratio;
        // Its continued fraction.
        loop {
            let whole = rest.floor();
            if whole >= MAX_BOUND {
                return None;
            }
            let next = (
                (whole as i64).checked_mul(fraction.0)? + previous.0,
                (whole as i64).checked_mul(fraction.1)? + previous.1,
            );
            if next.1 > MAX_DENOMINATOR || next.0 as f64 >= UNLIMITED {
                return None;
            }
            (previous, fraction) = (fraction, next);
            let (p, q) = fraction;
            if p > 0 && (p as f64 / q as f64).to_bits() == ratio.to_bits() {
                return Some(Self { p, q });
            }
            rest = 1.0 / (rest - whole);
        }
    }

    /// True if inserts and samples that lead to `number / q` always give exactly this value.
    fn is_exact(self, number: i64) -> bool {
        if self.q.count_ones() == 1 {
            return true;
        }
        // Then the difference of whole numbers is computed from the product of the ratio and a multiple of `q`. It is
        // exact if the ratio is close enough to the fraction.
        let (p, q) = (self.p as f64, self.q as f64);
        let error = (p / q).mul_add(q, -p).abs();
        number % self.q == 0 && error <= p * f64::EPSILON / 4.0
    }

    /// The number of the first difference that is certainly not below `low`.
    fn first_from(self, low: f64) -> i64 {
        let number = (low * self.q as f64).round() as i64;
        (number - 1..=number + 1)
            .find(|number| self.is_above(*number, low))
            .unwrap_or(number + 2)
    }

    /// The number of the last difference that is certainly not above `high`.
    fn last_until(self, high: f64) -> i64 {
        -self.first_from(-high)
    }

    fn is_above(self, number: i64, low: f64) -> bool {
        let margin = if self.is_exact(number) { 0.0 } else { MARGIN };
        number as f64 / self.q as f64 >= low + margin
    }

    /// A bound at this difference or, if its value is not exact, this part of the way to the next one.
    fn bound(self, number: i64, part: f64) -> f64 {
        let part = if self.is_exact(number) { 0.0 } else { part };
        (number as f64 + part) / self.q as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate_limiter::RateLimiter;
    use crate::rate_limiter::tests::ratio;
    use proptest::prelude::*;

    fn text(limits: &RateLimits) -> String {
        limits.check_progress().unwrap_err().to_string()
    }

    #[test]
    fn bounds_that_block_both_sides_are_rejected_with_bounds_that_do_not() {
        assert_eq!(
            text(&ratio(2.0, 1, 0.0, 1.0)),
            "`max_diff` must be at least 2 with `samples_per_insert` = 2 and `min_diff` = 0, or inserts and samples would \
             block each other forever; got 1; raise `max_diff` to 2, or lower `min_diff` to -1"
        );
        assert_eq!(RateLimits::queue(1).check_progress(), Ok(()));
        assert_eq!(RateLimits::min_size(1).check_progress(), Ok(()));
        // 49 * (1 / 49) is less than 1.
        assert!(text(&ratio(1.0 / 49.0, 1, 0.0, 1.0)).contains("`max_diff` must be at least 1.0"));
        // Not a fraction with a small denominator.
        let irrational = std::f64::consts::SQRT_2;
        assert!(text(&ratio(irrational, 1, 0.0, 2.4)).contains("at least 2.414213562373095"));
        assert_eq!(ratio(irrational, 1, 0.0, 2.5).check_progress(), Ok(()));
    }

    proptest! {
        #[test]
        fn one_side_can_always_proceed_within_the_bounds_that_are_allowed(
            (p, q) in (1..60_i32, 1..60_i32), min_size in 1..8_u64,
            (low, width) in (-200..200_i32, 0..300_i32), seed in any::<u64>(),
        ) {
            let [p, q, low, width] = [p, q, low, width].map(f64::from);
            let mut limits = ratio(p / q, min_size, low / (2.0 * q), (low + width) / (2.0 * q));
            if let Some((high, _)) = limits.allowed_bounds() {
                let lower = RateLimits { min_diff: limits.allowed_bounds().unwrap().1, ..limits.clone() };
                prop_assert_eq!(lower.check_progress(), Ok(()));
                limits.max_diff = high;
                prop_assert_eq!(limits.check_progress(), Ok(()));
            }
            let mut limiter = RateLimiter::new(limits);
            for step in 0..4000 {
                let (insert, sample) = (limiter.can_insert(1, 0), limiter.can_sample(1));
                prop_assert!(insert || sample, "{:?}", limiter);
                if insert && (!sample || seed >> (step % 64) & 1 == 0) {
                    limiter.inserts += 1;
                } else {
                    limiter.samples += 1;
                }
            }
        }
    }
}
