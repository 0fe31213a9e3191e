//! The leases of batches that were sent and not acknowledged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use engram_core::SessionNumber;
use engram_engine::{Lease, UntilDurable};
use tokio::time::Instant;

/// The leases of one stream. Dropping them returns their items.
#[derive(Debug, Default)]
pub(in crate::server) struct Leases {
    /// Expiry (`None`: never) and lease, by id of the batch.
    leases: HashMap<u64, (Option<Instant>, Lease)>,
    /// Expiry times and ids, earliest first.
    expiries: BTreeSet<(Instant, u64)>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.leases.contains_key(&id)
    }

    /// Number of items of a batch; `None` if it is not on lease.
    pub(super) fn num_items(&self, id: u64) -> Option<usize> {
        self.leases.get(&id).map(|(_, lease)| lease.len())
    }

    /// Adds a lease. A timeout beyond the range of clocks means that it never expires.
    pub(super) fn add(&mut self, id: u64, lease: Lease, timeout: Duration) {
        let expiry = Instant::now().checked_add(timeout);
        self.expiries.extend(expiry.map(|expiry| (expiry, id)));
        self.leases.insert(id, (expiry, lease));
    }

    /// Acknowledges the first `items` of a batch and returns the others to the table. Ignores a batch that is not on
    /// lease. The result is ready once the acknowledgement is durable; `None` if it need not be.
    pub(super) fn acknowledge(
        &mut self,
        id: u64,
        items: usize,
        number: Option<SessionNumber>,
    ) -> Option<UntilDurable> {
        self.take(id)?.acknowledge_first_numbered(items, number)
    }

    /// Returns the items of all batches except these to their tables.
    pub(super) fn retain(&mut self, ids: &HashSet<u64>) {
        let others = self.leases.keys().filter(|id| !ids.contains(id));
        for id in others.copied().collect::<Vec<_>>() {
            self.cancel(id);
        }
    }

    /// Returns the items of a batch to the table. Ignores a batch that is not on lease.
    pub(super) fn cancel(&mut self, id: u64) {
        drop(self.take(id));
    }

    fn take(&mut self, id: u64) -> Option<Lease> {
        let (expiry, lease) = self.leases.remove(&id)?;
        if let Some(expiry) = expiry {
            self.expiries.remove(&(expiry, id));
        }
        Some(lease)
    }

    pub(super) fn first_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(expiry, _)| *expiry)
    }

    /// Returns the items of expired leases to their tables.
    pub(super) fn return_expired(&mut self) {
        let now = Instant::now();
        while let Some((_, id)) = self.expiries.first().filter(|(expiry, _)| *expiry <= now) {
            self.cancel(*id);
        }
    }
}
