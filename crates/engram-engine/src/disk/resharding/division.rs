//! How a table's bounds, limits and counters are divided among shards.

use engram_core::{RateLimiter, RateLimits};

/// A number of sources and of shards: what holds for one source is scaled for one shard, so that the whole stays the
/// same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) sources: usize,
    pub(super) shards: usize,
}

/// From here (2^53) on, an `f64` does not represent all integers: a larger difference means that there is no limit.
const UNLIMITED: f64 = 9_007_199_254_740_992.0;

impl Scale {
    /// Scales a bound, rounding up.
    pub(super) fn bound(self, bound: u64) -> u64 {
        let scaled = (u128::from(bound) * self.sources as u128).div_ceil(self.shards as u128);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    #[expect(clippy::cast_precision_loss, reason = "there are few shards")]
    fn difference(self, difference: f64) -> f64 {
        if difference.abs() >= UNLIMITED || self.sources == self.shards {
            return difference;
        }
        difference * self.sources as f64 / self.shards as f64
    }

    /// Scales the limits: `min_size` rounds up, and the range of the difference is rounded to the wider one. It stays
    /// at least as wide as one insert and its samples need, or as it was.
    pub(super) fn limits(self, limits: &RateLimits) -> RateLimits {
        let RateLimits {
            samples_per_insert,
            min_diff,
            max_diff,
            ..
        } = *limits;
        if self.sources == self.shards {
            return limits.clone();
        }
        let low = self.difference(min_diff).floor();
        let needed = (2.0 * samples_per_insert.max(1.0)).min(max_diff - min_diff);
        RateLimits {
            kind: limits.kind.clone(),
            samples_per_insert,
            min_size: self.bound(limits.min_size),
            min_diff: low,
            max_diff: self.difference(max_diff).ceil().max(low + needed),
        }
    }
}

/// Divides a count evenly; the first shards get one more if it is not divisible.
pub(super) fn share(total: u64, shards: usize, shard: usize) -> u64 {
    let (shards, shard) = (shards as u64, shard as u64);
    total / shards + u64::from(shard < total % shards)
}

/// Divides the counts of a limiter, which are sums over the sources, among shards with these sizes. The sum over the
/// shards is exact. Each shard's inserts minus deletes are its size, and its difference of inserts and samples is, up to
/// rounding, the same in all shards. In a queue or stack, whose difference counts the items that can still be sampled, it
/// is the shard's size plus the shard's part of the items that were removed unsampled.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts stay far below 2^53, and negative numbers become 0"
)]
pub(super) fn divide_limiter(
    total: &RateLimiter,
    sizes: &[u64],
    limits: &RateLimits,
) -> Vec<RateLimiter> {
    let shards = sizes.len();
    let size_sum: u64 = sizes.iter().sum();
    let former = total.inserts.saturating_sub(size_sum);
    let ratio = limits.samples_per_insert;
    let samples_each_item_once = matches!(&*limits.kind, "Queue" | "Stack");
    // Without the difference of a shard's own items, which is not divided.
    let divided_difference = if samples_each_item_once {
        total.diff() - size_sum as f64
    } else {
        total.diff()
    };
    let difference = divided_difference / shards as f64;
    let mut samples_left = total.samples;
    // What rounding has left over so far.
    let mut remainder = 0.0;
    let mut divided: Vec<RateLimiter> = (0..)
        .zip(sizes)
        .map(|(shard, size)| {
            let inserts = size + share(former, shards, shard);
            let own_difference = if samples_each_item_once {
                *size as f64
            } else {
                0.0
            };
            let wanted = inserts as f64 * ratio - own_difference - difference + remainder;
            let samples = (wanted.round().max(0.0) as u64).min(samples_left);
            remainder = wanted - samples as f64;
            samples_left -= samples;
            RateLimiter {
                limits: limits.clone(),
                inserts,
                samples,
                deletes: share(total.deletes, shards, shard),
            }
        })
        .collect();
    if let Some(last) = divided.last_mut() {
        last.samples += samples_left;
    }
    divided
}

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "the counts are small")]
mod tests {
    use super::*;

