//! A table behind its lock, with the queues of calls that wait for it.
//!
//! Each call that changes the table also serves the waiting calls that can proceed now, in order,
//! before it releases the lock: for example, an insert completes a sample that waits for the item.
//! The work done per lock hold is bounded. `serve.rs` explains the queues.
//!
//! This file, `expiry.rs`, `tickets.rs`, `ticket.rs` and `lease.rs` import each other: a table returns tickets, which
//! become leases, and creates a waker; each of these refers to its table, to poll it, to withdraw from it when dropped,
//! and to remove expired items.

mod expiry;
mod leases;
mod sample;
mod serve;
pub(crate) mod survey;
mod tickets;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Poll, Waker};

use engram_core::table::{ScanOrder, SnapshotBuffers, SnapshotParts, SnapshotStep};
use engram_core::text::count;
use engram_core::{
    DeferredDrops, Draw, Error, NewItem, OpSink, Printable, RateLimits, Result, Snapshot,
    TableOptions, TableState,
};
use parking_lot::Mutex;

use crate::fair_mutex::FairMutex;
use crate::meter::Meter;
use crate::outbox_id::OutboxId;
use crate::rejected_calls::RejectedCalls;
use crate::session::SessionRun;
use crate::table_context::TableContext;
use crate::table_info::TableInfo;
use crate::table_user::{TableUser, TableUserKind, TableUsers};
use crate::ticket::{InsertTicket, JournalSpace, UntilDurable};
pub use sample::SampleOptions;
use serve::{AfterUnlock, LockedTable, SessionCursor, WaitingInsert};
pub(crate) use tickets::QueueState;

/// Number of additional lock holds after which a thread that serves other callers wakes one of them, which continues.
/// If no caller can be woken, the thread itself continues.
const MAX_EXTRA_LOCK_HOLDS: usize = 4;

/// A table whose insert and sample calls can wait.
#[derive(Debug)]
pub struct Table {
    /// Number in the store's files; 0 in memory.
    number: u64,
    options: Arc<TableOptions>,
    pub(crate) context: Arc<TableContext>,
    pub(crate) sink: Arc<dyn OpSink>,
    state: FairMutex<LockedTable>,
    /// Locked while a snapshot is taken: one at a time.
    snapshot_lock: Mutex<()>,
    /// True once the table was closed: for callers that check it often and need no lock otherwise.
    is_closed: AtomicBool,
    /// Removes expired items when it is woken.
    expiry_waker: Waker,
    users: TableUsers,
    rejected_calls: RejectedCalls,
}

impl Table {
    /// Creates a table with this state, which records its changes in `sink`.
    pub(crate) fn from_state(
        state: TableState,
        number: u64,
        context: &Arc<TableContext>,
        sink: Arc<dyn OpSink>,
    ) -> Arc<Self> {
        let options = Arc::clone(state.options());
        let state = FairMutex::new(LockedTable {
            state,
            inserts: BTreeMap::new(),
            samples: BTreeMap::new(),
            last_ticket_id: 0,
            is_being_served: false,
            close_reason: None,
            meter: Meter::default(),
            unreadable_items: 0,
            expiry_alarm: None,
        });
        Arc::new_cyclic(|table| Self {
            number,
            options,
            context: Arc::clone(context),
            sink,
            state,
            snapshot_lock: Mutex::default(),
            is_closed: AtomicBool::new(false),
            expiry_waker: expiry::waker(table),
            users: TableUsers::default(),
            rejected_calls: RejectedCalls::default(),
        })
    }

    /// The table's number in the store's files; 0 in memory.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns a future that is ready when every change so far is as durable as the store promises.
    #[must_use]
    pub fn until_durable(&self) -> UntilDurable {
        UntilDurable::new(&self.sink)
    }

    /// Returns a ticket to wait for until the journal accepts more changes; `None` if it accepts them
    /// now.
    #[must_use]
    pub fn journal_space(&self) -> Option<JournalSpace> {
        let has_space = self.sink.poll_space(Waker::noop());
        (!matches!(has_space, Poll::Ready(Ok(())))).then(|| JournalSpace::new(&self.sink))
    }

    /// The options that the table was created with. Its limits may have changed since: see
    /// [`Self::info`].
    #[must_use]
    pub fn options(&self) -> &Arc<TableOptions> {
        &self.options
    }

