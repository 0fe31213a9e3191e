//! The conversation about batches: what was asked, what arrives, what is on lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::Api;
use super::sample::Ask;
use super::talk::Talk;
use crate::pb;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use crate::wire::{BatchAssembler, ReceivedBatch, decode_error};

pub(super) enum Command {
    Ask(u64, Waiting),
    /// All of a batch was used, or so many of its first items.
    Acknowledge(u64, Option<u32>),
    Cancel(u64),
    /// Answered once everything said before is done, or void.
    Settle(u64, oneshot::Sender<Result<()>>),
}

pub(super) struct Waiting {
    ask: Ask,
    deadline: Option<Instant>,
    /// It has been said on this connection.
    said: bool,
    /// It has been said before, on this or another connection.
    again: bool,
    reply: oneshot::Sender<Result<ReceivedBatch>>,
    assembler: Option<BatchAssembler>,
}

impl Waiting {
    pub(super) fn new(ask: Ask, reply: oneshot::Sender<Result<ReceivedBatch>>) -> Self {
        let end = |timeout: Duration| Instant::now().checked_add(timeout);
        Self {
            deadline: ask.timeout.and_then(end),
            ask,
            said: false,
            again: false,
            reply,
            assembler: None,
        }
    }

    fn request(&self, id: u64) -> pb::BatchRequest {
        let Ask {
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
        let timeout = if self.again {
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
    fn heard(&mut self, reply: Option<Outcome>, pool: &Arc<Pool>) -> Option<Result<ReceivedBatch>> {
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

enum Say {
    Ask(u64),
    Request(pb::SampleRequest),
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
pub(super) struct Underway {
    pool: Arc<Pool>,
    unsaid: VecDeque<Say>,
    waiting: BTreeMap<u64, Waiting>,
    /// Batches of this connection that the server wants to hear of again.
    leased: BTreeSet<u64>,
    settling: BTreeMap<u64, oneshot::Sender<Result<()>>>,
    /// Something was acknowledged on this connection.
    acknowledged: bool,
}

impl Underway {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            unsaid: VecDeque::new(),
            waiting: BTreeMap::new(),
            leased: BTreeSet::new(),
            settling: BTreeMap::new(),
            acknowledged: false,
        }
    }

    fn say(&mut self, request: Request) {
        self.unsaid.push_back(Say::Request(request.into()));
    }

    fn cancel(&mut self, id: u64) {
        match self.waiting.remove(&id) {
            Some(waiting) if waiting.said => self.say(Request::Cancel(id)),
            Some(_) => (self.unsaid).retain(|say| !matches!(say, Say::Ask(ask) if *ask == id)),
            None if self.leased.remove(&id) => self.say(Request::Cancel(id)),
            None => {}
        }
    }

    fn settle(&mut self) {
        for reply in std::mem::take(&mut self.settling).into_values() {
            // Whoever waited may be gone.
            let _ = reply.send(Ok(()));
        }
    }
}

impl Talk for Underway {
    type Command = Command;
    type Out = pb::SampleRequest;
    type In = pb::SampleResponse;

    async fn open(
        mut api: Api,
        out: ReceiverStream<pb::SampleRequest>,
    ) -> Result<Streaming<pb::SampleResponse>, Status> {
        Ok(api.sample(out).await?.into_inner())
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Ask(id, waiting) => {
                self.unsaid.push_back(Say::Ask(id));
                self.waiting.insert(id, waiting);
            }
            // That of an earlier connection is void, and its items are back.
            Command::Acknowledge(id, items) if self.leased.remove(&id) => {
                self.acknowledged = true;
                self.unsaid.push_back(Say::Request(pb::SampleRequest {
                    used_items: items,
                    ..Request::Acknowledge(id).into()
                }));
            }
            Command::Acknowledge(..) => {}
            Command::Cancel(id) => self.cancel(id),
            Command::Settle(id, reply) if self.acknowledged => {
                self.settling.insert(id, reply);
                self.say(Request::Barrier(id));
            }
            Command::Settle(_, reply) => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    fn disconnected(&mut self) {
        // The server has taken back what was on lease.
        self.leased.clear();
        self.acknowledged = false;
        self.settle();
        self.unsaid = self.waiting.keys().map(|id| Say::Ask(*id)).collect();
        for waiting in self.waiting.values_mut() {
            waiting.assembler = None;
            waiting.said = false;
        }
    }

    fn next_out(&mut self) -> Option<pb::SampleRequest> {
        Some(match self.unsaid.pop_front()? {
            Say::Request(request) => request,
            Say::Ask(id) => match self.waiting.get_mut(&id) {
                Some(waiting) => {
                    let request = waiting.request(id);
                    (waiting.said, waiting.again) = (true, true);
                    Request::Batch(request).into()
                }
                // One that was answered unasked: an empty request, which means nothing.
                None => pb::SampleRequest::default(),
            },
        })
    }

    fn has_out(&self) -> bool {
        !self.unsaid.is_empty()
    }

    fn heard(&mut self, message: pb::SampleResponse) -> Result<(), Error> {
        let id = message.id;
        if let Some(Outcome::BarrierDone(_)) = message.outcome {
            if let Some(reply) = self.settling.remove(&id) {
                let _ = reply.send(Ok(()));
            }
            return Ok(());
        }
        let Some(waiting) = self.waiting.get_mut(&id) else {
            // Cancelled meanwhile.
            return Ok(());
        };
        let is_refused = matches!(message.outcome, Some(Outcome::Error(_)));
        let Some(outcome) = waiting.heard(message.outcome, &self.pool) else {
            return Ok(());
        };
        match &outcome {
            Ok(arrived) if arrived.leased => {
                self.leased.insert(id);
            }
            // The server has sent a batch that we cannot take: it need not keep it on lease.
            Err(_) if !is_refused => self.say(Request::Cancel(id)),
            _ => {}
        }
        if let Some(waiting) = self.waiting.remove(&id) {
            // Whoever does not wait any more has cancelled, or is about to.
            let _ = waiting.reply.send(outcome);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.unsaid.is_empty() && self.settling.is_empty()
    }

    fn fail(&mut self, error: &Error) {
        self.unsaid.clear();
        self.settle();
        for (_, waiting) in std::mem::take(&mut self.waiting) {
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

    /// What is said, once this was heard for an ask, and how the ask ended.
    fn heard(replies: Vec<Outcome>) -> (Option<Request>, Error) {
        let mut underway = Underway::new(&Arc::new(Pool::with_max_batch(8)));
        let ask = Ask {
            table: "t".into(),
            n: 1,
            at_least: 1,
            timeout: None,
            partial: false,
            pad: false,
            leased: true,
        };
        let (reply, outcome) = oneshot::channel();
        underway.command(Command::Ask(5, Waiting::new(ask, reply)));
        let asked = underway.next_out().unwrap().request;
        assert!(matches!(asked, Some(Request::Batch(_))), "{asked:?}");
        for reply in replies {
            let reply = Some(reply);
            underway
                .heard(pb::SampleResponse {
                    id: 5,
                    outcome: reply,
                })
                .unwrap();
        }
        let said = underway.next_out().and_then(|out| out.request);
        assert!(!underway.has_out() && underway.is_idle());
        (said, outcome.blocking_recv().unwrap().unwrap_err())
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
        let (said, error) = heard(vec![Outcome::Batch(batch), part.clone()]);
        assert_eq!(said, Some(Request::Cancel(5)));
        assert_eq!(
            error.to_string(),
            "a batch of 0 items takes at least 9 bytes, but at most 8 are allowed; sample fewer items at once"
        );
        let (said, error) = heard(vec![part]);
        assert_eq!(said, Some(Request::Cancel(5)));
        assert_eq!(error.to_string(), "a part of no batch");
    }

    #[test]
    fn an_ask_that_the_server_refused_is_over() {
        let refusal = pb::Error {
            code: Code::Closed.into(),
            text: "closed".into(),
            ..pb::Error::default()
        };
        let (said, error) = heard(vec![Outcome::Error(refusal)]);
        assert_eq!((said, error.to_string()), (None, "closed".into()));
    }
}
