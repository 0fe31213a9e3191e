//! Samples tables that are sharded over several servers: one request to each shard that is drawn from, one batch.

mod draws;
mod lease;
mod merge;
mod sampling;
mod stream;
mod totals;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engram_core::{Error, Result};
use engram_engine::StreamOptions;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::sample_requests::SampleRequests;
use super::{BatchRequest, Client, PendingResponse};
use crate::random_u64;

pub use lease::ShardedLease;
pub use sampling::ShardedBatch;
use sampling::{ShardedSample, Turn};
pub use stream::ShardedStream;
use totals::TableTotals;

/// Maximum age of the totals that a draw depends on.
pub const MAX_TOTALS_AGE: Duration = Duration::from_millis(100);

/// The clients of all shards of the same tables.
#[derive(Debug)]
pub struct ShardedTables {
    clients: Vec<Arc<Client>>,
    /// What is known of each table on each shard.
    totals: Mutex<HashMap<String, TableTotals>>,
    /// Determines the random choices of shards, with `next_number`.
    seed: u64,
    /// Minimum number of items per request, if a sample has that many.
    items_per_request: usize,
    next_number: AtomicU64,
}

impl ShardedTables {
    /// Connects the clients: if the server of one cannot be reached for its `reconnect_timeout`, the items of its
    /// writers go to another one. Without a seed, the choices of shards are random. A sample draws from at most one shard
    /// per `items_per_request` items, or from one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system provides no random numbers.
    pub fn new(
        clients: Vec<Arc<Client>>,
        seed: Option<u64>,
        items_per_request: NonZeroUsize,
    ) -> Result<Self> {
        let connectors = clients.iter().map(|client| client.connector());
        let peers: Vec<_> = connectors.clone().map(Arc::downgrade).collect();
        for connector in connectors {
            connector.set_peers(peers.clone());
        }
        Ok(Self {
            clients,
            totals: Mutex::default(),
            seed: seed.map_or_else(random_u64, Ok)?,
            items_per_request: items_per_request.get(),
            next_number: AtomicU64::new(0),
        })
    }

    /// True if the shard could be reached when it was last tried, or was not tried yet.
    #[must_use]
    pub fn is_reachable(&self, shard: usize) -> bool {
        self.clients[shard].connector().failover.is_reachable()
    }

    /// Forgets what is known of the sizes of all tables, because the caller has changed them.
    pub fn forget_totals(&self) {
        self.totals.lock().clear();
    }

    /// Samples a table: see [`ShardedSample::run`].
    #[must_use]
    pub fn sample(self: &Arc<Self>, request: BatchRequest) -> PendingResponse<ShardedBatch> {
        let requests = self.clients.iter().map(|client| client.samples.clone());
        self.start_sample(requests.collect(), request, Turn::default())
    }

    /// Opens a stream that prefetches batches.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options, [`Error::Closed`] if a client is closed.
    pub fn stream(
        self: &Arc<Self>,
        table: &engram_core::TableOptions,
        options: StreamOptions,
    ) -> Result<ShardedStream> {
        let opened = self
            .clients
            .iter()
            .map(|client| client.open_requests(table));
        let opened = opened.collect::<Result<_>>()?;
        ShardedStream::open(Arc::clone(self), opened, table, options)
    }

    fn start_sample(
        self: &Arc<Self>,
        requests: Vec<SampleRequests>,
        request: BatchRequest,
        turn: Turn,
    ) -> PendingResponse<ShardedBatch> {
        let (mut sender, receiver) = oneshot::channel();
        let sample = ShardedSample::new(Arc::clone(self), requests, request, turn);
        self.clients[0].runtime().spawn(async move {
            let sampled = tokio::select! {
                sampled = sample.run() => sampled,
                // The caller does not wait any more.
                () = sender.closed() => return,
            };
            let _ = sender.send(sampled);
        });
        PendingResponse::new(receiver)
    }

    /// A random number, different in each call.
    fn random(&self) -> u64 {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        engram_engine::derive_number(self.seed, number)
    }

