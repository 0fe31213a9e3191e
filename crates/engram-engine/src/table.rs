//! A table behind its lock, and the queues of those who wait for it.
//!
//! Whoever changes a table serves the waiting calls it can, in order, before letting go: an
//! insert that makes a batch complete also hands it over. A hold does a bounded amount of work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use engram_core::table::Admission;
use engram_core::{
    Draw, Error, Handle, Lsn, NewItem, OpSink, RateLimits, Result, Snapshot, TableOptions,
    TableState, Trash,
};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::info::{Meter, TableInfo};
use crate::ticket::{InsertTicket, SampleTicket};

/// Items inserted, updated or deleted under one hold at most.
const BATCH: usize = 1024;

/// A table that callers may wait for.
#[derive(Debug)]
pub struct Table {
    options: Arc<TableOptions>,
    clock: Arc<dyn Clock>,
    pub(crate) sink: Arc<dyn OpSink>,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: TableState,
    inserts: BTreeMap<u64, InsertWait>,
    samples: BTreeMap<u64, SampleWait>,
    next_ticket: u64,
    /// Set once nobody may wait here any more.
    closed: Option<Error>,
    meter: Meter,
}

#[derive(Debug)]
struct InsertWait {
    items: VecDeque<NewItem>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct SampleWait {
    n: usize,
    draws: Vec<Draw>,
    waker: Option<Waker>,
}

/// What is left to do once the lock is released.
#[derive(Default)]
struct Aside {
    trash: Trash,
    wakers: Vec<Waker>,
    more: bool,
}

/// How a ticket stands.
pub(crate) enum Progress<T> {
    Waiting,
    Done(T),
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
        let options = Arc::new(options);
        let state = TableState::new(Arc::clone(&options), Arc::clone(&sink))?;
        let shared = Mutex::new(Shared {
            state,
            inserts: BTreeMap::new(),
            samples: BTreeMap::new(),
            next_ticket: 0,
            closed: None,
            meter: Meter::default(),
        });
        Ok(Self {
            options,
            clock,
            sink,
            shared,
        })
    }

    /// What it was made with; the limits may have changed since.
    #[must_use]
    pub fn options(&self) -> &Arc<TableOptions> {
        &self.options
    }

    /// Runs `work` under the lock, then serves whoever can be served now.
    fn change<R>(&self, work: impl FnOnce(&mut Shared, &mut Aside, u64) -> R) -> R {
        let mut aside = Aside::default();
        let result = {
            let mut shared = self.shared.lock();
            let now = self.clock.now();
            let result = work(&mut shared, &mut aside, now);
            shared.serve(&mut aside, now);
            result
        };
        loop {
            let Aside {
                trash,
                wakers,
                more,
            } = std::mem::take(&mut aside);
            wakers.into_iter().for_each(Waker::wake);
            drop(trash);
            if !more {
                return result;
            }
            let mut shared = self.shared.lock();
            let now = self.clock.now();
            shared.serve(&mut aside, now);
        }
    }

