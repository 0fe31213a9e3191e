//! The client's side of a sample stream.
//!
//! A batch is *queued* (requested, not sent yet), *sent*, *received* (all its messages have arrived; its ticket is
//! ready), and if it is on lease then *acknowledged* or *cancelled*. When the connection breaks, the server returns all
//! leased items to their tables: batches that are queued or sent are requested again, and acknowledging or cancelling a
//! batch of the old connection does nothing.
//!
//! A *barrier* is a request that the server answers once it has handled all acknowledgements before it, and made them
//! durable if possible.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::pool::Pool;
use engram_core::{Error, Result};
use engram_engine::SampleOptions;
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::confirmation::Confirmation;
use super::connection::GrpcClient;
use super::ended_leases::EndedLeases;
use super::reconnecting_stream::ReconnectingStream;
use crate::pb;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use crate::wire::{BatchAssembler, ReceivedBatch, decode_error};

type BarrierReply = oneshot::Sender<Result<()>>;

/// The options of one batch.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// Name of the table.
    pub table: String,
    /// What to sample, and how long the server may wait.
    pub options: SampleOptions,
    /// How items of different lengths are combined.
    pub length_policy: LengthPolicy,
}

/// A command of a [`super::sample_requests::SampleRequests`] for its stream. The first number is the id of a batch or
/// barrier.
pub(super) enum SampleCommand {
    /// Requests a batch.
    Request(u64, PendingSample),
    /// Acknowledges the whole batch, or only this many of its first items. If a confirmation is given, it is completed
    /// once the acknowledgement is durable, cannot be made durable now, or its connection is lost.
    Acknowledge(u64, Option<u32>, Option<Confirmation>),
    /// Completes the confirmation once all earlier acknowledgements are durable, cannot be made durable now, or their
    /// connection is lost.
    Confirm(u64, Confirmation),
    /// Withdraws the request, or returns the items of a batch on lease.
    Cancel(u64),
    /// Replies once the server has handled all earlier acknowledgements of this connection; at once if there are none.
    /// Replies with an error if the server cannot be reached, or cannot make them durable. Sent again after a lost
    /// connection.
    Barrier(u64, BarrierReply),
}

/// A batch that is queued or sent.
pub(super) struct PendingSample {
    request: BatchRequest,
    /// When the timeout of `request` passes; `None` without a timeout.
    deadline: Option<Instant>,
    /// True if the request was sent on this connection.
    sent: bool,
    /// True if the request was sent on any connection.
    sent_ever: bool,
    /// Receives the batch and when it arrived.
    result: oneshot::Sender<Result<(ReceivedBatch, Instant)>>,
    assembler: BatchAssembler,
}

impl PendingSample {
    pub(super) fn new(
        request: BatchRequest,
        result: oneshot::Sender<Result<(ReceivedBatch, Instant)>>,
    ) -> Self {
        let timeout = request.options.timeout;
        let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            request,
            sent: false,
            sent_ever: false,
            result,
            assembler: BatchAssembler::default(),
        }
    }

    fn build_request(&self, id: u64) -> pb::BatchRequest {
        let options = self.request.options;
        let number = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
        // The first request has the timeout as given, because error texts contain it. Requests on later connections
        // have the time that remains.
        let remaining = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let timeout_s = match self.deadline {
            Some(deadline) if self.sent_ever => Some(remaining(deadline).as_secs_f64()),
            deadline => options.timeout.filter(|_| deadline.is_some()),
        };
        pb::BatchRequest {
            id,
            table: self.request.table.clone(),
            n: number(options.n),
            timeout_s,
            pad: self.request.length_policy == LengthPolicy::Pad,
            lease: options.lease,
            at_least: number(options.at_least),
        }
    }

    /// Handles one message. Returns the batch once it is complete, or the error that ends the request; `None` while
    /// parts are missing.
    fn handle_outcome(
        &mut self,
        outcome: Option<Outcome>,
        pool: &Arc<Pool>,
    ) -> Option<Result<ReceivedBatch>> {
        let batch = match outcome {
            Some(Outcome::Error(error)) => Err(decode_error(error)),
            Some(Outcome::Batch(batch)) => self.assembler.begin(batch, pool),
            Some(Outcome::BatchPart(bytes)) => self.assembler.push(&bytes),
            Some(Outcome::BarrierDone(_)) | None => Err(Error::Payload(
                "invalid response: neither a batch nor an error".into(),
            )),
        };
        batch.transpose()
    }
}

enum QueuedRequest {
    /// The pending batch of this id.
    Sample(u64),
    Other(pb::SampleRequest),
}

impl From<Request> for pb::SampleRequest {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
            used_items: None,
        }
    }
}

