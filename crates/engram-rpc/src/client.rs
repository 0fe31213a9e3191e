//! The client of a server: the calls of an engine, over the network.

mod changes;
mod connect;
mod connect_errors;
mod outbox;
mod pending_inserts;
mod pending_response;
mod pending_samples;
mod reconnecting_stream;
mod sample_requests;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engram_core::pool::Pool;
use engram_core::{Error, RateLimits, Result, TableOptions};
use engram_engine::{Checkpoint, StreamOptions, TableInfo, WaitOptions, wait};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use crate::pb::manage_request::Call;
use crate::pb::manage_response::Outcome;
use crate::wire::{decode_error, decode_info, decode_options, encode_limits, encode_options};
use crate::{MAX_BATCH_BYTES, pb, random_u64};
use changes::ChangeSender;
use connect::{Connector, GrpcClient};
use connect_errors::describe_call_failure;
use reconnecting_stream::closed_error;
use sample_requests::SampleRequests;

pub use changes::MAX_KEYS_PER_REQUEST;
pub use connect::{ClientOptions, ClientTls};
pub use outbox::RemoteOutbox;
pub use pending_response::PendingResponse;
pub use sample_requests::{BatchRequest, LeasedBatch, RemoteLease, RemoteSampleTicket};
pub use stream::{RemoteNextBatch, RemoteStream};

/// How long a client waits for the server to handle its acknowledgements.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of threads that all clients of a process share.
const CLIENT_THREADS: usize = 2;

