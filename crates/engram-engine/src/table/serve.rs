//! What lies behind a table's lock: its state, those who wait for it, and who is served next.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use engram_core::table::Admission;
use engram_core::{DeferredDrops, Draw, Error, NewItem, Result, SessionNumber, TableState};

use crate::session::Session;
use crate::table::FINISH;
use crate::table_info::Meter;

#[derive(Debug)]
pub(super) struct LockedTable {
    pub(super) state: TableState,
    pub(super) inserts: BTreeMap<u64, WaitingInsert>,
    pub(super) samples: BTreeMap<u64, WaitingSample>,
    pub(super) next_ticket: u64,
    /// Some thread goes on serving; the others need not.
    pub(super) draining: bool,
    /// Set once nobody may wait here any more.
    pub(super) closed: Option<Error>,
    pub(super) meter: Meter,
}

#[derive(Debug)]
pub(super) struct WaitingInsert {
    pub(super) items: VecDeque<NewItem>,
    pub(super) numbers: Option<SessionCursor>,
    /// Items whose keys are there give those their priorities.
    pub(super) updates: bool,
    pub(super) waker: Option<Waker>,
}

/// The numbers of a waiting call's items.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionCursor {
    /// That of the first item that is left.
    next: SessionNumber,
    /// The table knows that this call waits.
    waits: bool,
}

impl From<Session> for SessionCursor {
    fn from(session: Session) -> Self {
        let next = SessionNumber {
            session: session.id,
            number: session.first,
        };
        Self { next, waits: false }
    }
}

#[derive(Debug)]
pub(super) struct WaitingSample {
    /// Most of them.
    pub(super) n: usize,
    /// As soon as there are so many, they will do.
    pub(super) at_least: usize,
    pub(super) draws: Vec<Draw>,
    /// It has what it waits for, and there was no more to be had.
    pub(super) served: bool,
    pub(super) waker: Option<Waker>,
}

impl WaitingSample {
    /// Whether what it has will do.
    pub(super) fn is_enough(&self) -> bool {
        self.served || self.draws.len() >= self.at_least
    }
}

/// What is left to do once the lock is released.
#[derive(Default)]
pub(super) struct AfterUnlock {
    pub(super) deferred: DeferredDrops,
    pub(super) draws: Vec<Vec<Draw>>,
    pub(super) items: Vec<NewItem>,
    pub(super) wakers: Vec<Waker>,
    /// The hold ended before all was served.
    pub(super) more: bool,
    /// It falls to this thread to serve the rest.
    pub(super) drains: bool,
}

