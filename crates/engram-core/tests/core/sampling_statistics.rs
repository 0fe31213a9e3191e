//! Chi-square tests of the random samplers, with fixed seeds.
//!
//! Each statistic is compared with the 99.9 % quantile of its distribution. A correct sampler exceeds
//! it for one seed in a thousand, and not for the seeds used here.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "test helpers report failures by panicking; counts are small"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use engram_core::{DeferredDrops, SelectorKind, TableOptions, TableState, Volatile};
use engram_testkit::{byte_item, table_options};

/// Number of draws per test.
const DRAWS: usize = 200_000;

fn table(sampler: SelectorKind, seed: u64) -> TableState {
    let options = TableOptions {
        sampler,
        seed,
        ..table_options("t")
    };
    TableState::new(Arc::new(options), Arc::new(Volatile)).unwrap()
}

/// A table after evictions, many updates and deletes, and the priorities of its items.
fn used_table(sampler: SelectorKind, seed: u64) -> (TableState, BTreeMap<u64, f64>) {
    let mut table = table(sampler, seed);
    let mut expected = BTreeMap::new();
    let mut deferred = DeferredDrops::default();
    for key in 0..1_500 {
        let priority = (key % 17) as f64;
        assert!(table.insert(byte_item(key, priority, 1), 0, &mut deferred));
        expected.insert(key, priority);
        expected.remove(&key.wrapping_sub(1_000));
    }
    for round in 0..40_u64 {
        let updates: Vec<(u64, f64)> = (0..1_500)
            .filter(|key| (key * 31 + round) % 7 == 0)
            .map(|key| (key, ((key * 13 + round * 5) % 23) as f64 * 0.25))
            .collect();
        table.update(updates.iter().copied());
        for (key, priority) in updates {
            expected.entry(key).and_modify(|old| *old = priority);
        }
    }
    let deleted: Vec<u64> = (500..1_500).filter(|key| key % 5 != 2).collect();
    table.delete(&deleted, &mut deferred);
    expected.retain(|key, _| !deleted.contains(key));
    assert_eq!(expected.len(), 200);
    (table, expected)
}

/// Draws `DRAWS` items, checks their probabilities, and returns the number of draws of each key.
fn count_draws(table: &mut TableState, probabilities: &BTreeMap<u64, f64>) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    let mut remaining = DRAWS;
    // Various request sizes: the sum tree processes draws in groups.
    for n in [1, 3, 31, 32, 33, 256, 1_000].into_iter().cycle() {
        let n = n.min(remaining);
        let mut draws = Vec::new();
        assert_eq!(
            table.draw(n, false, &mut draws, &mut DeferredDrops::default()),
            n
        );
        for draw in draws {
            let expected = probabilities[&draw.key];
            assert!((draw.probability - expected).abs() < 1e-9);
            *counts.entry(draw.key).or_insert(0) += 1;
        }
        remaining -= n;
        if remaining == 0 {
            break;
        }
    }
    counts
}

/// Checks that the numbers of draws have the expected distribution.
fn check_distribution(table: &mut TableState, probabilities: &BTreeMap<u64, f64>) {
    let counts = count_draws(table, probabilities);
    let candidates = probabilities.values().filter(|p| **p > 0.0).count();
    assert!(counts.keys().all(|key| probabilities[key] > 0.0));
    let statistic: f64 = probabilities
        .iter()
        .filter(|(_, probability)| **probability > 0.0)
        .map(|(key, probability)| {
            let expected = probability * DRAWS as f64;
            assert!(
                expected > 5.0,
                "too few expected draws for the approximation"
            );
            let observed = counts.get(key).copied().unwrap_or(0) as f64;
            (observed - expected).powi(2) / expected
        })
        .sum();
    let bound = chi_square_quantile(candidates as f64 - 1.0);
    assert!(
        statistic < bound,
        "statistic {statistic}, expected below {bound}"
    );
    // A statistic far below its mean is as unlikely: the draws would be too even.
    assert!(statistic > (candidates as f64 - 1.0) * 0.5, "{statistic}");
}

/// The 99.9 % quantile by the approximation of Wilson and Hilferty.
fn chi_square_quantile(degrees: f64) -> f64 {
    const NORMAL: f64 = 3.090_232;
    let spread = 2.0 / (9.0 * degrees);
    degrees * (1.0 - spread + NORMAL * spread.sqrt()).powi(3)
}

#[test]
fn quantiles_agree_with_published_tables() {
    assert!((chi_square_quantile(10.0) - 29.59).abs() < 0.3);
    assert!((chi_square_quantile(100.0) - 149.45).abs() < 0.1);
}

#[test]
fn uniform_is_uniform() {
    for seed in [1, 2, 3] {
        let (mut table, items) = used_table(SelectorKind::Uniform, seed);
        let probability = 1.0 / items.len() as f64;
        let probabilities = items.into_keys().map(|key| (key, probability)).collect();
        check_distribution(&mut table, &probabilities);
    }
}

#[test]
fn prioritized_follows_the_power_of_priorities() {
    for (seed, exponent) in [(1, 0.0), (2, 0.4), (3, 1.0), (4, 1.5), (5, -0.5)] {
        let (mut table, items) = used_table(SelectorKind::Prioritized { exponent }, seed);
        let weight = |priority: f64| {
            if priority > 0.0 {
                priority.powf(exponent)
            } else {
                0.0
            }
        };
        let total: f64 = items.values().copied().map(weight).sum();
        assert!(items.values().any(|priority| *priority == 0.0));
        let probabilities = items
            .into_iter()
            .map(|(key, priority)| (key, weight(priority) / total))
            .collect();
        check_distribution(&mut table, &probabilities);
    }
}

#[test]
fn all_zero_priorities_are_uniform() {
    let (mut table, items) = used_table(SelectorKind::Prioritized { exponent: 0.6 }, 1);
    table.update(items.keys().map(|key| (*key, 0.0)));
    let probability = 1.0 / items.len() as f64;
    let probabilities: BTreeMap<u64, f64> = items.keys().map(|key| (*key, probability)).collect();
    check_distribution(&mut table, &probabilities);
    // With one weight above 0, every draw returns its item.
    let only = *items.keys().nth(77).unwrap();
    table.update([(only, 1e-9)].into_iter());
    let mut draws = Vec::new();
    table.draw(500, false, &mut draws, &mut DeferredDrops::default());
    assert!(
        draws
            .iter()
            .all(|draw| draw.key == only && draw.distribution.candidates == 1)
    );
}