    fn ratio_limits(min_diff: f64, max_diff: f64) -> RateLimits {
        RateLimits {
            kind: "SampleToInsertRatio".into(),
            samples_per_insert: 4.0,
            min_size: 10,
            min_diff,
            max_diff,
        }
    }

    #[test]
    fn bounds_round_up_and_ranges_become_no_narrower_than_needed() {
        let scale = Scale {
            sources: 3,
            shards: 5,
        };
        assert_eq!((scale.bound(100), scale.bound(101)), (60, 61));
        assert_eq!(scale.bound(u64::MAX), u64::MAX / 5 * 3);
        let scaled = scale.limits(&ratio_limits(-21.0, 101.0));
        assert_eq!(
            (scaled.min_size, scaled.min_diff, scaled.max_diff),
            (6, -13.0, 61.0)
        );
        let narrow = scale.limits(&ratio_limits(0.0, 8.0));
        assert_eq!((narrow.min_diff, narrow.max_diff), (0.0, 8.0));
        let unlimited = RateLimits::min_size(7);
        let scaled = scale.limits(&unlimited);
        assert_eq!(
            (scaled.min_size, scaled.min_diff, scaled.max_diff),
            (5, -f64::MAX, f64::MAX)
        );
        let queue = scale.limits(&RateLimits::queue(9));
        assert_eq!((queue.min_diff, queue.max_diff), (0.0, 6.0));
    }

    #[test]
    fn divided_counts_have_the_same_sum_and_about_the_same_difference() {
        let total = RateLimiter {
            limits: ratio_limits(0.0, 8.0),
            inserts: 1_003,
            samples: 3_777,
            deletes: 401,
        };
        let sizes = [120, 121, 119, 122, 120];
        let divided = divide_limiter(&total, &sizes, &ratio_limits(0.0, 8.0));
        let sum = |count: fn(&RateLimiter) -> u64| divided.iter().map(count).sum::<u64>();
        assert_eq!(sum(|each| each.inserts), 1_003);
        assert_eq!(sum(|each| each.samples), 3_777);
        assert_eq!(sum(|each| each.deletes), 401);
        for (each, size) in divided.iter().zip(sizes) {
            assert_eq!(each.size(), size);
            assert!((each.diff() - total.diff() / 5.0).abs() <= 1.0, "{each:?}");
        }
        // Many samples of few inserts.
        let total = RateLimiter {
            inserts: 3,
            samples: 1_000,
            deletes: 3,
            ..total
        };
        let divided = divide_limiter(&total, &[0, 0], &ratio_limits(0.0, 8.0));
        let samples: Vec<u64> = divided.iter().map(|each| each.samples).collect();
        assert_eq!(samples.iter().sum::<u64>(), 1_000);
        assert!(samples[0].abs_diff(samples[1]) <= 4, "{samples:?}");
    }

    #[test]
    fn all_items_of_a_divided_queue_can_be_sampled() {
        let queue = RateLimits::queue(34);
        for (sizes, unsampled) in [
            (vec![3, 2, 2], 0),
            (vec![45, 40, 35], 0),
            (vec![4, 3], 1),
            (vec![3, 2, 2, 0], 6),
        ] {
            let size_sum: u64 = sizes.iter().sum();
            let total = RateLimiter {
                limits: queue.clone(),
                inserts: size_sum + 13,
                samples: 13 - unsampled,
                deletes: 13,
            };
            let divided = divide_limiter(&total, &sizes, &queue);
            let sum = |count: fn(&RateLimiter) -> u64| divided.iter().map(count).sum::<u64>();
            assert_eq!(sum(|each| each.samples), total.samples);
            assert_eq!(sum(|each| each.inserts), total.inserts);
            for (each, size) in divided.iter().zip(&sizes) {
                let removed = each.diff() - *size as f64;
                let even = unsampled as f64 / sizes.len() as f64;
                assert!(removed >= 0.0, "{sizes:?} {each:?}");
                assert!((removed - even).abs() < 1.0, "{sizes:?} {each:?}");
            }
        }
    }
}
