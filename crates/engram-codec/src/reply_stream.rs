//! Passes the replies of a stream from its task to the transport.
//!
//! The transport takes messages before it can send them: it stores up to two of each stream. A [`ReplyBody`] therefore
//! attaches a message's reservation to its encoded bytes, which the transport drops once they are sent. It passes on a
//! large message in slices: each dropped slice shows that the client is still reading the message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use hyper::body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use tokio::sync::mpsc::Receiver;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Request, Response, Status};

use crate::reply_budget::{ConnectionBudget, ReplyBudget, Reservation};

/// Encoded messages that are larger than this are passed to the transport in slices of at most this size. A message
/// with a part of a batch is smaller: 256 KiB and its header.
const MAX_SLICE_BYTES: usize = 320 << 10;

/// A message, or the status that the stream ends with.
#[derive(Debug)]
pub struct ReplyMessage<T> {
    /// The message.
    pub message: Result<T, Status>,
    /// The reservation for the memory of the reply that the message is a part of; `None` if the message is small. The
    /// messages of one reply share a reservation.
    pub reservation: Option<Arc<Reservation>>,
    /// Bytes of this memory that this message refers to.
    pub bytes: usize,
}

impl<T> From<Result<T, Status>> for ReplyMessage<T> {
    /// A small message, which needs no reservation.
    fn from(message: Result<T, Status>) -> Self {
        Self {
            message,
            reservation: None,
            bytes: 0,
        }
    }
}

/// Reserves memory for the replies of one call, and frees it once they are sent.
#[derive(Clone, Debug)]
pub struct CallBudget {
    connection: ConnectionBudget,
    /// Reservations of the messages that were passed to the encoder, but not to the transport yet.
    encoded_reservations: Arc<Mutex<Vec<Arc<Reservation>>>>,
}

impl CallBudget {
    /// The budget of the call with this request. It uses the [`ConnectionBudget`] in the request's extensions; if there
    /// is none, the call has a whole [`ReplyBudget`] of its own.
    #[must_use]
    pub fn of<T>(request: &Request<T>) -> Self {
        let connection = request.extensions().get::<ConnectionBudget>().cloned();
        Self::new(connection.unwrap_or_else(|| ReplyBudget::default().add_connection()))
    }

    fn new(connection: ConnectionBudget) -> Self {
        Self {
            connection,
            encoded_reservations: Arc::default(),
        }
    }

    /// The budget of the call's connection.
    #[must_use]
    pub fn connection(&self) -> &ConnectionBudget {
        &self.connection
    }

    /// Removes the call's budget from the extensions of its response. `None` if the response was not created by
    /// [`ReplyStream::into_response`].
    #[must_use]
    pub fn take_from<T>(response: &mut http::Response<T>) -> Option<Self> {
        response.extensions_mut().remove()
    }

    /// Wraps the body of the call's response, so that the reservation of a message is dropped once the message is sent.
    /// `guard` is dropped together with the wrapped body.
    #[must_use]
    pub fn wrap<G>(self, body: Body, guard: G) -> ReplyBody<G> {
        ReplyBody {
            body,
            call_budget: self,
            unsent: None,
            _guard: guard,
        }
    }
}

/// The reply messages of a call, in the order in which its task sends them.
#[derive(Debug)]
pub struct ReplyStream<T> {
    replies: Receiver<ReplyMessage<T>>,
    call_budget: CallBudget,
}

impl<T> ReplyStream<T> {
    /// A stream of the messages that `replies` receives.
    #[must_use]
    pub fn new(replies: Receiver<ReplyMessage<T>>, call_budget: CallBudget) -> Self {
        Self {
            replies,
            call_budget,
        }
    }

    /// The response of the call. Its body must be wrapped by [`CallBudget::wrap`] of the budget that
    /// [`CallBudget::take_from`] returns for this response.
    #[must_use]
    pub fn into_response(self) -> Response<Self> {
        let call_budget = self.call_budget.clone();
        let mut response = Response::new(self);
        response.extensions_mut().insert(call_budget);
        response
    }
}

impl<T> Stream for ReplyStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(reply) = ready!(this.replies.poll_recv(context)) else {
            return Poll::Ready(None);
        };
        if let Some(mut reservation) = reply.reservation {
            // If only this message still has the reservation, the other messages of the reply were sent.
            if let Some(reservation) = Arc::get_mut(&mut reservation) {
                reservation.shrink(reply.bytes);
            }
            this.call_budget
                .encoded_reservations
                .lock()
                .push(reservation);
        }
        Poll::Ready(Some(reply.message))
    }
}

/// The body of a response, which attaches reservations to the encoded messages; see [`CallBudget::wrap`].
#[derive(Debug)]
pub struct ReplyBody<G> {
    body: Body,
    call_budget: CallBudget,
    /// The rest of a large frame, which was not passed to the transport yet.
    unsent: Option<ReservedBytes>,
    _guard: G,
}

impl<G: Unpin> HttpBody for ReplyBody<G> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Some(unsent) = this.unsent.take() {
            return Poll::Ready(Some(Ok(this.next_slice(unsent))));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        // All of them belong to this frame: tonic returns messages from the same poll in which it encodes them.
        let reservations = std::mem::take(&mut *this.call_budget.encoded_reservations.lock());
        let Some(Ok(frame)) = frame else {
            return Poll::Ready(frame);
        };
        if reservations.is_empty() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let frame = frame.into_data().map_or_else(
            |trailers| trailers,
            |bytes| {
                this.next_slice(ReservedBytes {
                    bytes,
                    reservations,
                })
            },
        );
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_none() && self.body.is_end_stream()
    }
}

impl<G> ReplyBody<G> {
    /// Returns a frame with the first slice of `unsent`, and retains the rest.
    fn next_slice(&mut self, mut unsent: ReservedBytes) -> Frame<Bytes> {
        if unsent.bytes.len() > MAX_SLICE_BYTES {
            let slice = ReservedBytes {
                bytes: unsent.bytes.split_to(MAX_SLICE_BYTES),
                reservations: unsent.reservations.clone(),
            };
            self.unsent = Some(unsent);
            unsent = slice;
        }
        Frame::data(Bytes::from_owner(unsent))
    }
}

/// Encoded messages, and the reservations of their memory.
#[derive(Debug)]
struct ReservedBytes {
    bytes: Bytes,
    reservations: Vec<Arc<Reservation>>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        for reservation in self.reservations.drain(..) {
            // Dropping the last reference drops the reservation, which records progress itself.
            if Arc::strong_count(&reservation) > 1 {
                reservation.record_progress();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use http_body_util::{BodyExt as _, Full};

    #[tokio::test]
    async fn a_large_message_is_passed_on_in_slices_that_share_its_reservation() {
        let budget = ReplyBudget::new(4 << 20);
        let connection = budget.add_connection();
        let call_budget = CallBudget::new(connection.clone());
        let mut reservation = connection.reserve(1 << 20).await;
        reservation.set_created(1 << 20);
        call_budget
            .encoded_reservations
            .lock()
            .push(Arc::new(reservation));
        let message: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let mut body = call_budget.wrap(Body::new(Full::from(message.clone())), ());
        let mut received = Vec::new();
        let mut last = None;
        while !body.is_end_stream() {
            let slice = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(slice.len() <= MAX_SLICE_BYTES);
            received.extend_from_slice(&slice);
            last = Some(slice);
            // Reserved until the last slice is dropped.
            assert!(connection.reserve(1).now_or_never().is_none());
        }
        assert!(received == message);
        drop((last, body));
        assert!(connection.reserve(1 << 20).now_or_never().is_some());
    }
}
