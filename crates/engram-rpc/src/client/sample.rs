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

use super::asking::{Command, Underway, Waiting};
use super::connect::Connector;
use super::talk::{closed_error, run};
use crate::wire::ReceivedBatch;

/// The asks of one reader, or of all single samples of a client.
#[derive(Clone, Debug)]
pub(crate) struct Asks {
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicU64>,
    used: Arc<Used>,
    /// Items that this client's writers hold in unfinished chunks.
    unsent: Arc<AtomicU64>,
}

/// Leased batches that were used, and how many of them the server has surely heard of.
#[derive(Debug, Default)]
struct Used {
    batches: AtomicU64,
    settled: AtomicU64,
}

/// What to sample.
#[derive(Clone, Debug)]
pub struct Ask {
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
pub struct Delivered {
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
    commands: Option<mpsc::UnboundedSender<Command>>,
    used: Arc<Used>,
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
            let _ = commands.send(Command::Acknowledge(self.id, items));
            self.used.batches.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for RemoteLease {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Command::Cancel(self.id));
        }
    }
}

/// A batch that was asked for. Dropping it cancels the ask.
#[derive(Debug)]
pub struct AskTicket {
    lease: Option<RemoteLease>,
    unsent: Arc<AtomicU64>,
    receiver: oneshot::Receiver<Result<ReceivedBatch>>,
}

impl Future for AskTicket {
    type Output = Result<Delivered>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Pin::new(&mut this.receiver).poll(context).map(|received| {
            let batch = received.unwrap_or_else(|_| Err(closed_error()));
            let mut lease = this.lease.take().ok_or_else(closed_error)?;
            match batch {
                Ok(batch) => {
                    lease.commands.take_if(|_| !batch.leased);
                    Ok(Delivered { batch, lease })
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

impl Asks {
    /// Opens a conversation; it ends, as does the returned task, once nobody asks any more.
    pub(crate) fn open(
        runtime: &Handle,
        connector: &Arc<Connector>,
        pool: &Arc<Pool>,
        unsent: &Arc<AtomicU64>,
    ) -> (Self, JoinHandle<bool>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let underway = Underway::new(pool);
        let task = runtime.spawn(run(Arc::clone(connector), underway, receiver));
        let asks = Self {
            commands,
            next_id: Arc::default(),
            used: Arc::default(),
            unsent: Arc::clone(unsent),
        };
        (asks, task)
    }

    pub(crate) fn ask(&self, ask: Ask) -> AskTicket {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (reply, receiver) = oneshot::channel();
        let waiting = Waiting::new(ask, reply);
        let _ = self.commands.send(Command::Ask(id, waiting));
        AskTicket {
            lease: Some(RemoteLease {
                id,
                commands: Some(self.commands.clone()),
                used: Arc::clone(&self.used),
            }),
            unsent: Arc::clone(&self.unsent),
            receiver,
        }
    }

    /// True when the server has heard of all batches that were used.
    pub(crate) fn is_settled(&self) -> bool {
        let used = self.used.batches.load(Ordering::Acquire);
        used <= self.used.settled.load(Ordering::Acquire)
    }

    /// Waits until the server has heard of the batches that were used, or they are void.
    pub(crate) async fn settle(self) {
        if self.is_settled() {
            return;
        }
        let used = self.used.batches.load(Ordering::Acquire);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (reply, receiver) = oneshot::channel();
        if self.commands.send(Command::Settle(id, reply)).is_ok() {
            // An error: the conversation is over, and what was not heard is void.
            let _ = receiver.await;
        }
        self.used.settled.fetch_max(used, Ordering::Release);
    }
}
