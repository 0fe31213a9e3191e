//! The batches on lease that a reader has, and its acknowledgements that are not confirmed: what a stream continues on its
//! next connection.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::pb;
use crate::pb::sample_request::Request;
use crate::wire::encode_numbers;

/// A server remembers acknowledgements for 10 minutes. After half of that, one that it does not remember counts as
/// handled: its items could have been removed.
const REMEMBERED: Duration = Duration::from_secs(300);

/// An acknowledgement that is not confirmed.
#[derive(Debug)]
pub(super) struct Acknowledgement {
    /// Its number in the session.
    pub(super) number: u64,
    /// Number of the batch's first items that are used; `None`: all.
    pub(super) items: Option<u32>,
    /// True if the caller gets the batch only once this is confirmed. If it is lost, the caller drops the batch.
    pub(super) precedes_use: bool,
    /// True if it is confirmed once it is durable; false if once it is handled.
    pub(super) is_durable: bool,
    pub(super) since: Instant,
}

impl Acknowledgement {
    /// True if the server would still remember it, if it had handled it.
    pub(super) fn is_recent(&self) -> bool {
        self.since.elapsed() < REMEMBERED
    }
}

/// A batch on lease.
#[derive(Debug)]
pub(super) struct HeldLease {
    table: String,
    keys: Vec<u64>,
    pub(super) acknowledgement: Option<Acknowledgement>,
    /// True if the server has only some of the items on lease.
    pub(super) is_partial: bool,
    /// True if the server was last asked for all items, and not for those that an acknowledgement concerns.
    pub(super) listed_unused: bool,
}

/// The leases of one stream, by id.
#[derive(Debug, Default)]
pub(super) struct HeldLeases {
    leases: BTreeMap<u64, HeldLease>,
    /// Number and id of the acknowledgements that are confirmed once they are handled, in order.
    unhandled: VecDeque<(u64, u64)>,
}

impl HeldLeases {
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn insert(&mut self, id: u64, table: &str, keys: Vec<u64>) {
        let lease = HeldLease {
            table: table.into(),
            keys,
            acknowledgement: None,
            is_partial: false,
            listed_unused: false,
        };
        self.leases.insert(id, lease);
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut HeldLease> {
        self.leases.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<HeldLease> {
        self.leases.remove(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.leases.keys().copied()
    }

    /// Adds the acknowledgement of a batch. Returns false if the batch is not on lease.
    pub(super) fn acknowledge(&mut self, id: u64, acknowledgement: Acknowledgement) -> bool {
        let Some(lease) = self.leases.get_mut(&id) else {
            return false;
        };
        if !acknowledgement.is_durable {
            self.unhandled.push_back((acknowledgement.number, id));
        }
        lease.acknowledgement = Some(acknowledgement);
        true
    }

    /// The server has handled the acknowledgements up to this number.
    pub(super) fn set_handled(&mut self, number: u64) {
        while let Some((_, id)) = self.unhandled.front().filter(|(first, _)| *first <= number) {
            self.leases.remove(id);
            self.unhandled.pop_front();
        }
    }

    /// The ids of the acknowledged batches, in the order of their acknowledgements.
    pub(super) fn acknowledged(&self) -> Vec<u64> {
        let numbers = self.leases.iter().filter_map(|(id, lease)| {
            let acknowledgement = lease.acknowledgement.as_ref()?;
            Some((acknowledgement.number, *id))
        });
        let numbers: BTreeMap<u64, u64> = numbers.collect();
        numbers.into_values().collect()
    }

    /// Removes all leases.
    pub(super) fn take(&mut self) -> BTreeMap<u64, HeldLease> {
        self.unhandled.clear();
        std::mem::take(&mut self.leases)
    }

    /// The request that acknowledges a batch; `None` if it is not acknowledged.
    pub(super) fn acknowledge_request(&self, id: u64) -> Option<pb::SampleRequest> {
        let acknowledgement = self.leases.get(&id)?.acknowledgement.as_ref()?;
        Some(pb::SampleRequest {
            used_items: acknowledgement.items,
            number: Some(acknowledgement.number),
            ..Request::Acknowledge(id).into()
        })
    }

    /// A lease as the stream continues it on its next connection; `None` if it has ended.
    pub(super) fn encode(&mut self, id: u64) -> Option<pb::HeldLease> {
        let lease = self.leases.get_mut(&id)?;
        lease.listed_unused = lease.acknowledgement.is_none();
        let acknowledgement = lease.acknowledgement.as_ref();
        let used = acknowledgement.and_then(|acknowledgement| acknowledgement.items);
        let used = used.map_or(lease.keys.len(), |items| items as usize);
        Some(pb::HeldLease {
            id,
            table: lease.table.clone(),
            keys_le: encode_numbers(lease.keys.iter().copied().take(used)),
            number: acknowledgement.map(|acknowledgement| acknowledgement.number),
        })
    }
}
