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
use crate::pb::change_request::Change;
use crate::pb::change_response::Outcome;
use crate::wire::{decode_error, encode_numbers};

/// Keys of one request; a call with more is made in several.
pub const MOST_KEYS: usize = 8192;

/// The changes of one client.
#[derive(Debug)]
pub(crate) struct Changes {
    runtime: Handle,
    asks: Asks,
    commands: mpsc::UnboundedSender<Command>,
    /// To be said once `asks` has settled, one after the other.
    delayed: mpsc::UnboundedSender<Command>,
    /// How many are on that way. While there are any, the next may not overtake them.
    num_delayed: Arc<AtomicUsize>,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Command {
    request: pb::ChangeRequest,
    /// How many keys its whole call has.
    keys: usize,
    reply: oneshot::Sender<Result<u64>>,
}

impl Changes {
    pub(crate) fn open(runtime: &Handle, connector: &Arc<Connector>, asks: &Asks) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        runtime.spawn(run(Arc::clone(connector), Underway::default(), receiver));
        let (delayed, receiver) = mpsc::unbounded_channel();
        let changes = Self {
            runtime: runtime.clone(),
            asks: asks.clone(),
            commands,
            delayed,
            num_delayed: Arc::default(),
        };
        runtime.spawn(changes.say_delayed(receiver));
        changes
    }

    /// Sets priorities; yields how many of the keys were there.
    pub(crate) fn update(&self, table: &str, keys: &[u64], priorities: &[f64]) -> Reply<u64> {
        // The server refuses a request of unequal lengths.
        let longest = keys.len().max(priorities.len());
        self.change(table, keys, longest, |from| {
            let priorities = part(priorities, from);
            Change::PrioritiesLe(encode_numbers(priorities.iter().copied()))
        })
    }

    /// Deletes items; yields how many of the keys were there.
    pub(crate) fn delete(&self, table: &str, keys: &[u64]) -> Reply<u64> {
        self.change(table, keys, keys.len(), |_| Change::Delete(pb::Empty {}))
    }

    /// Asks for a change in as many requests as it takes.
    fn change(
        &self,
        table: &str,
        keys: &[u64],
        len: usize,
        change: impl Fn(usize) -> Change,
    ) -> Reply<u64> {
        let replies = (0..len.max(1)).step_by(MOST_KEYS).map(|from| {
            let request = pb::ChangeRequest {
                id: 0,
                table: table.into(),
                keys_le: encode_numbers(part(keys, from).iter().copied()),
                change: Some(change(from)),
            };
            self.ask(request, keys.len())
        });
        let mut replies: Vec<_> = replies.collect();
        if replies.len() == 1 {
            return replies.swap_remove(0);
        }
        let (sender, receiver) = oneshot::channel();
        self.runtime.spawn(async move {
            let mut outcome = Ok(0);
            // All are waited for: when a call ends, nothing of it is under way.
            for reply in replies {
                outcome = match (outcome, reply.await) {
                    (Ok(sum), Ok(matched)) => Ok(sum + matched),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
            // Nobody may be waiting for it any more.
            let _ = sender.send(outcome);
        });
        Reply::new(receiver)
    }

    /// Makes one request, after those before it, and after the asks have settled: the items of a
    /// batch that was used are gone for it.
    fn ask(&self, request: pb::ChangeRequest, keys: usize) -> Reply<u64> {
        let (reply, receiver) = oneshot::channel();
        let command = Command {
            request,
            keys,
            reply,
        };
        // Where nobody receives, the reply says so.
        if self.num_delayed.load(Ordering::Acquire) == 0 && self.asks.is_settled() {
            let _ = self.commands.send(command);
        } else {
            self.num_delayed.fetch_add(1, Ordering::Relaxed);
            let _ = self.delayed.send(command);
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

/// What of an array goes into the request that begins there.
fn part<T>(all: &[T], from: usize) -> &[T] {
    let rest = all.get(from..).unwrap_or_default();
    &rest[..rest.len().min(MOST_KEYS)]
}

impl Command {
    /// What a server that is gone may or may not have done.
    fn unacknowledged(&self) -> String {
        let what = match self.request.change {
            Some(Change::PrioritiesLe(_)) => "an update of the priorities",
            _ => "a deletion",
        };
        format!(
            "{what} of {} items of table `{}` is not acknowledged",
            self.keys, self.request.table
        )
    }
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
    type In = pb::ChangeResponse;

    async fn open(
        mut api: Api,
        out: ReceiverStream<pb::ChangeRequest>,
    ) -> Result<Streaming<pb::ChangeResponse>, Status> {
        Ok(api.change(out).await?.into_inner())
    }

    fn command(&mut self, mut command: Command) {
        command.request.id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(command.request.id, command);
    }

    fn disconnected(&mut self) {
        self.said = 0;
    }

    fn next_out(&mut self) -> Option<pb::ChangeRequest> {
        let (id, command) = self.waiting.range(self.said..).next()?;
        self.said = id + 1;
        Some(command.request.clone())
    }

    fn has_out(&self) -> bool {
        self.waiting.range(self.said..).next().is_some()
    }

    fn heard(&mut self, message: pb::ChangeResponse) -> Result<(), Error> {
        if let Some(command) = self.waiting.remove(&message.id) {
            let outcome = match message.outcome {
                Some(Outcome::Matched(matched)) => Ok(matched),
                Some(Outcome::Error(error)) => Err(decode_error(error)),
                None => Err(Error::Payload("an empty reply to a change".into())),
            };
            // Nobody may be waiting for it any more.
            let _ = command.reply.send(outcome);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn fail(&mut self, error: &Error) {
        for command in std::mem::take(&mut self.waiting).into_values() {
            let error = match error {
                Error::Unavailable(text) => {
                    Error::Unavailable(format!("{text}; {}", command.unacknowledged()))
                }
                other => other.clone(),
            };
            let _ = command.reply.send(Err(error));
        }
    }
}
