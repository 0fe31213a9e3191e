//! Prefetching: a thread that keeps the next few batches ready, each on lease.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engram_core::gather::{Columns, LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{Draw, Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::delivery_tracker::{DeliveryTracker, LeaseOutcome};
use crate::lease::Lease;
use crate::table::Table;
use crate::ticket::UntilDurable;
use crate::wait::{WaitOptions, WaitOutcome, wait};

/// A reader's condition variable wakes this often to look for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What to fetch ahead.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Items per batch.
    pub batch_size: usize,
    /// A batch of so many will do where more would have to be waited for.
    pub at_least: usize,
    /// Batches kept ready.
    pub prefetch: usize,
    /// Stop after so many batches.
    pub max_batches: Option<u64>,
    /// Stop after so many items; the last batch may be smaller for it.
    pub max_items: Option<u64>,
    /// What to do with items of different lengths.
    pub length_policy: LengthPolicy,
}

impl StreamOptions {
    /// # Errors
    /// [`Error::InvalidArgument`] where `at_least` is out of range.
    pub fn check_least(&self) -> Result<()> {
        if (1..=self.batch_size).contains(&self.at_least) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "at_least is {}; 1 to batch_size, {}, are allowed",
            self.at_least, self.batch_size
        )))
    }

    /// How many items to ask for next, and how many will do, where `items` have been asked for; none, at the end.
    #[must_use]
    pub fn next(&self, items: u64) -> (usize, usize) {
        let left = self.max_items.map(|max| max.saturating_sub(items));
        let left = left.map_or(usize::MAX, |left| {
            usize::try_from(left).unwrap_or(usize::MAX)
        });
        let n = self.batch_size.min(left);
        (n, self.at_least.min(n))
    }
}

/// A gathered batch and what is known about its items.
#[derive(Debug)]
pub struct StreamBatch {
    /// The data.
    pub columns: Columns,
    /// The items; their trajectories keep the chunks alive.
    pub draws: Vec<Draw>,
}

/// A running prefetcher and its reader's end.
///
/// Whoever asks for the next batch, or closes the stream, says how many of the items so far were
/// delivered. Batches of which all were are acknowledged; what was not delivered in the end goes back.
#[derive(Debug)]
pub struct Stream {
    shared: Arc<Prefetcher>,
    worker: Option<JoinHandle<()>>,
    /// The batches that a reader asked for.
    deliveries: DeliveryTracker<Lease>,
    /// That some were used, on its way to where it is safe.
    used: Option<UntilDurable>,
}

