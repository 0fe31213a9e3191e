//! Sample streams: batches are requested ahead, and those of one table are sent in the order of their requests.
//!
//! A batch is *waiting* for its table, *served* (its items are drawn), *reserving* (it waits for memory), *outgoing*
//! (gathered and being sent) and then, if it is leased, *on lease* until the client acknowledges or cancels it, the
//! lease expires or the stream ends. Without an acknowledgement, the items of a leased batch are returned to the table.
//!
//! Each stream has one task. All requests wait for their tables at once. A batch is gathered only after the one before
//! it was sent, and after its memory was reserved from the budget for replies that are not read yet.

mod barriers;
mod leases;
mod outgoing_reply;
mod reader_sessions;
mod request_queue;
mod resumption;

use std::sync::Arc;

use engram_codec::{CallBudget, ReplyStream, Reservation};
use engram_core::Result;
use futures_util::FutureExt as _;
use tokio::sync::mpsc::{self, Permit, Sender};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status, Streaming};

use super::counters::OpenGuard;
use super::service_state::ServiceState;
use super::shutdown::ShutdownSignal;
use super::stream_users::StreamUsers;
use crate::pb;
use crate::pb::sample_request::Request;
use crate::pb::sample_response::Outcome;
use barriers::Barriers;
use leases::Leases;
pub(super) use outgoing_reply::LARGE_BATCH_BYTES;
use outgoing_reply::{Message, OutgoingReply, ReservingReply, encode_response, error_outcome};
pub(super) use reader_sessions::ReaderSessions;
use request_queue::RequestQueue;
use resumption::Resumption;

/// Maximum number of batches of a stream that are requested, being sent or on lease. Also the maximum number of its
/// barriers without a reply.
const MAX_OUTSTANDING: usize = 1024;

/// Messages buffered between a stream's task and the transport.
pub(super) const REPLY_BUFFER: usize = 4;

/// Serves one stream until the client ends it, the connection breaks or the server shuts down.
pub(super) fn serve(
    state: &Arc<ServiceState>,
    requests: Streaming<pb::SampleRequest>,
    call_budget: CallBudget,
    call: OpenGuard,
    users: StreamUsers,
) -> ReplyStream<pb::SampleResponse> {
    let (replies, receiver) = mpsc::channel(REPLY_BUFFER);
    let stream = SampleStream {
        _call: call,
        state: Arc::clone(state),
        call_budget: call_budget.clone(),
        requests: RequestQueue::opening_at(state.readers_return_by),
        leases: Leases::default(),
        resumption: Resumption::default(),
        reserving: None,
        outgoing: None,
        barriers: Barriers::default(),
        users,
    };
    tokio::spawn(async move {
        let end = stream.run(requests, &replies).await;
        if let Err(status) = end {
            let _ = replies.send(Err(status).into()).await;
        }
    });
    ReplyStream::new(receiver, call_budget)
}

/// Why a stream ended.
enum StreamEnd {
    /// The reader ended it, and everything is answered.
    Finished,
    /// The connection broke, or the reader has opened another stream.
    Disconnected,
    Shutdown,
}

/// The state of one stream. Dropping it withdraws waiting requests and returns the leased items.
struct SampleStream {
    _call: OpenGuard,
    state: Arc<ServiceState>,
    call_budget: CallBudget,
    requests: RequestQueue,
    leases: Leases,
    resumption: Resumption,
    /// The batch that is gathered next, once there is memory for it.
    reserving: Option<ReservingReply>,
    /// The batch that is being sent.
    outgoing: Option<OutgoingReply>,
    /// Barriers without a reply.
    barriers: Barriers,
    users: StreamUsers,
}

impl SampleStream {
    /// Serves the stream until it ends. If its connection breaks, the leases of a reader with a session are kept.
    ///
    /// # Errors
    /// The status that the stream ends with.
    async fn run(
        mut self,
        mut requests: Streaming<pb::SampleRequest>,
        replies: &Sender<Message>,
    ) -> Result<(), Status> {
        let shutdown = self.state.shutdown.clone();
        match self.exchange_messages(&mut requests, replies).await? {
            StreamEnd::Finished => {}
            StreamEnd::Shutdown => return self.stop(replies, &shutdown).await,
            StreamEnd::Disconnected => {
                let Self {
                    leases, resumption, ..
                } = self;
                if leases.len() > 0
                    && let Some(session) = resumption.into_session()
                {
                    session.keep(leases, shutdown);
                }
            }
        }
        Ok(())
    }

