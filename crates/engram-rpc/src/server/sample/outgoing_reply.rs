//! The batch of a stream that is being sent.

use engram_core::gather::{LengthPolicy, gather};
use engram_core::{Draw, Error, Result};
use engram_engine::{Lease, Sample};

use super::error_outcome;
use super::request_queue::ServedRequest;
use crate::pb::sample_response::Outcome;
use crate::server::service::ServiceState;
use crate::wire::OutgoingBatch;

/// Batches of at least this size are gathered outside of the runtime's shared threads, because that takes long.
const LARGE_BATCH_BYTES: usize = 1 << 20;

/// A batch, or the error that replaces it, while it is being sent.
#[derive(Debug)]
pub(super) struct OutgoingReply {
    pub(super) id: u64,
    messages: Messages,
    /// The lease that the reader must acknowledge; `None` if no acknowledgement is expected.
    pub(super) lease: Option<Lease>,
    /// The number of items that the reader acknowledged before the last message was sent.
    pub(super) acknowledged: Option<usize>,
}

#[derive(Debug)]
enum Messages {
    Batch(Box<OutgoingBatch>),
    Error(Option<Error>),
}

impl OutgoingReply {
    /// Gathers a served batch.
    pub(super) fn new(served: ServedRequest, state: &ServiceState) -> Self {
        let ServedRequest {
            id,
            outcome,
            length_policy,
            ..
        } = served;
        let batch = outcome.and_then(|sample| {
            let gathered = if is_large(&sample.draws) {
                tokio::task::block_in_place(|| gather_batch(&sample, length_policy, state))
            } else {
                gather_batch(&sample, length_policy, state)
            };
            Ok((gathered?, sample.lease))
        });
        let (messages, lease) = match batch {
            Ok((batch, lease)) => (Messages::Batch(Box::new(batch)), lease),
            Err(error) => (Messages::Error(Some(error)), None),
        };
        Self {
            id,
            messages,
            lease,
            acknowledged: None,
        }
    }

    /// Removes the next message; `None` if all were returned.
    pub(super) fn next_message(&mut self) -> Option<Outcome> {
        match &mut self.messages {
            Messages::Batch(batch) => batch.next(),
            Messages::Error(error) => error.take().map(|error| error_outcome(&error)),
        }
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
    sample: &Sample,
    length_policy: LengthPolicy,
    state: &ServiceState,
) -> Result<OutgoingBatch> {
    let columns = gather(&sample.draws, length_policy, &state.pool)?;
    OutgoingBatch::new(columns, &sample.draws, sample.lease.is_some())
}

/// Returns true if a batch is large, estimated from its first item.
fn is_large(draws: &[Draw]) -> bool {
    let Some(first) = draws.first().map(|draw| &draw.trajectory) else {
        return false;
    };
    let columns = (0..first.columns()).map(|at| first.column(at));
    let item_bytes: usize = columns.map(|column| column.len * column.cell.bytes()).sum();
    // The sizes of strings are not known: many of them count as large.
    draws.len() * item_bytes.max(64) >= LARGE_BATCH_BYTES
}
