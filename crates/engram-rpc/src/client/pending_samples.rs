//! The conversation about batches: what was asked, what arrives, what is on lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::GrpcClient;
use super::reconnecting_stream::ReconnectingStream;
use super::sample_requests::BatchRequest;
use crate::pb;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use crate::wire::{BatchAssembler, ReceivedBatch, decode_error};

pub(super) enum SampleCommand {
    Request(u64, PendingSample),
    /// All of a batch was used, or so many of its first items.
    Acknowledge(u64, Option<u32>),
    Cancel(u64),
    /// Answered once everything sent before is done, or void.
    Barrier(u64, oneshot::Sender<Result<()>>),
}

pub(super) struct PendingSample {
    ask: BatchRequest,
    deadline: Option<Instant>,
    /// It has been sent on this connection.
    sent: bool,
    /// It has been sent before, on this or another connection.
    sent_before: bool,
    reply: oneshot::Sender<Result<ReceivedBatch>>,
    assembler: Option<BatchAssembler>,
}

impl PendingSample {
    pub(super) fn new(ask: BatchRequest, reply: oneshot::Sender<Result<ReceivedBatch>>) -> Self {
        let end = |timeout: Duration| Instant::now().checked_add(timeout);
        Self {
            deadline: ask.timeout.and_then(end),
            ask,
            sent: false,
            sent_before: false,
            reply,
            assembler: None,
        }
    }

    fn request(&self, id: u64) -> pb::BatchRequest {
        let BatchRequest {
            table,
            n,
            at_least,
            partial,
            pad,
            leased,
            ..
        } = self.ask.clone();
        // The first time, as it was given: errors repeat it.
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let timeout = if self.sent_before {
            self.deadline.map(left)
        } else {
            self.ask.timeout
        };
        pb::BatchRequest {
            id,
            table,
            n,
            timeout_s: timeout.map(|timeout| timeout.as_secs_f64()),
            allow_partial: partial,
            pad,
            lease: leased,
            at_least,
        }
    }

