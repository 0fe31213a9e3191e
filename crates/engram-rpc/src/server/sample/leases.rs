//! Batches that were sent and may still come back.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use engram_engine::Lease;
use tokio::time::Instant;

/// The leases of one stream; dropped, they go back.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: HashMap<u64, (Option<Instant>, Lease)>,
    /// When they expire, soonest first.
    expiries: BTreeSet<(Instant, u64)>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.held.contains_key(&id)
    }

    /// Keeps a lease for a reader; a timeout beyond all time is none.
    pub(super) fn add(&mut self, id: u64, lease: Lease, timeout: Duration) {
        let expiry = Instant::now().checked_add(timeout);
        self.expiries.extend(expiry.map(|expiry| (expiry, id)));
        self.held.insert(id, (expiry, lease));
    }

    /// The reader has used the first `items` of the batch, and gives the others back. A batch that is not
    /// on lease, or no longer, is ignored.
    pub(super) fn acknowledge(&mut self, id: u64, items: usize) {
        if let Some(lease) = self.take(id) {
            lease.acknowledge_first(items);
        }
    }

    /// The reader does not want the batch.
    pub(super) fn cancel(&mut self, id: u64) {
        drop(self.take(id));
    }

    fn take(&mut self, id: u64) -> Option<Lease> {
        let (expiry, lease) = self.held.remove(&id)?;
        if let Some(expiry) = expiry {
            self.expiries.remove(&(expiry, id));
        }
        Some(lease)
    }

    pub(super) fn first_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(expiry, _)| *expiry)
    }

    /// Gives back what was on lease for too long.
    pub(super) fn return_expired(&mut self) {
        let now = Instant::now();
        while let Some((_, id)) = self.expiries.first().filter(|(expiry, _)| *expiry <= now) {
            self.cancel(*id);
        }
    }
}
