//! Priority updates and deletions, many under way at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::{Connector, GrpcClient};
use super::pending_response::PendingResponse;
use super::reconnecting_stream::{ReconnectingStream, run};
use super::sample_requests::SampleRequests;
use crate::pb;
use crate::pb::change_request::Change;
use crate::pb::change_response::Outcome;
use crate::wire::{decode_error, encode_numbers};

/// Keys of one request; a call with more is made in several.
pub const MAX_KEYS_PER_REQUEST: usize = 8192;

/// The changes of one client.
#[derive(Debug)]
pub(crate) struct ChangeSender {
    runtime: Handle,
    samples: SampleRequests,
    commands: mpsc::UnboundedSender<ChangeCommand>,
    /// To be next_to_send once `samples` has settled, one after the other.
    delayed: mpsc::UnboundedSender<ChangeCommand>,
    /// How many are on that way. While there are any, the next may not overtake them.
    num_delayed: Arc<AtomicUsize>,
}

/// One request.
#[derive(Debug)]
pub(crate) struct ChangeCommand {
    request: pb::ChangeRequest,
    /// How many keys its whole call has.
    keys: usize,
    reply: oneshot::Sender<Result<u64>>,
}

impl ChangeSender {
    pub(crate) fn open(
        runtime: &Handle,
        connector: &Arc<Connector>,
        samples: &SampleRequests,
    ) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        runtime.spawn(run(
            Arc::clone(connector),
            PendingChanges::default(),
            receiver,
        ));
        let (delayed, receiver) = mpsc::unbounded_channel();
        let changes = Self {
            runtime: runtime.clone(),
            samples: samples.clone(),
            commands,
            delayed,
            num_delayed: Arc::default(),
        };
        runtime.spawn(changes.send_delayed(receiver));
        changes
    }

    /// Sets priorities; yields how many of the keys were there.
    pub(crate) fn update(
        &self,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
    ) -> PendingResponse<u64> {
        // The server refuses a request of unequal lengths.
        let longest = keys.len().max(priorities.len());
        self.change(table, keys, longest, |from| {
            let priorities = slice_for_request(priorities, from);
            Change::PrioritiesLe(encode_numbers(priorities.iter().copied()))
        })
    }

    /// Deletes items; yields how many of the keys were there.
    pub(crate) fn delete(&self, table: &str, keys: &[u64]) -> PendingResponse<u64> {
        self.change(table, keys, keys.len(), |_| Change::Delete(pb::Empty {}))
    }

    /// SampleRequests for a change in as many requests as it takes.
    fn change(
        &self,
        table: &str,
        keys: &[u64],
        len: usize,
        change: impl Fn(usize) -> Change,
    ) -> PendingResponse<u64> {
        let replies = (0..len.max(1)).step_by(MAX_KEYS_PER_REQUEST).map(|from| {
            let request = pb::ChangeRequest {
                id: 0,
                table: table.into(),
                keys_le: encode_numbers(slice_for_request(keys, from).iter().copied()),
                change: Some(change(from)),
            };
            self.send(request, keys.len())
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
        PendingResponse::new(receiver)
    }

    /// Makes one request, after those before it, and after the samples have settled: the items of a
    /// batch that was used are gone for it.
    fn send(&self, request: pb::ChangeRequest, keys: usize) -> PendingResponse<u64> {
        let (reply, receiver) = oneshot::channel();
        let command = ChangeCommand {
            request,
            keys,
            reply,
        };
        // Where nobody receives, the reply says so.
        if self.num_delayed.load(Ordering::Acquire) == 0 && self.samples.are_acks_flushed() {
            let _ = self.commands.send(command);
        } else {
            self.num_delayed.fetch_add(1, Ordering::Relaxed);
            let _ = self.delayed.send(command);
        }
        PendingResponse::new(receiver)
    }

    /// Says what is delayed, until no more can come.
    fn send_delayed(
        &self,
        mut delayed: mpsc::UnboundedReceiver<ChangeCommand>,
    ) -> impl Future<Output = ()> + use<> {
        let (samples, commands) = (self.samples.clone(), self.commands.clone());
        let num_delayed = Arc::clone(&self.num_delayed);
        async move {
            while let Some(command) = delayed.recv().await {
                samples.clone().flush_acks().await;
                let _ = commands.send(command);
                num_delayed.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

/// What of an array goes into the request that begins there.
fn slice_for_request<T>(all: &[T], from: usize) -> &[T] {
    let rest = all.get(from..).unwrap_or_default();
    &rest[..rest.len().min(MAX_KEYS_PER_REQUEST)]
}

impl ChangeCommand {
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
struct PendingChanges {
    next_id: u64,
    /// Ids below this have been next_to_send on this connection.
    next_to_send: u64,
    pending: BTreeMap<u64, ChangeCommand>,
}

impl ReconnectingStream for PendingChanges {
    type Command = ChangeCommand;
    type Request = pb::ChangeRequest;
    type Response = pb::ChangeResponse;

    async fn open(
        mut client: GrpcClient,
        out: ReceiverStream<pb::ChangeRequest>,
    ) -> Result<Streaming<pb::ChangeResponse>, Status> {
        Ok(client.change(out).await?.into_inner())
    }

    fn handle_command(&mut self, mut command: ChangeCommand) {
        command.request.id = self.next_id;
        self.next_id += 1;
        self.pending.insert(command.request.id, command);
    }

    fn on_disconnect(&mut self) {
        self.next_to_send = 0;
    }

    fn next_request(&mut self) -> Option<pb::ChangeRequest> {
        let (id, command) = self.pending.range(self.next_to_send..).next()?;
        self.next_to_send = id + 1;
        Some(command.request.clone())
    }

    fn has_request(&self) -> bool {
        self.pending.range(self.next_to_send..).next().is_some()
    }

    fn handle_response(&mut self, message: pb::ChangeResponse) -> Result<(), Error> {
        if let Some(command) = self.pending.remove(&message.id) {
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
        self.pending.is_empty()
    }

    fn fail_pending(&mut self, error: &Error) {
        for command in std::mem::take(&mut self.pending).into_values() {
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
