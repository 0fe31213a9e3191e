//! Barriers that are not answered yet. A barrier is a request that is answered once all acknowledgements before it are
//! handled, and durable if that is possible.

use std::collections::VecDeque;

use engram_core::Result;
use engram_engine::UntilDurable;

use crate::pb;
use crate::wire::encode_error;

/// The barriers of one stream, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    barriers: VecDeque<Barrier>,
    /// Ready once the acknowledgements after the last barrier are durable, and those of answered barriers that could
    /// not be made durable. `None` if there are none.
    unconfirmed: Option<UntilDurable>,
}

#[derive(Debug)]
struct Barrier {
    id: u64,
    /// Ready once the acknowledgements before the barrier are durable, or with the error if they cannot be made durable
    /// now. `None` once the barrier can be answered.
    waiting: Option<UntilDurable>,
    /// Why the acknowledgements cannot be made durable now, if so.
    outcome: Result<()>,
}

impl Barriers {
    pub(super) fn len(&self) -> usize {
        self.barriers.len()
    }

    /// Adds an acknowledgement: later barriers wait until it is durable. `durable` is `None` if it need not be.
    pub(super) fn add_acknowledgement(&mut self, durable: Option<UntilDurable>) {
        // A later acknowledgement becomes durable later, so waiting for the last one suffices.
        self.unconfirmed = durable.or_else(|| self.unconfirmed.take());
    }

    /// Adds a barrier.
    pub(super) fn add(&mut self, id: u64) {
        self.barriers.push_back(Barrier {
            id,
            waiting: self.unconfirmed.take(),
            outcome: Ok(()),
        });
    }

    /// True if the first barrier can be answered.
    pub(super) fn has_reply(&self) -> bool {
        let first = self.barriers.front();
        first.is_some_and(|first| first.waiting.is_none())
    }

    /// Waits until the first barrier can be answered. Does not return if it can be already, or if there is none.
    pub(super) async fn progress(&mut self) {
        let Some(first) = self.barriers.front_mut() else {
            return std::future::pending().await;
        };
        let Some(durable) = &mut first.waiting else {
            return std::future::pending().await;
        };
        first.outcome = durable.await;
        let durable = first.waiting.take();
        if first.outcome.is_err() {
            // The next barrier waits for these acknowledgements, unless it waits for later ones.
            let next = self.barriers.get_mut(1);
            let next = next.map_or(&mut self.unconfirmed, |next| &mut next.waiting);
            *next = next.take().or(durable);
        }
    }

    /// Waits until the first barrier, if there is one, can be answered.
    pub(super) async fn until_reply(&mut self) {
        if !self.has_reply() && self.len() > 0 {
            self.progress().await;
        }
    }

    /// Removes the first barrier if it can be answered; returns its id and the answer.
    pub(super) fn next_reply(&mut self) -> Option<(u64, pb::BarrierDone)> {
        if !self.has_reply() {
            return None;
        }
        let first = self.barriers.pop_front()?;
        let durability_error = first.outcome.err().map(|error| encode_error(&error));
        Some((first.id, pb::BarrierDone { durability_error }))
    }
}
