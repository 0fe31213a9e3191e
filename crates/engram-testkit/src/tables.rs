//! Options of tables.

use engram_core::{RateLimits, SelectorKind, TableOptions};

/// Options of a first-in-first-out table of up to 1,000 items, whose rate limiter never blocks inserts.
#[must_use]
pub fn table_options(name: &str) -> TableOptions {
    TableOptions {
        name: name.into(),
        max_size: 1_000,
        max_bytes: None,
        max_times_sampled: 0,
        ttl: None,
        sampler: SelectorKind::Fifo,
        remover: SelectorKind::Fifo,
        limits: RateLimits::min_size(1),
        signature: None,
        seed: 7,
        note: None,
    }
}
