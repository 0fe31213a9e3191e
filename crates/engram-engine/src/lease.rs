//! Leases: sampled items that are not yet acknowledged.
//!
//! ```text
//!               acknowledge: the sample is final
//! sample ──► leased ──┤
//!               drop: the item is available again, as if it had not been sampled
//! ```

use std::sync::Arc;

use engram_core::Draw;

use crate::table::Table;

/// Result of a sampling call.
#[derive(Debug)]
pub struct Sample {
    /// The drawn items: as many as requested, or fewer for a partial sample.
    pub draws: Vec<Draw>,
    /// Their lease, if one was requested.
    pub lease: Option<Lease>,
}

/// Leased draws. Acknowledging them makes the samples final; dropping the lease returns the items to
/// their table.
#[derive(Debug)]
pub struct Lease {
    table: Arc<Table>,
    handles: Vec<engram_core::Handle>,
}

impl Lease {
    pub(crate) fn new(table: &Arc<Table>, draws: &[Draw]) -> Self {
        let handles = draws.iter().map(|draw| draw.handle).collect();
        Self {
            table: Arc::clone(table),
            handles,
        }
    }

    /// Moves the first `n` draws (or all, if there are fewer) to a new lease.
    #[must_use]
    pub fn split_first(&mut self, n: usize) -> Self {
        let rest = self.handles.split_off(n.min(self.handles.len()));
        Self {
            table: Arc::clone(&self.table),
            handles: std::mem::replace(&mut self.handles, rest),
        }
    }

    /// Makes all samples final.
    pub fn acknowledge(mut self) {
        let handles = std::mem::take(&mut self.handles);
        self.table.acknowledge(&handles);
    }

    /// Makes the first `n` samples final (or all, if there are fewer) and returns the others.
    pub fn acknowledge_first(mut self, n: usize) {
        self.split_first(n).acknowledge();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            self.table.return_leases(&self.handles);
        }
    }
}