    /// Takes a message; the batch once it is whole.
    fn handle_response(
        &mut self,
        reply: Option<Outcome>,
        pool: &Arc<Pool>,
    ) -> Option<Result<ReceivedBatch>> {
        let assembler = match reply {
            Some(Outcome::Error(error)) => Err(decode_error(error)),
            Some(Outcome::Batch(batch)) => BatchAssembler::new(batch, pool),
            Some(Outcome::BatchPart(bytes)) => match self.assembler.take() {
                Some(mut assembler) => assembler.push(&bytes).map(|()| assembler),
                None => Err(Error::Payload("a part of no batch".into())),
            },
            Some(Outcome::BarrierDone(_)) | None => {
                Err(Error::Payload("a reply to an ask that is no batch".into()))
            }
        };
        match assembler {
            Ok(assembler) if assembler.is_complete() => Some(Ok(assembler.finish())),
            Ok(assembler) => {
                self.assembler = Some(assembler);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

enum QueuedRequest {
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

/// What one reader has asked for.
pub(super) struct PendingSamples {
    pool: Arc<Pool>,
    outgoing: VecDeque<QueuedRequest>,
    pending: BTreeMap<u64, PendingSample>,
    /// Batches of this connection that the server wants to hear of again.
    leased: BTreeSet<u64>,
    barriers: BTreeMap<u64, oneshot::Sender<Result<()>>>,
    /// Something was acknowledged on this connection.
    acknowledged: bool,
}

impl PendingSamples {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            outgoing: VecDeque::new(),
            pending: BTreeMap::new(),
            leased: BTreeSet::new(),
            barriers: BTreeMap::new(),
            acknowledged: false,
        }
    }

    fn enqueue(&mut self, request: Request) {
        self.outgoing
            .push_back(QueuedRequest::Other(request.into()));
    }

    fn cancel(&mut self, id: u64) {
        match self.pending.remove(&id) {
            Some(waiting) if waiting.sent => self.enqueue(Request::Cancel(id)),
            Some(_) => (self.outgoing)
                .retain(|say| !matches!(say, QueuedRequest::Sample(ask) if *ask == id)),
            None if self.leased.remove(&id) => self.enqueue(Request::Cancel(id)),
            None => {}
        }
    }

    fn complete_barriers(&mut self) {
        for reply in std::mem::take(&mut self.barriers).into_values() {
            // Whoever waited may be gone.
            let _ = reply.send(Ok(()));
        }
    }
}

impl ReconnectingStream for PendingSamples {
    type Command = SampleCommand;
    type Request = pb::SampleRequest;
    type Response = pb::SampleResponse;

    async fn open(
        mut client: GrpcClient,
        out: ReceiverStream<pb::SampleRequest>,
    ) -> Result<Streaming<pb::SampleResponse>, Status> {
        Ok(client.sample(out).await?.into_inner())
    }

    fn handle_command(&mut self, command: SampleCommand) {
        match command {
            SampleCommand::Request(id, waiting) => {
                self.outgoing.push_back(QueuedRequest::Sample(id));
                self.pending.insert(id, waiting);
            }
            // That of an earlier connection is void, and its items are back.
            SampleCommand::Acknowledge(id, items) if self.leased.remove(&id) => {
                self.acknowledged = true;
                self.outgoing
                    .push_back(QueuedRequest::Other(pb::SampleRequest {
                        used_items: items,
                        ..Request::Acknowledge(id).into()
                    }));
            }
            SampleCommand::Acknowledge(..) => {}
            SampleCommand::Cancel(id) => self.cancel(id),
            SampleCommand::Barrier(id, reply) if self.acknowledged => {
                self.barriers.insert(id, reply);
                self.enqueue(Request::Barrier(id));
            }
            SampleCommand::Barrier(_, reply) => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    fn on_disconnect(&mut self) {
        // The server has taken back what was on lease.
        self.leased.clear();
        self.acknowledged = false;
        self.complete_barriers();
        self.outgoing = self
            .pending
            .keys()
            .map(|id| QueuedRequest::Sample(*id))
            .collect();
        for waiting in self.pending.values_mut() {
            waiting.assembler = None;
            waiting.sent = false;
        }
    }

    fn next_request(&mut self) -> Option<pb::SampleRequest> {
        Some(match self.outgoing.pop_front()? {
            QueuedRequest::Other(request) => request,
            QueuedRequest::Sample(id) => match self.pending.get_mut(&id) {
                Some(waiting) => {
                    let request = waiting.request(id);
                    (waiting.sent, waiting.sent_before) = (true, true);
                    Request::Batch(request).into()
                }
                // One that was answered unasked: an empty request, which means nothing.
                None => pb::SampleRequest::default(),
            },
        })
    }

    fn has_request(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn handle_response(&mut self, message: pb::SampleResponse) -> Result<(), Error> {
        let id = message.id;
        if let Some(Outcome::BarrierDone(_)) = message.outcome {
            if let Some(reply) = self.barriers.remove(&id) {
                let _ = reply.send(Ok(()));
            }
            return Ok(());
        }
        let Some(waiting) = self.pending.get_mut(&id) else {
            // Cancelled meanwhile.
            return Ok(());
        };
        let is_refused = matches!(message.outcome, Some(Outcome::Error(_)));
        let Some(outcome) = waiting.handle_response(message.outcome, &self.pool) else {
            return Ok(());
        };
        match &outcome {
            Ok(arrived) if arrived.leased => {
                self.leased.insert(id);
            }
            // The server has sent a batch that we cannot take: it need not keep it on lease.
            Err(_) if !is_refused => self.enqueue(Request::Cancel(id)),
            _ => {}
        }
        if let Some(waiting) = self.pending.remove(&id) {
            // Whoever does not wait any more has cancelled, or is about to.
            let _ = waiting.reply.send(outcome);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.outgoing.is_empty() && self.barriers.is_empty()
    }

    fn fail_pending(&mut self, error: &Error) {
        self.outgoing.clear();
        self.complete_barriers();
        for (_, waiting) in std::mem::take(&mut self.pending) {
            let error = match error {
                Error::Unavailable(text) => Error::Unavailable(format!(
                    "{text}; asked for {} samples from table `{}`",
                    waiting.ask.n, waiting.ask.table
                )),
                other => other.clone(),
            };
            let _ = waiting.reply.send(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::error::Code;

    /// What is sent, once this was heard for an ask, and how the ask ended.
    fn outcome_of(replies: Vec<Outcome>) -> (Option<Request>, Error) {
        let mut pending = PendingSamples::new(&Arc::new(Pool::with_max_batch(8)));
        let ask = BatchRequest {
            table: "t".into(),
            n: 1,
            at_least: 1,
            timeout: None,
            partial: false,
            pad: false,
            leased: true,
        };
        let (reply, outcome) = oneshot::channel();
        pending.handle_command(SampleCommand::Request(5, PendingSample::new(ask, reply)));
        let asked = pending.next_request().unwrap().request;
        assert!(matches!(asked, Some(Request::Batch(_))), "{asked:?}");
        for reply in replies {
            let reply = Some(reply);
            pending
                .handle_response(pb::SampleResponse {
                    id: 5,
                    outcome: reply,
                })
                .unwrap();
        }
        let sent = pending.next_request().and_then(|out| out.request);
        assert!(!pending.has_request() && pending.is_idle());
        (sent, outcome.blocking_recv().unwrap().unwrap_err())
    }

    #[test]
    fn a_batch_that_cannot_be_taken_goes_back() {
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
        let (sent, error) = outcome_of(vec![Outcome::Batch(batch), part.clone()]);
        assert_eq!(sent, Some(Request::Cancel(5)));
        assert_eq!(
            error.to_string(),
            "a batch of 0 items takes at least 9 bytes, but at most 8 are allowed; sample fewer items at once"
        );
        let (sent, error) = outcome_of(vec![part]);
        assert_eq!(sent, Some(Request::Cancel(5)));
        assert_eq!(error.to_string(), "a part of no batch");
    }

    #[test]
    fn an_ask_that_the_server_refused_is_over() {
        let refusal = pb::Error {
            code: Code::Closed.into(),
            text: "closed".into(),
            ..pb::Error::default()
        };
        let (sent, error) = outcome_of(vec![Outcome::Error(refusal)]);
        assert_eq!((sent, error.to_string()), (None, "closed".into()));
    }
}
