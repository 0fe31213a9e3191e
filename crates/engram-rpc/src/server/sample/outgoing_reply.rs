//! The batch of a stream that is being sent.

use std::pin::Pin;
use std::sync::Arc;

use engram_codec::{ConnectionReplies, Reply, Reservation};
use engram_core::gather::{LengthPolicy, estimate_bytes};
use engram_core::{Error, Result};
use engram_engine::{Lease, Sample};

use super::request_queue::ServedRequest;
use super::{Message, encode_response, error_outcome};
use crate::server::service::ServiceState;
use crate::wire::OutgoingBatch;

/// Batches of at least this size are gathered outside of the runtime's shared threads, because that takes long.
const LARGE_BATCH_BYTES: usize = 1 << 20;

/// A served request that waits for memory for its batch.
pub(super) struct ReservingReply {
    pub(super) served: ServedRequest,
    bytes: usize,
    reservation: Pin<Box<dyn Future<Output = Reservation> + Send>>,
}

impl ReservingReply {
    pub(super) fn new(served: ServedRequest, replies: &ConnectionReplies) -> Self {
        let bytes = match &served.outcome {
            Ok(sample) => estimate_bytes(&sample.draws, served.length_policy),
            Err(_) => 0,
        };
        Self {
            served,
            bytes,
            reservation: Box::pin(replies.reserve(bytes)),
        }
    }

    /// Waits for the memory. Returns at once if it is available.
    pub(super) async fn reserve(&mut self) -> Reservation {
        (&mut self.reservation).await
    }

    /// Gathers the batch.
    pub(super) fn gather(self, reservation: Reservation, state: &ServiceState) -> OutgoingReply {
        OutgoingReply::new(self.served, self.bytes, reservation, state)
    }
}

/// A batch, or the error that replaces it, while it is being sent.
#[derive(Debug)]
pub(super) struct OutgoingReply {
    pub(super) id: u64,
    messages: Messages,
    /// The reservation of the batch's memory; `None` once the last message was returned.
    reservation: Option<Arc<Reservation>>,
    /// The lease that the reader must acknowledge; `None` if no acknowledgement is expected (any more).
    pub(super) lease: Option<Lease>,
}

#[derive(Debug)]
enum Messages {
    Batch(Box<OutgoingBatch>),
    Error(Option<Error>),
}

impl OutgoingReply {
    /// Gathers a served batch of about `bytes` bytes.
    fn new(
        served: ServedRequest,
        bytes: usize,
        reservation: Reservation,
        state: &ServiceState,
    ) -> Self {
        let ServedRequest {
            id,
            outcome,
            length_policy,
            ..
        } = served;
        let batch = outcome.and_then(|sample| {
            if bytes >= LARGE_BATCH_BYTES {
                tokio::task::block_in_place(|| gather_batch(sample, length_policy, state))
            } else {
                gather_batch(sample, length_policy, state)
            }
        });
        let (messages, lease) = match batch {
            Ok((batch, lease)) => {
                reservation.resize(batch.bytes());
                (Messages::Batch(Box::new(batch)), lease)
            }
            Err(error) => {
                reservation.resize(0);
                (Messages::Error(Some(error)), None)
            }
        };
        reservation.progress();
        Self {
            id,
            messages,
            reservation: Some(Arc::new(reservation)),
            lease,
        }
    }

    /// Removes the next message; `None` if all were returned.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        let outcome = match &mut self.messages {
            Messages::Batch(batch) => batch.next(),
            Messages::Error(error) => error.take().map(|error| error_outcome(&error)),
        }?;
        let reservation = if self.is_complete() {
            self.reservation.take()
        } else {
            self.reservation.clone()
        };
        Some(Reply {
            message: Ok(encode_response(self.id, outcome)),
            reservation,
        })
    }

    /// True once all messages were returned.
    pub(super) fn is_complete(&self) -> bool {
        match &self.messages {
            Messages::Batch(batch) => batch.is_empty(),
            Messages::Error(error) => error.is_none(),
        }
    }
}

fn gather_batch(
    sample: Sample,
    length_policy: LengthPolicy,
    state: &ServiceState,
) -> Result<(OutgoingBatch, Option<Lease>)> {
    let (columns, sample) = sample.gather(length_policy, &state.pool)?;
    let Sample { draws, lease, .. } = sample;
    let durable = lease.as_ref().is_some_and(Lease::removes_durably);
    let batch = OutgoingBatch::new(columns, &draws, lease.is_some(), durable)?;
    Ok((batch, lease))
}
