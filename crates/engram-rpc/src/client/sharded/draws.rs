//! How the items of a sample are divided over the shards.

use super::totals::TableTotals;

/// The items to draw from one shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShardDraws {
    pub(super) shard: usize,
    pub(super) items: usize,
    /// The probability with which a draw chooses this shard; 1 if the sampler returns the first item of an order.
    pub(super) share: f64,
}

/// Divides `n` draws. Each draw of a weighted sampler chooses a shard with a probability proportional to its weight; the
/// others take turns. Returns fewer than `n` draws if samples remove items and the shards have too few, and none if
/// they are empty.
///
/// A request costs about as much as hundreds of small items. Therefore the weighted draws choose at most one shard per
/// `items_per_request` items, or one, and draw equally many items from each.
pub(super) fn divide(
    totals: &TableTotals,
    n: usize,
    items_per_request: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<ShardDraws> {
    let weights = totals.weights();
    let max_times = totals
        .options
        .as_ref()
        .map_or(0, |options| options.max_times_sampled);
    let limits = totals.shards.iter().zip(&weights).map(|(shard, weight)| {
        let items = if totals.is_weighted() {
            shard.distribution.candidates
        } else {
            to_count(shard.distribution.total_weight)
        };
        match max_times {
            _ if *weight <= 0.0 => 0,
            0 => usize::MAX,
            times => usize::try_from(items.saturating_mul(times.into())).unwrap_or(usize::MAX),
        }
    });
    let limits: Vec<usize> = limits.collect();
    let total: f64 = weights.iter().sum();
    let draws = if totals.is_weighted() {
        draw_by_weight(&weights, total, n, items_per_request, &mut random)
    } else {
        take_turns(&limits, n, random())
    };
    let draws = draws.into_iter().zip(&limits).enumerate();
    let draws = draws.map(|(shard, (items, limit))| ShardDraws {
        shard,
        items: items.min(*limit),
        share: if totals.is_weighted() {
            weights[shard] / total
        } else {
            1.0
        },
    });
    draws.filter(|draws| draws.items > 0).collect()
}

/// Number of draws of each shard, at random.
fn draw_by_weight(
    weights: &[f64],
    total: f64,
    n: usize,
    items_per_request: usize,
    random: &mut impl FnMut() -> u64,
) -> Vec<usize> {
    let mut draws = vec![0; weights.len()];
    if total <= 0.0 {
        return draws;
    }
    let ends: Vec<f64> = weights
        .iter()
        .scan(0.0, |end, weight| {
            *end += weight;
            Some(*end)
        })
        .collect();
    let last = weights
        .iter()
        .rposition(|weight| *weight > 0.0)
        .unwrap_or(0);
    let most = (n / items_per_request).max(1);
    let picks = if weights.len() > most { n.min(most) } else { n };
    for pick in 0..picks {
        let mass = unit(random()) * ends[last];
        let shard = ends.partition_point(|end| *end <= mass).min(last);
        // The first picks draw one item more if `n` is not a multiple of `picks`.
        draws[shard] += n / picks + usize::from(pick < n % picks);
    }
    draws
}

/// Number of draws of each shard, as equal as their limits allow.
fn take_turns(limits: &[usize], n: usize, first: u64) -> Vec<usize> {
    let mut draws = vec![0; limits.len()];
    let first = usize::try_from(first % limits.len() as u64).unwrap_or(0);
    let mut left = n;
    loop {
        let open = (0..limits.len())
            .filter(|shard| draws[*shard] < limits[*shard])
            .count();
        if left == 0 || open == 0 {
            return draws;
        }
        let each = (left / open).max(1);
        for turn in 0..limits.len() {
            let shard = (first + turn) % limits.len();
            let more = each.min(limits[shard] - draws[shard]).min(left);
            draws[shard] += more;
            left -= more;
        }
    }
}

/// A number in `[0, 1)` from random bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of items"
)]
fn to_count(items: f64) -> u64 {
    items as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_as_equal_as_the_limits_allow() {
        assert_eq!(take_turns(&[usize::MAX; 3], 7, 1), [2, 3, 2]);
        assert_eq!(take_turns(&[1, 0, 9], 7, 0), [1, 0, 6]);
        assert_eq!(take_turns(&[1, 1], 7, 5), [1, 1]);
    }

    #[test]
    fn draws_are_proportional_to_the_weights() {
        let mut number = 0;
        let mut random = || {
            number += 1;
            engram_engine::derive_number(3, number)
        };
        for shards in [3, 64] {
            let mut weights = vec![0.0; shards];
            (weights[0], weights[shards - 1]) = (1.0, 3.0);
            let mut sums = vec![0; shards];
            for _ in 0..2000 {
                let draws = draw_by_weight(&weights, 4.0, 13, 6, &mut random);
                assert_eq!(draws.iter().sum::<usize>(), 13);
                sums.iter_mut()
                    .zip(draws)
                    .for_each(|(sum, draws)| *sum += draws);
            }
            assert!((sums[0].abs_diff(6500)) < 900, "{sums:?}");
            assert_eq!(sums[0] + sums[shards - 1], 26_000);
        }
    }
}
