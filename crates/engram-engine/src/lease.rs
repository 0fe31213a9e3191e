//! Samples that may still come back.

use std::sync::Arc;

use engram_core::Draw;

use crate::table::Table;

/// What a sampling call returns.
#[derive(Debug)]
pub struct Sample {
    /// The items, as many as were asked for unless partial ones were.
    pub draws: Vec<Draw>,
    /// The promise to say whether they were used, if one was asked for.
    pub lease: Option<Lease>,
}

/// Leased draws: acknowledged when their reader says so, given back when this is dropped.
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

    /// Takes the first `n` draws out, or all where there are fewer: they end on their own.
    #[must_use]
    pub fn split_first(&mut self, n: usize) -> Self {
        let rest = self.handles.split_off(n.min(self.handles.len()));
        Self {
            table: Arc::clone(&self.table),
            handles: std::mem::replace(&mut self.handles, rest),
        }
    }

    /// The samples were used: they are final.
    pub fn acknowledge(mut self) {
        let handles = std::mem::take(&mut self.handles);
        self.table.acknowledge(&handles);
    }

    /// The first `n` samples were used, or all where there are fewer; the others go back.
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
