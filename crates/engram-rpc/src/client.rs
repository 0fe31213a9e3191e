//! The client: the same calls as the engine's, answered by a server.

mod changes;
mod connect;
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
use reconnecting_stream::closed_error;
use sample_requests::SampleRequests;

pub use changes::MAX_KEYS_PER_REQUEST;
pub use connect::{ClientOptions, ClientTls};
pub use outbox::RemoteOutbox;
pub use pending_response::PendingResponse;
pub use sample_requests::{BatchRequest, LeasedBatch, RemoteLease, RemoteSampleTicket};
pub use stream::{RemoteNextBatch, RemoteStream};

/// How long closing waits for a server that does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads that all clients of a process share.
const THREADS: usize = 2;

/// A server's tables. Every call returns at once, with a future that any thread may wait for.
#[derive(Debug)]
pub struct Client {
    runtime: &'static Runtime,
    connector: Arc<Connector>,
    /// For what is asked once in a while; made anew when it broke.
    connection: Arc<Mutex<Option<GrpcClient>>>,
    changes: ChangeSender,
    samples: SampleRequests,
    pool: Arc<Pool>,
    entropy: u64,
    next_number: AtomicU64,
    unsent: Arc<AtomicU64>,
}

/// The threads of this process's clients. A forked child gets its own: threads do not fork.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: parking_lot::Mutex<Option<(u32, &'static Runtime)>> =
        parking_lot::Mutex::new(None);
    let mut runtime = RUNTIME.lock();
    let here = std::process::id();
    if let Some((process, runtime)) = *runtime
        && process == here
    {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("engram-client")
        .enable_all()
        .build();
    let made =
        made.map_err(|error| Error::Unavailable(format!("no threads for a client: {error}")))?;
    let made: &'static Runtime = Box::leak(Box::new(made));
    *runtime = Some((here, made));
    Ok(made)
}