#[derive(Debug)]
struct Prefetcher {
    table: Arc<Table>,
    pool: Arc<Pool>,
    options: StreamOptions,
    stop: AtomicBool,
    ready: Mutex<ReadyBatches>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ReadyBatches {
    batches: VecDeque<(StreamBatch, Lease)>,
    /// How the worker ended.
    ended: Option<Result<()>>,
}

/// What a reader gets.
#[derive(Debug)]
pub enum NextBatch {
    /// A batch.
    Batch(StreamBatch),
    /// All batches were read, or none came in time.
    End,
    /// The reader was asked to stop waiting.
    Interrupted,
}

impl Stream {
    /// Starts prefetching.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] when no such batch can ever be had, [`Error::InvalidArgument`] for an
    /// empty one or when no thread can be started.
    pub fn open(table: Arc<Table>, pool: Arc<Pool>, options: StreamOptions) -> Result<Self> {
        if options.batch_size == 0 || options.prefetch == 0 {
            return Err(Error::InvalidArgument(format!(
                "batch_size is {} and prefetch is {}; both must be at least 1",
                options.batch_size, options.prefetch
            )));
        }
        options.check_least()?;
        table.check_sample(options.next(0).1)?;
        let shared = Arc::new(Prefetcher {
            table,
            pool,
            options,
            stop: AtomicBool::new(false),
            ready: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("engram-prefetch".into())
                .spawn(move || {
                    // Should fetching panic, the reader must learn that nothing will come.
                    let fetch = AssertUnwindSafe(|| shared.fetch());
                    let outcome = catch_unwind(fetch).unwrap_or_else(|_| {
                        Err(Error::Closed("the prefetching thread panicked".into()))
                    });
                    shared.ready.lock().ended = Some(outcome);
                    shared.changed.notify_all();
                })
        };
        let worker = worker.map_err(|error| {
            Error::InvalidArgument(format!("no thread to prefetch with: {error}"))
        })?;
        Ok(Self {
            shared,
            worker: Some(worker),
            deliveries: DeliveryTracker::default(),
            used: None,
        })
    }

    /// The next batch; the first `delivered` items of those so far have reached their reader.
    ///
    /// # Errors
    /// What ended the prefetcher: the table was dropped, the store closed, a chunk unreadable.
    /// [`Error::Storage`] where it cannot be written that items were used up: the next call tries again.
    pub fn next(&mut self, delivered: u64, patience: &mut WaitOptions<'_>) -> Result<NextBatch> {
        while let Some(lease) = self.deliveries.pop_used(delivered) {
            lease.acknowledge();
            if self.shared.table.options().max_times_sampled > 0 {
                // Should the store end now, its items do not come again.
                self.used = Some(self.shared.table.until_durable());
            }
        }
        if let Some(used) = &mut self.used {
            match wait(used, patience) {
                WaitOutcome::Ready(outcome) => self.used = outcome.map(|()| None)?,
                WaitOutcome::TimedOut => return Ok(NextBatch::End),
                WaitOutcome::Interrupted => return Ok(NextBatch::Interrupted),
            }
        }
        let mut ready = self.shared.ready.lock();
        loop {
            if let Some((batch, lease)) = ready.batches.pop_front() {
                self.deliveries.push(batch.draws.len(), lease);
                self.shared.changed.notify_all();
                return Ok(NextBatch::Batch(batch));
            }
            if let Some(outcome) = &ready.ended {
                return outcome.clone().map(|()| NextBatch::End);
            }
            let now = Instant::now();
            if patience.deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(NextBatch::End);
            }
            let until = patience.deadline.map_or(now + POLL_INTERVAL, |deadline| {
                deadline.min(now + POLL_INTERVAL)
            });
            self.shared.changed.wait_until(&mut ready, until);
            if MutexGuard::unlocked(&mut ready, || (patience.interrupted)()) {
                return Ok(NextBatch::Interrupted);
            }
        }
    }

    /// Gives the last batch back: it did not reach its reader.
    pub fn return_last(&mut self) {
        drop(self.deliveries.pop_newest());
    }

    /// Stops prefetching; all but the first `delivered` items go back.
    pub fn close(&mut self, delivered: u64) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            worker.thread().unpark();
            // A panic in the worker has ended its leases all the same.
            let _ = worker.join();
        }
        for fate in self.deliveries.finish(delivered) {
            match fate {
                LeaseOutcome::Used(lease) => lease.acknowledge(),
                LeaseOutcome::PartlyUsed(items, lease) => lease.acknowledge_first(items),
                LeaseOutcome::Unused(lease) => drop(lease),
            }
        }
        let batches = std::mem::take(&mut self.shared.ready.lock().batches);
        drop(batches);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close(u64::MAX);
    }
}

impl Prefetcher {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn fetch(&self) -> Result<()> {
        let StreamOptions {
            prefetch,
            max_batches,
            length_policy,
            ..
        } = self.options;
        let (mut fetched, mut items) = (0, 0);
        while max_batches.is_none_or(|max| fetched < max) {
            let mut ready = self.ready.lock();
            while ready.batches.len() >= prefetch && !self.stopped() {
                self.changed.wait_for(&mut ready, POLL_INTERVAL);
            }
            drop(ready);
            if self.stopped() {
                return Ok(());
            }
            let (n, at_least) = self.options.next(items);
            if n == 0 {
                return Ok(());
            }
            let mut ticket = self.table.sample_some(n, at_least, true)?;
            let mut patience = WaitOptions {
                deadline: None,
                interrupted: &mut || self.stopped(),
            };
            let sample = match wait(&mut ticket, &mut patience) {
                WaitOutcome::Ready(sample) => sample?,
                WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(()),
            };
            items += sample.draws.len() as u64;
            let columns = gather(&sample.draws, length_policy, &self.pool)?;
            let Some(lease) = sample.lease else {
                return Ok(());
            };
            if self.stopped() {
                return Ok(());
            }
            self.ready.lock().batches.push_back((
                StreamBatch {
                    columns,
                    draws: sample.draws,
                },
                lease,
            ));
            self.changed.notify_all();
            fetched += 1;
        }
        Ok(())
    }
}
