//! A requested batch, until it has arrived.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::pool::Pool;
use engram_core::{Error, Result};
use engram_engine::SampleOptions;
use tokio::sync::oneshot;

use crate::pb;
use crate::pb::sample_response::Outcome;
use crate::wire::{BatchAssembler, ReceivedBatch, decode_error};

/// The options of one batch.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// Name of the table.
    pub table: String,
    /// What to sample, and how long the server may wait.
    pub options: SampleOptions,
    /// How items of different lengths are combined.
    pub length_policy: LengthPolicy,
}

/// A batch that is queued or sent.
pub(super) struct PendingSample {
    pub(super) request: BatchRequest,
    /// When the timeout of `request` passes; `None` without a timeout.
    deadline: Option<Instant>,
    /// True if the request was sent on this connection.
    pub(super) sent: bool,
    /// True if the request was sent on any connection.
    pub(super) sent_ever: bool,
    /// Receives the batch and when it arrived.
    pub(super) result: oneshot::Sender<Result<(ReceivedBatch, Instant)>>,
    pub(super) assembler: BatchAssembler,
}

impl PendingSample {
    pub(super) fn new(
        request: BatchRequest,
        result: oneshot::Sender<Result<(ReceivedBatch, Instant)>>,
    ) -> Self {
        let timeout = request.options.timeout;
        let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            request,
            sent: false,
            sent_ever: false,
            result,
            assembler: BatchAssembler::default(),
        }
    }

    pub(super) fn build_request(&self, id: u64) -> pb::BatchRequest {
        let options = self.request.options;
        let number = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
        // The first request has the timeout as given, because error texts contain it. Requests on later connections
        // have the time that remains.
        let remaining = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let timeout_s = match self.deadline {
            Some(deadline) if self.sent_ever => Some(remaining(deadline).as_secs_f64()),
            deadline => options.timeout.filter(|_| deadline.is_some()),
        };
        pb::BatchRequest {
            id,
            table: self.request.table.clone(),
            n: number(options.n),
            timeout_s,
            pad: self.request.length_policy == LengthPolicy::Pad,
            lease: options.lease,
            at_least: number(options.at_least),
        }
    }

    /// Handles one message. Returns the batch once it is complete, or the error that ends the request; `None` while
    /// parts are missing.
    pub(super) fn handle_outcome(
        &mut self,
        outcome: Option<Outcome>,
        pool: &Arc<Pool>,
    ) -> Option<Result<ReceivedBatch>> {
        let batch = match outcome {
            Some(Outcome::Error(error)) => Err(decode_error(error)),
            Some(Outcome::Batch(batch)) => self.assembler.begin(batch, pool),
            Some(Outcome::BatchPart(bytes)) => self.assembler.push(&bytes),
            _ => Err(Error::Payload(
                "invalid response: neither a batch nor an error".into(),
            )),
        };
        batch.transpose()
    }
}
