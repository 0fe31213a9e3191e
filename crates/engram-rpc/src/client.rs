//! The client of a server: offers the calls of an engine over the network.

mod changes;
mod confirmation;
mod connect;
mod connect_errors;
mod connect_failures;
mod connection;
mod failover;
mod held_leases;
mod lease_states;
mod management_calls;
mod options;
mod outbox;
mod peers;
mod pending_inserts;
mod pending_response;
mod pending_sample;
mod pending_samples;
mod reconnecting_stream;
mod sample_requests;
mod scan;
mod sharded;
mod stream;
mod target;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engram_core::pool::Pool;
use engram_core::writer::ShardId;
use engram_core::{Error, RateLimits, Result, TableOptions};
use engram_engine::{Checkpoint, Histogram, HistogramOf, StreamOptions, TableInfo, wait_by};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::pb::manage_request::Call;
use crate::pb::manage_response::Outcome;
use crate::wire::{
    decode_error, decode_histogram, decode_info, decode_options, encode_histogram_query,
    encode_limits, encode_options,
};
use crate::{MAX_BATCH_BYTES, pb, random_u64};
use changes::ChangeSender;
use connect::Connector;
use connection::Connection;
use management_calls::send_with_retry;
use reconnecting_stream::closed_error;
use sample_requests::{SampleRequests, SampleStreams};

pub use changes::MAX_KEYS_PER_REQUEST;
pub use options::{ClientOptions, ClientTls};
pub use outbox::RemoteOutbox;
pub use pending_inserts::InsertProgress;
pub use pending_response::PendingResponse;
pub use pending_sample::BatchRequest;
pub use sample_requests::{LeasedBatch, RemoteLease, RemoteSampleTicket};
pub use scan::{RemoteScan, ScanRequest};
pub use sharded::{MAX_TOTALS_AGE, ShardedBatch, ShardedLease, ShardedStream, ShardedTables};
pub use stream::RemoteStream;

/// Maximum time that [`Client::wait_for_acks`] waits if no acknowledgement has to become durable. Otherwise, the
/// maximum is `reconnect_timeout` if that is longer.
const ACKS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long [`Client::blocked_reason`] waits for the server.
const BLOCKED_REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of threads that all clients of a process share.
const CLIENT_THREADS: usize = 2;

/// Gives access to a server's tables. Each method that needs an answer of the server returns a future at once, for
/// which any thread may wait. Only [`Client::close`], [`Client::wait_for_acks`] and [`Client::blocked_reason`] block.
#[derive(Debug)]
pub struct Client {
    runtime: &'static Runtime,
    connector: Arc<Connector>,
    /// For management calls. Opened by the first call, and again by the first call after it broke.
    connection: Arc<Mutex<Option<Connection>>>,
    changes: ChangeSender,
    /// The stream for the requests of [`Client::sample`].
    samples: SampleRequests,
    /// The streams whose acknowledgements may remove items: `samples`, and those of tables with `max_times_sampled`.
    streams: Arc<SampleStreams>,
    pool: Arc<Pool>,
    /// Random, so that the unique numbers of two clients differ.
    entropy: u64,
    /// How many numbers [`Client::unique_number`] has returned.
    next_number: AtomicU64,
    /// Number of items of this client's writers that are not sent yet, because their chunk is unfinished.
    unsent: Arc<AtomicU64>,
}

/// Returns the runtime that all clients of this process share; starts it if it does not run. A forked child starts its
/// own, because threads do not survive a fork.
fn shared_runtime() -> Result<&'static Runtime> {
    static RUNTIME: parking_lot::Mutex<Option<(u32, &'static Runtime)>> =
        parking_lot::Mutex::new(None);
    let mut runtime = RUNTIME.lock();
    let current_pid = std::process::id();
    if let Some((pid, runtime)) = *runtime
        && pid == current_pid
    {
        return Ok(runtime);
    }
    let started = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CLIENT_THREADS)
        .thread_name("engram-client")
        .enable_all()
        .build();
    let started = started.map_err(|error| {
        Error::Unavailable(format!("cannot start the threads of a client: {error}"))
    })?;
    let started: &'static Runtime = Box::leak(Box::new(started));
    *runtime = Some((current_pid, started));
    Ok(started)
}