    /// Requests the totals of a table from the shards whose totals are older than `max_age`. Shards that cannot be
    /// reached count as empty.
    ///
    /// # Errors
    /// [`Error::UnknownTable`] if a shard does not have the table, [`Error::Unavailable`] if no shard can be reached.
    async fn refresh(&self, table: &str, max_age: Duration) -> Result<()> {
        let stale = self.with_totals(table, |totals| totals.older_than(max_age));
        let reachable = stale.into_iter().filter(|shard| self.is_reachable(*shard));
        let infos = reachable.map(|shard| async move {
            let infos = self.clients[shard].infos().await;
            // At once, because a timeout may drop this future while another shard has not replied.
            let mut known = infos.iter().flatten();
            if let Some(info) = known.find(|info| info.options.name == table) {
                self.with_totals(table, |totals| totals.set(shard, info));
            }
            (shard, infos)
        });
        let mut last_error = None;
        for (shard, infos) in futures_util::future::join_all(infos).await {
            match infos {
                Ok(infos) => {
                    if infos.iter().all(|info| info.options.name != table) {
                        self.check_table(shard, table).await?; // it may just have been created
                    }
                }
                Err(error @ Error::Unavailable(_)) => {
                    self.note_unreachable(shard);
                    last_error = Some(error);
                }
                Err(error) => return Err(self.of_shard(shard, &error)),
            }
        }
        if (0..self.clients.len()).any(|shard| self.is_reachable(shard)) {
            return Ok(());
        }
        let addresses = self.clients.iter().map(|client| client.address());
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        let reason = last_error.map_or_else(
            || "each is tried again every 0.5 s".into(),
            |error| error.to_string(),
        );
        Err(Error::Unavailable(format!(
            "no shard can be reached: {addresses}; {reason}"
        )))
    }

    /// Keeps trying to reach a shard that did not respond for `reconnect_timeout`.
    fn note_unreachable(&self, shard: usize) {
        self.clients[shard].connector().set_unreachable();
    }

    /// The error if shards did not reply in time: those whose totals are older than `max_age`.
    fn no_reply(&self, request: &BatchRequest, max_age: Duration) -> Error {
        let table = &request.table;
        let late = self.with_totals(table, |totals| totals.older_than(max_age));
        let late: Vec<_> = (late.into_iter())
            .map(|shard| {
                let client = &self.clients[shard];
                let why = client.connect_failure();
                let why = why.map_or_else(String::new, |why| format!(", cannot be reached: {why}"));
                format!("{shard} (at {}{why})", client.address())
            })
            .collect();
        Error::DeadlineExceeded(format!(
            "table `{table}`: no reply of shards {} in {} s (`timeout`)",
            late.join(", "),
            request.options.timeout.unwrap_or(f64::INFINITY)
        ))
    }

    fn with_totals<T>(&self, table: &str, call: impl FnOnce(&mut TableTotals) -> T) -> T {
        let mut totals = self.totals.lock();
        if let Some(totals) = totals.get_mut(table) {
            return call(totals);
        }
        call(
            totals
                .entry(table.into())
                .or_insert_with(|| TableTotals::new(self.clients.len())),
        )
    }

    /// Checks that a shard has a table.
    async fn check_table(&self, shard: usize, table: &str) -> Result<()> {
        let described = self.clients[shard].describe(table).await;
        described.map_or_else(|error| Err(self.of_shard(shard, &error)), |_| Ok(()))
    }

    /// Adds the shard's address to the text of an error that lacks it.
    fn of_shard(&self, shard: usize, error: &Error) -> Error {
        let address = self.clients[shard].address();
        let name = |text: &String| {
            if text.contains(&address) {
                text.clone()
            } else {
                format!("{text}; this is shard {shard}, at {address}")
            }
        };
        match error {
            Error::DeadlineExceeded(text) => Error::DeadlineExceeded(name(text)),
            Error::Unsatisfiable(text) => Error::Unsatisfiable(name(text)),
            Error::Storage(text) => Error::Storage(name(text)),
            other => other.clone(),
        }
    }
}

/// The deadline of a request.
fn deadline(request: &BatchRequest) -> Option<Instant> {
    let timeout = Duration::try_from_secs_f64(request.options.timeout?).ok()?;
    Instant::now().checked_add(timeout)
}