/// The batches of one stream, and the requests to send for them.
pub(super) struct PendingSamples {
    pool: Arc<Pool>,
    /// Requests that are not sent yet, in order.
    outgoing: VecDeque<QueuedRequest>,
    /// Batches that are queued or sent, by id.
    pending: BTreeMap<u64, PendingSample>,
    /// Batches received on this connection that are on lease.
    leased: BTreeSet<u64>,
    ended: Arc<EndedLeases>,
    /// Barriers that the server has not answered.
    barriers: BTreeMap<u64, BarrierReply>,
    /// Confirmations that wait for the answer to their barrier. They fail if the connection is lost.
    confirmations: BTreeMap<u64, Confirmation>,
    /// True if a batch was acknowledged on this connection.
    has_acknowledged: bool,
}

impl PendingSamples {
    pub(super) fn new(pool: &Arc<Pool>, ended: &Arc<EndedLeases>) -> Self {
        Self {
            pool: Arc::clone(pool),
            ended: Arc::clone(ended),
            outgoing: VecDeque::new(),
            pending: BTreeMap::new(),
            leased: BTreeSet::new(),
            barriers: BTreeMap::new(),
            confirmations: BTreeMap::new(),
            has_acknowledged: false,
        }
    }

    fn enqueue(&mut self, request: Request) {
        self.outgoing
            .push_back(QueuedRequest::Other(request.into()));
    }

    fn cancel(&mut self, id: u64) {
        match self.pending.remove(&id) {
            Some(sample) if sample.sent => self.enqueue(Request::Cancel(id)),
            Some(_) => (self.outgoing)
                .retain(|queued| !matches!(queued, QueuedRequest::Sample(other) if *other == id)),
            None if self.leased.remove(&id) => self.enqueue(Request::Cancel(id)),
            None => self.ended.forget(id),
        }
    }

    /// Requests the confirmation of all acknowledgements so far with a barrier of this id, which no other barrier has.
    /// Without an acknowledgement on this connection, the confirmation fails at once: earlier ones are lost.
    fn confirm(&mut self, id: u64, confirmation: Confirmation) {
        if self.has_acknowledged {
            self.confirmations.insert(id, confirmation);
            self.enqueue(Request::Barrier(id));
        } else {
            confirmation.send(Err(lost_acknowledgement()));
        }
    }

    fn fail_confirmations(&mut self) {
        for confirmation in std::mem::take(&mut self.confirmations).into_values() {
            confirmation.send(Err(lost_acknowledgement()));
        }
    }
}

impl ReconnectingStream for PendingSamples {
    type Command = SampleCommand;
    type Request = pb::SampleRequest;
    type Response = pb::SampleResponse;

    async fn open(
        mut client: GrpcClient,
        requests: ReceiverStream<pb::SampleRequest>,
    ) -> Result<Streaming<pb::SampleResponse>, Status> {
        Ok(client.sample(requests).await?.into_inner())
    }

