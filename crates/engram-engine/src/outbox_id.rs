//! Ids of outboxes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies an outbox in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutboxId(u64);

impl Default for OutboxId {
    /// Returns a new id.
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}
