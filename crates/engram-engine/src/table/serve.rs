//! The data behind a table's lock: its state, the queues of waiting calls, and the order of service.
//!
//! An insert or sample that cannot complete at once waits in one of two queues, ordered by ticket
//! id. Its queue entry has the items not inserted yet, or the items drawn so far, which stay leased so
//! that they can be returned if the call ends early.
//!
//! ```text
//! insert: queued ──► items are inserted one by one ──► all inserted: removed from the queue, task woken
//! sample: queued ──► draws are added ──► served, task woken ──► its ticket's poll takes the draws
//!
//! withdrawn, or ticket dropped: items not inserted yet are dropped; draws return to the table
//! table closed or dropped:      the call ends with the reason
//! ```
//!
//! Each lock holder serves the queues before it unlocks ([`LockedTable::serve`]): the first waiting
//! insert and the first waiting sample, alternately, until neither can proceed or the work allowed
//! per lock hold is done. If work is left, exactly one thread continues in further lock holds
//! (`is_being_served`). After a few lock holds, this thread wakes the task of the first waiting sample, if there is
//! one, which continues in its place.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::task::Waker;

use engram_core::table::{Admission, MAX_REMOVALS_PER_CALL};
use engram_core::{DeferredDrops, Draw, Error, NewItem, Result, SessionNumber, TableState};

use crate::meter::Meter;
use crate::outbox_id::OutboxId;
use crate::session::SessionRun;
use crate::timer::Alarm;

/// Maximum number of unleased draws made final per lock hold.
pub(super) const MAX_FINISHED_PER_LOCK: usize = 1024;

/// Maximum number of draws returned per lock hold. Larger than a typical batch: while a batch is
/// only partly returned, other calls may sample a younger item ahead of an older one.
pub(super) const MAX_RETURNED_PER_LOCK: usize = 8192;

/// Number of items of an insert for which memory is prefetched together.
const PREFETCHED_ITEMS: usize = 16;

/// What a table's lock protects.
#[derive(Debug)]
pub(super) struct LockedTable {
    pub(super) state: TableState,
    /// Waiting calls, by ticket id.
    pub(super) inserts: BTreeMap<u64, WaitingInsert>,
    /// Waiting calls, by ticket id.
    pub(super) samples: BTreeMap<u64, WaitingSample>,
    pub(super) last_ticket_id: u64,
    /// True while a thread is responsible for serving calls that could not be served in one lock hold.
    pub(super) is_being_served: bool,
    /// Why the table was closed; `None` while it is open.
    pub(super) close_reason: Option<Error>,
    pub(super) meter: Meter,
    /// As in [`TableInfo`](crate::TableInfo).
    pub(super) unreadable_items: u64,
    /// The last alarm for an item that expires.
    pub(super) expiry_alarm: Option<Alarm>,
}

/// An insert in the queue.
#[derive(Debug)]
pub(super) struct WaitingInsert {
    /// Items that are not in the table yet.
    pub(super) items: VecDeque<NewItem>,
    /// Position in the session; `None` for an insert without a session.
    pub(super) cursor: Option<SessionCursor>,
    /// Number of items at the front whose memory in the table was prefetched.
    pub(super) prefetched: usize,
    /// The outbox that the items are from; `None` for an insert without one.
    pub(super) outbox: Option<OutboxId>,
    /// True if an item whose key exists only updates the existing item's priority.
    pub(super) updates_existing: bool,
    pub(super) waker: Option<Waker>,
}

impl WaitingInsert {
    /// Takes the first item from the queue if possible: inserts it, skips it if it was already applied, or updates the
    /// existing item's priority. Returns true if it has taken the item.
    fn serve_first(
        &mut self,
        state: &mut TableState,
        meter: &mut Meter,
        after: &mut AfterUnlock,
        now: u64,
    ) -> bool {
        let number = self.cursor.map(|cursor| cursor.next);
        let applied = number.is_some_and(|number| state.is_applied(number, now));
        let item = self.items.front().filter(|_| self.updates_existing);
        let update = item.map(|item| (item.key, item.priority));
        let updated = update.is_some() && state.update(update.into_iter()) > 0;
        let needs_no_insert = applied || updated;
        let ready = |item: &NewItem| needs_no_insert || state.admit(item) == Admission::Ready;
        if !self.items.front().is_some_and(ready) {
            return false;
        }
        let Some(item) = self.items.pop_front() else {
            return false;
        };
        if let Some(cursor) = &mut self.cursor {
            cursor.next.number += 1;
        }
        if needs_no_insert {
            after.deferred.add(item);
        } else {
            let inserted = state.insert_numbered(item, number, now, &mut after.deferred);
            meter.inserts += u64::from(inserted);
        }
        true
    }
}