impl LockedTable {
    pub(super) fn check_open(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    pub(super) fn take_number(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Takes a sample out of the queue with what it has; the first unleased ones are final now.
    pub(super) fn finish_sample(
        &mut self,
        id: u64,
        leased: bool,
        after: &mut AfterUnlock,
    ) -> Vec<Draw> {
        let wait = self.samples.remove(&id);
        let draws = wait.map(|wait| wait.draws).unwrap_or_default();
        if !leased {
            let first = draws.iter().take(FINISH);
            self.state
                .acknowledge(first.map(|draw| draw.handle), &mut after.deferred);
        }
        draws
    }

    /// Serves waiting calls, and settles which thread serves those that this hold has no time for.
    pub(super) fn serve(&mut self, after: &mut AfterUnlock, now: u64) {
        self.meter.tick(now);
        after.more = self.closed.is_none() && self.serve_some(after, now);
        if after.more && !self.draining {
            self.draining = true;
            after.drains = true;
        } else if !after.more && after.drains {
            self.draining = false;
            after.drains = false;
        }
    }

    /// Lets a caller that waits for samples serve the rest, its own first; false when none does.
    /// Not one whose items wait: a writer need not be waiting for them.
    pub(super) fn hand_over(&mut self, after: &mut AfterUnlock) -> bool {
        let waiting = self.first_unserved_sample();
        let waiting = waiting.and_then(|id| self.samples.get_mut(&id)?.waker.take());
        let Some(waker) = waiting else {
            return false;
        };
        after.wakers.push(waker);
        self.draining = false;
        after.drains = false;
        true
    }

    /// Serves waiting calls in order: an insert, then samples, in turn until nothing moves. True
    /// when it stopped before that.
    fn serve_some(&mut self, after: &mut AfterUnlock, now: u64) -> bool {
        // Waiting draws are leased whoever asked: at a deadline they go back.
        let step = self.state.items_per_lock_hold();
        let mut budget = step;
        let mut waiting = self.first_unserved_sample();
        while budget > 0 {
            let mut moved = false;
            if self.state.must_shrink() {
                self.state.shrink(&mut after.deferred);
                budget = budget.saturating_sub(256);
                moved = true;
            } else if !self.inserts.is_empty() {
                moved = self.serve_insert(after, now);
            }
            if let Some(id) = waiting
                && let Some(wait) = self.samples.get_mut(&id)
            {
                let missing = wait.n - wait.draws.len();
                let drawn = self.state.draw(
                    missing.min(step),
                    true,
                    &mut wait.draws,
                    &mut after.deferred,
                );
                self.meter.samples += drawn as u64;
                moved |= drawn > 0;
                budget = budget.saturating_sub(drawn);
                // One that wants more takes what else comes in this round, which ends when nothing moves.
                wait.served = wait.draws.len() == wait.n || (!moved && wait.is_enough());
                if wait.served {
                    after.wakers.extend(wait.waker.take());
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

    /// Lets the first waiting item in if it may; true when anything moved.
    fn serve_insert(&mut self, after: &mut AfterUnlock, now: u64) -> bool {
        let Some(mut entry) = self.inserts.first_entry() else {
            return false;
        };
        let wait = entry.get_mut();
        let number = wait.numbers.map(|numbers| numbers.next);
        let applied = number.is_some_and(|number| self.state.is_applied(number, now));
        let front = wait.items.front().filter(|_| wait.updates);
        let update = front.map(|item| (item.key, item.priority));
        let updated = update.is_some() && self.state.update(update.into_iter()) > 0;
        let passes = applied || updated;
        let ready = |item| passes || self.state.admit(item) == Admission::Ready;
        let mut moved = false;
        if wait.items.front().is_some_and(ready)
            && let Some(item) = wait.items.pop_front()
        {
            if let Some(numbers) = &mut wait.numbers {
                numbers.next.number += 1;
                // A server tells its writer how far it is.
                after.wakers.extend(wait.waker.take());
            }
            if passes {
                after.deferred.add(item);
            } else {
                let deferred = &mut after.deferred;
                let new = self.state.insert_numbered(item, number, now, deferred);
                self.meter.inserts += u64::from(new);
            }
            moved = true;
        }
        if wait.items.is_empty() {
            let wait = entry.remove();
            self.end_wait(wait.numbers, now);
            after.wakers.extend(wait.waker);
            // Whoever stands behind is first now.
            moved = true;
        }
        moved
    }

    /// Tells the table that this insert waits: its session is not idle.
    pub(super) fn begin_wait(&mut self, id: u64, now: u64) {
        let wait = self.inserts.get_mut(&id);
        if let Some(numbers) = wait.and_then(|wait| wait.numbers.as_mut()) {
            numbers.waits = true;
            self.state.begin_wait(numbers.next.session, now);
        }
    }

    /// Tells the table that an insert with these numbers waits no more.
    pub(super) fn end_wait(&mut self, numbers: Option<SessionCursor>, now: u64) {
        if let Some(numbers) = numbers.filter(|numbers| numbers.waits) {
            self.state.end_wait(numbers.next.session, now);
        }
    }

    fn first_unserved_sample(&self) -> Option<u64> {
        self.samples
            .iter()
            .find(|(_, wait)| !wait.served)
            .map(|(id, _)| *id)
    }
}