    /// Runs `work` under the lock, serves waiting calls, then frees memory and wakes tasks without the
    /// lock. `work` receives the clock's reading as its last argument.
    fn change<R>(&self, work: impl FnOnce(&mut LockedTable, &mut AfterUnlock, u64) -> R) -> R {
        let mut after = AfterUnlock::default();
        let result = {
            let (mut locked, now) = self.lock(&mut after);
            let result = work(&mut locked, &mut after, now);
            locked.serve(&mut after, now);
            self.set_expiry_alarm(&mut locked, now);
            result
        };
        for extra_lock_holds in 0.. {
            after.wakers.drain(..).for_each(Waker::wake);
            after.deferred = DeferredDrops::default();
            after.draws.clear();
            after.items.clear();
            if !after.keeps_serving {
                break;
            }
            let (mut locked, now) = self.lock(&mut after);
            if extra_lock_holds < MAX_EXTRA_LOCK_HOLDS || !locked.hand_over(&mut after) {
                locked.serve(&mut after, now);
                self.set_expiry_alarm(&mut locked, now);
            }
        }
        result
    }

    /// Locks the table after removing expired items; also returns the clock's reading.
    fn lock(&self, after: &mut AfterUnlock) -> (MutexGuard<'_, LockedTable>, u64) {
        loop {
            let mut locked = self.state.lock();
            let now = self.context.clock.now();
            if locked.state.expire(now, &mut after.deferred) {
                return (locked, now);
            }
            // Many items expired at once: let other threads use the table, and free the removed items.
            drop(locked);
            after.deferred = DeferredDrops::default();
        }
    }

    /// Inserts items in order, waiting for the rate limiter if necessary.
    ///
    /// # Errors
    /// Those of [`TableOptions::check_item`], before any item is inserted; [`Error::Closed`].
    pub fn insert(self: &Arc<Self>, items: Vec<NewItem>) -> Result<InsertTicket> {
        self.check_items(&items)?;
        self.insert_with(items, None, None, false)
    }

    /// Checks an item; counts the call if it must be rejected.
    pub(crate) fn check_item(&self, item: &NewItem) -> Result<()> {
        (self.options.check_item(item)).map_err(|error| self.rejected_calls.count(error))
    }

    fn check_items(&self, items: &[NewItem]) -> Result<()> {
        items.iter().try_for_each(|item| self.check_item(item))
    }

    /// Like [`Table::insert`], for items that the caller has checked with [`Self::check_item`]; all waiting inserts of an
    /// outbox count as one in [`TableInfo::waiting_inserts`].
    pub(crate) fn insert_from_outbox(
        self: &Arc<Self>,
        items: Vec<NewItem>,
        outbox: OutboxId,
    ) -> Result<InsertTicket> {
        self.insert_with(items, None, Some(outbox), false)
    }

    /// Like [`Table::insert`], except for an item whose key the table already has: it only updates the
    /// existing item's priority, without waiting for the rate limiter.
    ///
    /// # Errors
    /// Those of [`Table::insert`].
    pub fn insert_or_update(self: &Arc<Self>, items: Vec<NewItem>) -> Result<InsertTicket> {
        self.check_items(&items)?;
        self.insert_with(items, None, None, true)
    }

    /// Like [`Table::insert`], for items that may be sent again: an item whose number in its session was
    /// already applied is skipped, and counts as inserted. Without a `run`, does what [`Table::insert`] does.
    ///
    /// A number is applied when its item is inserted, or skipped because its key exists.
    /// The numbers of withdrawn items are not applied. A session sends its items in order, so all
    /// numbers below an applied one count as applied. A session is forgotten after
    /// [`SESSION_IDLE`](engram_core::table::SESSION_IDLE) without an insert that is applied or waits.
    ///
    /// # Errors
    /// Those of [`Table::insert`]; [`Error::InvalidArgument`] for numbers out of range.
    pub fn insert_numbered(
        self: &Arc<Self>,
        items: Vec<NewItem>,
        run: Option<SessionRun>,
    ) -> Result<InsertTicket> {
        self.check_items(&items)?;
        self.insert_with(items, run, None, false)
    }

    fn insert_with(
        self: &Arc<Self>,
        items: Vec<NewItem>,
        run: Option<SessionRun>,
        outbox: Option<OutboxId>,
        updates_existing: bool,
    ) -> Result<InsertTicket> {
        let last = run.map(|run| run.last(items.len(), &self.options.name));
        let last = last.transpose()?;
        self.change(|locked, after, now| {
            locked.check_open()?;
            let id = locked.new_ticket_id();
            if last.is_some_and(|last| locked.state.is_applied(last, now)) {
                // All items were applied before: do not queue behind other calls.
                after.items = items;
                return Ok(InsertTicket::new(self, id, Some(locked.state.last_lsn())));
            }
            let wait = WaitingInsert {
                items: items.into(),
                prefetched: 0,
                cursor: run.map(SessionCursor::from),
                outbox,
                updates_existing,
                waker: None,
            };
            locked.inserts.insert(id, wait);
            locked.serve(after, now);
            // Most inserts complete at once: their tickets need not poll the table.
            let applied = !locked.inserts.contains_key(&id);
            if !applied && run.is_some() {
                locked.begin_wait(id, now);
            }
            Ok(InsertTicket::new(
                self,
                id,
                applied.then(|| locked.state.last_lsn()),
            ))
        })
    }

