//! The client's side of a sample stream.
//!
//! A batch is *queued* (requested, not sent yet), *sent*, *received* (all its messages have arrived; its ticket is
//! ready), and if it is on lease then *acknowledged* or *cancelled*. When the connection breaks, batches that are queued or
//! sent are requested again. The stream is then *resuming*: it asks the server which leases still exist, and sends
//! acknowledgements that are not confirmed again. A server that does not know this returns all leased items to their
//! tables: then acknowledging or cancelling a batch of the old connection does nothing.
//!
//! A *barrier* is a request that the server answers once it has handled all acknowledgements before it, and made them
//! durable if possible.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::confirmation::Confirmation;
use super::connect::Connector;
use super::connection::GrpcClient;
use super::held_leases::{Acknowledgement, HeldLeases};
use super::lease_states::LeaseStates;
use super::pending_sample::PendingSample;
use super::reconnecting_stream::ReconnectingStream;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use crate::pb::{self, LeaseState};
use crate::random_u64;
use crate::wire::{BatchAssembler, decode_error};

type BarrierReply = oneshot::Sender<Result<()>>;

/// A command of a [`super::sample_requests::SampleRequests`] for its stream. The first number is the id of a batch or
/// barrier.
pub(super) enum SampleCommand {
    /// Requests a batch.
    Request(u64, PendingSample),
    /// Acknowledges the batch. If a confirmation is given, it is completed once the acknowledgement is durable, cannot be
    /// made durable now, or is known to be lost.
    Acknowledge(u64, Acknowledgement, Option<Confirmation>),
    /// Completes the confirmation once all earlier acknowledgements are durable, cannot be made durable now, or their
    /// connection is lost.
    Confirm(u64, Confirmation),
    /// Withdraws the request, or returns the items of a batch on lease.
    Cancel(u64),
    /// Replies once the server has handled all earlier acknowledgements; at once if there are none.
    /// Replies with an error if the server cannot be reached, or cannot make them durable. Sent again after a lost
    /// connection.
    Barrier(u64, BarrierReply),
}

enum QueuedRequest {
    /// The pending batch of this id.
    Sample(u64),
    /// Continues the lease of this id; `None` after the last one.
    Resume(Option<u64>),
    Other(pb::SampleRequest),
}

impl From<Request> for pb::SampleRequest {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
            ..Self::default()
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
    /// Batches that are received and on lease, as far as this is known, or whose acknowledgement is not confirmed.
    held: HeldLeases,
    states: Arc<LeaseStates>,
    /// Barriers that the server has not answered.
    barriers: BTreeMap<u64, BarrierReply>,
    /// Confirmations that wait for the answer to their barrier.
    confirmations: BTreeMap<u64, Confirmation>,
    /// True if the server knows of acknowledgements: of this connection, or of earlier ones that it has continued.
    has_acknowledged: bool,
    /// Id of the reader's session, and how long the server keeps its leases if a connection breaks. `None` before the
    /// first connection, and if the server does not know sessions.
    session: Option<(u64, f64)>,
    /// True from the loss of a connection until the server has answered which leases still exist.
    is_resuming: bool,
}

impl PendingSamples {
    pub(super) fn new(pool: &Arc<Pool>, states: &Arc<LeaseStates>) -> Self {
        Self {
            pool: Arc::clone(pool),
            outgoing: VecDeque::new(),
            pending: BTreeMap::new(),
            held: HeldLeases::default(),
            states: Arc::clone(states),
            barriers: BTreeMap::new(),
            confirmations: BTreeMap::new(),
            has_acknowledged: false,
            session: None,
            is_resuming: false,
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
            None => {
                self.states.forget(id);
                if self.held.remove(id).is_some() {
                    self.enqueue(Request::Cancel(id));
                }
            }
        }
    }

    fn acknowledge(
        &mut self,
        id: u64,
        acknowledgement: Acknowledgement,
        confirmation: Option<Confirmation>,
    ) {
        self.states.forget(id);
        let precedes_use = acknowledgement.precedes_use;
        let is_part = acknowledgement.items.is_some();
        let held = self.held.get_mut(id);
        // Of a lease that has lost items, it is not known which are left: all are acknowledged, or none.
        if !held.is_some_and(|held| !held.is_partial || !(precedes_use || is_part)) {
            self.cancel(id);
            if let Some(confirmation) = confirmation {
                confirmation.send(if precedes_use {
                    Err(lease_ended())
                } else {
                    Ok(())
                });
            }
            return;
        }
        let is_durable = acknowledgement.is_durable;
        self.held.acknowledge(id, acknowledgement);
        if let Some(confirmation) = confirmation {
            self.confirmations.insert(id, confirmation);
        }
        if !self.is_resuming {
            self.send_acknowledgement(id, is_durable);
        }
    }