/// The origin of a waiting insert: inserts with the same origin count as one in `TableInfo::waiting_inserts`.
#[derive(PartialEq, Eq, Hash)]
enum InsertOrigin {
    Outbox(OutboxId),
    Session(u64),
    /// A call without outbox and session: its ticket id.
    Call(u64),
}

/// Position of a waiting insert in its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionCursor {
    /// Session and number of the first item that is not in the table yet.
    next: SessionNumber,
    /// True if the wait was reported to the table state, so that the session does not become idle.
    wait_reported: bool,
}

impl From<SessionRun> for SessionCursor {
    fn from(run: SessionRun) -> Self {
        let next = SessionNumber {
            session: run.session,
            number: run.first_number,
        };
        Self {
            next,
            wait_reported: false,
        }
    }
}

/// A sample in the queue.
#[derive(Debug)]
pub(super) struct WaitingSample {
    /// Maximum number of draws.
    pub(super) n: usize,
    /// Minimum number of draws: with these, the call can return.
    pub(super) at_least: usize,
    pub(super) draws: Vec<Draw>,
    /// True if the call is complete and receives no further draws.
    pub(super) served: bool,
    pub(super) waker: Option<Waker>,
}

impl WaitingSample {
    /// True if the call can return with the draws it has.
    pub(super) fn can_return(&self) -> bool {
        self.served || self.draws.len() >= self.at_least
    }
}

/// What this thread must do after it unlocks the table: free memory, wake tasks, and perhaps continue to serve waiting
/// calls.
#[derive(Default)]
pub(super) struct AfterUnlock {
    /// Removed items, to free.
    pub(super) deferred: DeferredDrops,
    /// Discarded draws, to free.
    pub(super) draws: Vec<Vec<Draw>>,
    /// Items that need not be inserted, to free.
    pub(super) items: Vec<NewItem>,
    /// Tasks to wake.
    pub(super) wakers: Vec<Waker>,
    /// True if serving stopped because the lock hold became too long.
    pub(super) work_left: bool,
    /// True if this thread must lock again and continue serving.
    pub(super) keeps_serving: bool,
}

impl LockedTable {
    pub(super) fn check_open(&self) -> Result<()> {
        self.close_reason.clone().map_or(Ok(()), Err)
    }

    pub(super) fn new_ticket_id(&mut self) -> u64 {
        self.last_ticket_id += 1;
        self.last_ticket_id
    }

    /// Removes a sample from the queue and returns its draws. Unless they are leased, makes the first
    /// `MAX_FINISHED_PER_LOCK` draws final; the caller must do the same for the rest.
    pub(super) fn finish_sample(
        &mut self,
        id: u64,
        leased: bool,
        after: &mut AfterUnlock,
    ) -> Vec<Draw> {
        let sample = self.samples.remove(&id);
        let draws = sample.map(|sample| sample.draws).unwrap_or_default();
        if !leased {
            let first = draws.iter().take(MAX_FINISHED_PER_LOCK);
            self.state
                .acknowledge(first.map(|draw| draw.handle), &mut after.deferred);
        }
        draws
    }

    /// Serves waiting calls. If one lock hold is not enough, decides whether this thread continues.
    pub(super) fn serve(&mut self, after: &mut AfterUnlock, now: u64) {
        self.meter.tick(now);
        after.work_left = self.close_reason.is_none() && self.serve_some(after, now);
        if after.work_left && !self.is_being_served {
            self.is_being_served = true;
            after.keeps_serving = true;
        } else if !after.work_left && after.keeps_serving {
            self.is_being_served = false;
            after.keeps_serving = false;
        }
    }