    /// Number of items that could be inserted now without waiting; `u64::MAX` if there is practically no limit, 0 while
    /// inserts wait. `max_bytes` is not considered.
    #[must_use]
    pub fn inserts_allowed(&self) -> u64 {
        let locked = self.state.lock();
        if locked.inserts.is_empty() {
            locked.state.inserts_allowed()
        } else {
            0
        }
    }

    /// Sets priorities; returns how many of the keys exist.
    ///
    /// # Errors
    /// [`Error::Priority`] for an invalid priority, [`Error::InvalidArgument`] for unequal lengths; in
    /// both cases, nothing is changed. [`Error::Closed`].
    pub fn update_priorities(&self, keys: &[u64], priorities: &[f64]) -> Result<usize> {
        let checked = self.options.check_updates(keys, priorities);
        checked.map_err(|error| self.rejected_calls.count(error))?;
        self.in_lock_steps(keys.len(), |locked, _, _, range| {
            locked.check_open()?;
            let (keys, priorities) = (&keys[range.clone()], &priorities[range]);
            let updates = keys.iter().copied().zip(priorities.iter().copied());
            Ok(locked.state.update(updates))
        })
    }

    /// Deletes items; returns how many of the keys existed.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn delete(&self, keys: &[u64]) -> Result<usize> {
        self.in_lock_steps(keys.len(), |locked, after, _, range| {
            locked.check_open()?;
            Ok(locked.state.delete(&keys[range], &mut after.deferred))
        })
    }

    /// Runs `work` on successive parts of `0..len`, each under a lock hold of bounded length; returns
    /// the sum of the results.
    fn in_lock_steps(
        &self,
        len: usize,
        mut work: impl FnMut(&mut LockedTable, &mut AfterUnlock, u64, Range<usize>) -> Result<usize>,
    ) -> Result<usize> {
        let (mut done, mut sum) = (0, 0);
        while done < len {
            sum += self.change(|locked, after, now| {
                let range = done..len.min(done + locked.state.max_items_per_lock_hold());
                done = range.end;
                work(locked, after, now, range)
            })?;
        }
        Ok(sum)
    }

    /// Removes all items and sets the counters to 0; the rates of [`Self::info`] continue. Waiting calls continue to
    /// wait; samples lose the items drawn so far.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn reset(&self) -> Result<()> {
        self.change(|locked, after, _| {
            locked.check_open()?;
            locked.state.reset(&mut after.deferred);
            locked.unreadable_items = 0;
            self.rejected_calls.reset();
            // Waiting samples start again: the items they had drawn are gone.
            let waiting = locked.samples.values_mut();
            let discarded_draws = waiting.map(|sample| {
                sample.served = sample.n == 0;
                std::mem::take(&mut sample.draws)
            });
            after.draws.extend(discarded_draws);
            Ok(())
        })
    }

    /// Changes the rate limiter's limits; its counts stay.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid limits; [`Error::Closed`].
    pub fn set_limits(&self, limits: RateLimits) -> Result<()> {
        self.change(|locked, _, _| {
            locked.check_open()?;
            locked.state.set_limits(limits)
        })
    }

    /// Frees the table's items. Waiting calls that are not complete, and later calls that can return [`Error::Closed`],
    /// end with `reason`. Closing again keeps the first reason.
    pub fn close(&self, reason: Error) {
        self.change(|locked, after, _| {
            locked.close_reason.get_or_insert(reason);
            self.is_closed.store(true, Ordering::Release);
            let wakers = locked.inserts.values_mut().map(|wait| &mut wait.waker);
            let wakers = wakers.chain(locked.samples.values_mut().map(|wait| &mut wait.waker));
            after.wakers.extend(wakers.filter_map(Option::take));
            locked.state.discard(&mut after.deferred);
        });
    }

    /// True once the table was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Lists a writer or reader in [`Self::info`] until the result is dropped.
    #[must_use]
    pub fn add_user(
        &self,
        kind: TableUserKind,
        session: Option<u64>,
        address: &Arc<str>,
    ) -> Arc<TableUser> {
        let user = Arc::new(TableUser::new(kind, session, address));
        self.users.add(&user);
        user
    }

    /// Counts a message of a user with this many items.
    pub fn record_use(&self, user: &TableUser, items: u64) {
        user.record(items, self.context.clock.now());
    }

    /// Counts a call that the table has rejected with this error before it began; returns the error.
    pub fn count_rejected(&self, error: Error) -> Error {
        self.rejected_calls.count(error)
    }

    /// Returns options, sizes, rates, and why calls are blocked.
    #[must_use]
    pub fn info(&self) -> TableInfo {
        let storage_problem = self.sink.problem();
        self.change(|locked, _, now| {
            let stats = locked.state.stats();
            let (inserts_per_s, samples_per_s) = locked.meter.rates(now);
            let name = &self.options.name;
            let with_name = |why: Option<String>| why.map(|why| format!("`{}`: {why}", Printable(name)));
            let all_hidden = stats.size > 0 && stats.hidden_items == stats.size;
            let sampling_blocked = stats.limiter.why_sampling_waits().or_else(|| {
                all_hidden.then(|| {
                    let (have, them) = match stats.size {
                        1 => ("the only item has".into(), "it"),
                        size => (format!("all {size} items have"), "them"),
                    };
                    format!(
                        "sampling waits: {have} reached `max_times_sampled`, and datasets, or `sample` calls that wait \
                         for more items, still hold {them}; insert new items (if the table is full, continue to read \
                         from the datasets first), or close the datasets"
                    )
                })
            });
            let inserting_blocked = stats.limiter.why_inserting_waits(stats.hidden_items).or_else(|| {
                let full = stats.size >= self.options.max_size || !locked.inserts.is_empty();
                (full && stats.hidden_items > 0 && !locked.state.may_evict()).then(|| {
                    format!(
                        "inserting waits: the table is full, and readers still hold {} of {}; continue to \
                         read from their datasets or close them",
                        stats.hidden_items,
                        count(stats.size, "item")
                    )
                })
            });
            TableInfo {
                users: self.users.infos(now),
                rejected_calls: self.rejected_calls.counts(),
                options: Arc::clone(&self.options),
                inserts_per_s,
                samples_per_s,
                waiting_inserts: locked.waiting_inserts(),
                waiting_samples: locked.waiting_samples(),
                inserting_blocked: with_name(inserting_blocked),
                sampling_blocked: with_name(sampling_blocked),
                storage_problem,
                unreadable_items: locked.unreadable_items,
                distribution: locked.state.distribution(),
                stats,
            }
        })
    }

    /// Returns the items as they are at one moment during this call. The snapshot is taken in steps;
    /// other calls can use the table in between.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_of(SnapshotParts::All)
    }

    /// Like [`Self::snapshot`], for some parts of the table.
    pub(crate) fn snapshot_of(&self, parts: SnapshotParts) -> Result<Snapshot> {
        let _snapshot_lock = self.snapshot_lock.lock();
        loop {
            let pages = {
                let mut locked = self.state.lock();
                // A closed table has discarded its items.
                locked.check_open()?;
                locked.state.snapshot_page_counts(parts)
            };
            let buffers = SnapshotBuffers::new(pages);
            (self.state.lock().state).begin_snapshot(parts, buffers);
            loop {
                let step = {
                    let mut locked = self.state.lock();
                    locked.check_open()?;
                    locked.state.continue_snapshot()
                };
                match step {
                    SnapshotStep::More => {}
                    SnapshotStep::Done(snapshot) => return Ok(*snapshot),
                    // A reset has ended the snapshot: begin again.
                    SnapshotStep::Aborted => break,
                }
            }
        }
    }

    /// The items with these keys, at most [`MAX_KEYS_PER_LOOKUP`](engram_core::table::MAX_KEYS_PER_LOOKUP), as they are
    /// now, in the order of a scan. Unknown keys are ignored.
    pub(crate) fn items_with_keys(&self, keys: &[u64], order: ScanOrder) -> Result<Vec<Draw>> {
        self.change(|locked, _, _| {
            locked.check_open()?;
            Ok(locked.state.items_with_keys(keys, order))
        })
    }

    /// Removes expired items: locking the table for a change does that.
    pub(crate) fn expire(&self) -> Result<()> {
        self.change(|locked, _, _| locked.check_open())
    }

    /// Fails if the table was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if !self.is_closed() {
            return Ok(());
        }
        self.state.lock().check_open()
    }

    /// True if the rate limiter allows `n` samples now. Items that have reached `max_times_sampled` and are still
    /// leased do not count for the limiter's `min_size`.
    #[must_use]
    pub fn can_sample(&self, n: u64) -> bool {
        self.change(|locked, _, _| locked.state.can_sample(n))
    }

    /// True if `n` inserts would not wait now: the rate limiter allows them, and `max_size` leaves space or items may
    /// be evicted. `max_bytes` is not considered.
    #[must_use]
    pub fn can_insert(&self, n: u64) -> bool {
        self.change(|locked, _, _| locked.state.can_insert(n))
    }

    /// Fails if the table can never yield `n` samples.
    pub(crate) fn check_sample(&self, n: usize) -> Result<()> {
        let locked = self.state.lock();
        locked.check_open()?;
        locked.state.check_sample(n)
    }
}
