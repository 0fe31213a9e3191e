//! Table infos for dm-reverb's clients.

use engram_core::{RateLimiter, SelectorKind, TableOptions};
use engram_engine::Table;

use crate::pb;
use crate::pb::key_distribution_options::{Distribution, Heap, Prioritized};
use crate::signature::{self, ReverbNote};

/// The info of a table, as dm-reverb's clients read it.
pub(crate) fn table_info(table: &Table) -> pb::TableInfo {
    let info = table.info();
    let options = &info.options;
    let ReverbNote {
        max_times_sampled,
        signature,
    } = reverb_note(options);
    let stats = &info.stats;
    pb::TableInfo {
        sampler_options: Some(distribution(options.sampler)),
        remover_options: Some(distribution(options.remover)),
        max_size: saturating_i64(options.max_size),
        max_times_sampled: max_times_sampled
            .unwrap_or_else(|| i32::try_from(options.max_times_sampled).unwrap_or(i32::MAX)),
        rate_limiter_info: Some(limiter(&stats.limiter)),
        signature,
        current_size: saturating_i64(stats.size),
        name: options.name.clone(),
        num_episodes: saturating_i64(stats.num_episodes),
        num_deleted_episodes: saturating_i64(stats.num_deleted_episodes),
        num_unique_samples: saturating_i64(stats.num_unique_samples),
        table_worker_time: Some(pb::TableWorkerTime::default()),
    }
}

/// What the compatibility package or an import stored in the table's note; without such a note, the same from the
/// table's own options.
fn reverb_note(options: &TableOptions) -> ReverbNote {
    let from_options = || ReverbNote {
        max_times_sampled: None,
        signature: options
            .signature
            .as_ref()
            .and_then(|signature| signature::encode_signature(signature)),
    };
    let note = options.note.as_deref();
    note.and_then(signature::decode_note)
        .unwrap_or_else(from_options)
}

fn distribution(kind: SelectorKind) -> pb::KeyDistributionOptions {
    let (distribution, is_deterministic) = match kind {
        SelectorKind::Fifo => (Distribution::Fifo(true), true),
        SelectorKind::Lifo => (Distribution::Lifo(true), true),
        SelectorKind::Uniform => (Distribution::Uniform(true), false),
        SelectorKind::Prioritized { exponent } => {
            let prioritized = Prioritized {
                priority_exponent: exponent,
            };
            (Distribution::Prioritized(prioritized), false)
        }
        SelectorKind::MinHeap => (Distribution::Heap(Heap { min_heap: true }), true),
        SelectorKind::MaxHeap => (Distribution::Heap(Heap { min_heap: false }), true),
    };
    pb::KeyDistributionOptions {
        distribution: Some(distribution),
        is_deterministic,
    }
}

fn limiter(limiter: &RateLimiter) -> pb::RateLimiterInfo {
    let limits = &limiter.limits;
    let stats = |completed| {
        Some(pb::RateLimiterCallStats {
            completed: saturating_i64(completed),
        })
    };
    pb::RateLimiterInfo {
        samples_per_insert: limits.samples_per_insert,
        // dm-reverb has no infinite bounds.
        min_diff: limits.min_diff.clamp(f64::MIN, f64::MAX),
        max_diff: limits.max_diff.clamp(f64::MIN, f64::MAX),
        min_size_to_sample: saturating_i64(limits.min_size),
        insert_stats: stats(limiter.inserts),
        sample_stats: stats(limiter.samples),
    }
}

fn saturating_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
