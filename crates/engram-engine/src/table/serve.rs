//! What lies behind a table's lock: its state, those who wait for it, and who is served next.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use engram_core::table::Admission;
use engram_core::{Draw, Error, NewItem, Result, TableState, Trash};

use crate::info::Meter;
use crate::table::FINISH;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: TableState,
    pub(super) inserts: BTreeMap<u64, InsertWait>,
    pub(super) samples: BTreeMap<u64, SampleWait>,
    pub(super) next_ticket: u64,
    /// Some thread goes on serving; the others need not.
    pub(super) draining: bool,
    /// Set once nobody may wait here any more.
    pub(super) closed: Option<Error>,
    pub(super) meter: Meter,
}

#[derive(Debug)]
pub(super) struct InsertWait {
    pub(super) items: VecDeque<NewItem>,
    pub(super) waker: Option<Waker>,
}

#[derive(Debug)]
pub(super) struct SampleWait {
    pub(super) n: usize,
    pub(super) draws: Vec<Draw>,
    pub(super) waker: Option<Waker>,
}

/// What is left to do once the lock is released.
#[derive(Default)]
pub(super) struct Aside {
    pub(super) trash: Trash,
    pub(super) draws: Vec<Vec<Draw>>,
    pub(super) wakers: Vec<Waker>,
    /// The hold ended before all was served.
    pub(super) more: bool,
    /// It falls to this thread to serve the rest.
    pub(super) drains: bool,
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    pub(super) fn take_number(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Takes a sample out of the queue with what it has; the first unleased ones are final now.
    pub(super) fn finish_sample(&mut self, id: u64, leased: bool, aside: &mut Aside) -> Vec<Draw> {
        let wait = self.samples.remove(&id);
        let draws = wait.map(|wait| wait.draws).unwrap_or_default();
        if !leased {
            let first = draws.iter().take(FINISH);
            self.state
                .acknowledge(first.map(|draw| draw.handle), &mut aside.trash);
        }
        draws
    }

    /// Serves waiting calls, and settles which thread serves those that this hold has no time for.
    pub(super) fn serve(&mut self, aside: &mut Aside, now: u64) {
        self.meter.tick(now);
        aside.more = self.closed.is_none() && self.serve_some(aside, now);
        if aside.more && !self.draining {
            self.draining = true;
            aside.drains = true;
        } else if !aside.more && aside.drains {
            self.draining = false;
            aside.drains = false;
        }
    }

    /// Lets a caller that waits for samples serve the rest, its own first; false when none does.
    /// Not one whose items wait: a writer need not be waiting for them.
    pub(super) fn hand_over(&mut self, aside: &mut Aside) -> bool {
        let waiting = self.first_unserved_sample();
        let waiting = waiting.and_then(|id| self.samples.get_mut(&id)?.waker.take());
        let Some(waker) = waiting else {
            return false;
        };
        aside.wakers.push(waker);
        self.draining = false;
        aside.drains = false;
        true
    }

    /// Serves waiting calls in order: an insert, then samples, in turn until nothing moves. True
    /// when it stopped before that.
    fn serve_some(&mut self, aside: &mut Aside, now: u64) -> bool {
        // Waiting draws are leased whoever asked: at a deadline they go back.
        let step = self.state.items_per_hold();
        let mut budget = step;
        let mut waiting = self.first_unserved_sample();
        while budget > 0 {
            let mut moved = false;
            if self.state.must_shrink() {
                self.state.shrink(&mut aside.trash);
                budget = budget.saturating_sub(256);
                moved = true;
            } else if let Some(mut entry) = self.inserts.first_entry() {
                let wait = entry.get_mut();
                let admission = wait.items.front().map(|item| self.state.admit(item));
                if admission == Some(Admission::Ready)
                    && let Some(item) = wait.items.pop_front()
                {
                    let new = self.state.insert(item, now, &mut aside.trash);
                    self.meter.inserts += u64::from(new);
                    moved = true;
                }
                if wait.items.is_empty() {
                    aside.wakers.extend(entry.remove().waker);
                    // Whoever stands behind is first now.
                    moved = true;
                }
            }
            if let Some(id) = waiting
                && let Some(wait) = self.samples.get_mut(&id)
            {
                let missing = wait.n - wait.draws.len();
                let drawn =
                    self.state
                        .draw(missing.min(step), true, &mut wait.draws, &mut aside.trash);
                self.meter.samples += drawn as u64;
                moved |= drawn > 0;
                budget = budget.saturating_sub(drawn);
                if wait.draws.len() == wait.n {
                    aside.wakers.extend(wait.waker.take());
                    waiting = self.first_unserved_sample();
                }
            }
            if !moved {
                return false;
            }
            budget = budget.saturating_sub(1);
        }
        true
    }

    fn first_unserved_sample(&self) -> Option<u64> {
        self.samples
            .iter()
            .find(|(_, wait)| wait.draws.len() < wait.n)
            .map(|(id, _)| *id)
    }
}
