//! Priority updates and deletions; many can be in flight at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_core::text::count;
use engram_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::Connector;
use super::connection::GrpcClient;
use super::pending_response::PendingResponse;
use super::reconnecting_stream::{ReconnectingStream, run};
use super::sample_requests::SampleStreams;
use crate::pb;
use crate::pb::change_request::Change;
use crate::pb::change_response::Outcome;
use crate::wire::{decode_error, encode_numbers};

/// Maximum number of keys of one request; a call with more keys sends several requests.
pub const MAX_KEYS_PER_REQUEST: usize = 8192;

/// Sends the changes of one client.
#[derive(Debug)]
pub(crate) struct ChangeSender {
    runtime: Handle,
    /// The client's sample streams: see [`Self::send`].
    streams: Arc<SampleStreams>,
    commands: mpsc::UnboundedSender<ChangeCommand>,
    /// Commands that wait until the server has handled the acknowledgements of `streams`.
    delayed: mpsc::UnboundedSender<ChangeCommand>,
    /// Number of commands in `delayed`. While there are any, later commands are delayed too, to keep their order.
    num_delayed: Arc<AtomicUsize>,
    /// Each command has a clone until it is answered, so the reference count shows whether commands are unanswered.
    unanswered: Arc<()>,
}

/// One request, and where its result is sent.
#[derive(Debug)]
pub(crate) struct ChangeCommand {
    request: pb::ChangeRequest,
    /// Number of keys of the whole call, which may consist of several requests.
    total_keys: usize,
    response: oneshot::Sender<Result<u64>>,
    _unanswered: Arc<()>,
}