/// A server's tables. Every call returns a future at once; any thread may wait for it.
#[derive(Debug)]
pub struct Client {
    runtime: &'static Runtime,
    connector: Arc<Connector>,
    /// For management calls. Opened by the first call, and again by the first call after it broke.
    connection: Arc<Mutex<Option<GrpcClient>>>,
    changes: ChangeSender,
    samples: SampleRequests,
    pool: Arc<Pool>,
    /// Random: two clients derive different unique numbers from it.
    entropy: u64,
    /// How many unique numbers were derived.
    next_number: AtomicU64,
    /// Number of items in unfinished chunks of this client's writers.
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
        Ok(Self {
            runtime,
            connection: Arc::default(),
            changes: ChangeSender::open(runtime.handle(), &connector, &samples),
            samples,
            pool,
            entropy,
            next_number: AtomicU64::new(0),
            unsent,
            connector,
        })
    }

    /// Sends the last acknowledgements, then ends all pending calls; later calls fail. Calling it again does nothing.
    pub fn close(&self) {
        self.flush_acks();
        self.connector.close();
    }

    /// Waits for at most a second until no acknowledgement of a batch is outstanding.
    pub fn flush_acks(&self) {
        let mut options = WaitOptions {
            deadline: Some(std::time::Instant::now() + CLOSE_TIMEOUT),
            interrupted: &mut || false,
        };
        let _ = wait(&mut self.acks_flushed(), &mut options);
    }

    /// True if no acknowledgement is outstanding: the server has handled them, or the connection was lost.
    #[must_use]
    pub fn are_acks_flushed(&self) -> bool {
        self.samples.are_acks_flushed()
    }

    /// Returns a future that is ready once the server has handled all acknowledgements, or the connection was lost.
    pub fn acks_flushed(&self) -> impl Future<Output = Result<()>> + Send + Unpin + use<> {
        let samples = self.samples.clone();
        Box::pin(async move {
            samples.flush_acks().await;
            Ok(())
        })
    }

    /// The server's address, as given in the options.
    #[must_use]
    pub fn address(&self) -> &str {
        self.connector.address()
    }

    /// The pool of the buffers that batches are received in.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    pub(crate) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Returns a number that no other call returns; keys are made from it.
    #[must_use]
    pub fn unique_number(&self) -> u64 {
        engram_engine::derive_number(
            self.entropy,
            self.next_number.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Creates an outbox: it sends items to this server's tables.
    #[must_use]
    pub fn outbox(self: &Arc<Self>) -> RemoteOutbox {
        RemoteOutbox::new(self)
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
    pub fn stream(&self, table: String, options: StreamOptions) -> Result<RemoteStream> {
        if self.connector.is_closed() {
            return Err(closed_error());
        }
        let samples =
            SampleRequests::open(self.runtime(), &self.connector, &self.pool, &self.unsent);
        RemoteStream::new(samples, table, options)
    }

    /// Sets priorities; returns how many of the keys exist. The server applies or refuses each request of at most
    /// [`MAX_KEYS_PER_REQUEST`] keys as a whole: a caller with more keys checks them with
    /// [`TableOptions::check_updates`] first.
    #[must_use]
    pub fn update_priorities(
        &self,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
    ) -> PendingResponse<u64> {
        self.changes.update(table, keys, priorities)
    }

    /// Deletes items; returns how many of the keys existed.
    #[must_use]
    pub fn delete(&self, table: &str, keys: &[u64]) -> PendingResponse<u64> {
        self.changes.delete(table, keys)
    }

    /// Returns the names of all tables.
    #[must_use]
    pub fn tables(&self) -> PendingResponse<Vec<String>> {
        self.manage(Call::Tables(pb::Empty {}), |outcome| match outcome {
            Outcome::Tables(names) => Some(Ok(names.names)),
            _ => None,
        })
    }

    /// Returns the options of a table, except for its seed.
    #[must_use]
    pub fn describe(&self, table: &str) -> PendingResponse<Arc<TableOptions>> {
        self.manage(Call::Describe(table.into()), |outcome| match outcome {
            Outcome::Options(options) => Some(decode_options(options, 0).map(Arc::new)),
            _ => None,
        })
    }

    /// Creates a table.
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

    /// Changes the limits of a table's rate limiter.
    #[must_use]
    pub fn set_limits(&self, table: &str, limits: &RateLimits) -> PendingResponse<()> {
        let limits = Some(encode_limits(limits));
        let table = table.into();
        self.manage(
            Call::SetLimits(pb::SetLimits { table, limits }),
            expect_done,
        )
    }

    /// Removes all items of a table.
    #[must_use]
    pub fn reset(&self, table: &str) -> PendingResponse<()> {
        self.manage(Call::Reset(table.into()), expect_done)
    }

    /// Returns the statistics of all tables.
    #[must_use]
    pub fn infos(&self) -> PendingResponse<Vec<TableInfo>> {
        self.manage(Call::Info(pb::Empty {}), |outcome| match outcome {
            Outcome::Info(infos) => Some(infos.tables.into_iter().map(decode_info).collect()),
            _ => None,
        })
    }

    /// Returns whether the rate limiter allows `n` samples now.
    #[must_use]
    pub fn can_sample(&self, table: &str, n: u64) -> PendingResponse<bool> {
        let table = table.into();
        self.manage(Call::CanSample(pb::LimiterQuery { table, n }), expect_bool)
    }

    /// Returns whether the rate limiter allows `n` inserts now.
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

    /// Describes the items in unfinished chunks of this client's writers, if there are any: no table has them yet.
    #[must_use]
    pub fn unsent(&self) -> Option<String> {
        engram_engine::unsent_items_note(self.unsent.load(Ordering::Relaxed))
    }

    /// Sends a management call; `decode` returns `None` for an outcome of another call.
    fn manage<T: Send + 'static>(
        &self,
        call: Call,
        decode: fn(Outcome) -> Option<Result<T>>,
    ) -> PendingResponse<T> {
        let (sender, receiver) = oneshot::channel();
        let (connector, connection) = (Arc::clone(&self.connector), Arc::clone(&self.connection));
        let samples = self.samples.clone();
        self.runtime.spawn(async move {
            let call = async {
                // The statistics must include all acknowledged batches.
                samples.flush_acks().await;
                send_with_retry(&connector, &connection, call).await
            };
            let response = tokio::select! {
                response = call => response,
                () = connector.closed() => Err(closed_error()),
            };
            let outcome = match response {
                Ok(Outcome::Error(error)) => Err(decode_error(error)),
                Ok(outcome) => decode(outcome).unwrap_or_else(|| {
                    Err(Error::Payload(
                        "invalid response: it is for another call".into(),
                    ))
                }),
                Err(error) => Err(error),
            };
            let _ = sender.send(outcome);
        });
        PendingResponse::new(receiver)
    }
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

/// True if sending a call twice has the same effect as sending it once.
fn is_idempotent(call: &Call) -> bool {
    !matches!(call, Call::Create(_) | Call::Drop(_) | Call::Reset(_))
}

/// Sends a management call. After a failure, sends it again if that has no other effect, until `reconnect_timeout`.
async fn send_with_retry(
    connector: &Connector,
    connection: &Mutex<Option<GrpcClient>>,
    call: Call,
) -> Result<Outcome> {
    let started = Instant::now();
    loop {
        let mut client = {
            let mut connection = connection.lock().await;
            // A call that must not be repeated needs a connection that still works.
            if !is_idempotent(&call)
                && let Some(open) = &mut *connection
                && connector.handshake(open).await.is_err()
            {
                *connection = None;
            }
            match &*connection {
                Some(connection) => connection.clone(),
                None => connection.insert(connector.connect(started).await?).clone(),
            }
        };
        let request = pb::ManageRequest {
            call: Some(call.clone()),
        };
        let status = match client.manage(request).await {
            Ok(response) => {
                let outcome = response.into_inner().outcome;
                return outcome
                    .ok_or_else(|| Error::Payload("invalid response: it is empty".into()));
            }
            Err(status) => status,
        };
        *connection.lock().await = None;
        if let Some(error) = connector.permanent_error(&status) {
            return Err(error);
        }
        if !is_idempotent(&call) {
            return Err(Error::Unavailable(format!(
                "the server at {} cannot be reached: {}; this call may or may not have taken effect",
                connector.address(),
                describe_call_failure(&status)
            )));
        }
        if started.elapsed() > connector.reconnect_timeout() {
            return Err(connector.unreachable(&describe_call_failure(&status)));
        }
    }
}