impl Client {
    /// A client of the server at an address. Connects when it has something to say.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for impossible options, [`Error::Unavailable`] where the system
    /// has no threads or random numbers for us.
    pub fn new(options: ClientOptions) -> Result<Self> {
        let runtime = runtime()?;
        // The transport wants to be made where it will run.
        let _inside = runtime.enter();
        let connector = Arc::new(Connector::new(options)?);
        let pool = Arc::new(Pool::with_max_batch(MAX_BATCH_BYTES));
        let unsent = Arc::<AtomicU64>::default();
        // With the same number in every forked child, a server would take one's items for another's.
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

    /// Ends every waiting call of this client, and lets it ask nothing any more, once the server
    /// knows which batches were used. Calling it again does nothing.
    pub fn close(&self) {
        self.flush_acks();
        self.connector.close();
    }

    /// Waits until the server knows which batches were used, for a second at most: of those that
    /// it does not know of, the items go back.
    pub fn flush_acks(&self) {
        let mut patience = WaitOptions {
            deadline: Some(std::time::Instant::now() + CLOSE_TIMEOUT),
            interrupted: &mut || false,
        };
        let _ = wait(&mut self.acks_flushed(), &mut patience);
    }

    /// True when the server knows which batches were used.
    #[must_use]
    pub fn are_acks_flushed(&self) -> bool {
        self.samples.are_acks_flushed()
    }

    /// Ends when it does, or when those that it does not know of are void.
    pub fn acks_flushed(&self) -> impl Future<Output = Result<()>> + Send + Unpin + use<> {
        let samples = self.samples.clone();
        Box::pin(async move {
            samples.flush_acks().await;
            Ok(())
        })
    }

    /// The server's address, as it was given.
    #[must_use]
    pub fn address(&self) -> &str {
        self.connector.address()
    }

    /// Buffers that batches arrive in.
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

    /// A number to make keys from, given out once.
    #[must_use]
    pub fn unique_number(&self) -> u64 {
        engram_engine::derive_number(
            self.entropy,
            self.next_number.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Items for this server's tables.
    #[must_use]
    pub fn outbox(self: &Arc<Self>) -> RemoteOutbox {
        RemoteOutbox::new(self)
    }

    /// A batch.
    #[must_use]
    pub fn sample(&self, request: BatchRequest) -> RemoteSampleTicket {
        self.samples.send(request)
    }

    /// Batches, fetched ahead over a connection of their own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for impossible options.
    pub fn stream(&self, table: String, options: StreamOptions) -> Result<RemoteStream> {
        if self.connector.is_closed() {
            return Err(closed_error());
        }
        let samples =
            SampleRequests::open(self.runtime(), &self.connector, &self.pool, &self.unsent);
        RemoteStream::new(samples, table, options)
    }

    /// Sets priorities; yields how many of the keys were there. The server takes or refuses at most
    /// [`MAX_KEYS_PER_REQUEST`] at a time as a whole: more are held against the table's
    /// [`TableOptions::check_updates`] before.
    #[must_use]
    pub fn update_priorities(
        &self,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
    ) -> PendingResponse<u64> {
        self.changes.update(table, keys, priorities)
    }

    /// Deletes items; yields how many of the keys were there.
    #[must_use]
    pub fn delete(&self, table: &str, keys: &[u64]) -> PendingResponse<u64> {
        self.changes.delete(table, keys)
    }

    /// Names of all tables.
    #[must_use]
    pub fn tables(&self) -> PendingResponse<Vec<String>> {
        self.manage(Call::Tables(pb::Empty {}), |answer| match answer {
            Outcome::Tables(names) => Some(Ok(names.names)),
            _ => None,
        })
    }

    /// What a table was made with, but for its seed.
    #[must_use]
    pub fn describe(&self, table: &str) -> PendingResponse<Arc<TableOptions>> {
        self.manage(Call::Describe(table.into()), |answer| match answer {
            Outcome::Options(options) => Some(decode_options(options, 0).map(Arc::new)),
            _ => None,
        })
    }

    /// Adds a table.
    #[must_use]
    pub fn create_table(&self, options: &TableOptions, seed: Option<u64>) -> PendingResponse<()> {
        let options = pb::TableOptions {
            seed,
            ..encode_options(options)
        };
        self.manage(Call::Create(options), expect_done)
    }

    /// Removes a table; calls that wait for it end with an error.
    #[must_use]
    pub fn drop_table(&self, table: &str) -> PendingResponse<()> {
        self.manage(Call::Drop(table.into()), expect_done)
    }

    /// ChangeSender a rate limiter.
    #[must_use]
    pub fn set_limits(&self, table: &str, limits: &RateLimits) -> PendingResponse<()> {
        let limits = Some(encode_limits(limits));
        let table = table.into();
        self.manage(
            Call::SetLimits(pb::SetLimits { table, limits }),
            expect_done,
        )
    }

    /// Empties a table.
    #[must_use]
    pub fn reset(&self, table: &str) -> PendingResponse<()> {
        self.manage(Call::Reset(table.into()), expect_done)
    }

    /// Numbers of all tables.
    #[must_use]
    pub fn infos(&self) -> PendingResponse<Vec<TableInfo>> {
        self.manage(Call::Info(pb::Empty {}), |answer| match answer {
            Outcome::Info(infos) => Some(infos.tables.into_iter().map(decode_info).collect()),
            _ => None,
        })
    }

    /// May `n` samples be taken now, as far as the limiter goes?
    #[must_use]
    pub fn can_sample(&self, table: &str, n: u64) -> PendingResponse<bool> {
        let table = table.into();
        self.manage(Call::CanSample(pb::LimiterQuery { table, n }), expect_bool)
    }

    /// May `n` items be inserted now, as far as the limiter goes?
    #[must_use]
    pub fn can_insert(&self, table: &str, n: u64) -> PendingResponse<bool> {
        let table = table.into();
        self.manage(Call::CanInsert(pb::LimiterQuery { table, n }), expect_bool)
    }

    /// Has the server write all tables to its store's directory.
    #[must_use]
    pub fn checkpoint(&self) -> PendingResponse<Checkpoint> {
        self.manage(Call::Checkpoint(pb::Empty {}), |answer| match answer {
            Outcome::Checkpoint(made) => Some(Ok(Checkpoint {
                number: made.number,
                bytes: made.bytes,
                items: made.items,
            })),
            _ => None,
        })
    }

    /// Tells how many items a writer holds in unfinished chunks, and how many it told of last.
    pub fn update_unsent(&self, before: u64, now: u64) {
        self.unsent
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Why a table may look emptier than this client's writers think, in words.
    #[must_use]
    pub fn unsent(&self) -> Option<String> {
        engram_engine::unsent_items_note(self.unsent.load(Ordering::Relaxed))
    }

    fn manage<T: Send + 'static>(
        &self,
        call: Call,
        read: fn(Outcome) -> Option<Result<T>>,
    ) -> PendingResponse<T> {
        let (sender, receiver) = oneshot::channel();
        let (connector, connection) = (Arc::clone(&self.connector), Arc::clone(&self.connection));
        let samples = self.samples.clone();
        self.runtime.spawn(async move {
            let send_with_retry = async {
                // The numbers count the batches that were used before.
                samples.flush_acks().await;
                send_with_retry(&connector, &connection, call).await
            };
            let exchanged = tokio::select! {
                exchanged = send_with_retry => exchanged,
                () = connector.closed() => Err(closed_error()),
            };
            let outcome = match exchanged {
                Ok(Outcome::Error(error)) => Err(decode_error(error)),
                Ok(answer) => read(answer).unwrap_or_else(|| {
                    Err(Error::Payload("the server answered something else".into()))
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
    reason = "as the others that read answers"
)]
fn expect_done(answer: Outcome) -> Option<Result<()>> {
    matches!(answer, Outcome::Done(_)).then_some(Ok(()))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "as the others that read answers"
)]
fn expect_bool(answer: Outcome) -> Option<Result<bool>> {
    match answer {
        Outcome::CanProceed(may) => Some(Ok(may)),
        _ => None,
    }
}

/// Whether asking twice does what asking once does.
fn is_idempotent(call: &Call) -> bool {
    !matches!(call, Call::Create(_) | Call::Drop(_) | Call::Reset(_))
}

async fn send_with_retry(
    connector: &Connector,
    connection: &Mutex<Option<GrpcClient>>,
    call: Call,
) -> Result<Outcome> {
    let since = Instant::now();
    loop {
        let mut used = {
            let mut connection = connection.lock().await;
            // What may be said only once is not said to a server that went away some time ago.
            if !is_idempotent(&call)
                && let Some(known) = &mut *connection
                && connector.handshake(known).await.is_err()
            {
                *connection = None;
            }
            match &*connection {
                Some(connection) => connection.clone(),
                None => connection.insert(connector.connect(since).await?).clone(),
            }
        };
        let request = pb::ManageRequest {
            call: Some(call.clone()),
        };
        let status = match used.manage(request).await {
            Ok(reply) => {
                let reply = reply.into_inner().outcome;
                return reply.ok_or_else(|| Error::Payload("the server answered nothing".into()));
            }
            Err(status) => status,
        };
        *connection.lock().await = None;
        if let Some(error) = connector.permanent_error(&status) {
            return Err(error);
        }
        if !is_idempotent(&call) {
            return Err(Error::Unavailable(format!(
                "the server at {} went away during this call, which may or may not have been done: {}",
                connector.address(),
                status.message()
            )));
        }
        if since.elapsed() > connector.reconnect_timeout() {
            return Err(connector.unreachable(status.message()));
        }
    }
}
