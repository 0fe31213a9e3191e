//! The leases that the server has ended because their connection broke.

use std::collections::HashSet;

use parking_lot::Mutex;

/// The ids of batches that arrived before their connection broke, and whose lease object still exists: the stream's task
/// adds them, and removes those whose lease is acknowledged or dropped.
#[derive(Debug, Default)]
pub(super) struct EndedLeases(Mutex<HashSet<u64>>);

impl EndedLeases {
    pub(super) fn extend(&self, ids: impl IntoIterator<Item = u64>) {
        self.0.lock().extend(ids);
    }

    pub(super) fn forget(&self, id: u64) {
        self.0.lock().remove(&id);
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.0.lock().contains(&id)
    }
}
