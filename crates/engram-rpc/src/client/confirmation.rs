//! Counts the acknowledgements of batches, and reports when they are durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engram_core::Result;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::pending_response::PendingResponse;

/// Counts the acknowledgements of one stream.
#[derive(Debug, Default)]
pub(super) struct AckCounts {
    /// Locked while an acknowledgement is sent and counted, so that acknowledgements are counted in the order in which
    /// they are sent.
    pub(super) sending: Mutex<()>,
    /// Number of acknowledgements sent.
    pub(super) sent: AtomicU64,
    /// Number of acknowledgements for which no call needs to wait: the server is known to have handled them, or they
    /// were lost with their connection.
    pub(super) confirmed: AtomicU64,
    /// True if some of the acknowledgements must become durable.
    pub(super) any_durable: AtomicBool,
}

impl AckCounts {
    pub(super) fn are_confirmed(&self) -> bool {
        let sent = self.sent.load(Ordering::Acquire);
        sent <= self.confirmed.load(Ordering::Acquire)
    }
}

/// Reports to a waiting caller that acknowledgements are durable, once the server confirms that, or why it does not.
#[derive(Debug)]
pub(super) struct Confirmation {
    reply: oneshot::Sender<Result<()>>,
    /// Number of acknowledgements that are confirmed: the first ones of the stream, including the caller's.
    number: u64,
    acks: Arc<AckCounts>,
}

impl Confirmation {
    /// Returns a confirmation of the first `number` acknowledgements, and a future of its outcome.
    pub(super) fn new(acks: &Arc<AckCounts>, number: u64) -> (Self, PendingResponse<()>) {
        let (reply, receiver) = oneshot::channel();
        let acks = Arc::clone(acks);
        let confirmation = Self {
            reply,
            number,
            acks,
        };
        (confirmation, PendingResponse::new(receiver))
    }

    pub(super) fn send(self, outcome: Result<()>) {
        if outcome.is_ok() {
            self.acks
                .confirmed
                .fetch_max(self.number, Ordering::Release);
        }
        // The caller may have stopped waiting.
        let _ = self.reply.send(outcome);
    }
}
