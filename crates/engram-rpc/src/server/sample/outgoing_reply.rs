//! The batch of a stream that waits for memory, and then is gathered and sent.

use std::sync::Arc;

use engram_codec::{ConnectionBudget, PendingReservation, ReplyMessage, Reservation, run_in_place};
use engram_core::gather::{Estimate, estimate};
use engram_core::{Error, Result};
use engram_engine::{Lease, Sample};

use super::request_queue::ServedRequest;
use crate::pb;
use crate::pb::sample_response::Outcome;
use crate::server::service_state::ServiceState;
use crate::wire::{HEADER_BYTES_PER_ITEM, OutgoingBatch, encode_error};

/// Batches of at least this size are gathered outside of the runtime's shared threads, because that takes long.
pub(in crate::server) const LARGE_BATCH_BYTES: usize = 1 << 20;

/// A message of a sample stream.
pub(super) type Message = ReplyMessage<pb::SampleResponse>;

/// A served request that waits for memory for its batch.
pub(super) struct ReservingReply {
    pub(super) served: ServedRequest,
    /// The estimated size of its batch.
    estimate: Estimate,
    reservation: PendingReservation,
}

impl ReservingReply {
    pub(super) fn new(served: ServedRequest, budget: &ConnectionBudget) -> Self {
        let sample = served.outcome.as_ref();
        let draws = sample.map_or(&[][..], |sample| &sample.draws);
        let estimate = estimate(draws, served.length_policy);
        let header_bytes = HEADER_BYTES_PER_ITEM * draws.len();
        let bytes = estimate.bytes.saturating_add(header_bytes);
        Self {
            served,
            estimate,
            reservation: budget.reserve(bytes),
        }
    }

    /// Waits for the memory. Returns at once if it is available.
    pub(super) async fn reserve(&mut self) -> Reservation {
        (&mut self.reservation).await
    }

    /// Gathers the batch.
    pub(super) fn gather(
        self,
        mut reservation: Reservation,
        state: &ServiceState,
    ) -> OutgoingReply {
        let ServedRequest { id, outcome, .. } = self.served;
        let estimate = &self.estimate;
        let batch = outcome.and_then(|sample| {
            let is_large = estimate.bytes >= LARGE_BATCH_BYTES;
            run_in_place(is_large, || gather_batch(sample, estimate, state))
        });
        let (messages, lease) = match batch {
            Ok((batch, lease)) => (Messages::Batch(Box::new(batch)), lease),
            Err(error) => (Messages::Error(Some(error)), None),
        };
        reservation.set_created(messages.bytes());
        OutgoingReply {
            id,
            messages,
            reservation: Some(Arc::new(reservation)),
            lease,
        }
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
    /// `None` once the error was returned.
    Error(Option<Error>),
}

impl Messages {
    /// Bytes of the messages of a batch that are not returned yet; 0 for an error.
    fn bytes(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.bytes(),
            Self::Error(_) => 0,
        }
    }
}

impl OutgoingReply {
    /// Removes the next message; `None` if all were returned.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        let bytes = self.messages.bytes();
        let outcome = match &mut self.messages {
            Messages::Batch(batch) => batch.next().map(Outcome::from),
            Messages::Error(error) => error.take().map(|error| error_outcome(&error)),
        }?;
        let reservation = if self.is_complete() {
            self.reservation.take()
        } else {
            self.reservation.clone()
        };
        Some(ReplyMessage {
            message: Ok(encode_response(self.id, outcome)),
            reservation,
            bytes: bytes - self.messages.bytes(),
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
    estimate: &Estimate,
    state: &ServiceState,
) -> Result<(OutgoingBatch, Option<Lease>)> {
    let (columns, sample) = sample.gather_estimated(estimate, &state.pool)?;
    let lease = sample.lease.as_ref();
    let durable = lease.is_some_and(Lease::needs_durable_acknowledgement);
    match OutgoingBatch::new(columns, &sample.draws, lease.is_some(), durable) {
        Ok(batch) => Ok((batch, sample.lease)),
        Err(error) => {
            sample.undo();
            Err(error)
        }
    }
}

pub(super) fn encode_response(id: u64, outcome: Outcome) -> pb::SampleResponse {
    pb::SampleResponse {
        id,
        acknowledged: 0,
        outcome: Some(outcome),
    }
}

pub(super) fn error_outcome(error: &Error) -> Outcome {
    Outcome::Error(encode_error(error))
}
