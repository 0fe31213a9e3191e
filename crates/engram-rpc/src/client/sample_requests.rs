//! Asking for batches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use engram_engine::unsent_items_note;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::connect::Connector;
use super::pending_samples::{PendingSample, PendingSamples, SampleCommand};
use super::reconnecting_stream::{closed_error, run};
use crate::wire::ReceivedBatch;

/// The requests of one reader, or of all single samples of a client.
#[derive(Clone, Debug)]
pub(crate) struct SampleRequests {
    commands: mpsc::UnboundedSender<SampleCommand>,
    next_id: Arc<AtomicU64>,
    acks: Arc<AckCounts>,
    /// Items that this client's writers hold in unfinished chunks.
    unsent: Arc<AtomicU64>,
}

/// Leased batches that were used, and how many of them the server has surely heard of.
#[derive(Debug, Default)]
struct AckCounts {
    sent: AtomicU64,
    confirmed: AtomicU64,
}

/// What to sample.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// From which table.
    pub table: String,
    /// How many items.
    pub n: u32,
    /// As soon as there are so many, they will do.
    pub at_least: u32,
    /// How long the server may wait for them.
    pub timeout: Option<Duration>,
    /// Then, what there is will do.
    pub partial: bool,
    /// Fill shorter items up.
    pub pad: bool,
    /// The samples count once they are acknowledged, whatever the table.
    pub leased: bool,
}

/// A batch, and the promise to say whether it was used.
#[derive(Debug)]
pub struct LeasedBatch {
    /// The batch.
    pub batch: ReceivedBatch,
    /// To be acknowledged.
    pub lease: RemoteLease,
}

/// A leased batch: acknowledged when its reader says so, given back when this is dropped.
#[derive(Debug)]
pub struct RemoteLease {
    id: u64,
    /// None where the server waits for no word.
    commands: Option<mpsc::UnboundedSender<SampleCommand>>,
    acks: Arc<AckCounts>,
}

impl RemoteLease {
    /// The samples were used: they are final.
    pub fn acknowledge(self) {
        self.end(None);
    }

    /// The first `items` samples were used; the others go back.
    pub fn acknowledge_first(self, items: usize) {
        self.end(u32::try_from(items).ok());
    }

    fn end(mut self, items: Option<u32>) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(SampleCommand::Acknowledge(self.id, items));
            self.acks.sent.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for RemoteLease {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(SampleCommand::Cancel(self.id));
        }
    }
}

/// A batch that was asked for. Dropping it cancels the ask.
#[derive(Debug)]
pub struct RemoteSampleTicket {
    lease: Option<RemoteLease>,
    unsent: Arc<AtomicU64>,
    receiver: oneshot::Receiver<Result<ReceivedBatch>>,
}

impl Future for RemoteSampleTicket {
    type Output = Result<LeasedBatch>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Pin::new(&mut this.receiver).poll(context).map(|received| {
            let batch = received.unwrap_or_else(|_| Err(closed_error()));
            let mut lease = this.lease.take().ok_or_else(closed_error)?;
            match batch {
                Ok(batch) => {
                    lease.commands.take_if(|_| !batch.leased);
                    Ok(LeasedBatch { batch, lease })
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
    /// Opens a conversation; it ends, as does the returned task, once nobody requests any more.
    pub(crate) fn open(
        runtime: &Handle,
        connector: &Arc<Connector>,
        pool: &Arc<Pool>,
        unsent: &Arc<AtomicU64>,
    ) -> (Self, JoinHandle<bool>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let pending = PendingSamples::new(pool);
        let task = runtime.spawn(run(Arc::clone(connector), pending, receiver));
        let requests = Self {
            commands,
            next_id: Arc::default(),
            acks: Arc::default(),
            unsent: Arc::clone(unsent),
        };
        (requests, task)
    }

    pub(crate) fn send(&self, request: BatchRequest) -> RemoteSampleTicket {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (reply, receiver) = oneshot::channel();
        let pending = PendingSample::new(request, reply);
        let _ = self.commands.send(SampleCommand::Request(id, pending));
        RemoteSampleTicket {
            lease: Some(RemoteLease {
                id,
                commands: Some(self.commands.clone()),
                acks: Arc::clone(&self.acks),
            }),
            unsent: Arc::clone(&self.unsent),
            receiver,
        }
    }

    /// True when the server has heard of all batches that were used.
    pub(crate) fn are_acks_flushed(&self) -> bool {
        let sent = self.acks.sent.load(Ordering::Acquire);
        sent <= self.acks.confirmed.load(Ordering::Acquire)
    }

    /// Waits until the server has heard of the batches that were used, or they are void.
    pub(crate) async fn flush_acks(self) {
        if self.are_acks_flushed() {
            return;
        }
        let sent = self.acks.sent.load(Ordering::Acquire);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (reply, receiver) = oneshot::channel();
        if self
            .commands
            .send(SampleCommand::Barrier(id, reply))
            .is_ok()
        {
            // An error: the conversation is over, and what was not heard is void.
            let _ = receiver.await;
        }
        self.acks.confirmed.fetch_max(sent, Ordering::Release);
    }
}
