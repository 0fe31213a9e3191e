//! Requests for batches, their tickets and their leases.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use engram_engine::{Batch, BatchLease, unsent_items_note};
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::confirmation::{AckCounts, Confirmation};
use super::connect::Connector;
use super::held_leases::Acknowledgement;
use super::lease_states::LeaseStates;
use super::pending_response::PendingResponse;
use super::pending_sample::{BatchRequest, PendingSample};
use super::pending_samples::{PendingSamples, SampleCommand};
use super::reconnecting_stream::{closed_error, run};
use crate::wire::ReceivedBatch;

/// Sends the sample requests of one prefetching stream, or those of all calls of `Client::sample`.
#[derive(Clone, Debug)]
pub(crate) struct SampleRequests {
    commands: mpsc::UnboundedSender<SampleCommand>,
    next_id: Arc<AtomicU64>,
    acks: Arc<AckCounts>,
    states: Arc<LeaseStates>,
    /// Number of items in unfinished chunks of this client's writers.
    unsent: Arc<AtomicU64>,
}

/// Those sample streams of a client whose acknowledgements may remove items. A call whose result depends on an
/// acknowledgement waits until the server has handled it.
#[derive(Debug, Default)]
pub(crate) struct SampleStreams(RwLock<Vec<SampleStream>>);

/// One stream. The weak sender does not keep the stream open.
#[derive(Clone, Debug)]
struct SampleStream {
    commands: mpsc::WeakUnboundedSender<SampleCommand>,
    next_id: Arc<AtomicU64>,
    acks: Arc<AckCounts>,
}

impl SampleStreams {
    pub(crate) fn add(&self, requests: &SampleRequests) {
        let mut streams = self.0.write();
        streams.retain(|stream| stream.commands.strong_count() > 0);
        streams.push(SampleStream {
            commands: requests.commands.downgrade(),
            next_id: Arc::clone(&requests.next_id),
            acks: Arc::clone(&requests.acks),
        });
    }

    /// True if no call needs to wait: each acknowledgement is known to be handled, or lost with its connection.
    pub(crate) fn are_acks_flushed(&self) -> bool {
        let streams = self.0.read();
        streams.iter().all(|stream| stream.acks.are_confirmed())
    }

    /// True if an acknowledgement that must become durable may not be confirmed yet: a stream has unconfirmed
    /// acknowledgements, and has sent one that must become durable, perhaps earlier. False after [`Self::flush_acks`],
    /// even if the server could not make it durable.
    pub(crate) fn awaits_durability(&self) -> bool {
        let streams = self.0.read();
        let mut acks = streams.iter().map(|stream| &stream.acks);
        acks.any(|acks| acks.any_durable.load(Ordering::Acquire) && !acks.are_confirmed())
    }

    /// Waits until the server has handled all acknowledgements so far and made them durable, if it can.
    /// Acknowledgements of a lost connection have no effect, and are not waited for.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server cannot be reached, [`Error::Closed`] if the client is closed.
    pub(crate) async fn flush_acks(&self) -> Result<()> {
        let streams = self.0.read().clone();
        for stream in streams {
            stream.flush_acks().await?;
        }
        Ok(())
    }
}

impl SampleStream {
    async fn flush_acks(self) -> Result<()> {
        if self.acks.are_confirmed() {
            return Ok(());
        }
        let sent = self.acks.sent.load(Ordering::Acquire);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (done, receiver) = oneshot::channel();
        let barrier = SampleCommand::Barrier(id, done);
        let commands = self.commands.upgrade();
        let is_sent = commands.is_some_and(|commands| commands.send(barrier).is_ok());
        // A stream that has ended, or ends meanwhile, has sent its acknowledgements.
        let outcome = if is_sent {
            receiver.await.unwrap_or(Ok(()))
        } else {
            Ok(())
        };
        // After an error as well: acknowledgements that did not arrive are lost.
        self.acks.confirmed.fetch_max(sent, Ordering::Release);
        match outcome {
            // Handled, but not durable yet: a call that only depends on their effect can continue.
            Err(Error::Storage(_)) => Ok(()),
            outcome => outcome,
        }
    }
}

/// A batch, with the lease on its items.
#[derive(Debug)]
pub struct LeasedBatch<L = RemoteLease> {
    /// The batch. If its items are from several shards, those of a shard follow each other.
    pub batch: Batch,
    /// The lease on its items. The caller must acknowledge it, or the items are returned to their table.
    pub lease: L,
    /// When the batch, or its first part, arrived.
    pub received: Instant,
}

/// The lease on a batch. If it is dropped without being acknowledged, the items are returned to their table. Does
/// nothing for a batch that is not on lease.
#[derive(Debug)]
pub struct RemoteLease {
    id: u64,
    /// `None` if the batch is not on lease.
    commands: Option<mpsc::UnboundedSender<SampleCommand>>,
    /// True if the acknowledgement must become durable: it removes items from a durable store.
    durable: bool,
    acks: Arc<AckCounts>,
    states: Arc<LeaseStates>,
}

impl RemoteLease {
    /// True if the server has returned the items to their table, because the connection broke after the batch had arrived.
    ///
    /// # Errors
    /// Why further requests would fail too, if they would: [`Error::Unavailable`] or [`Error::Closed`].
    pub fn has_ended(&self) -> Result<bool> {
        if self.commands.is_none() {
            return Ok(false);
        }
        self.states.has_ended(self.id)
    }