impl Client {
    /// Creates a client of the server at an address. It connects when it is first used.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options, [`Error::Unavailable`] if the system provides no threads or
    /// random numbers.
    pub fn new(options: ClientOptions) -> Result<Self> {
        let runtime = shared_runtime()?;
        // The transport must be created inside the runtime.
        let _inside = runtime.enter();
        let connector = Arc::new(Connector::new(options)?);
        let pool = Arc::new(Pool::with_max_batch(MAX_BATCH_BYTES));
        let unsent = Arc::<AtomicU64>::default();
        // Must differ between forked children: the server recognises items by numbers derived from it.
        let entropy = random_u64()?;
        let (samples, _) = SampleRequests::open(runtime.handle(), &connector, &pool, &unsent);
        let streams = Arc::<SampleStreams>::default();
        streams.add(&samples);
        Ok(Self {
            runtime,
            connection: Arc::default(),
            changes: ChangeSender::open(runtime.handle(), &connector, &streams),
            samples,
            streams,
            pool,
            entropy,
            next_number: AtomicU64::new(0),
            unsent,
            connector,
        })
    }

    /// Waits as [`Self::wait_for_acks`] does, then makes all pending and later calls fail. Calling it again does
    /// nothing.
    pub fn close(&self) {
        self.wait_for_acks();
        self.connector.close();
    }

    /// Waits until the server has handled all acknowledgements, for at most a second. If some of them must become
    /// durable, waits for at most `reconnect_timeout` or a second, whichever is longer.
    pub fn wait_for_acks(&self) {
        let timeout = if self.streams.awaits_durability() {
            self.connector.reconnect_timeout().max(ACKS_TIMEOUT)
        } else {
            ACKS_TIMEOUT
        };
        let deadline = std::time::Instant::now().checked_add(timeout);
        let _ = wait_by(&mut self.until_acks_flushed(), deadline);
    }

    /// True if each acknowledgement is known to be handled by the server, or lost with its connection. False if that is
    /// not known: [`Self::until_acks_flushed`] asks the server.
    #[must_use]
    pub fn are_acks_flushed(&self) -> bool {
        self.streams.are_acks_flushed()
    }

    /// Returns a future that is ready once the server has handled all acknowledgements; it fails if the server cannot
    /// be reached. Acknowledgements of a lost connection have no effect, and are not waited for.
    pub fn until_acks_flushed(&self) -> impl Future<Output = Result<()>> + Send + Unpin + use<> {
        let streams = Arc::clone(&self.streams);
        Box::pin(async move { streams.flush_acks().await })
    }

    /// The server's address: that in the options, or the last one passed to [`Client::set_address`].
    #[must_use]
    pub fn address(&self) -> String {
        self.connector.address()
    }

    /// Sets the address of a server that has moved. Connections to another address are closed; what was not answered on
    /// them is sent again to the new address.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the address is invalid.
    pub fn set_address(&self, address: &str) -> Result<()> {
        self.connector.set_address(address)
    }