    /// Lets the task of the first waiting sample continue serving: it is woken after the unlock. Returns true if so;
    /// false if no sample waits, or if that sample has no task that could be woken. Inserts are not considered: their
    /// writers may not poll them for a long time.
    pub(super) fn hand_over(&mut self, after: &mut AfterUnlock) -> bool {
        let sample = self.first_unserved_sample();
        let waker = sample.and_then(|id| self.samples.get_mut(&id)?.waker.take());
        let Some(waker) = waker else {
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
        let step = self.state.max_items_per_lock_hold();
        let mut budget = step;
        let mut next_sample = self.first_unserved_sample();
        while budget > 0 {
            let mut progressed = false;
            if self.state.must_shrink() {
                self.state.shrink(&mut after.deferred);
                budget = budget.saturating_sub(MAX_REMOVALS_PER_CALL);
                progressed = true;
            } else if !self.inserts.is_empty() {
                // While a sample waits, each insert may allow it.
                let max = if next_sample.is_none() { budget } else { 1 };
                let taken = self.serve_insert(max, after, now);
                budget -= taken.unwrap_or(0).saturating_sub(1); // one is subtracted below
                progressed = taken.is_some();
            }
            if let Some(id) = next_sample
                && let Some(sample) = self.samples.get_mut(&id)
            {
                let missing = sample.n - sample.draws.len();
                // Always leased, so that the draws can be returned at a deadline.
                let drawn = self.state.draw(
                    missing.min(step),
                    true,
                    &mut sample.draws,
                    &mut after.deferred,
                );
                self.meter.samples += drawn as u64;
                progressed |= drawn > 0;
                budget = budget.saturating_sub(drawn);
                // With fewer than `n` draws, a sample is complete only once nothing more can be drawn.
                sample.served =
                    sample.draws.len() == sample.n || (!progressed && sample.can_return());
                if sample.served {
                    after.wakers.extend(sample.waker.take());
                    next_sample = self.first_unserved_sample();
                }
            }
            if !progressed {
                return false;
            }
            budget = budget.saturating_sub(1);
        }
        true
    }

    /// Takes the first waiting items from the queue, at most `max`, as far as possible: inserts each, skips it if it was
    /// already applied, or updates the existing item's priority. Returns the number of items taken; `None` if the queue
    /// has not changed.
    fn serve_insert(&mut self, max: usize, after: &mut AfterUnlock, now: u64) -> Option<usize> {
        let mut entry = self.inserts.first_entry()?;
        let insert = entry.get_mut();
        if insert.prefetched == 0 {
            insert.prefetched = insert.items.len().min(PREFETCHED_ITEMS);
            let next = insert.items.iter().take(insert.prefetched);
            self.state.prefetch_inserts(next);
        }
        let mut taken = 0;
        if insert.cursor.is_none() && !insert.updates_existing {
            let max = max.min(insert.prefetched);
            let deferred = &mut after.deferred;
            let inserted;
            (taken, inserted) = self.state.insert_run(&mut insert.items, max, now, deferred);
            self.meter.inserts += inserted as u64;
        }
        if taken == 0 && insert.serve_first(&mut self.state, &mut self.meter, after, now) {
            taken = 1;
        }
        insert.prefetched = insert.prefetched.saturating_sub(taken);
        // Wakes the server's task, which reports each inserted item, or a writer, which may continue when few of its items
        // wait.
        if taken > 0 && (insert.cursor.is_some() || insert.outbox.is_some()) {
            after.wakers.extend(insert.waker.take());
        }
        if insert.items.is_empty() {
            let insert = entry.remove();
            self.end_wait(insert.cursor, now);
            after.wakers.extend(insert.waker);
            // The next insert in the queue may proceed now.
            return Some(taken);
        }
        (taken > 0).then_some(taken)
    }

    /// Reports to the table state that the insert with this ticket id waits, so that its session does not become idle.
    pub(super) fn begin_wait(&mut self, id: u64, now: u64) {
        let insert = self.inserts.get_mut(&id);
        if let Some(cursor) = insert.and_then(|insert| insert.cursor.as_mut()) {
            cursor.wait_reported = true;
            self.state.begin_wait(cursor.next.session, now);
        }
    }

    /// Reports to the table state that an insert with this cursor no longer waits, if its wait was
    /// reported.
    pub(super) fn end_wait(&mut self, cursor: Option<SessionCursor>, now: u64) {
        if let Some(cursor) = cursor.filter(|cursor| cursor.wait_reported) {
            self.state.end_wait(cursor.next.session, now);
        }
    }

    /// As in [`TableInfo`](crate::TableInfo).
    pub(super) fn waiting_inserts(&self) -> usize {
        let origins = self.inserts.iter().map(|(id, insert)| {
            let session = insert.cursor.map(|cursor| cursor.next.session);
            match (insert.outbox, session) {
                (Some(outbox), _) => InsertOrigin::Outbox(outbox),
                (None, Some(session)) => InsertOrigin::Session(session),
                (None, None) => InsertOrigin::Call(*id),
            }
        });
        origins.collect::<HashSet<_>>().len()
    }

    /// As in [`TableInfo`](crate::TableInfo).
    pub(super) fn waiting_samples(&self) -> usize {
        let samples = self.samples.values();
        samples.filter(|sample| !sample.served).count()
    }

    /// Id of the first waiting sample that is not complete.
    pub(super) fn first_unserved_sample(&self) -> Option<u64> {
        self.samples
            .iter()
            .find(|(_, sample)| !sample.served)
            .map(|(id, _)| *id)
    }
}
