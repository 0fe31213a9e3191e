//! What a client does if the server of a shard is gone: its writers send their items to another shard, and the first
//! one deletes what it has of them as soon as it can be reached again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engram_core::Error;
use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::connect::{Connection, Connector};
use crate::pb;
use crate::pb::change_request::Change;
use crate::pb::change_response::Outcome;
use crate::wire::{decode_error, encode_numbers};

/// Maximum number of keys of one request.
const MAX_KEYS: usize = 8192;

/// Pause after a call of [`Connector::connect`] that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// The part of a [`Connector`] that concerns the other shards: their connectors, whether its own server can be reached,
/// and which items that server must delete.
#[derive(Debug, Default)]
pub(crate) struct Failover {
    /// All shards of the same tables, this one included. Empty if the tables are not sharded.
    peers: RwLock<Vec<Weak<Connector>>>,
    /// True once a call of [`Connector::connect`] has given up, or a sample got no reply, after `reconnect_timeout`; until a
    /// call of `connect` succeeds.
    is_unreachable: AtomicBool,
    /// True while [`Failover::connect_later`] tries to connect.
    is_probing: AtomicBool,
    /// Locked while moved items are deleted: until then, [`Connector::connect`] returns no connection.
    deleting: tokio::sync::Mutex<()>,
    /// Keys by table of items that were sent to this server without an acknowledgement, and then to another one.
    moved: Mutex<BTreeMap<String, Vec<u64>>>,
}

/// Returns another session id.
pub(crate) fn next_session(session: u64) -> u64 {
    engram_engine::derive_number(session, 1)
}

impl Failover {
    /// Sets the connectors of all shards.
    pub(crate) fn set_peers(&self, peers: Vec<Weak<Connector>>) {
        *self.peers.write() = peers;
    }

    /// False from [`Failover::set_unreachable`] until the next [`Failover::set_reachable`].
    pub(crate) fn is_reachable(&self) -> bool {
        !self.is_unreachable.load(Ordering::SeqCst)
    }

    /// Records that the server could be reached.
    pub(crate) fn set_reachable(&self) {
        self.is_unreachable.store(false, Ordering::SeqCst);
    }

    /// Records that the server could not be reached, or has not replied, within `reconnect_timeout`. A server among shards is
    /// tried again until it can be reached.
    pub(crate) fn set_unreachable(&self) {
        self.is_unreachable.store(true, Ordering::SeqCst);
        let own = {
            let peers = self.peers.read();
            let mut peers = peers.iter().filter_map(Weak::upgrade);
            peers.find(|peer| std::ptr::eq(&raw const peer.failover, self))
        };
        if let Some(own) = own {
            Self::connect_later(&own);
        }
    }

    /// Returns the connector of another shard that can probably be reached: the first one after this, in a circle.
    pub(crate) fn reachable_peer(&self) -> Option<Arc<Connector>> {
        let peers = self.peers.read();
        let peers: Vec<_> = peers.iter().filter_map(Weak::upgrade).collect();
        let own = (peers.iter()).position(|peer| std::ptr::eq(&raw const peer.failover, self))?;
        let others = peers[own + 1..].iter().chain(&peers[..own]);
        let mut reachable = others.filter(|peer| peer.failover.is_reachable() && !peer.is_closed());
        reachable.next().cloned()
    }

    /// Adds items that the server must delete, because they are sent to another one.
    pub(crate) fn add_moved_items(&self, table: &str, keys: impl Iterator<Item = u64>) {
        let mut moved = self.moved.lock();
        moved.entry(table.into()).or_default().extend(keys);
    }

    /// Deletes the moved items, and forgets those whose deletion is confirmed.
    pub(crate) async fn delete_moved_items(&self, connection: &Connection) -> Result<(), Status> {
        let _deleting = self.deleting.lock().await;
        // They stay in `self.moved` until then, because this future can be dropped.
        let moved = self.moved.lock().clone();
        if moved.values().all(Vec::is_empty) {
            return Ok(());
        }
        delete(connection, &moved).await?;
        let mut left = self.moved.lock();
        for (table, keys) in moved {
            // Others were added behind them meanwhile.
            if let Some(left) = left.get_mut(&table) {
                left.drain(..keys.len());
            }
        }
        Ok(())
    }

    /// Connects to a server as soon as possible, so that it deletes the moved items and is used again.
    pub(crate) fn connect_later(connector: &Arc<Connector>) {
        if connector.failover.is_probing.swap(true, Ordering::SeqCst) {
            return;
        }
        let connector = Arc::downgrade(connector);
        tokio::spawn(async move {
            while let Some(connector) = connector.upgrade() {
                if connector.is_closed() || connector.connect(Instant::now()).await.is_ok() {
                    let failover = &connector.failover;
                    failover.is_probing.store(false, Ordering::SeqCst);
                    // A call that began before may have failed since then, without starting this loop again.
                    let is_done = connector.is_closed() || failover.is_reachable();
                    if is_done || failover.is_probing.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
                drop(connector);
                sleep(PAUSE).await;
            }
        });
    }
}

/// Deletes items by table. Tables that do not exist any more are skipped; fails if anything else prevents a deletion.
async fn delete(connection: &Connection, items: &BTreeMap<String, Vec<u64>>) -> Result<(), Status> {
    let requests: Vec<_> = (items.iter())
        .flat_map(|(table, keys)| keys.chunks(MAX_KEYS).map(move |keys| (table, keys)))
        .zip(0..)
        .map(|((table, keys), id)| pb::ChangeRequest {
            id,
            table: table.clone(),
            keys_le: encode_numbers(keys.iter().copied()),
            change: Some(Change::Delete(pb::Empty {})),
        })
        .collect();
    let count = requests.len();
    let mut client = connection.client.clone();
    let mut responses = client
        .change(tokio_stream::iter(requests))
        .await?
        .into_inner();
    for _ in 0..count {
        let response = responses.message().await?;
        let why = match response.and_then(|response| response.outcome) {
            Some(Outcome::Matched(_)) => continue,
            Some(Outcome::Error(error)) => match decode_error(error) {
                // A server whose disk is full has deleted the items in memory. They must not be deleted again later:
                // a writer may have sent them to this server again by then.
                Error::UnknownTable { .. } | Error::Storage(_) => continue,
                error => format!(": {error}"),
            },
            None => String::new(),
        };
        return Err(Status::unavailable(format!(
            "it did not confirm the deletion of items that this client has sent to another shard{why}"
        )));
    }
    Ok(())
}
