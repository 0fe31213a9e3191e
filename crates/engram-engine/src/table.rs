//! A table behind its lock, and the queues of those who wait for it.
//!
//! Whoever changes a table serves the waiting calls it can, in order, before letting go: an
//! insert that makes a batch complete also hands it over. A hold does a bounded amount of work.

mod serve;
mod tickets;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::task::{Poll, Waker};

use engram_core::table::{SnapshotBuffers, SnapshotStep};
use engram_core::{
    DeferredDrops, Error, Handle, NewItem, OpSink, RateLimits, Result, Snapshot, TableOptions,
    TableState,
};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::fair_mutex::FairMutex;
use crate::session::Session;
use crate::table_info::{Meter, TableInfo};
use crate::ticket::{InsertTicket, JournalSpace, SampleTicket, UntilDurable};
use serve::{AfterUnlock, LockedTable, SessionCursor, WaitingInsert, WaitingSample};
pub(crate) use tickets::TicketState;

/// Unleased draws made final under one hold at most.
const FINISH: usize = 1024;

/// Draws given back under one hold at most. More than a batch: until all are back, others may
/// find a younger item where an older one belongs.
const GIVE_BACK: usize = 8192;

/// Holds that one thread spends on others' calls before it wakes one of them to go on itself.
const ROUNDS: usize = 4;

/// Draws whose place is made before the table is locked.
const PREPARED: usize = 1 << 20;

/// A table that callers may wait for.
#[derive(Debug)]
pub struct Table {
    /// Among those of its store, where that has a directory.
    number: u64,
    options: Arc<TableOptions>,
    clock: Arc<dyn Clock>,
    pub(crate) sink: Arc<dyn OpSink>,
    shared: FairMutex<LockedTable>,
    snapshots: Mutex<()>,
}

impl Table {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the options make no sense.
    pub fn new(
        options: TableOptions,
        clock: Arc<dyn Clock>,
        sink: Arc<dyn OpSink>,
    ) -> Result<Self> {
        let state = TableState::new(Arc::new(options), Arc::clone(&sink))?;
        Ok(Self::with(state, 0, clock, sink))
    }

    /// A table that is there already, and records its changes in `sink`.
    pub(crate) fn with(
        state: TableState,
        number: u64,
        clock: Arc<dyn Clock>,
        sink: Arc<dyn OpSink>,
    ) -> Self {
        let options = Arc::clone(state.options());
        let shared = FairMutex::new(LockedTable {
            state,
            inserts: BTreeMap::new(),
            samples: BTreeMap::new(),
            next_ticket: 0,
            draining: false,
            closed: None,
            meter: Meter::default(),
        });
        Self {
            number,
            options,
            clock,
            sink,
            shared,
            snapshots: Mutex::default(),
        }
    }

    /// Its number among those of its store, where that has a directory.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Waits until every change so far is as safe as the store promises.
    #[must_use]
    pub fn until_durable(&self) -> UntilDurable {
        UntilDurable::new(&self.sink)
    }

    /// Where more can be told, should too much wait to be written.
    #[must_use]
    pub fn journal_space(&self) -> Option<JournalSpace> {
        let has_room = self.sink.poll_room(Waker::noop());
        (!matches!(has_room, Poll::Ready(Ok(())))).then(|| JournalSpace::new(&self.sink))
    }

    /// What it was made with; the limits may have changed since.
    #[must_use]
    pub fn options(&self) -> &Arc<TableOptions> {
        &self.options
    }

    /// Runs `work` under the lock, then serves whoever can be served now.
    fn change<R>(&self, work: impl FnOnce(&mut LockedTable, &mut AfterUnlock, u64) -> R) -> R {
        let mut after = AfterUnlock::default();
        let result = {
            let (mut shared, now) = self.lock(&mut after);
            let result = work(&mut shared, &mut after, now);
            shared.serve(&mut after, now);
            result
        };
        for round in 0.. {
            after.wakers.drain(..).for_each(Waker::wake);
            after.deferred = DeferredDrops::default();
            after.draws.clear();
            after.items.clear();
            if !after.drains {
                break;
            }
            let (mut shared, now) = self.lock(&mut after);
            if round < ROUNDS || !shared.hand_over(&mut after) {
                shared.serve(&mut after, now);
            }
        }
        result
    }

