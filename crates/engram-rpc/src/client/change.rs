//! Priority updates and deletions, many under way at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::{Api, Connector};
use super::reply::Reply;
use super::sample::Asks;
use super::talk::{Talk, run};
use crate::pb;
use crate::pb::change_reply::Reply as Answer;
use crate::pb::change_request::Change;
use crate::wire::error_in;

/// The changes of one client.
#[derive(Debug)]
pub(crate) struct Changes {
    asks: Asks,
    commands: mpsc::UnboundedSender<Command>,
    /// To be said once `asks` has settled, one after the other.
    delayed: mpsc::UnboundedSender<Command>,
    /// How many are on that way. While there are any, the next may not overtake them.
    num_delayed: Arc<AtomicUsize>,
}

type Command = (pb::ChangeRequest, oneshot::Sender<Result<u64>>);

impl Changes {
    pub(crate) fn open(runtime: &Handle, connector: &Arc<Connector>, asks: &Asks) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        runtime.spawn(run(Arc::clone(connector), Underway::default(), receiver));
        let (delayed, receiver) = mpsc::unbounded_channel();
        let changes = Self {
            asks: asks.clone(),
            commands,
            delayed,
            num_delayed: Arc::default(),
        };
        runtime.spawn(changes.say_delayed(receiver));
        changes
    }

    /// Asks for a change; yields how many of its keys were there.
    /// It is made after those before it, and after the asks have settled: the items of a batch
    /// that was used are gone for it.
    pub(crate) fn ask(&self, request: pb::ChangeRequest) -> Reply<u64> {
        let (sender, receiver) = oneshot::channel();
        // Where nobody receives, the reply says so.
        if self.num_delayed.load(Ordering::Acquire) == 0 && self.asks.is_settled() {
            let _ = self.commands.send((request, sender));
        } else {
            self.num_delayed.fetch_add(1, Ordering::Relaxed);
            let _ = self.delayed.send((request, sender));
        }
        Reply::new(receiver)
    }

    /// Says what is delayed, until no more can come.
    fn say_delayed(
        &self,
        mut delayed: mpsc::UnboundedReceiver<Command>,
    ) -> impl Future<Output = ()> + use<> {
        let (asks, commands) = (self.asks.clone(), self.commands.clone());
        let num_delayed = Arc::clone(&self.num_delayed);
        async move {
            while let Some(command) = delayed.recv().await {
                asks.clone().settle().await;
                let _ = commands.send(command);
                num_delayed.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

/// What a server that is gone may or may not have done.
fn unacknowledged(request: &pb::ChangeRequest) -> String {
    let what = match request.change {
        Some(Change::PrioritiesLe(_)) => "an update of the priorities",
        _ => "a deletion",
    };
    format!(
        "{what} of {} items of table `{}` is not acknowledged",
        request.keys_le.len() / size_of::<u64>(),
        request.table
    )
}

#[derive(Debug, Default)]
struct Underway {
    next_id: u64,
    /// Ids below this have been said on this connection.
    said: u64,
    waiting: BTreeMap<u64, Command>,
}

impl Talk for Underway {
    type Command = Command;
    type Out = pb::ChangeRequest;
    type In = pb::ChangeReply;

    async fn open(
        mut api: Api,
        out: ReceiverStream<pb::ChangeRequest>,
    ) -> Result<Streaming<pb::ChangeReply>, Status> {
        Ok(api.change(out).await?.into_inner())
    }

    fn command(&mut self, (mut request, reply): Command) {
        request.id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(request.id, (request, reply));
    }

    fn disconnected(&mut self) {
        self.said = 0;
    }

    fn next_out(&mut self) -> Option<pb::ChangeRequest> {
        let (id, (request, _)) = self.waiting.range(self.said..).next()?;
        self.said = id + 1;
        Some(request.clone())
    }

    fn has_out(&self) -> bool {
        self.waiting.range(self.said..).next().is_some()
    }

    fn heard(&mut self, message: pb::ChangeReply) -> Result<(), Error> {
        if let Some((_, reply)) = self.waiting.remove(&message.id) {
            let outcome = match message.reply {
                Some(Answer::Matched(matched)) => Ok(matched),
                Some(Answer::Error(error)) => Err(error_in(error)),
                None => Err(Error::Payload("an empty reply to a change".into())),
            };
            // Nobody may be waiting for it any more.
            let _ = reply.send(outcome);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn fail(&mut self, error: &Error) {
        for (request, reply) in std::mem::take(&mut self.waiting).into_values() {
            let error = match error {
                Error::Unavailable(text) => {
                    Error::Unavailable(format!("{text}; {}", unacknowledged(&request)))
                }
                other => other.clone(),
            };
            let _ = reply.send(Err(error));
        }
    }
}