    fn handle_command(&mut self, command: SampleCommand) {
        match command {
            SampleCommand::Request(id, sample) => {
                self.outgoing.push_back(QueuedRequest::Sample(id));
                self.pending.insert(id, sample);
            }
            SampleCommand::Acknowledge(id, items, confirmation) if self.leased.remove(&id) => {
                self.has_acknowledged = true;
                self.outgoing
                    .push_back(QueuedRequest::Other(pb::SampleRequest {
                        used_items: items,
                        ..Request::Acknowledge(id).into()
                    }));
                if let Some(confirmation) = confirmation {
                    self.confirm(id, confirmation);
                }
            }
            // Received on an earlier connection: the server has returned its items.
            SampleCommand::Acknowledge(id, _, confirmation) => {
                self.ended.forget(id);
                if let Some(confirmation) = confirmation {
                    confirmation.send(Err(lost_acknowledgement()));
                }
            }
            SampleCommand::Confirm(id, confirmation) => self.confirm(id, confirmation),
            SampleCommand::Cancel(id) => self.cancel(id),
            SampleCommand::Barrier(id, reply) if self.has_acknowledged => {
                self.barriers.insert(id, reply);
                self.enqueue(Request::Barrier(id));
            }
            SampleCommand::Barrier(_, reply) => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    fn on_disconnect(&mut self) {
        // The server returns all leased items to their tables.
        self.ended.extend(std::mem::take(&mut self.leased));
        self.has_acknowledged = false;
        self.fail_confirmations();
        let samples = self.pending.keys().map(|id| QueuedRequest::Sample(*id));
        let barriers = self.barriers.keys();
        let barriers = barriers.map(|id| QueuedRequest::Other(Request::Barrier(*id).into()));
        self.outgoing = samples.chain(barriers).collect();
        for sample in self.pending.values_mut() {
            sample.assembler = BatchAssembler::default();
            sample.sent = false;
        }
    }

    fn next_request(&mut self) -> Option<pb::SampleRequest> {
        Some(match self.outgoing.pop_front()? {
            QueuedRequest::Other(request) => request,
            QueuedRequest::Sample(id) => match self.pending.get_mut(&id) {
                Some(sample) => {
                    let request = sample.build_request(id);
                    (sample.sent, sample.sent_ever) = (true, true);
                    Request::Batch(request).into()
                }
                // The server has answered this request before it was sent. Instead, an empty one is sent, which the
                // server ignores.
                None => pb::SampleRequest::default(),
            },
        })
    }

    fn has_request(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn handle_response(&mut self, message: pb::SampleResponse) -> Result<(), Error> {
        let id = message.id;
        if let Some(Outcome::BarrierDone(done)) = message.outcome {
            let outcome = done.durability_error.map(decode_error).map_or(Ok(()), Err);
            if let Some(reply) = self.barriers.remove(&id) {
                // The caller may have stopped waiting.
                let _ = reply.send(outcome);
            } else if let Some(confirmation) = self.confirmations.remove(&id) {
                confirmation.send(outcome);
            }
            return Ok(());
        }
        let Some(sample) = self.pending.get_mut(&id) else {
            // The batch was cancelled.
            return Ok(());
        };
        let is_error = matches!(message.outcome, Some(Outcome::Error(_)));
        let Some(outcome) = sample.handle_outcome(message.outcome, &self.pool) else {
            return Ok(());
        };
        match &outcome {
            Ok(batch) if batch.leased => {
                self.leased.insert(id);
            }
            // The batch is unusable: the server need not keep it on lease.
            Err(_) if !is_error => self.enqueue(Request::Cancel(id)),
            _ => {}
        }
        if let Some(sample) = self.pending.remove(&id) {
            // A caller that stopped waiting also sends `Cancel`.
            let received = Instant::now();
            let _ = (sample.result).send(outcome.map(|batch| (batch, received)));
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.outgoing.is_empty()
            && self.barriers.is_empty()
            && self.confirmations.is_empty()
    }

    fn fail_pending(&mut self, error: &Error) {
        self.outgoing.clear();
        self.fail_confirmations();
        for reply in std::mem::take(&mut self.barriers).into_values() {
            // The caller may have stopped waiting.
            let _ = reply.send(Err(error.clone()));
        }
        for (_, sample) in std::mem::take(&mut self.pending) {
            let error = match error {
                Error::Unavailable(text) => {
                    let request = &sample.request;
                    let items = match request.options.n {
                        1 => "1 item was".to_owned(),
                        n => format!("{n} items were"),
                    };
                    Error::Unavailable(format!(
                        "{text}; {items} requested from table `{}`",
                        request.table
                    ))
                }
                other => other.clone(),
            };
            let _ = sample.result.send(Err(error));
        }
    }
}

/// The error of an acknowledgement whose connection was lost.
fn lost_acknowledgement() -> Error {
    Error::Unavailable(
        "the connection to the server was lost before it confirmed that the sampled items are acknowledged; they may or \
         may not be sampled again"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::error::Code;

    /// Passes the server's messages for one request to a stream. Returns what the stream sends next, and the request's
    /// error.
    fn receive(outcomes: Vec<Outcome>) -> (Option<Request>, Error) {
        let mut pending = PendingSamples::new(&Arc::new(Pool::with_max_batch(8)), &Arc::default());
        let request = BatchRequest {
            table: "t".into(),
            options: SampleOptions {
                n: 1,
                at_least: 1,
                lease: true,
                timeout: None,
            },
            length_policy: LengthPolicy::Ragged,
        };
        let (result, receiver) = oneshot::channel();
        pending.handle_command(SampleCommand::Request(
            5,
            PendingSample::new(request, result),
        ));
        let sent = pending.next_request().unwrap().request;
        assert!(matches!(sent, Some(Request::Batch(_))), "{sent:?}");
        for outcome in outcomes {
            let outcome = Some(outcome);
            let response = pb::SampleResponse { id: 5, outcome };
            pending.handle_response(response).unwrap();
        }
        let sent = pending.next_request().and_then(|next| next.request);
        assert!(!pending.has_request() && pending.is_idle());
        (sent, receiver.blocking_recv().unwrap().unwrap_err())
    }

    #[test]
    fn an_unusable_batch_is_cancelled() {
        let column = pb::Column {
            bytes: 9,
            ..pb::Column::default()
        };
        let batch = pb::Batch {
            columns: vec![column],
            leased: true,
            ..pb::Batch::default()
        };
        let part = Outcome::BatchPart(vec![1].into());
        let (sent, error) = receive(vec![Outcome::Batch(batch), part.clone()]);
        assert_eq!(sent, Some(Request::Cancel(5)));
        assert_eq!(
            error.to_string(),
            "a batch of 0 items takes at least 9 bytes, but at most 8 are allowed; sample fewer items at once"
        );
        let (sent, error) = receive(vec![part]);
        assert_eq!(sent, Some(Request::Cancel(5)));
        assert_eq!(
            error.to_string(),
            "invalid response: part of a batch that never began"
        );
    }

    #[test]
    fn a_request_that_the_server_rejects_is_not_cancelled() {
        let error_message = pb::Error {
            code: Code::Closed.into(),
            text: "closed".into(),
            ..pb::Error::default()
        };
        let (sent, error) = receive(vec![Outcome::Error(error_message)]);
        assert_eq!((sent, error.to_string()), (None, "closed".into()));
    }
}
