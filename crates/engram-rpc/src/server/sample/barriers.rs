//! Barriers that are not answered yet.

use std::collections::VecDeque;

use engram_core::Result;
use engram_engine::UntilDurable;

use crate::pb;
use crate::wire::encode_error;

/// The barriers of one stream, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    barriers: VecDeque<Barrier>,
    /// Pending until the acknowledgements after the last barrier are durable.
    unconfirmed: Option<UntilDurable>,
}

#[derive(Debug)]
struct Barrier {
    id: u64,
    state: BarrierState,
}

#[derive(Debug)]
enum BarrierState {
    /// Acknowledgements before it are not durable yet.
    Waiting(UntilDurable),
    Done(Result<()>),
}

impl Barriers {
    pub(super) fn len(&self) -> usize {
        self.barriers.len()
    }

    /// Adds an acknowledgement: later barriers wait until it is durable.
    pub(super) fn add_acknowledgement(&mut self, durable: Option<UntilDurable>) {
        // A later acknowledgement becomes durable later, so waiting for the last one suffices.
        self.unconfirmed = durable.or_else(|| self.unconfirmed.take());
    }

    pub(super) fn add(&mut self, id: u64) {
        let waiting = self.unconfirmed.take().map(BarrierState::Waiting);
        let state = waiting.unwrap_or(BarrierState::Done(Ok(())));
        self.barriers.push_back(Barrier { id, state });
    }

    /// True if the first barrier can be answered.
    pub(super) fn has_reply(&self) -> bool {
        let first = self.barriers.front();
        first.is_some_and(|first| matches!(first.state, BarrierState::Done(_)))
    }

    /// Waits until the first barrier can be answered. Does not return if it can be already, or if there is none.
    pub(super) async fn progress(&mut self) {
        match self.barriers.front_mut().map(|first| &mut first.state) {
            Some(state @ BarrierState::Waiting(_)) => finish(state).await,
            Some(BarrierState::Done(_)) | None => std::future::pending().await,
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
        if !matches!(self.barriers.front()?.state, BarrierState::Done(_)) {
            return None;
        }
        let first = self.barriers.pop_front()?;
        let BarrierState::Done(Err(error)) = first.state else {
            return Some((first.id, pb::BarrierDone::default()));
        };
        let durability_error = Some(encode_error(&error));
        Some((first.id, pb::BarrierDone { durability_error }))
    }
}

async fn finish(state: &mut BarrierState) {
    if let BarrierState::Waiting(durable) = state {
        *state = BarrierState::Done(durable.await);
    }
}
