//! The data behind a table's lock: its state, the queues of waiting calls, and the order of service.
//!
//! An insert or sample that cannot complete at once waits in one of two queues, ordered by ticket
//! id. A waiting call keeps its partial result: the items not inserted yet, or the items drawn so
//! far, which stay leased so that they can be returned if the call ends early.
//!
//! ```text
//! insert: queued ──► its items enter one by one ──► all are in: removed from the queue, thread woken
//! sample: queued ──► draws are added ──► served, thread woken ──► its ticket's poll takes the draws
//!
//! withdrawn, or ticket dropped: items not inserted yet are dropped; draws return to the table
//! table closed or dropped:      the call ends with the reason
//! ```
//!
//! Each lock holder serves the queues before it unlocks ([`LockedTable::serve`]): the first waiting
//! insert and the first waiting sample, alternately, until neither can proceed or the work allowed
//! per lock hold is done. If work is left, exactly one thread continues in further lock holds
//! (`is_being_served`). After a few, it wakes the thread of the first waiting sample, which continues.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use engram_core::table::Admission;
use engram_core::{DeferredDrops, Draw, Error, NewItem, Result, SessionNumber, TableState};

use crate::session::Session;
use crate::table::FINISH_PER_LOCK;
use crate::table_info::Meter;

#[derive(Debug)]
pub(super) struct LockedTable {
    pub(super) state: TableState,
    pub(super) inserts: BTreeMap<u64, WaitingInsert>,
    pub(super) samples: BTreeMap<u64, WaitingSample>,
    pub(super) next_ticket: u64,
    /// True while a thread is responsible for serving the calls that are left.
    pub(super) is_being_served: bool,
    /// Why the table was closed.
    pub(super) closed: Option<Error>,
    pub(super) meter: Meter,
}

#[derive(Debug)]
pub(super) struct WaitingInsert {
    /// Items that are not in the table yet.
    pub(super) items: VecDeque<NewItem>,
    pub(super) cursor: Option<SessionCursor>,
    /// An item whose key exists updates that item's priority.
    pub(super) updates: bool,
    pub(super) waker: Option<Waker>,
}

/// Sequence numbers of a waiting insert's items.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionCursor {
    /// Sequence number of the first item that is not in the table yet.
    next: SessionNumber,
    /// True if the wait was reported to the table, so that the session does not become idle.
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
    /// Maximum number of draws.
    pub(super) n: usize,
    /// Minimum number of draws: the call does not wait for more than this.
    pub(super) at_least: usize,
    pub(super) draws: Vec<Draw>,
    /// The call is complete, and takes no further draws.
    pub(super) served: bool,
    pub(super) waker: Option<Waker>,
}

impl WaitingSample {
    /// True if the call can return with the draws it has.
    pub(super) fn can_return(&self) -> bool {
        self.served || self.draws.len() >= self.at_least
    }
}

/// Work to do after the lock is released: freeing memory and waking threads.
#[derive(Default)]
pub(super) struct AfterUnlock {
    pub(super) deferred: DeferredDrops,
    pub(super) draws: Vec<Vec<Draw>>,
    pub(super) items: Vec<NewItem>,
    pub(super) wakers: Vec<Waker>,
    /// Serving stopped because the lock hold became too long.
    pub(super) work_left: bool,
    /// This thread must lock again and continue serving.
    pub(super) keeps_serving: bool,
}

impl LockedTable {
    pub(super) fn check_open(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    pub(super) fn new_ticket_id(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Removes a sample from the queue and returns its draws. Unless it is leased, makes the first
    /// `FINISH_PER_LOCK` draws final.
    pub(super) fn finish_sample(
        &mut self,
        id: u64,
        leased: bool,
        after: &mut AfterUnlock,
    ) -> Vec<Draw> {
        let wait = self.samples.remove(&id);
        let draws = wait.map(|wait| wait.draws).unwrap_or_default();
        if !leased {
            let first = draws.iter().take(FINISH_PER_LOCK);
            self.state
                .acknowledge(first.map(|draw| draw.handle), &mut after.deferred);
        }
        draws
    }

    /// Serves waiting calls. If this hold cannot serve all, decides whether this thread continues.
    pub(super) fn serve(&mut self, after: &mut AfterUnlock, now: u64) {
        self.meter.tick(now);
        after.work_left = self.closed.is_none() && self.serve_some(after, now);
        if after.work_left && !self.is_being_served {
            self.is_being_served = true;
            after.keeps_serving = true;
        } else if !after.work_left && after.keeps_serving {
            self.is_being_served = false;
            after.keeps_serving = false;
        }
    }

    /// Wakes the thread of the first waiting sample to continue serving; false if there is none.
    /// Waiting inserts are not considered: their writers may not poll them for a long time.
    pub(super) fn hand_over(&mut self, after: &mut AfterUnlock) -> bool {
        let waiting = self.first_unserved_sample();
        let waiting = waiting.and_then(|id| self.samples.get_mut(&id)?.waker.take());
        let Some(waker) = waiting else {
            return false;
        };
        after.wakers.push(waker);
        self.is_being_served = false;
        after.keeps_serving = false;
        true
    }

    /// Serves the first insert and the first sample alternately until neither can proceed. Returns
    /// true if it stopped earlier because the lock hold became too long.
    fn serve_some(&mut self, after: &mut AfterUnlock, now: u64) -> bool {
        // Draws of waiting samples are always leased, so that they can be returned at a deadline.
        let step = self.state.max_items_per_lock_hold();
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
                // With fewer than `n` draws, a sample is complete only once nothing more can be drawn.
                wait.served = wait.draws.len() == wait.n || (!moved && wait.can_return());
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

    /// Inserts the first waiting item if possible; true if the queue has changed.
    fn serve_insert(&mut self, after: &mut AfterUnlock, now: u64) -> bool {
        let Some(mut entry) = self.inserts.first_entry() else {
            return false;
        };
        let wait = entry.get_mut();
        let number = wait.cursor.map(|cursor| cursor.next);
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
            if let Some(cursor) = &mut wait.cursor {
                cursor.next.number += 1;
                // A server reports progress to its client.
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
            self.end_wait(wait.cursor, now);
            after.wakers.extend(wait.waker);
            // The next insert in the queue may proceed now.
            moved = true;
        }
        moved
    }

    /// Reports to the table that this insert waits, so that its session does not become idle.
    pub(super) fn begin_wait(&mut self, id: u64, now: u64) {
        let wait = self.inserts.get_mut(&id);
        if let Some(cursor) = wait.and_then(|wait| wait.cursor.as_mut()) {
            cursor.waits = true;
            self.state.begin_wait(cursor.next.session, now);
        }
    }

    /// Reports to the table that an insert with this cursor no longer waits.
    pub(super) fn end_wait(&mut self, cursor: Option<SessionCursor>, now: u64) {
        if let Some(cursor) = cursor.filter(|cursor| cursor.waits) {
            self.state.end_wait(cursor.next.session, now);
        }
    }

    fn first_unserved_sample(&self) -> Option<u64> {
        self.samples
            .iter()
            .find(|(_, wait)| !wait.served)
            .map(|(id, _)| *id)
    }
}