impl ChangeSender {
    pub(crate) fn open(
        runtime: &Handle,
        connector: &Arc<Connector>,
        streams: &Arc<SampleStreams>,
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
            streams: Arc::clone(streams),
            commands,
            delayed,
            num_delayed: Arc::default(),
            unanswered: Arc::default(),
        };
        runtime.spawn(changes.send_delayed(receiver));
        changes
    }

    /// Sets priorities; returns how many of the keys exist.
    pub(crate) fn update(
        &self,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
    ) -> PendingResponse<u64> {
        // If the lengths differ, the server returns an error.
        let longest = keys.len().max(priorities.len());
        self.change(table, keys, longest, |first| {
            let priorities = slice_for_request(priorities, first);
            Change::PrioritiesLe(encode_numbers(priorities.iter().copied()))
        })
    }

    /// Deletes items; returns how many of the keys existed.
    pub(crate) fn delete(&self, table: &str, keys: &[u64]) -> PendingResponse<u64> {
        self.change(table, keys, keys.len(), |_| Change::Delete(pb::Empty {}))
    }

    /// Returns a future that is ready once the server has handled all changes so far, of all tables; `None` if it has. A
    /// change that fails is handled too. Sends an empty deletion for `table`, behind the others.
    pub(crate) fn until_handled(&self, table: &str) -> Option<PendingResponse<u64>> {
        // The server handles changes in order.
        (Arc::strong_count(&self.unanswered) > 1).then(|| self.delete(table, &[]))
    }

    /// Sends a change as one or more requests of at most [`MAX_KEYS_PER_REQUEST`] keys each. `len` is the number of
    /// keys or priorities, whichever is larger. `change` receives the index of a request's first key, and returns what
    /// to do with the keys of this request.
    fn change(
        &self,
        table: &str,
        keys: &[u64],
        len: usize,
        change: impl Fn(usize) -> Change,
    ) -> PendingResponse<u64> {
        let responses = (0..len.max(1)).step_by(MAX_KEYS_PER_REQUEST).map(|first| {
            let request = pb::ChangeRequest {
                id: 0,
                table: table.into(),
                keys_le: encode_numbers(slice_for_request(keys, first).iter().copied()),
                change: Some(change(first)),
            };
            self.send(request, keys.len())
        });
        let mut responses: Vec<_> = responses.collect();
        if responses.len() == 1 {
            return responses.swap_remove(0);
        }
        PendingResponse::spawn(&self.runtime, async move {
            let mut outcome = Ok(0);
            // Wait for all responses, also after an error: when the call ends, none of its requests is in flight.
            for response in responses {
                outcome = match (outcome, response.await) {
                    (Ok(sum), Ok(matched)) => Ok(sum + matched),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
            outcome
        })
    }

    /// Sends one request, after earlier ones and after the server has handled all acknowledgements: the change must
    /// not find items that an acknowledgement removes.
    fn send(&self, request: pb::ChangeRequest, total_keys: usize) -> PendingResponse<u64> {
        let (response, receiver) = oneshot::channel();
        let command = ChangeCommand {
            request,
            total_keys,
            response,
            _unanswered: Arc::clone(&self.unanswered),
        };
        // If the receiver is closed, `response` is dropped and the caller gets an error.
        if self.num_delayed.load(Ordering::Acquire) == 0 && self.streams.are_acks_flushed() {
            let _ = self.commands.send(command);
        } else {
            self.num_delayed.fetch_add(1, Ordering::Relaxed);
            let _ = self.delayed.send(command);
        }
        PendingResponse::new(receiver)
    }

    /// Returns a future that forwards the delayed commands one by one, until the client is dropped.
    fn send_delayed(
        &self,
        mut delayed: mpsc::UnboundedReceiver<ChangeCommand>,
    ) -> impl Future<Output = ()> + use<> {
        let (streams, commands) = (Arc::clone(&self.streams), self.commands.clone());
        let num_delayed = Arc::clone(&self.num_delayed);
        async move {
            while let Some(command) = delayed.recv().await {
                match streams.flush_acks().await {
                    Ok(()) => {
                        let _ = commands.send(command);
                    }
                    Err(error) => command.fail(&error),
                }
                num_delayed.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

/// Returns the elements of `all` for one request: at most [`MAX_KEYS_PER_REQUEST`], from index `first` on.
fn slice_for_request<T>(all: &[T], first: usize) -> &[T] {
    let remaining = all.get(first..).unwrap_or_default();
    &remaining[..remaining.len().min(MAX_KEYS_PER_REQUEST)]
}

impl ChangeCommand {
    /// Reports that the change could not be sent, or that no response arrived.
    fn fail(self, error: &Error) {
        let error = match error {
            Error::Unavailable(text) => {
                Error::Unavailable(format!("{text}; {}", self.describe_unacknowledged()))
            }
            other => other.clone(),
        };
        // The caller may have stopped waiting.
        let _ = self.response.send(Err(error));
    }

    /// Describes, at the end of an error text, the change that an unreachable server may or may not have made.
    fn describe_unacknowledged(&self) -> String {
        let operation = match self.request.change {
            Some(Change::PrioritiesLe(_)) => "an update of the priorities",
            _ => "a deletion",
        };
        format!(
            "{operation} of {} of table `{}` is not acknowledged",
            count(self.total_keys, "item"),
            self.request.table
        )
    }
}

/// The client's side of a change stream: the requests that are not answered yet, by id.
#[derive(Debug, Default)]
struct PendingChanges {
    next_id: u64,
    /// Requests with smaller ids were sent on this connection.
    next_to_send: u64,
    pending: BTreeMap<u64, ChangeCommand>,
}

impl ReconnectingStream for PendingChanges {
    type Command = ChangeCommand;
    type Request = pb::ChangeRequest;
    type Response = pb::ChangeResponse;

    async fn open(
        mut client: GrpcClient,
        requests: ReceiverStream<pb::ChangeRequest>,
    ) -> Result<Streaming<pb::ChangeResponse>, Status> {
        Ok(client.change(requests).await?.into_inner())
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
                None => Err(Error::Payload(
                    "invalid response: neither a number of matched keys nor an error".into(),
                )),
            };
            // The caller may have stopped waiting.
            let _ = command.response.send(outcome);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    fn fail_pending(&mut self, error: &Error) {
        for command in std::mem::take(&mut self.pending).into_values() {
            command.fail(error);
        }
    }
}
