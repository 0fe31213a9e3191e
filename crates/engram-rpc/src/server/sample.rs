//! Streams of batches: asked for ahead, served in order, on lease until they were used.
//!
//! One task per stream. All asks wait at once; a batch is gathered only when the one before it is
//! on its way, so what a slow reader has in memory is one batch and what the transport holds.

mod leases;
mod outgoing_reply;
mod request_queue;

use std::collections::VecDeque;
use std::sync::Arc;

use engram_core::{Error, Result};
use tokio::sync::mpsc::{self, Permit, Sender};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::counters::OpenGuard;
use super::service::{Replies, ServiceState};
use super::shutdown::ShutdownSignal;
use crate::pb;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use crate::wire::encode_error;
use leases::Leases;
use outgoing_reply::OutgoingReply;
use request_queue::RequestQueue;

/// Batches of a stream that are asked for, being sent or not acknowledged.
const MAX_OUTSTANDING: usize = 1024;

/// Messages between a stream's task and the transport.
const REPLY_BUFFER: usize = 4;

type Message = Result<pb::SampleResponse, Status>;

/// Serves one stream until its reader is done, is gone, or the server stops.
pub(super) fn serve(
    state: &Arc<ServiceState>,
    requests: Streaming<pb::SampleRequest>,
    call: OpenGuard,
) -> Replies<pb::SampleResponse> {
    let (replies, receiver) = mpsc::channel(REPLY_BUFFER);
    let stream = SampleStream {
        _call: call,
        state: Arc::clone(state),
        requests: RequestQueue::default(),
        leases: Leases::default(),
        outgoing: None,
        flushes: VecDeque::new(),
    };
    tokio::spawn(async move {
        let end = stream.run(requests, &replies).await;
        if let Err(status) = end {
            let _ = replies.send(Err(status)).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// One stream's state. Dropping it withdraws what waits and gives back what is on lease.
struct SampleStream {
    _call: OpenGuard,
    state: Arc<ServiceState>,
    requests: RequestQueue,
    leases: Leases,
    outgoing: Option<OutgoingReply>,
    /// Ids of the reader's words to settle, to be answered: what came before them is done.
    flushes: VecDeque<u64>,
}

impl SampleStream {
    /// # Errors
    /// The status that the stream ends with.
    async fn run(
        mut self,
        mut requests: Streaming<pb::SampleRequest>,
        replies: &Sender<Message>,
    ) -> Result<(), Status> {
        let mut shutdown = self.state.shutdown.clone();
        let mut input_open = true;
        loop {
            if self.outgoing.is_none() {
                let next = self.requests.next_served();
                self.outgoing = next.map(|served| OutgoingReply::new(served, &self.state));
            }
            let has_reply = self.outgoing.is_some() || !self.flushes.is_empty();
            if !input_open && !has_reply && self.requests.len() == 0 {
                return Ok(());
            }
            let expiry = self.leases.first_expiry();
            tokio::select! {
                () = shutdown.wait() => return self.stop(replies, &shutdown).await,
                () = replies.closed() => return Ok(()),
                permit = replies.reserve(), if has_reply => match permit {
                    Ok(permit) => self.send(permit),
                    Err(_) => return Ok(()),
                },
                request = requests.message(), if input_open => match request? {
                    Some(request) => self.handle_request(request)?,
                    None => input_open = false,
                },
                // Also while a reader is slow: a ticket that is woken may have to serve others.
                () = self.requests.progress() => {}
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                    self.leases.return_expired();
                }
            }
        }
    }

    fn handle_request(&mut self, request: pb::SampleRequest) -> Result<(), Status> {
        let items = request
            .used_items
            .map_or(usize::MAX, |items| items as usize);
        match request.request {
            Some(Request::Batch(ask)) => {
                let sending = usize::from(self.outgoing.is_some());
                if self.requests.len() + self.leases.len() + sending >= MAX_OUTSTANDING {
                    return Err(Status::resource_exhausted(format!(
                        "ask {} is one too many: {MAX_OUTSTANDING} batches of this stream are asked \
                         for or not acknowledged, and no more may be",
                        ask.id
                    )));
                }
                let id = ask.id;
                let sent = self.outgoing.as_ref().is_some_and(|out| out.id == id);
                if sent || self.leases.contains(id) || !self.requests.add(&self.state.engine, &ask)
                {
                    return Err(Status::invalid_argument(format!(
                        "ask {id} comes while another of that id is not done with; each has its own"
                    )));
                }
            }
            Some(Request::Acknowledge(id)) => match &mut self.outgoing {
                // Before its last part: of no use to a reader that plays by the rules.
                Some(outgoing) if outgoing.id == id => outgoing.acknowledged = Some(items),
                _ => self.leases.acknowledge(id, items),
            },
            Some(Request::Cancel(id)) => {
                self.requests.cancel(id);
                self.leases.cancel(id);
                if let Some(outgoing) = self.outgoing.as_mut().filter(|out| out.id == id) {
                    // Its reader expects the rest of it, but goes without the items.
                    outgoing.lease = None;
                }
            }
            Some(Request::Barrier(id)) => {
                if self.flushes.len() >= MAX_OUTSTANDING {
                    return Err(Status::resource_exhausted(format!(
                        "`settle` {id} is one too many: {MAX_OUTSTANDING} of this stream wait for \
                         their reply, and no more may"
                    )));
                }
                self.flushes.push_back(id);
            }
            // A request that its sender has thought better of.
            None => {}
        }
        Ok(())
    }

    /// Sends the next message, of the batch at hand unless there is a shorter one.
    fn send(&mut self, permit: Permit<'_, Message>) {
        if let Some(id) = self.flushes.pop_front() {
            permit.send(Ok(message(id, Outcome::BarrierDone(pb::Empty {}))));
            return;
        }
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        if let Some(reply) = outgoing.next() {
            permit.send(Ok(message(outgoing.id, reply)));
        }
        if outgoing.is_complete()
            && let Some(OutgoingReply {
                id,
                lease,
                acknowledged,
                ..
            }) = self.outgoing.take()
            && let Some(lease) = lease
        {
            match acknowledged {
                Some(items) => lease.acknowledge_first(items),
                None => self.leases.add(id, lease, self.state.lease_timeout),
            }
        }
    }

    /// Ends the batch that is half sent, and all asks that wait.
    async fn stop(
        self,
        replies: &Sender<Message>,
        shutdown: &ShutdownSignal,
    ) -> Result<(), Status> {
        let Self {
            requests,
            leases: _leases,
            outgoing,
            ..
        } = self;
        let waiting = requests.ids();
        // Withdrawn first: nothing is served to them any more.
        drop(requests);
        if let Some(mut outgoing) = outgoing {
            while let Some(reply) = outgoing.next() {
                if replies.send(Ok(message(outgoing.id, reply))).await.is_err() {
                    return Ok(());
                }
            }
            if let Some(items) = outgoing.acknowledged
                && let Some(lease) = outgoing.lease.take()
            {
                lease.acknowledge_first(items);
            }
        }
        for id in waiting {
            let reply = error(&shutdown.error());
            if replies.send(Ok(message(id, reply))).await.is_err() {
                return Ok(());
            }
        }
        Err(shutdown.status())
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