    async fn exchange_messages(
        &mut self,
        requests: &mut Streaming<pb::SampleRequest>,
        replies: &Sender<Message>,
    ) -> Result<StreamEnd, Status> {
        let mut shutdown = self.state.shutdown.clone();
        let mut input_open = true;
        loop {
            // Another stream that has ended may have returned the items of its reader, which may continue with them.
            if shutdown.is_set() {
                return Ok(StreamEnd::Shutdown);
            }
            if self.outgoing.is_none() {
                self.gather_next();
            }
            let has_reply =
                self.outgoing.is_some() || self.barriers.has_reply() || self.resumption.has_reply();
            let is_reserving = self.reserving.is_some();
            let is_idle = !has_reply && !is_reserving;
            if !input_open && is_idle && self.requests.len() == 0 && self.barriers.len() == 0 {
                return Ok(StreamEnd::Finished);
            }
            let requests_left = &self.requests;
            self.users
                .set_in_flight(|table| requests_left.items_waiting_for(table));
            let expiry = self.leases.first_expiry();
            tokio::select! {
                () = shutdown.wait() => return Ok(StreamEnd::Shutdown),
                () = replies.closed() => return Ok(end_of_closed(requests, input_open)),
                () = self.resumption.stopped() => return Ok(StreamEnd::Disconnected),
                permit = replies.reserve(), if has_reply => match permit {
                    Ok(permit) => self.send(permit),
                    Err(_) => return Ok(end_of_closed(requests, input_open)),
                },
                request = requests.message(), if input_open => match request {
                    Ok(Some(pb::SampleRequest { request: Some(Request::Resume(resume)), .. })) => {
                        self.resume(resume).await?;
                    }
                    Ok(Some(request)) => self.handle_request(request)?,
                    Ok(None) => {
                        input_open = false;
                        self.requests.resume(&self.state.engine);
                    }
                    Err(status) if is_broken(&status) => return Ok(StreamEnd::Disconnected),
                    Err(status) => return Err(status),
                },
                reservation = reserve(&mut self.reserving), if is_reserving => {
                    let reserving = self.reserving.take();
                    self.outgoing = reserving.map(|it| it.gather(reservation, &self.state));
                }
                // Polled even if the reader is slow: a ticket that was woken may have to wake others.
                () = self.requests.progress() => {}
                () = self.barriers.progress() => {}
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                    // The silent reader's waiting requests must not draw the items that are returned below, so these
                    // requests are suspended until the reader's next message. They are not if the reader has closed its
                    // side of the stream, because no message can follow then.
                    if input_open {
                        self.requests.suspend();
                    }
                    self.leases.return_expired();
                }
            }
        }
    }

    /// Gathers the next batch if there is memory for it.
    fn gather_next(&mut self) {
        if self.reserving.is_none() {
            let next = self.requests.next_served();
            self.reserving =
                next.map(|served| ReservingReply::new(served, self.call_budget.connection()));
        }
        let reserved = reserve(&mut self.reserving).now_or_never();
        if let Some(reservation) = reserved {
            let reserving = self.reserving.take();
            self.outgoing = reserving.map(|it| it.gather(reservation, &self.state));
        }
    }

    fn handle_request(&mut self, request: pb::SampleRequest) -> Result<(), Status> {
        self.requests.resume(&self.state.engine);
        let acknowledged_items = request
            .used_items
            .map_or(usize::MAX, |items| items as usize);
        match request.request {
            Some(Request::Batch(batch)) => {
                let num_outgoing = usize::from(self.outgoing.is_some() || self.reserving.is_some());
                if self.requests.len() + self.leases.len() + num_outgoing >= MAX_OUTSTANDING {
                    return Err(Status::resource_exhausted(format!(
                        "too many batches: batch {} would exceed the {MAX_OUTSTANDING} that a stream may have \
                         requested or on lease; acknowledge some first",
                        batch.id
                    )));
                }
                let (id, items) = (batch.id, batch.n.into());
                let is_outgoing = self.outgoing.as_ref().is_some_and(|out| out.id == id);
                let is_reserving = self.reserving.as_ref().is_some_and(|it| it.served.id == id);
                if is_outgoing
                    || is_reserving
                    || self.leases.contains(id)
                    || !self.requests.add(&self.state.engine, &batch)
                {
                    return Err(Status::invalid_argument(format!(
                        "duplicate `id` {id}: a batch with this id is requested or on lease"
                    )));
                }
                if let Ok(table) = self.state.engine.table(&batch.table) {
                    self.users.record(&table, None, items);
                }
            }
            Some(Request::Acknowledge(id)) => {
                let outgoing = self.outgoing.as_mut().filter(|out| out.id == id);
                let number = self.resumption.number(request.number);
                let durable = match outgoing.and_then(|out| out.lease.take()) {
                    // The reader may acknowledge a batch before its last part was sent.
                    Some(lease) => lease.acknowledge_first_numbered(acknowledged_items, number),
                    None => self.leases.acknowledge(id, acknowledged_items, number),
                };
                self.barriers.add_acknowledgement(durable);
                self.resumption.acknowledged = number.map_or(0, |number| number.number);
            }
            Some(Request::Cancel(id)) => {
                self.requests.cancel(id);
                self.leases.cancel(id);
                self.reserving.take_if(|it| it.served.id == id);
                if let Some(outgoing) = self.outgoing.as_mut().filter(|out| out.id == id) {
                    // The reader still expects the other parts.
                    outgoing.lease = None;
                }
            }
            Some(Request::Barrier(id)) => {
                if self.barriers.len() >= MAX_OUTSTANDING {
                    return Err(Status::resource_exhausted(format!(
                        "too many barriers: this stream has {MAX_OUTSTANDING} without a reply \
                         before barrier {id}, which is the maximum"
                    )));
                }
                self.barriers.add(id);
            }
            // Clients send an empty request instead of one that they no longer need. `resume` is handled by the caller.
            Some(Request::Resume(_)) | None => {}
        }
        Ok(())
    }

    /// Sends the next message: replies to `resume` and barriers first, then the outgoing batch. Adds the lease of a batch
    /// that was sent completely.
    fn send(&mut self, permit: Permit<'_, Message>) {
        if let Some(reply) = self.resumption.next_reply() {
            permit.send(Ok(reply).into());
            return;
        }
        let acknowledged = self.resumption.acknowledged;
        if let Some((id, done)) = self.barriers.next_reply() {
            let done = encode_response(id, Outcome::BarrierDone(done));
            permit.send(Ok(done).into());
            return;
        }
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        if let Some(mut reply) = outgoing.next_message() {
            if let Ok(message) = &mut reply.message {
                message.acknowledged = acknowledged;
            }
            permit.send(reply);
        }
        if outgoing.is_complete()
            && let Some(OutgoingReply { id, lease, .. }) = self.outgoing.take()
            && let Some(lease) = lease
        {
            self.leases.add(id, lease, self.state.lease_timeout);
        }
    }

    /// Sends the last messages at shutdown: the rest of the outgoing batch, the replies to barriers, and an error for
    /// each request that has no reply yet.
    async fn stop(
        self,
        replies: &Sender<Message>,
        shutdown: &ShutdownSignal,
    ) -> Result<(), Status> {
        let Self {
            requests,
            leases: _leases,
            reserving,
            outgoing,
            resumption,
            mut barriers,
            ..
        } = self;
        let waiting_ids = reserving.map(|it| it.served.id).into_iter();
        let waiting_ids = waiting_ids.chain(requests.ids());
        // Dropping the requests withdraws them, so that none is served any more.
        drop(requests);
        if let Some(mut outgoing) = outgoing {
            while let Some(reply) = outgoing.next_message() {
                if replies.send(reply).await.is_err() {
                    return Ok(());
                }
            }
        }
        while barriers.len() > 0 {
            barriers.until_reply().await;
            if let Some((id, done)) = barriers.next_reply() {
                let reply = encode_response(id, Outcome::BarrierDone(done));
                if replies.send(Ok(reply).into()).await.is_err() {
                    return Ok(());
                }
            }
        }
        if resumption.acknowledged > 0 {
            // So that a reader need not ask the next server.
            let handled = pb::SampleResponse {
                acknowledged: resumption.acknowledged,
                ..pb::SampleResponse::default()
            };
            if replies.send(Ok(handled).into()).await.is_err() {
                return Ok(());
            }
        }
        for id in waiting_ids {
            let reply = encode_response(id, error_outcome(&shutdown.error()));
            if replies.send(Ok(reply).into()).await.is_err() {
                return Ok(());
            }
        }
        Err(shutdown.status())
    }
}

/// How a stream ended whose replies are not received any more. A reader that ends its stream closes its side, or resets the
/// stream, which closes both sides.
fn end_of_closed(requests: &mut Streaming<pb::SampleRequest>, input_open: bool) -> StreamEnd {
    if !input_open {
        return StreamEnd::Finished;
    }
    loop {
        match requests.message().now_or_never() {
            // What the reader has sent before it ended the stream has no effect any more.
            Some(Ok(Some(_))) => {}
            Some(Ok(None)) => return StreamEnd::Finished,
            Some(Err(_)) | None => return StreamEnd::Disconnected,
        }
    }
}

/// True if a stream that failed with this status lost its connection; false if the reader violated the protocol.
fn is_broken(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unknown | Code::Unavailable | Code::Cancelled
    )
}

/// Waits for the memory of the next batch. Does not return if there is no next batch.
async fn reserve(reserving: &mut Option<ReservingReply>) -> Reservation {
    match reserving {
        Some(reserving) => reserving.reserve().await,
        None => std::future::pending().await,
    }
}