    /// Locks the table, without the items that have expired by now.
    fn lock(&self, after: &mut AfterUnlock) -> (MutexGuard<'_, LockedTable>, u64) {
        loop {
            let mut shared = self.shared.lock();
            let now = self.clock.now();
            if shared.state.expire(now, &mut after.deferred) {
                return (shared, now);
            }
            // Many expire at once: others get their turn, and what is gone is freed.
            drop(shared);
            after.deferred = DeferredDrops::default();
        }
    }

    /// Inserts items in order, waiting for the limiter where it must.
    ///
    /// # Errors
    /// What [`TableOptions::check_item`] finds, before any item is inserted; [`Error::Closed`].
    pub fn insert(self: &Arc<Self>, items: Vec<NewItem>) -> Result<InsertTicket> {
        self.insert_with(items, None, false)
    }

    /// As [`Table::insert`]; an item whose key is there when its turn comes gives that one its priority,
    /// and waits for nothing else.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub fn insert_or_update(self: &Arc<Self>, items: Vec<NewItem>) -> Result<InsertTicket> {
        self.insert_with(items, None, true)
    }

    /// As [`Table::insert`], for items that may come again: those of a session's numbers that are
    /// applied already are acknowledged and left out.
    ///
    /// A number is applied when its item enters, or is left out because its key is there already.
    /// Items withdrawn before that keep their numbers free. A session sends its items in order: a
    /// number below one that was applied counts as applied. Sessions that neither insert nor wait
    /// for [`SESSION_IDLE`](engram_core::table::SESSION_IDLE) are forgotten.
    ///
    /// # Errors
    /// As [`Table::insert`]; [`Error::InvalidArgument`] for numbers out of range.
    pub fn insert_numbered(
        self: &Arc<Self>,
        items: Vec<NewItem>,
        session: Option<Session>,
    ) -> Result<InsertTicket> {
        self.insert_with(items, session, false)
    }

    fn insert_with(
        self: &Arc<Self>,
        items: Vec<NewItem>,
        session: Option<Session>,
        updates: bool,
    ) -> Result<InsertTicket> {
        for item in &items {
            self.options.check_item(item)?;
        }
        let last = session.map(|session| session.last(items.len(), &self.options.name));
        let last = last.transpose()?;
        self.change(|shared, after, now| {
            shared.check_open()?;
            let id = shared.take_number();
            if last.is_some_and(|last| shared.state.is_applied(last, now)) {
                // Nobody need wait behind others to hear that all is done.
                after.items = items;
                return Ok(InsertTicket::new(self, id, Some(shared.state.last_lsn())));
            }
            let wait = WaitingInsert {
                items: items.into(),
                numbers: session.map(SessionCursor::from),
                updates,
                waker: None,
            };
            shared.inserts.insert(id, wait);
            shared.serve(after, now);
            // Most inserts are served at once: their tickets need not ask again.
            let applied = !shared.inserts.contains_key(&id);
            if !applied && session.is_some() {
                shared.begin_wait(id, now);
            }
            Ok(InsertTicket::new(
                self,
                id,
                applied.then(|| shared.state.last_lsn()),
            ))
        })
    }

    /// Samples exactly `n` items, waiting for them where it must.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] when no waiting would help; [`Error::Closed`].
    pub fn sample(self: &Arc<Self>, n: usize, leased: bool) -> Result<SampleTicket> {
        self.sample_some(n, n, leased)
    }

    /// Samples up to `n` items, waiting only until there are `at_least` so many.
    ///
    /// # Errors
    /// As [`Self::sample`]; [`Error::InvalidArgument`] unless `at_least` is 1 to `n`.
    pub fn sample_some(
        self: &Arc<Self>,
        n: usize,
        at_least: usize,
        leased: bool,
    ) -> Result<SampleTicket> {
        if at_least > n || (at_least == 0 && n > 0) {
            return Err(Error::InvalidArgument(format!(
                "at least {at_least} of {n} samples; 1 to {n} are allowed"
            )));
        }
        let mut direct = Vec::with_capacity(n.min(PREPARED));
        let id = self.change(|shared, after, _| {
            shared.check_open()?;
            shared.state.check_sample(at_least)?;
            if shared.samples.is_empty() && shared.state.can_draw_at_once(n) {
                let drawn = shared
                    .state
                    .draw(n, leased, &mut direct, &mut after.deferred);
                shared.meter.samples += drawn as u64;
                return Ok(None);
            }
            let id = shared.take_number();
            shared.samples.insert(
                id,
                WaitingSample {
                    n,
                    at_least,
                    served: n == 0,
                    draws: std::mem::take(&mut direct),
                    waker: None,
                },
            );
            Ok(Some(id))
        })?;
        Ok(SampleTicket::new(self, (n, at_least), leased, id, direct))
    }

    /// Sets priorities; returns how many of the keys were there.
    ///
    /// # Errors
    /// [`Error::Priority`] for a bad one, [`Error::InvalidArgument`] for unequal lengths: nothing
    /// is changed then. [`Error::Closed`].
    pub fn update_priorities(&self, keys: &[u64], priorities: &[f64]) -> Result<usize> {
        self.options.check_updates(keys, priorities)?;
        self.in_steps(keys.len(), |shared, _, some| {
            shared.check_open()?;
            let (keys, priorities) = (&keys[some.clone()], &priorities[some]);
            let updates = keys.iter().copied().zip(priorities.iter().copied());
            Ok(shared.state.update(updates))
        })
    }

    /// Deletes items; returns how many of the keys were there.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn delete(&self, keys: &[u64]) -> Result<usize> {
        self.in_steps(keys.len(), |shared, after, some| {
            shared.check_open()?;
            Ok(shared.state.delete(&keys[some], &mut after.deferred))
        })
    }

    /// Does `work` on as much of `0..len` at a time as one hold may; returns the sum.
    fn in_steps(
        &self,
        len: usize,
        work: impl Fn(&mut LockedTable, &mut AfterUnlock, Range<usize>) -> Result<usize>,
    ) -> Result<usize> {
        let (mut done, mut sum) = (0, 0);
        while done < len {
            sum += self.change(|shared, after, _| {
                let some = done..len.min(done + shared.state.items_per_lock_hold());
                done = some.end;
                work(shared, after, some)
            })?;
        }
        Ok(sum)
    }

    /// Forgets all items and counts. Waiting calls go on waiting, for the empty table.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn reset(&self) -> Result<()> {
        self.change(|shared, after, _| {
            shared.check_open()?;
            shared.state.reset(&mut after.deferred);
            // Draws of unfinished batches are void: their items are gone.
            let waiting = shared.samples.values_mut();
            let void = waiting.map(|wait| {
                wait.served = wait.n == 0;
                std::mem::take(&mut wait.draws)
            });
            after.draws.extend(void);
            Ok(())
        })
    }

    /// Changes the limiter's bounds; its counts stay.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for impossible ones; [`Error::Closed`].
    pub fn set_limits(&self, limits: RateLimits) -> Result<()> {
        self.change(|shared, _, _| {
            shared.check_open()?;
            shared.state.set_limits(limits)
        })
    }

    /// Ends every waiting call with `reason`, and every later one; frees what the table holds.
    pub fn close(&self, reason: Error) {
        self.change(|shared, after, _| {
            shared.closed.get_or_insert(reason);
            let wakers = shared.inserts.values_mut().map(|wait| &mut wait.waker);
            let wakers = wakers.chain(shared.samples.values_mut().map(|wait| &mut wait.waker));
            after.wakers.extend(wakers.filter_map(Option::take));
            shared.state.discard(&mut after.deferred);
        });
    }

    /// True once nobody may wait here any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed.is_some()
    }

    /// Sizes, rates, and why calls wait.
    #[must_use]
    pub fn info(&self) -> TableInfo {
        self.change(|shared, _, now| {
            let stats = shared.state.stats();
            let (inserts_per_s, samples_per_s) = shared.meter.rates(now);
            let name = &self.options.name;
            let named = |why: Option<String>| why.map(|why| format!("`{name}`: {why}"));
            let leased_out = stats.size > 0 && stats.hidden == stats.size;
            let sampling = stats.limiter.why_sampling_waits().or_else(|| {
                leased_out.then(|| {
                    format!(
                        "sampling waits: all {} items are on their last lease",
                        stats.size
                    )
                })
            });
            let inserting = stats.limiter.why_inserting_waits().or_else(|| {
                let full = stats.size >= self.options.max_size || !shared.inserts.is_empty();
                (full && stats.hidden > 0 && !shared.state.may_evict()).then(|| {
                    format!(
                        "inserting waits for room: {} of {} items are on their last lease",
                        stats.hidden, stats.size
                    )
                })
            });
            TableInfo {
                options: Arc::clone(&self.options),
                inserts_per_s,
                samples_per_s,
                waiting_inserts: shared.inserts.len(),
                waiting_samples: shared.samples.len(),
                inserting_blocked: named(inserting),
                sampling_blocked: named(sampling),
                stats,
            }
        })
    }

    /// The items of one moment during this call, whatever happens afterwards. Taken in steps:
    /// others get the table in between.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        let _one_at_a_time = self.snapshots.lock();
        loop {
            let pages = {
                let mut shared = self.shared.lock();
                // What is left of a table that was closed is not what it was.
                shared.check_open()?;
                shared.state.snapshot_page_counts()
            };
            let room = SnapshotBuffers::new(pages);
            self.shared.lock().state.begin_snapshot(room);
            loop {
                let step = {
                    let mut shared = self.shared.lock();
                    shared.check_open()?;
                    shared.state.continue_snapshot()
                };
                match step {
                    SnapshotStep::More => {}
                    SnapshotStep::Done(snapshot) => return Ok(*snapshot),
                    SnapshotStep::Aborted => break,
                }
            }
        }
    }

    /// May `n` samples be taken now, as far as the limiter goes?
    #[must_use]
    pub fn can_sample(&self, n: u64) -> bool {
        self.change(|shared, _, _| shared.state.limiter().can_sample(n))
    }

    /// May `n` items be inserted now, as far as the limiter goes?
    #[must_use]
    pub fn can_insert(&self, n: u64) -> bool {
        self.change(|shared, _, _| shared.state.limiter().can_insert(n))
    }

    pub(crate) fn acknowledge(&self, handles: &[Handle]) {
        // Also where the table is closed: `work` cannot fail.
        let _ = self.in_steps(handles.len(), |shared, after, some| {
            let handles = handles[some].iter().copied();
            shared.state.acknowledge(handles, &mut after.deferred);
            Ok(0)
        });
    }

    pub(crate) fn return_leases(&self, handles: &[Handle]) {
        // In order and many at once: others should not see half of a batch back in the queue.
        for handles in handles.chunks(GIVE_BACK) {
            self.change(|shared, _, _| shared.state.return_leases(handles.iter().copied()));
        }
    }

    /// Fails where no waiting would help `n` samples.
    pub(crate) fn check_sample(&self, n: usize) -> Result<()> {
        let shared = self.shared.lock();
        shared.check_open()?;
        shared.state.check_sample(n)
    }

    /// Why samples wait now, for the error that ends a wait.
    pub(crate) fn why_sampling_waits(&self) -> String {
        self.info()
            .sampling_blocked
            .map_or_else(String::new, |why| format!("; {why}"))
    }
}
