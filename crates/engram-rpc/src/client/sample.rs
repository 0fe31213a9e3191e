//! Asking for batches.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use engram_engine::unsent_text;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::{Api, Connector};
use super::talk::{Talk, closed_error, run};
use crate::pb;
use crate::pb::sample_reply::Reply;
use crate::pb::sample_request::Request;
use crate::wire::{Arrived, Arriving, error_in};

/// The asks of one reader, or of all single samples of a client.
#[derive(Clone, Debug)]
pub(crate) struct Asks {
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicU64>,
    /// Items that this client's writers hold in unfinished chunks.
    unsent: Arc<AtomicU64>,
}

/// What to sample.
#[derive(Clone, Debug)]
pub struct Ask {
    /// From which table.
    pub table: String,
    /// How many items.
    pub n: u32,
    /// How long the server may wait for them.
    pub timeout: Option<Duration>,
    /// Then, what there is will do.
    pub partial: bool,
    /// Fill shorter items up.
    pub pad: bool,
    /// The samples count once they are acknowledged.
    pub leased: bool,
}

enum Command {
    Ask(u64, Waiting),
    Acknowledge(u64),
    Cancel(u64),
}

/// A batch, and the promise to say whether it was used.
#[derive(Debug)]
pub struct Delivered {
    /// The batch.
    pub batch: Arrived,
    /// To be acknowledged.
    pub lease: RemoteLease,
}

/// A leased batch: acknowledged when its reader says so, given back when this is dropped.
#[derive(Debug)]
pub struct RemoteLease {
    id: u64,
    commands: Option<mpsc::UnboundedSender<Command>>,
}

impl RemoteLease {
    /// The samples were used: they are final.
    pub fn acknowledge(mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Command::Acknowledge(self.id));
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
    receiver: oneshot::Receiver<Result<Arrived>>,
}

impl Future for AskTicket {
    type Output = Result<Delivered>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Pin::new(&mut this.receiver).poll(context).map(|received| {
            let batch = received.unwrap_or_else(|_| Err(closed_error()));
            let mut lease = this.lease.take().ok_or_else(closed_error)?;
            match batch {
                Ok(batch) => Ok(Delivered { batch, lease }),
                Err(error) => {
                    lease.commands = None;
                    let unsent = unsent_text(this.unsent.load(Ordering::Relaxed));
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
    ) -> (Self, JoinHandle<()>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let underway = Underway {
            pool: Arc::clone(pool),
            unsaid: VecDeque::new(),
            waiting: BTreeMap::new(),
        };
        let task = runtime.spawn(run(Arc::clone(connector), underway, receiver));
        let asks = Self {
            commands,
            next_id: Arc::default(),
            unsent: Arc::clone(unsent),
        };
        (asks, task)
    }

    pub(crate) fn ask(&self, ask: Ask) -> AskTicket {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (reply, receiver) = oneshot::channel();
        let waiting = Waiting {
            deadline: ask
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            ask,
            again: false,
            reply,
            arriving: None,
        };
        let _ = self.commands.send(Command::Ask(id, waiting));
        AskTicket {
            lease: Some(RemoteLease {
                id,
                commands: Some(self.commands.clone()),
            }),
            unsent: Arc::clone(&self.unsent),
            receiver,
        }
    }
}

struct Waiting {
    ask: Ask,
    deadline: Option<Instant>,
    /// It has been said before, on another connection.
    again: bool,
    reply: oneshot::Sender<Result<Arrived>>,
    arriving: Option<Arriving>,
}

impl Waiting {
    fn request(&self, id: u64) -> pb::Ask {
        let Ask {
            table,
            n,
            partial,
            pad,
            leased,
            ..
        } = self.ask.clone();
        // The first time, as it was given: errors repeat it.
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let timeout = if self.again {
            self.deadline.map(left)
        } else {
            self.ask.timeout
        };
        pb::Ask {
            id,
            table,
            n,
            timeout: timeout.map(|timeout| timeout.as_secs_f64()),
            partial,
            pad,
            leased,
        }
    }
}

enum Say {
    Ask(u64),
    Request(Request),
}

struct Underway {
    pool: Arc<Pool>,
    unsaid: VecDeque<Say>,
    waiting: BTreeMap<u64, Waiting>,
}

impl Talk for Underway {
    type Command = Command;
    type Out = pb::SampleRequest;
    type In = pb::SampleReply;

    async fn open(
        mut api: Api,
        out: ReceiverStream<pb::SampleRequest>,
    ) -> Result<Streaming<pb::SampleReply>, Status> {
        Ok(api.sample(out).await?.into_inner())
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Ask(id, waiting) => {
                self.unsaid.push_back(Say::Ask(id));
                self.waiting.insert(id, waiting);
            }
            Command::Acknowledge(id) => {
                self.unsaid
                    .push_back(Say::Request(Request::Acknowledge(id)));
            }
            Command::Cancel(id) => {
                self.waiting.remove(&id);
                self.unsaid.push_back(Say::Request(Request::Cancel(id)));
            }
        }
    }

    fn connected(&mut self) {
        // Leases of the old connection are void.
        self.unsaid = self.waiting.keys().map(|id| Say::Ask(*id)).collect();
        for waiting in self.waiting.values_mut() {
            waiting.arriving = None;
        }
    }

    fn next_out(&mut self) -> Option<pb::SampleRequest> {
        let request = match self.unsaid.pop_front()? {
            Say::Request(request) => Some(request),
            // Cancelled before it was said: an empty request, which means nothing.
            Say::Ask(id) => {
                let waiting = self.waiting.get_mut(&id);
                waiting.map(|waiting| {
                    let request = waiting.request(id);
                    waiting.again = true;
                    Request::Ask(request)
                })
            }
        };
        Some(pb::SampleRequest { request })
    }

    fn has_out(&self) -> bool {
        !self.unsaid.is_empty()
    }

    fn heard(&mut self, message: pb::SampleReply) -> Result<(), Error> {
        let id = message.id;
        let Some(waiting) = self.waiting.get_mut(&id) else {
            // Cancelled meanwhile.
            return Ok(());
        };
        let outcome = match message.reply {
            Some(Reply::Error(error)) => Err(error_in(error)),
            Some(Reply::Batch(batch)) => Arriving::new(batch, &self.pool).map(Some),
            Some(Reply::Part(bytes)) => match waiting.arriving.take() {
                Some(mut arriving) => arriving.take(&bytes).map(|()| Some(arriving)),
                None => Err(Error::Payload("a part of no batch".into())),
            },
            None => Err(Error::Payload("an empty reply to an ask".into())),
        };
        let outcome = match outcome {
            Ok(Some(arriving)) if !arriving.is_complete() => {
                waiting.arriving = Some(arriving);
                return Ok(());
            }
            Ok(Some(arriving)) => Ok(arriving.finish()),
            Ok(None) => return Ok(()),
            Err(error) => Err(error),
        };
        if let Some(waiting) = self.waiting.remove(&id) {
            let _ = waiting.reply.send(outcome);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.unsaid.is_empty()
    }

    fn fail(&mut self, error: &Error) {
        self.unsaid.clear();
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }
}