    /// Queues an acknowledgement, and the barrier that confirms that it is durable.
    fn send_acknowledgement(&mut self, id: u64, is_durable: bool) {
        let request = self.held.acknowledge_request(id);
        self.outgoing.extend(request.map(QueuedRequest::Other));
        self.has_acknowledged = true;
        if is_durable {
            self.enqueue(Request::Barrier(id));
        } else if self.session.is_none() {
            // Nothing reports that it is handled, and it is not sent again.
            self.held.remove(id);
        }
    }

    /// Requests the confirmation of all acknowledgements so far with a barrier of this id, which no other barrier has.
    /// Without an acknowledgement that the server may have, the confirmation fails at once: earlier ones are lost.
    fn confirm(&mut self, id: u64, confirmation: Confirmation) {
        if !self.has_acknowledged && !self.is_resuming {
            confirmation.send(Err(lost_acknowledgement()));
            return;
        }
        self.confirmations.insert(id, confirmation);
        if !self.is_resuming {
            self.enqueue(Request::Barrier(id));
        }
    }

    fn fail_confirmations(&mut self, error: &Error) {
        for confirmation in std::mem::take(&mut self.confirmations).into_values() {
            confirmation.send(Err(error.clone()));
        }
    }

    /// All leases have ended, or cannot be continued, because of a `reason` if it concerns later requests too. It is
    /// unknown whether acknowledgements were handled: `unconfirmed` is their error.
    fn end_leases(&mut self, reason: Option<&Error>, unconfirmed: &Error) {
        for (id, lease) in self.held.take() {
            if lease.acknowledgement.is_none() {
                self.states.end(id, reason.cloned());
            }
        }
        self.fail_confirmations(unconfirmed);
        self.has_acknowledged = false;
        self.is_resuming = false;
        self.states.set_known(true);
    }

    /// Handles the server's answer about one lease of an earlier connection.
    fn handle_lease(&mut self, id: u64, state: LeaseState) {
        // `None`: the batch was cancelled meanwhile, which the server receives next.
        let Some(held) = self.held.get_mut(id) else {
            return;
        };
        match (state, &mut held.acknowledgement) {
            (LeaseState::Held, _) => {}
            // The barrier follows.
            (LeaseState::Acknowledged, _) => {
                self.held.remove(id);
            }
            // All items that the server was asked for are used, so all that it has left are.
            (LeaseState::PartlyHeld, Some(acknowledgement))
                if !acknowledgement.precedes_use && !held.listed_unused =>
            {
                acknowledgement.items = None;
            }
            (LeaseState::PartlyHeld, None) => {
                held.is_partial = true;
                self.states.end(id, None);
            }
            (LeaseState::PartlyHeld | LeaseState::Ended, Some(acknowledgement)) => {
                let is_lost = acknowledgement.precedes_use
                    && (state == LeaseState::PartlyHeld || acknowledgement.is_recent());
                self.cancel(id);
                if is_lost && let Some(confirmation) = self.confirmations.remove(&id) {
                    confirmation.send(Err(lease_ended()));
                }
            }
            (LeaseState::Ended, None) => {
                self.held.remove(id);
                self.states.end(id, None);
            }
        }
    }

    /// The server has answered about all leases: sends acknowledgements that are not confirmed, and all barriers.
    fn finish_resuming(&mut self) {
        self.is_resuming = false;
        self.has_acknowledged = true;
        self.states.set_known(true);
        for id in self.held.acknowledged() {
            // Barriers follow below.
            self.send_acknowledgement(id, false);
        }
        let barriers = self.barriers.keys().chain(self.confirmations.keys());
        let barriers = barriers.map(|id| QueuedRequest::Other(Request::Barrier(*id).into()));
        self.outgoing.extend(barriers);
    }

    fn resume_request(&mut self, id: Option<u64>) -> pb::SampleRequest {
        let Some((session, keep_s)) = self.session else {
            return pb::SampleRequest::default();
        };
        let lease = id.and_then(|id| self.held.encode(id));
        if id.is_some() && lease.is_none() {
            // The batch was cancelled before its lease was continued.
            return pb::SampleRequest::default();
        }
        let resume = pb::Resume {
            session,
            keep_s,
            lease,
            more: id.is_some(),
        };
        Request::Resume(resume).into()
    }
}

