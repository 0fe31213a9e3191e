//! What is known of a table on each shard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::{DrawDistribution, SampledItemInfo, TableOptions};
use engram_engine::TableInfo;

/// A table's items on one shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardTotals {
    /// Number of items.
    pub(super) size: u64,
    /// The distribution of the next draw.
    pub(super) distribution: DrawDistribution,
    /// When this was known; `None` if it never was.
    updated: Option<Instant>,
}

/// A table's items on all shards.
#[derive(Clone, Debug)]
pub(super) struct TableTotals {
    /// `None` before the first reply.
    pub(super) options: Option<Arc<TableOptions>>,
    pub(super) shards: Vec<ShardTotals>,
}

impl TableTotals {
    pub(super) fn new(shards: usize) -> Self {
        let unknown = ShardTotals {
            size: 0,
            distribution: EMPTY,
            updated: None,
        };
        Self {
            options: None,
            shards: vec![unknown; shards],
        }
    }

    /// The shards whose totals are older than this, or unknown.
    pub(super) fn older_than(&self, age: Duration) -> Vec<usize> {
        let shards = self.shards.iter().enumerate();
        let stale =
            shards.filter(|(_, totals)| totals.updated.is_none_or(|at| at.elapsed() >= age));
        stale.map(|(shard, _)| shard).collect()
    }

    pub(super) fn set(&mut self, shard: usize, info: &TableInfo) {
        self.options = Some(Arc::clone(&info.options));
        self.shards[shard] = ShardTotals {
            size: info.stats.size,
            distribution: info.distribution,
            updated: Some(Instant::now()),
        };
    }

    /// The most samples that full tables allow; `None` if there is no limit, or it is not known.
    pub(super) fn most_samples(&self) -> Option<u64> {
        let options = self
            .options
            .as_ref()
            .filter(|options| options.max_times_sampled > 0)?;
        let each = options
            .max_size
            .saturating_mul(options.max_times_sampled.into());
        Some(each.saturating_mul(self.shards.len() as u64))
    }

    /// Learns from the last item of a batch.
    pub(super) fn set_from_batch(&mut self, shard: usize, infos: &[SampledItemInfo]) {
        let Some(last) = infos.last() else {
            return;
        };
        let mut distribution = last.distribution;
        if !self.is_weighted() {
            // Counted before the draw, which may have removed items.
            #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
            let drawn = infos.len() as f64;
            distribution.total_weight = (distribution.total_weight - drawn).max(0.0);
        }
        self.shards[shard] = ShardTotals {
            size: last.table_size,
            distribution,
            updated: Some(Instant::now()),
        };
    }

    /// Forgets a shard that cannot be reached.
    pub(super) fn set_unreachable(&mut self, shard: usize) {
        self.shards[shard] = ShardTotals {
            size: 0,
            distribution: EMPTY,
            updated: None,
        };
    }

    /// True if the sampler draws items by weight; false if it returns the first of an order, or is not known yet.
    pub(super) fn is_weighted(&self) -> bool {
        let options = self.options.as_ref();
        options.is_some_and(|options| options.sampler.is_random())
    }

    /// The weight of each shard's items. If the priorities of all items are 0, each item weighs 1.
    pub(super) fn weights(&self) -> Vec<f64> {
        let weights = self
            .shards
            .iter()
            .map(|shard| shard.distribution.total_weight);
        let weights: Vec<f64> = weights.collect();
        if weights.iter().any(|weight| *weight > 0.0) {
            return weights;
        }
        #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
        let sizes = self
            .shards
            .iter()
            .map(|shard| shard.distribution.candidates as f64);
        sizes.collect()
    }

    /// Number of items of all shards.
    pub(super) fn size(&self) -> u64 {
        self.shards.iter().map(|shard| shard.size).sum()
    }

    /// The distribution of a draw from all shards.
    pub(super) fn distribution(&self) -> DrawDistribution {
        let weights = self.weights();
        let total: f64 = weights.iter().sum();
        let drawn = self
            .shards
            .iter()
            .zip(weights)
            .filter(|(_, weight)| *weight > 0.0);
        drawn.fold(
            DrawDistribution {
                min_probability: 1.0,
                total_weight: total,
                ..EMPTY
            },
            |all, (shard, weight)| DrawDistribution {
                candidates: all.candidates + shard.distribution.candidates,
                min_probability: (all.min_probability)
                    .min(shard.distribution.min_probability * weight / total),
                total_weight: total,
            },
        )
    }
}

const EMPTY: DrawDistribution = DrawDistribution {
    candidates: 0,
    min_probability: f64::INFINITY,
    total_weight: 0.0,
};
