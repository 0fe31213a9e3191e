//! Passes the replies of a stream from its task to the transport.
//!
//! The transport requests messages before it can send them, and stores up to two per stream. [`ReplyBody`] attaches a
//! message's reservation to its encoded bytes, which the transport drops once they are sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use hyper::body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use tokio::sync::mpsc::Receiver;
use tonic::Status;
use tonic::body::Body;

use crate::reply_budget::{ConnectionReplies, Reservation};

/// A message, or the status that the stream ends with.
#[derive(Debug)]
pub struct Reply<T> {
    /// The message.
    pub message: Result<T, Status>,
    /// The reservation of the memory that it refers to. Messages that are parts of one reply share it.
    pub reservation: Option<Arc<Reservation>>,
}

impl<T> From<Result<T, Status>> for Reply<T> {
    /// A small message, which needs no reservation.
    fn from(message: Result<T, Status>) -> Self {
        Self {
            message,
            reservation: None,
        }
    }
}

/// The replies of one call, stored in the extensions of its request.
#[derive(Clone, Debug)]
pub struct CallReplies {
    connection: ConnectionReplies,
    /// Reservations of the messages that were passed to the encoder and not yet to the transport.
    encoded: Arc<Mutex<Vec<Arc<Reservation>>>>,
}

impl CallReplies {
    /// The replies of a call on this connection.
    #[must_use]
    pub fn new(connection: ConnectionReplies) -> Self {
        Self {
            connection,
            encoded: Arc::default(),
        }
    }

    /// The connection's share of the budget.
    #[must_use]
    pub fn connection(&self) -> &ConnectionReplies {
        &self.connection
    }

    /// Wraps the body of the call's response.
    #[must_use]
    pub fn wrap(self, body: Body) -> ReplyBody {
        ReplyBody { body, call: self }
    }
}

/// The messages of a stream.
#[derive(Debug)]
pub struct ReplyStream<T> {
    replies: Receiver<Reply<T>>,
    call: CallReplies,
    /// Maximum bytes of one message of a reply of several messages.
    part_bytes: usize,
}

impl<T> ReplyStream<T> {
    /// The replies of a channel. Each message that shares a reservation refers to at most `part_bytes` bytes.
    #[must_use]
    pub fn new(replies: Receiver<Reply<T>>, call: CallReplies, part_bytes: usize) -> Self {
        Self {
            replies,
            call,
            part_bytes,
        }
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
            // The last message of a reply: its other messages were sent.
            if let Some(reservation) = Arc::get_mut(&mut reservation) {
                reservation.shrink(this.part_bytes);
            }
            this.call.encoded.lock().push(reservation);
        }
        Poll::Ready(Some(reply.message))
    }
}

/// The body of a response with replies.
#[derive(Debug)]
pub struct ReplyBody {
    body: Body,
    call: CallReplies,
}

impl HttpBody for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        // They belong to the messages in this frame: the body returns messages in the call that encodes them.
        let reservations = std::mem::take(&mut *self.call.encoded.lock());
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| match &reservations[..] {
                    [] => bytes,
                    _ => Bytes::from_owner(ReservedBytes {
                        bytes,
                        reservations,
                    }),
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Encoded messages, and the reservations of their memory.
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
        for reservation in &self.reservations {
            reservation.progress();
        }
    }
}