/// A stream that ends does not ask on another connection.
impl Drop for PendingSamples {
    fn drop(&mut self) {
        self.fail_confirmations(&lost_acknowledgement());
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
            SampleCommand::Acknowledge(id, acknowledgement, confirmation) => {
                self.acknowledge(id, acknowledgement, confirmation);
            }
            SampleCommand::Confirm(id, confirmation) => self.confirm(id, confirmation),
            SampleCommand::Cancel(id) => self.cancel(id),
            SampleCommand::Barrier(id, reply) if self.is_resuming => {
                self.barriers.insert(id, reply);
            }
            SampleCommand::Barrier(id, reply) if self.has_acknowledged => {
                self.barriers.insert(id, reply);
                self.enqueue(Request::Barrier(id));
            }
            SampleCommand::Barrier(_, reply) => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    fn on_connect(&mut self, connector: &Connector) {
        let keep_s = connector.reconnect_timeout().as_secs_f64();
        let known = self.session.take();
        // Without random numbers, the stream has no session: then no lease outlives its connection.
        let session = || known.or_else(|| random_u64().ok().map(|session| (session, keep_s)));
        self.session = connector.resumes_readers().then(session).flatten();
        if self.session.is_none() {
            self.end_leases(None, &lost_acknowledgement());
            let barriers = self.barriers.keys();
            let barriers = barriers.map(|id| QueuedRequest::Other(Request::Barrier(*id).into()));
            self.outgoing.extend(barriers);
            return;
        }
        self.is_resuming = true;
        self.outgoing.push_front(QueuedRequest::Resume(None));
        for id in self.held.ids() {
            self.outgoing.push_front(QueuedRequest::Resume(Some(id)));
        }
    }

    fn on_disconnect(&mut self) {
        // Without these, there is nothing to ask the server for on the next connection.
        self.is_resuming = !self.held.is_empty() || !self.confirmations.is_empty();
        self.has_acknowledged = self.is_resuming;
        self.states.set_known(self.held.is_empty());
        let samples = self.pending.keys().map(|id| QueuedRequest::Sample(*id));
        self.outgoing = samples.collect();
        for sample in self.pending.values_mut() {
            sample.assembler = BatchAssembler::default();
            sample.sent = false;
        }
    }

    fn next_request(&mut self) -> Option<pb::SampleRequest> {
        Some(match self.outgoing.pop_front()? {
            QueuedRequest::Other(request) => request,
            QueuedRequest::Resume(id) => self.resume_request(id),
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
        self.held.set_handled(message.acknowledged);
        match message.outcome {
            // The server is stopping.
            None if message.acknowledged > 0 => return Ok(()),
            Some(Outcome::BarrierDone(done)) => {
                let outcome = done.durability_error.map(decode_error).map_or(Ok(()), Err);
                if let Some(reply) = self.barriers.remove(&id) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(outcome);
                } else if let Some(confirmation) = self.confirmations.remove(&id) {
                    self.held.remove(id);
                    confirmation.send(outcome);
                }
                return Ok(());
            }
            Some(Outcome::Lease(state)) => {
                let state = LeaseState::try_from(state).map_err(|_| {
                    Error::Payload(format!(
                        "invalid response: unknown state {state} of a lease"
                    ))
                })?;
                self.handle_lease(id, state);
                return Ok(());
            }
            Some(Outcome::Resumed(_)) => {
                self.finish_resuming();
                return Ok(());
            }
            _ => {}
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
                let keys = batch.infos.iter().map(|info| info.key).collect();
                self.held.insert(id, &sample.request.table, keys);
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

    fn awaits_requests(&self) -> bool {
        self.is_resuming
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.outgoing.is_empty()
            && self.barriers.is_empty()
            && self.confirmations.is_empty()
            && self.held.is_empty()
    }

    fn fail_pending(&mut self, error: &Error) {
        self.outgoing.clear();
        let lost = "; it did not confirm that the sampled items are acknowledged, so they may be sampled again";
        let unconfirmed = match error {
            Error::Unavailable(text) => Error::Unavailable(format!("{text}{lost}")),
            Error::Handshake(text) => Error::Handshake(format!("{text}{lost}")),
            other => other.clone(),
        };
        self.end_leases(Some(error), &unconfirmed);
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

/// The error of a batch whose items the server has returned to their table before it was acknowledged.
fn lease_ended() -> Error {
    Error::LeaseEnded(
        "the connection to the server was lost, and the server has returned the sampled items to their table"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use engram_core::gather::LengthPolicy;
    use engram_engine::SampleOptions;

    use super::*;
    use crate::client::pending_sample::BatchRequest;
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
            let response = pb::SampleResponse {
                id: 5,
                outcome,
                ..pb::SampleResponse::default()
            };
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
