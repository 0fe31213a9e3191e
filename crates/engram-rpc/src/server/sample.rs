//! Streams of batches: asked for ahead, served in order, on lease until they were used.
//!
//! One task per stream. All asks wait at once; a batch is gathered only when the one before it is
//! on its way, so what a slow reader has in memory is one batch and what the transport holds.

mod asks;
mod batch;
mod leases;

use std::collections::VecDeque;
use std::sync::Arc;

use engram_core::{Error, Result};
use tokio::sync::mpsc::{self, Permit, Sender};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::counts::Ongoing;
use super::service::{Replies, Shared};
use super::stopping::Stopping;
use crate::pb;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use crate::wire::encode_error;
use asks::Asks;
use batch::Outgoing;
use leases::Leases;

/// Batches of a stream that are asked for, being sent or not acknowledged.
const OUTSTANDING: usize = 1024;

/// Messages between a stream's task and the transport.
const MESSAGES: usize = 4;

type Message = Result<pb::SampleResponse, Status>;

/// Serves one stream until its reader is done, is gone, or the server stops.
pub(super) fn serve(
    shared: &Arc<Shared>,
    requests: Streaming<pb::SampleRequest>,
    call: Ongoing,
) -> Replies<pb::SampleResponse> {
    let (replies, receiver) = mpsc::channel(MESSAGES);
    let reader = Reader {
        _call: call,
        shared: Arc::clone(shared),
        asks: Asks::default(),
        leases: Leases::default(),
        outgoing: None,
        settled: VecDeque::new(),
    };
    tokio::spawn(async move {
        let end = reader.run(requests, &replies).await;
        if let Err(status) = end {
            let _ = replies.send(Err(status)).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// One stream's state. Dropping it withdraws what waits and gives back what is on lease.
struct Reader {
    _call: Ongoing,
    shared: Arc<Shared>,
    asks: Asks,
    leases: Leases,
    outgoing: Option<Outgoing>,
    /// Ids of the reader's words to settle, to be answered: what came before them is done.
    settled: VecDeque<u64>,
}

impl Reader {
    /// # Errors
    /// The status that the stream ends with.
    async fn run(
        mut self,
        mut requests: Streaming<pb::SampleRequest>,
        replies: &Sender<Message>,
    ) -> Result<(), Status> {
        let mut stopping = self.shared.stopping.clone();
        let mut reading = true;
        loop {
            if self.outgoing.is_none() {
                let next = self.asks.next_served();
                self.outgoing = next.map(|served| Outgoing::new(served, &self.shared));
            }
            let has_reply = self.outgoing.is_some() || !self.settled.is_empty();
            if !reading && !has_reply && self.asks.len() == 0 {
                return Ok(());
            }
            let expiry = self.leases.first_expiry();
            tokio::select! {
                () = stopping.wait() => return self.stop(replies, &stopping).await,
                () = replies.closed() => return Ok(()),
                permit = replies.reserve(), if has_reply => match permit {
                    Ok(permit) => self.send(permit),
                    Err(_) => return Ok(()),
                },
                request = requests.message(), if reading => match request? {
                    Some(request) => self.take(request)?,
                    None => reading = false,
                },
                // Also while a reader is slow: a ticket that is woken may have to serve others.
                () = self.asks.progress() => {}
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                    self.leases.give_back_expired();
                }
            }
        }
    }

    fn take(&mut self, request: pb::SampleRequest) -> Result<(), Status> {
        let items = request
            .used_items
            .map_or(usize::MAX, |items| items as usize);
        match request.request {
            Some(Request::Batch(ask)) => {
                let sending = usize::from(self.outgoing.is_some());
                if self.asks.len() + self.leases.len() + sending >= OUTSTANDING {
                    return Err(Status::resource_exhausted(format!(
                        "ask {} is one too many: {OUTSTANDING} batches of this stream are asked \
                         for or not acknowledged, and no more may be",
                        ask.id
                    )));
                }
                let id = ask.id;
                let sent = self.outgoing.as_ref().is_some_and(|out| out.id == id);
                if sent || self.leases.holds(id) || !self.asks.add(&self.shared.engine, &ask) {
                    return Err(Status::invalid_argument(format!(
                        "ask {id} comes while another of that id is not done with; each has its own"
                    )));
                }
            }
            Some(Request::Acknowledge(id)) => match &mut self.outgoing {
                // Before its last part: of no use to a reader that plays by the rules.
                Some(outgoing) if outgoing.id == id => outgoing.used = Some(items),
                _ => self.leases.acknowledge(id, items),
            },
            Some(Request::Cancel(id)) => {
                self.asks.cancel(id);
                self.leases.give_back(id);
                if let Some(outgoing) = self.outgoing.as_mut().filter(|out| out.id == id) {
                    // Its reader expects the rest of it, but goes without the items.
                    outgoing.lease = None;
                }
            }
            Some(Request::Barrier(id)) => {
                if self.settled.len() >= OUTSTANDING {
                    return Err(Status::resource_exhausted(format!(
                        "`settle` {id} is one too many: {OUTSTANDING} of this stream wait for \
                         their reply, and no more may"
                    )));
                }
                self.settled.push_back(id);
            }
            // A request that its sender has thought better of.
            None => {}
        }
        Ok(())
    }

    /// Sends the next message, of the batch at hand unless there is a shorter one.
    fn send(&mut self, permit: Permit<'_, Message>) {
        if let Some(id) = self.settled.pop_front() {
            permit.send(Ok(message(id, Outcome::BarrierDone(pb::Empty {}))));
            return;
        }
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        if let Some(reply) = outgoing.next() {
            permit.send(Ok(message(outgoing.id, reply)));
        }
        if outgoing.is_over()
            && let Some(Outgoing {
                id, lease, used, ..
            }) = self.outgoing.take()
            && let Some(lease) = lease
        {
            match used {
                Some(items) => lease.acknowledge_first(items),
                None => self.leases.add(id, lease, self.shared.lease_timeout),
            }
        }
    }

    /// Ends the batch that is half sent, and all asks that wait.
    async fn stop(self, replies: &Sender<Message>, stopping: &Stopping) -> Result<(), Status> {
        let Self {
            asks,
            leases: _leases,
            outgoing,
            ..
        } = self;
        let waiting = asks.ids();
        // Withdrawn first: nothing is served to them any more.
        drop(asks);
        if let Some(mut outgoing) = outgoing {
            while let Some(reply) = outgoing.next() {
                if replies.send(Ok(message(outgoing.id, reply))).await.is_err() {
                    return Ok(());
                }
            }
            if let Some(items) = outgoing.used
                && let Some(lease) = outgoing.lease.take()
            {
                lease.acknowledge_first(items);
            }
        }
        for id in waiting {
            let reply = error(&stopping.error());
            if replies.send(Ok(message(id, reply))).await.is_err() {
                return Ok(());
            }
        }
        Err(stopping.status())
    }
}

fn message(id: u64, reply: Outcome) -> pb::SampleResponse {
    pb::SampleResponse {
        id,
        outcome: Some(reply),
    }
}

fn error(error: &Error) -> Outcome {
    Outcome::Error(encode_error(error))
}