    /// Waits until it is known whether the lease has ended: while the connection is broken, it is not.
    pub async fn until_known(&self) {
        if self.commands.is_some() && !self.states.is_known() {
            self.states.until_known().await;
        }
    }

    /// Acknowledges the batch before it is used. The result is that of [`BatchLease::acknowledge`], but the future fails
    /// with [`Error::LeaseEnded`] if the acknowledgement was lost: then the batch must not be used.
    #[must_use]
    pub fn acknowledge_before_use(self) -> Option<PendingResponse<()>> {
        self.send_acknowledgement(None, true)
    }

    /// `items`: as [`Acknowledgement::items`].
    fn send_acknowledgement(
        mut self,
        items: Option<u32>,
        precedes_use: bool,
    ) -> Option<PendingResponse<()>> {
        let commands = self.commands.take()?;
        self.acks
            .any_durable
            .fetch_or(self.durable, Ordering::Release);
        let sending = self.acks.sending.lock();
        let number = self.acks.sent.load(Ordering::Relaxed) + 1;
        let (confirmation, response) = self
            .durable
            .then(|| Confirmation::new(&self.acks, number))
            .unzip();
        let acknowledgement = Acknowledgement {
            number,
            items,
            // Without a confirmation, the caller does not wait.
            precedes_use: precedes_use && self.durable,
            is_durable: self.durable,
            since: Instant::now(),
        };
        let command = SampleCommand::Acknowledge(self.id, acknowledgement, confirmation);
        let _ = commands.send(command);
        self.acks.sent.store(number, Ordering::Release);
        drop(sending);
        response
    }
}

impl BatchLease for RemoteLease {
    type Durable = PendingResponse<()>;

    fn acknowledge_first(self, n: usize) -> Option<PendingResponse<()>> {
        // Without a number, the server acknowledges all items.
        self.send_acknowledgement(u32::try_from(n).ok(), false)
    }
}

impl Drop for RemoteLease {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(SampleCommand::Cancel(self.id));
        }
    }
}

/// A requested batch, as a future. Dropping it cancels the request.
#[derive(Debug)]
pub struct RemoteSampleTicket {
    /// Dropping this lease cancels the request. `None` once the future was ready.
    lease: Option<RemoteLease>,
    /// Number of items in unfinished chunks of the client's writers, for error texts.
    unsent: Arc<AtomicU64>,
    receiver: oneshot::Receiver<Result<(ReceivedBatch, Instant)>>,
}

impl Future for RemoteSampleTicket {
    type Output = Result<LeasedBatch>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Pin::new(&mut this.receiver).poll(context).map(|received| {
            let batch = received.unwrap_or_else(|_| Err(closed_error()));
            let mut lease = this.lease.take().ok_or_else(closed_error)?;
            match batch {
                Ok((batch, received)) => {
                    lease.commands.take_if(|_| !batch.leased);
                    lease.durable = batch.durable;
                    let ReceivedBatch { columns, infos, .. } = batch;
                    Ok(LeasedBatch {
                        batch: Batch { columns, infos },
                        lease,
                        received,
                    })
                }
                Err(error) => {
                    lease.commands = None;
                    let unsent = unsent_items_note(this.unsent.load(Ordering::Relaxed));
                    Err(match (error, unsent) {
                        (Error::DeadlineExceeded(text), Some(unsent)) => {
                            Error::DeadlineExceeded(format!("{text}; {unsent}"))
                        }
                        (error, _) => error,
                    })
                }
            }
        })
    }
}

impl SampleRequests {
    /// Starts a stream, and returns it with the task that runs it. Both end once all clones of the `SampleRequests`,
    /// tickets and leases are dropped. The task returns true if the server has read all requests and the client all
    /// responses.
    pub(crate) fn open(
        runtime: &Handle,
        connector: &Arc<Connector>,
        pool: &Arc<Pool>,
        unsent: &Arc<AtomicU64>,
    ) -> (Self, JoinHandle<bool>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let states = Arc::default();
        let pending = PendingSamples::new(pool, &states);
        let task = runtime.spawn(run(Arc::clone(connector), pending, receiver));
        let requests = Self {
            commands,
            next_id: Arc::default(),
            acks: Arc::default(),
            states,
            unsent: Arc::clone(unsent),
        };
        (requests, task)
    }

    /// Requests again the server's confirmation that all acknowledgements so far are durable, after it reported that it
    /// could not make them durable.
    pub(crate) fn confirm_again(&self) -> PendingResponse<()> {
        let number = self.acks.sent.load(Ordering::Acquire);
        let (confirmation, response) = Confirmation::new(&self.acks, number);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let _ = self.commands.send(SampleCommand::Confirm(id, confirmation));
        response
    }

    /// Requests a batch.
    pub(crate) fn send(&self, request: BatchRequest) -> RemoteSampleTicket {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (result, receiver) = oneshot::channel();
        let pending = PendingSample::new(request, result);
        let _ = self.commands.send(SampleCommand::Request(id, pending));
        RemoteSampleTicket {
            lease: Some(RemoteLease {
                id,
                commands: Some(self.commands.clone()),
                durable: false,
                acks: Arc::clone(&self.acks),
                states: Arc::clone(&self.states),
            }),
            unsent: Arc::clone(&self.unsent),
            receiver,
        }
    }
}
