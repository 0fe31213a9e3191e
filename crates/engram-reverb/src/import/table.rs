//! A table of a checkpoint as one of ours.

use std::sync::Arc;

use engram_core::selector::TableRng;
use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{
    Error, NewItem, RateLimiter, RateLimits, Result, SelectorKind, TableOptions, TableState,
    Volatile,
};
use rand_xoshiro::rand_core::SeedableRng as _;

use crate::pb;
use crate::pb::key_distribution_options::{Distribution, Heap};
use crate::signature::note;

/// A table on its way in.
pub(super) struct Incoming {
    restore: Restore,
    options: Arc<TableOptions>,
    items: u64,
}

impl Incoming {
    /// # Errors
    /// [`Error::InvalidArgument`] for a table that cannot be: its limits, its selectors.
    pub(super) fn new(saved: &pb::PriorityTableCheckpoint, items: u64, seed: u64) -> Result<Self> {
        let options = Arc::new(options(saved, seed)?);
        let limiter = saved.rate_limiter.unwrap_or_default();
        let counters = Counters {
            limiter: RateLimiter {
                limits: options.limits.clone(),
                inserts: count(limiter.insert_count),
                samples: count(limiter.sample_count),
                deletes: count(limiter.delete_count),
            },
            rng: TableRng::seed_from_u64(seed),
            next_seq: items,
            first_seq: 0,
            next_touch: items,
            num_deleted_episodes: count(saved.num_deleted_episodes),
            num_unique_samples: count(saved.num_unique_samples),
            leased: 0,
            last_lsn: engram_core::Lsn::default(),
        };
        let restore = Restore::new(Arc::clone(&options), Arc::new(Volatile), counters)?;
        Ok(Self {
            restore,
            options,
            items: 0,
        })
    }

    pub(super) fn options(&self) -> &TableOptions {
        &self.options
    }

    /// How many items it has so far.
    pub(super) fn items(&self) -> u64 {
        self.items
    }

    /// Adds the next item, in order of age.
    ///
    /// # Errors
    /// As [`Restore::item`].
    pub(super) fn add(&mut self, item: NewItem, times_sampled: i32) -> Result<()> {
        let number = self.items;
        self.items += 1;
        self.restore.item(SavedItem {
            item,
            seq: number,
            // Which of equals in a heap was touched last is not kept by dm-reverb: the youngest counts as that.
            touched: number,
            times_sampled: u32::try_from(times_sampled).unwrap_or(0),
            leases: 0,
            inserted_at: 0,
        })
    }

    pub(super) fn finish(self) -> Result<TableState> {
        self.restore.finish()
    }
}

fn options(saved: &pb::PriorityTableCheckpoint, seed: u64) -> Result<TableOptions> {
    let name = &saved.table_name;
    let limiter = saved.rate_limiter.unwrap_or_default();
    let note = note(saved.max_times_sampled, saved.signature.as_ref());
    let note = note.ok_or_else(|| {
        Error::InvalidArgument(format!(
            "table `{name}` has a signature with what Engram has no type for, or that nests too deep"
        ))
    })?;
    Ok(TableOptions {
        name: name.clone(),
        max_size: count(saved.max_size),
        max_bytes: None,
        max_times_sampled: u32::try_from(saved.max_times_sampled).unwrap_or(0),
        ttl: None,
        sampler: selector(name, saved.sampler.as_ref())?,
        remover: selector(name, saved.remover.as_ref())?,
        limits: RateLimits {
            kind: "RateLimiter".into(),
            samples_per_insert: limiter.samples_per_insert,
            min_size: count(limiter.min_size_to_sample),
            min_diff: limiter.min_diff,
            max_diff: limiter.max_diff,
        },
        signature: None,
        seed,
        note: Some(note.into()),
    })
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn selector(table: &str, options: Option<&pb::KeyDistributionOptions>) -> Result<SelectorKind> {
    let distribution = options.and_then(|options| options.distribution.as_ref());
    Ok(match distribution {
        Some(Distribution::Fifo(true)) => SelectorKind::Fifo,
        Some(Distribution::Lifo(true)) => SelectorKind::Lifo,
        Some(Distribution::Uniform(true)) => SelectorKind::Uniform,
        Some(Distribution::Prioritized(prioritized)) => SelectorKind::Prioritized {
            exponent: prioritized.priority_exponent,
        },
        Some(Distribution::Heap(Heap { min_heap: true })) => SelectorKind::MinHeap,
        Some(Distribution::Heap(Heap { min_heap: false })) => SelectorKind::MaxHeap,
        other => {
            return Err(Error::InvalidArgument(format!(
                "table `{table}` was saved with a selector that nobody knows: {other:?}"
            )));
        }
    })
}
