//! What all calls of one server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engram_core::pool::Pool;
use engram_engine::Engine;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::counters::Counters;
use super::sample::ReaderSessions;
use super::shutdown::ShutdownSignal;

/// The replies of a stream, as its task sends them.
pub(super) type Replies<T> = ReceiverStream<Result<T, Status>>;

/// What all calls of one server share.
#[derive(Debug)]
pub(super) struct ServiceState {
    pub(super) engine: Arc<Engine>,
    pub(super) shutdown: ShutdownSignal,
    pub(super) lease_timeout: Duration,
    pub(super) readers: ReaderSessions,
    /// Before this, nothing is drawn from tables from which sampling removes items: readers of an earlier server of these
    /// tables can continue their leases, before others draw the items. `None` if there were none lately.
    pub(super) readers_return_by: Option<Instant>,
    /// Buffers for batches.
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Counters,
    /// Each table that a client creates without a seed gets a different seed, computed from this one.
    pub(super) seed: u64,
    /// Number of seeds computed so far: one per request to create a table.
    pub(super) num_seeds: AtomicU64,
    /// Random number that identifies this server.
    pub(super) instance: u64,
    /// The TCP port of the server.
    pub(super) port: u16,
    /// Id of the server among the shards; 0: none.
    pub(super) shard_id: u16,
    /// Name of the abstract Unix socket; empty if there is none.
    pub(super) local_socket: String,
}

impl ServiceState {
    /// Returns a seed for a new table, different from those returned before.
    pub(super) fn next_seed(&self) -> u64 {
        let number = self.num_seeds.fetch_add(1, Ordering::Relaxed) + 1;
        self.seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