    /// Inserts items in order, waiting for the limiter where it must.
    ///
    /// # Errors
    /// What [`TableOptions::check_item`] finds, before any item is inserted; [`Error::Closed`].
    pub fn insert(self: &Arc<Self>, items: Vec<NewItem>) -> Result<InsertTicket> {
        for item in &items {
            self.options.check_item(item)?;
        }
        self.change(|shared, aside, now| {
            shared.check_open()?;
            let id = shared.take_number();
            let wait = InsertWait {
                items: items.into(),
                waker: None,
            };
            shared.inserts.insert(id, wait);
            shared.serve(aside, now);
            // Most inserts are served at once: their tickets need not ask again.
            let applied = !shared.inserts.contains_key(&id);
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
    /// [`Error::NeverServed`] when no waiting would help; [`Error::Closed`].
    pub fn sample(self: &Arc<Self>, n: usize, leased: bool) -> Result<SampleTicket> {
        let mut direct = Vec::new();
        let id = self.change(|shared, aside, now| {
            shared.check_open()?;
            shared.state.check_sample(n)?;
            while !shared.state.expire(now, &mut aside.trash) {}
            if shared.samples.is_empty() && shared.state.can_draw_at_once(n) {
                shared.draw(n, leased, &mut direct, aside);
                return Ok(None);
            }
            let id = shared.take_number();
            shared.samples.insert(
                id,
                SampleWait {
                    n,
                    draws: Vec::new(),
                    waker: None,
                },
            );
            Ok(Some(id))
        })?;
        Ok(SampleTicket::new(self, n, leased, id, direct))
    }

    /// Sets priorities; returns how many of the keys were there.
    ///
    /// # Errors
    /// [`Error::Priority`] for a bad one, [`Error::InvalidArgument`] for unequal lengths: nothing
    /// is changed then. [`Error::Closed`].
    pub fn update_priorities(&self, keys: &[u64], priorities: &[f64]) -> Result<usize> {
        if keys.len() != priorities.len() {
            return Err(Error::InvalidArgument(format!(
                "{} keys and {} priorities for table `{}`; there must be one priority per key",
                keys.len(),
                priorities.len(),
                self.options.name
            )));
        }
        for priority in priorities {
            self.options.check_priority(*priority)?;
        }
        let mut matched = 0;
        for (keys, priorities) in keys.chunks(BATCH).zip(priorities.chunks(BATCH)) {
            matched += self.change(|shared, _, _| {
                shared.check_open()?;
                let updates = keys.iter().copied().zip(priorities.iter().copied());
                Ok(shared.state.update(updates))
            })?;
        }
        Ok(matched)
    }

    /// Deletes items; returns how many of the keys were there.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn delete(&self, keys: &[u64]) -> Result<usize> {
        let mut matched = 0;
        for keys in keys.chunks(BATCH) {
            matched += self.change(|shared, aside, _| {
                shared.check_open()?;
                Ok(shared.state.delete(keys, &mut aside.trash))
            })?;
        }
        Ok(matched)
    }

    /// Forgets all items and counts. Waiting calls go on waiting, for the empty table.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn reset(&self) -> Result<()> {
        self.change(|shared, aside, _| {
            shared.check_open()?;
            shared.state.reset(&mut aside.trash);
            // Draws of unfinished batches are void: their items are gone.
            shared
                .samples
                .values_mut()
                .for_each(|wait| wait.draws.clear());
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

    /// Ends every waiting call with `reason`, and every later one.
    pub fn close(&self, reason: Error) {
        self.change(|shared, aside, _| {
            shared.closed.get_or_insert(reason);
            let wakers = shared.inserts.values_mut().map(|wait| &mut wait.waker);
            let wakers = wakers.chain(shared.samples.values_mut().map(|wait| &mut wait.waker));
            aside.wakers.extend(wakers.filter_map(Option::take));
        });
    }

    /// Sizes, rates, and why calls wait.
    #[must_use]
    pub fn info(&self) -> TableInfo {
        self.change(|shared, aside, now| {
            while !shared.state.expire(now, &mut aside.trash) {}
            let stats = shared.state.stats();
            let (inserts_per_s, samples_per_s) = shared.meter.rates(now);
            let name = &self.options.name;
            let named = |why: Option<String>| why.map(|why| format!("`{name}`: {why}"));
            let leased_out = stats.size > 0 && stats.hidden == stats.size;
            let sampling = stats.limiter.why_no_sample().or_else(|| {
                leased_out.then(|| {
                    format!(
                        "sampling waits: all {} items are on their last lease",
                        stats.size
                    )
                })
            });
            let inserting = stats.limiter.why_no_insert().or_else(|| {
                (leased_out && stats.size >= self.options.max_size).then(|| {
                    format!(
                        "inserting waits: all {} items are on their last lease",
                        stats.size
                    )
                })
            });
            TableInfo {
                name: name.clone(),
                max_size: self.options.max_size,
                max_bytes: self.options.max_bytes,
                max_times_sampled: self.options.max_times_sampled,
                ttl: self.options.ttl,
                sampler: self.options.sampler,
                remover: self.options.remover,
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

    /// The items of this moment, whatever happens afterwards.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.lock().state.snapshot()
    }

    /// May `n` samples be taken now, as far as the limiter goes?
    #[must_use]
    pub fn can_sample(&self, n: u64) -> bool {
        self.shared.lock().state.limiter().can_sample(n)
    }

    /// May `n` items be inserted now, as far as the limiter goes?
    #[must_use]
    pub fn can_insert(&self, n: u64) -> bool {
        self.shared.lock().state.limiter().can_insert(n)
    }

    pub(crate) fn acknowledge(&self, handles: &[Handle]) {
        for handles in handles.chunks(BATCH) {
            self.change(|shared, aside, _| {
                shared
                    .state
                    .acknowledge(handles.iter().copied(), &mut aside.trash);
            });
        }
    }

    pub(crate) fn give_back(&self, handles: &[Handle]) {
        // All under one hold: others must not see half of a batch back in the queue.
        self.change(|shared, _, _| shared.state.give_back(handles.iter().copied()));
    }

    /// Whether all items of an insert are in; remembers the waker otherwise.
    pub(crate) fn poll_insert(&self, id: u64, waker: &Waker) -> Result<Progress<Lsn>> {
        self.change(|shared, aside, now| {
            while !shared.state.expire(now, &mut aside.trash) {}
            let lsn = shared.state.last_lsn();
            match shared.inserts.get_mut(&id) {
                None => Ok(Progress::Done(lsn)),
                Some(wait) => {
                    wait.waker = Some(waker.clone());
                    shared.check_open().map(|()| Progress::Waiting)
                }
            }
        })
    }

    /// Items of an insert that are not in yet; they never will be.
    pub(crate) fn withdraw_insert(&self, id: u64) -> usize {
        let wait = self.change(|shared, _, _| shared.inserts.remove(&id));
        wait.map_or(0, |wait| wait.items.len())
    }

    /// Whether all draws of a sample are there; remembers the waker otherwise.
    pub(crate) fn poll_sample(
        &self,
        id: u64,
        leased: bool,
        waker: &Waker,
    ) -> Result<Progress<Vec<Draw>>> {
        self.change(|shared, aside, now| {
            while !shared.state.expire(now, &mut aside.trash) {}
            let Some(wait) = shared.samples.get_mut(&id) else {
                return Ok(Progress::Done(Vec::new()));
            };
            if wait.draws.len() < wait.n {
                wait.waker = Some(waker.clone());
                return shared.check_open().map(|()| Progress::Waiting);
            }
            Ok(Progress::Done(shared.finish_sample(id, leased, aside)))
        })
    }

    /// Ends a sample early: returns its draws so far if `keep`, else puts them back; and how many.
    pub(crate) fn withdraw_sample(&self, id: u64, leased: bool, keep: bool) -> (Vec<Draw>, usize) {
        self.change(|shared, aside, _| {
            if keep {
                let draws = shared.finish_sample(id, leased, aside);
                let count = draws.len();
                return (draws, count);
            }
            let draws = shared
                .samples
                .remove(&id)
                .map(|wait| wait.draws)
                .unwrap_or_default();
            shared.state.give_back(draws.iter().map(|draw| draw.handle));
            (Vec::new(), draws.len())
        })
    }

    /// Why samples wait now, for the error that ends a wait.
    pub(crate) fn why_no_sample(&self) -> String {
        self.info()
            .sampling_blocked
            .map_or_else(String::new, |why| format!("; {why}"))
    }
}

impl Shared {
    fn check_open(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    fn take_number(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn draw(&mut self, n: usize, leased: bool, draws: &mut Vec<Draw>, aside: &mut Aside) -> usize {
        let count = self.state.draw(n, leased, draws, &mut aside.trash);
        self.meter.samples += count as u64;
        count
    }

    /// Takes a sample out of the queue with what it has; unleased ones are final now.
    fn finish_sample(&mut self, id: u64, leased: bool, aside: &mut Aside) -> Vec<Draw> {
        let draws = self
            .samples
            .remove(&id)
            .map(|wait| wait.draws)
            .unwrap_or_default();
        if !leased {
            self.state
                .acknowledge(draws.iter().map(|draw| draw.handle), &mut aside.trash);
        }
        draws
    }

    /// Serves waiting calls in order: an insert, then samples, in turn until nothing moves.
    fn serve(&mut self, aside: &mut Aside, now: u64) {
        self.meter.tick(now);
        if self.closed.is_some() {
            return;
        }
        // Waiting draws are leased whoever asked: at a deadline they go back.
        let mut budget = BATCH;
        let mut waiting = self.first_unserved_sample();
        loop {
            let mut moved = false;
            if let Some(mut entry) = self.inserts.first_entry() {
                let wait = entry.get_mut();
                match wait.items.front().map(|item| self.state.admit(item)) {
                    Some(Admission::Shrink) => {
                        self.state.shrink(&mut aside.trash);
                        budget = budget.saturating_sub(256);
                        moved = true;
                    }
                    Some(Admission::Ready) => {
                        if let Some(item) = wait.items.pop_front() {
                            let new = self.state.insert(item, now, &mut aside.trash);
                            self.meter.inserts += u64::from(new);
                        }
                        moved = true;
                    }
                    Some(Admission::Wait) | None => {}
                }
                if wait.items.is_empty() {
                    aside.wakers.extend(entry.remove().waker);
                }
            }
            if let Some(id) = waiting
                && let Some(wait) = self.samples.get_mut(&id)
            {
                let missing = wait.n - wait.draws.len();
                let drawn =
                    self.state
                        .draw(missing.min(BATCH), true, &mut wait.draws, &mut aside.trash);
                self.meter.samples += drawn as u64;
                moved |= drawn > 0;
                budget = budget.saturating_sub(drawn);
                if wait.draws.len() == wait.n {
                    aside.wakers.extend(wait.waker.take());
                    waiting = self.first_unserved_sample();
                }
            }
            budget = budget.saturating_sub(1);
            if !moved || budget == 0 {
                aside.more = moved;
                return;
            }
        }
    }

    fn first_unserved_sample(&self) -> Option<u64> {
        self.samples
            .iter()
            .find(|(_, wait)| wait.draws.len() < wait.n)
            .map(|(id, _)| *id)
    }
}