    /// The pool of the buffers that batches are received in.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The server's id among the shards of its tables. It is 0, which means none, before the first connection, and can
    /// change.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.connector.shard().clone()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    pub(crate) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Returns a number that no other call returns; keys and session ids are made from such numbers.
    #[must_use]
    pub fn unique_number(&self) -> u64 {
        engram_engine::derive_number(
            self.entropy,
            self.next_number.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Requests a batch.
    #[must_use]
    pub fn sample(&self, request: BatchRequest) -> RemoteSampleTicket {
        self.samples.send(request)
    }

    /// Opens a stream that prefetches batches over a connection of its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options, [`Error::Closed`] if the client is closed.
    pub fn stream(&self, table: &TableOptions, options: StreamOptions) -> Result<RemoteStream> {
        let opened = self.open_requests(table)?;
        RemoteStream::open(opened, &self.connector, table, options)
    }

    /// Opens the requests of a stream of batches of a table: see [`SampleRequests::open`].
    ///
    /// # Errors
    /// [`Error::Closed`] if the client is closed.
    fn open_requests(&self, table: &TableOptions) -> Result<(SampleRequests, JoinHandle<bool>)> {
        if self.connector.is_closed() {
            return Err(closed_error());
        }
        let opened =
            SampleRequests::open(self.runtime(), &self.connector, &self.pool, &self.unsent);
        if table.max_times_sampled > 0 {
            self.streams.add(&opened.0);
        }
        Ok(opened)
    }

    /// Begins a scan, on a connection of its own.
    #[must_use]
    pub fn scan(&self, request: ScanRequest) -> PendingResponse<RemoteScan> {
        let (connector, pool) = (Arc::clone(&self.connector), Arc::clone(&self.pool));
        let streams = Arc::clone(&self.streams);
        let changes = self.changes.until_handled(&request.table);
        PendingResponse::spawn(self.runtime(), async move {
            let begin = async {
                // The scan must see the effect of every change that was sent and of every batch that was acknowledged
                // before it.
                if let Some(changes) = changes {
                    // The outcome is not needed: what prevents changes, such as a dropped table, fails the scan too.
                    let _ = changes.await;
                }
                streams.flush_acks().await?;
                scan::begin(Arc::clone(&connector), pool, request).await
            };
            tokio::select! {
                scan = begin => scan,
                () = connector.closed() => Err(closed_error()),
            }
        })
    }

    /// Sets priorities; returns how many of the keys exist. The server applies or rejects each request of at most
    /// [`MAX_KEYS_PER_REQUEST`] keys as a whole. With more keys, some requests may be applied although another is
    /// rejected: the caller should check the update with [`TableOptions::check_updates`] first.
    #[must_use]
    pub fn update_priorities(
        &self,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
    ) -> PendingResponse<u64> {
        self.changes.update(table, keys, priorities)
    }

    /// Deletes the items with these keys; returns how many of the keys existed.
    #[must_use]
    pub fn delete(&self, table: &str, keys: &[u64]) -> PendingResponse<u64> {
        self.changes.delete(table, keys)
    }

    /// Returns the names of all tables.
    #[must_use]
    pub fn tables(&self) -> PendingResponse<Vec<String>> {
        self.list(Call::Tables, |outcome| match outcome {
            Outcome::Tables(pb::TableNames { names, more }) => {
                let last = names.last().filter(|_| more).cloned();
                Some(Ok((names, last)))
            }
            _ => None,
        })
    }

    /// Returns the options of a table. A server does not send the seed: it is 0 here.
    #[must_use]
    pub fn describe(&self, table: &str) -> PendingResponse<Arc<TableOptions>> {
        self.manage(Call::Describe(table.into()), |outcome| match outcome {
            Outcome::Options(options) => Some(decode_options(options, 0).map(Arc::new)),
            _ => None,
        })
    }

    /// Creates a table. With `None` as `seed`, the server chooses a seed; the seed in `options` is not used.
    #[must_use]
    pub fn create_table(&self, options: &TableOptions, seed: Option<u64>) -> PendingResponse<()> {
        let options = pb::TableOptions {
            seed,
            ..encode_options(options)
        };
        self.manage(Call::Create(options), expect_done)
    }

    /// Drops a table; calls that wait for it fail.
    #[must_use]
    pub fn drop_table(&self, table: &str) -> PendingResponse<()> {
        self.manage(Call::Drop(table.into()), expect_done)
    }

    /// Changes the limits of a table's rate limiter; the limiter's counts stay.
    #[must_use]
    pub fn set_limits(&self, table: &str, limits: &RateLimits) -> PendingResponse<()> {
        let limits = Some(encode_limits(limits));
        let table = table.into();
        self.manage(
            Call::SetLimits(pb::SetLimits { table, limits }),
            expect_done,
        )
    }

    /// Removes all items of a table, and sets the table's counters to 0.
    #[must_use]
    pub fn reset(&self, table: &str) -> PendingResponse<()> {
        self.manage(Call::Reset(table.into()), expect_done)
    }

    /// Returns the options and statistics of all tables.
    #[must_use]
    pub fn infos(&self) -> PendingResponse<Vec<TableInfo>> {
        self.list(Call::Info, |outcome| match outcome {
            Outcome::Info(infos) => {
                let tables = infos.tables.into_iter().map(decode_info).collect();
                Some(Result::map(tables, |tables: Vec<TableInfo>| {
                    let last = tables.last().filter(|_| infos.more);
                    let last = last.map(|table| table.options.name.clone());
                    (tables, last)
                }))
            }
            _ => None,
        })
    }

    /// Why the server cannot be reached, while a call is still connecting to it; otherwise `None`.
    #[must_use]
    pub fn connect_failure(&self) -> Option<String> {
        self.connector.connect_failure()
    }

    /// Returns why a table blocks calls now, or why the server cannot be reached. `reason` returns the reason that the
    /// table's info states. `None` if the table blocks no calls or does not exist, or if the server does not reply in time:
    /// this method waits for at most [`BLOCKED_REASON_TIMEOUT`].
    #[must_use]
    pub fn blocked_reason(
        &self,
        table: &str,
        reason: impl FnOnce(TableInfo) -> Option<String>,
    ) -> Option<String> {
        let deadline = std::time::Instant::now() + BLOCKED_REASON_TIMEOUT;
        match wait_by(&mut self.infos(), Some(deadline))? {
            Ok(infos) => infos
                .into_iter()
                .find(|info| info.options.name == table)
                .and_then(reason),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Counts the items of a table by a value, in at most `bins` bins.
    #[must_use]
    pub fn histogram(&self, table: &str, of: HistogramOf, bins: u32) -> PendingResponse<Histogram> {
        let query = encode_histogram_query(table, of, bins);
        self.manage(Call::Histogram(query), |outcome| match outcome {
            Outcome::Histogram(histogram) => Some(decode_histogram(histogram)),
            _ => None,
        })
    }

    /// Returns whether the rate limiter allows `n` samples now. Items that have reached `max_times_sampled` and are
    /// still leased do not count towards its `min_size`.
    #[must_use]
    pub fn can_sample(&self, table: &str, n: u64) -> PendingResponse<bool> {
        let table = table.into();
        self.manage(Call::CanSample(pb::LimiterQuery { table, n }), expect_bool)
    }

    /// Returns whether `n` inserts would not wait now: the rate limiter allows them, and `max_size` leaves space or
    /// items may be evicted. `max_bytes` is not considered.
    #[must_use]
    pub fn can_insert(&self, table: &str, n: u64) -> PendingResponse<bool> {
        let table = table.into();
        self.manage(Call::CanInsert(pb::LimiterQuery { table, n }), expect_bool)
    }

    /// Makes the server write a checkpoint of all tables to its store's directory.
    #[must_use]
    pub fn checkpoint(&self) -> PendingResponse<Checkpoint> {
        self.manage(Call::Checkpoint(pb::Empty {}), |outcome| match outcome {
            Outcome::Checkpoint(checkpoint) => Some(Ok(Checkpoint {
                number: checkpoint.number,
                bytes: checkpoint.bytes,
                items: checkpoint.items,
            })),
            _ => None,
        })
    }

    /// Updates the number of items in unfinished chunks, of which one writer had `previous` and now has `current`.
    pub fn update_unsent(&self, previous: u64, current: u64) {
        self.unsent
            .fetch_add(current.wrapping_sub(previous), Ordering::Relaxed);
    }

    /// Describes the items in unfinished chunks of this client's writers, which no table has yet. `None` if there are
    /// none.
    #[must_use]
    pub fn unsent_items_note(&self) -> Option<String> {
        engram_engine::unsent_items_note(self.unsent.load(Ordering::Relaxed))
    }

    /// Sends a management call; `decode` returns `None` for an outcome of another call.
    fn manage<T: Send + 'static>(
        &self,
        call: Call,
        decode: fn(Outcome) -> Option<Result<T>>,
    ) -> PendingResponse<T> {
        let caller = self.caller();
        PendingResponse::spawn(self.runtime(), async move {
            let outcome = caller.call(call).await?;
            decode(outcome).unwrap_or_else(|| Err(wrong_outcome()))
        })
    }

    /// Lists tables, in as many calls as the server needs. `decode` returns a page, and the name of the last table if
    /// there are others after it.
    fn list<T: Send + 'static>(
        &self,
        call: fn(pb::ListTables) -> Call,
        decode: fn(Outcome) -> Option<Result<Page<T>>>,
    ) -> PendingResponse<Vec<T>> {
        let caller = self.caller();
        PendingResponse::spawn(self.runtime(), async move {
            let mut all = Vec::new();
            let mut after = None;
            loop {
                let request = pb::ListTables { paged: true, after };
                let outcome = caller.call(call(request)).await?;
                let (page, last) = decode(outcome).unwrap_or_else(|| Err(wrong_outcome()))?;
                all.extend(page);
                if last.is_none() {
                    return Ok(all);
                }
                after = last;
            }
        })
    }

    fn caller(&self) -> ManageCaller {
        ManageCaller {
            connector: Arc::clone(&self.connector),
            connection: Arc::clone(&self.connection),
            streams: Arc::clone(&self.streams),
            started: Instant::now(),
        }
    }
}

/// Some of the tables, and the name of the last one if there are others after it.
type Page<T> = (Vec<T>, Option<String>);

/// Makes the management calls of one method of a client: one call, or one per page of a list.
struct ManageCaller {
    connector: Arc<Connector>,
    connection: Arc<Mutex<Option<Connection>>>,
    streams: Arc<SampleStreams>,
    /// When the method was called.
    started: Instant,
}

impl ManageCaller {
    async fn call(&self, call: Call) -> Result<Outcome> {
        let outcome = async {
            // The call must see the effect of every batch that was acknowledged before it.
            self.streams.flush_acks().await?;
            send_with_retry(&self.connector, &self.connection, call, self.started).await
        };
        let outcome = tokio::select! {
            outcome = outcome => outcome,
            () = self.connector.closed() => Err(closed_error()),
        };
        match outcome? {
            Outcome::Error(error) => Err(decode_error(error)),
            outcome => Ok(outcome),
        }
    }
}

/// The error for a response with an outcome that the call does not have.
fn wrong_outcome() -> Error {
    Error::Payload("invalid response: it is for another call".into())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that `manage` expects"
)]
fn expect_done(outcome: Outcome) -> Option<Result<()>> {
    matches!(outcome, Outcome::Done(_)).then_some(Ok(()))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that `manage` expects"
)]
fn expect_bool(outcome: Outcome) -> Option<Result<bool>> {
    match outcome {
        Outcome::CanProceed(can_proceed) => Some(Ok(can_proceed)),
        _ => None,
    }
}
