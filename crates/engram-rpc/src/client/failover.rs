//! If the server of a shard is gone, writers send their items to another shard, and the first one deletes what it has of
//! them as soon as it can be reached again. `peers.rs` chooses the other shard.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use engram_core::Error;
use parking_lot::Mutex;
use tonic::Status;

use super::changes::MAX_KEYS_PER_REQUEST;
use super::connection::Connection;
use crate::pb;
use crate::pb::change_request::Change;
use crate::pb::change_response::Outcome;
use crate::wire::{decode_error, encode_numbers};

/// Whether a server can be reached, and which items it must delete.
#[derive(Debug, Default)]
pub(crate) struct Failover {
    /// True once a call of `Connector::connect` has given up, or a sample got no reply, after `reconnect_timeout`; until a
    /// call of `connect` succeeds.
    pub(super) is_unreachable: AtomicBool,
    /// True while `Connector::connect_later` tries to connect.
    pub(super) is_probing: AtomicBool,
    /// Locked while moved items are deleted: until then, `Connector::connect` returns no connection.
    deleting: tokio::sync::Mutex<()>,
    /// Keys by table of items that were sent to this server without an acknowledgement, and then to another one.
    moved: Mutex<BTreeMap<String, Vec<u64>>>,
}

/// Returns another session id.
pub(crate) fn next_session(session: u64) -> u64 {
    engram_engine::derive_number(session, 1)
}

impl Failover {
    /// False from `Connector::set_unreachable` until the next [`Failover::set_reachable`].
    pub(crate) fn is_reachable(&self) -> bool {
        !self.is_unreachable.load(Ordering::SeqCst)
    }

    /// Records that the server could be reached.
    pub(crate) fn set_reachable(&self) {
        self.is_unreachable.store(false, Ordering::SeqCst);
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
}

/// Deletes items by table. Tables that do not exist any more are skipped; fails if anything else prevents a deletion.
async fn delete(connection: &Connection, items: &BTreeMap<String, Vec<u64>>) -> Result<(), Status> {
    let requests: Vec<_> = (items.iter())
        .flat_map(|(table, keys)| {
            keys.chunks(MAX_KEYS_PER_REQUEST)
                .map(move |keys| (table, keys))
        })
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
