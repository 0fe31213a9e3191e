//! Prefetching streams: a thread samples and gathers the next batches while the reader works.
//!
//! Every batch is leased. Its states:
//!
//! ```text
//!   sampling ──► ready ──► returned by ──► delivered, ──► acknowledged
//!  (prefetch     (queue of   `next`        as `deliver`   (at once; with `hold`, when the
//!   thread)      `prefetch`    │           reports        next batch is requested)
//!      │         batches)      │
//!      └────────────┴──────────┴──► returned to the table: the stream closed, or the batch did
//!                                   not reach the caller; a partly delivered batch is split
//! ```

use std::collections::VecDeque;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::pool::Pool;
use engram_core::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::delivery_tracker::DeliveryTracker;
use crate::lease::{Batch, Lease};
use crate::table::{SampleOptions, Table};
use crate::wait::{WaitOptions, WaitOutcome, wait};

/// How often a waiting reader checks for Ctrl-C, and a waiting prefetch thread for the end of the stream.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Options of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Items per batch.
    pub batch_size: usize,
    /// Minimum number of items per batch: if at least this many are available, the stream delivers them
    /// instead of waiting for `batch_size`. The last batch before `max_items` can be smaller.
    pub at_least: usize,
    /// Number of batches to keep ready; with 0, a batch is sampled when the reader requests it.
    pub prefetch: usize,
    /// Number of batches after which the stream ends; `None` means unlimited.
    pub max_batches: Option<u64>,
    /// Number of items after which the stream ends, with a smaller last batch if necessary; `None`
    /// means unlimited.
    pub max_items: Option<u64>,
    /// How items of different lengths are combined.
    pub length_policy: LengthPolicy,
    /// Acknowledge delivered items only when the next batch is requested, instead of at once.
    pub hold: bool,
}

impl StreamOptions {
    /// Checks that `batch_size` and `max_items` are at least 1, and `at_least` is from 1 to `batch_size`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one of them is out of range.
    pub fn check(&self) -> Result<()> {
        if self.batch_size == 0 {
            return Err(Error::InvalidArgument(
                "`batch_size` must be at least 1; got 0".into(),
            ));
        }
        if self.max_items == Some(0) {
            return Err(Error::InvalidArgument(
                "`max_items` must be at least 1; got 0".into(),
            ));
        }
        if (1..=self.batch_size).contains(&self.at_least) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "`at_least` must be from 1 to `batch_size` ({}); got {}",
            self.batch_size, self.at_least
        )))
    }

    /// Returns the maximum and the minimum number of items in the next batch; (0, 0) at the end of the stream. `items`
    /// is the number of items in earlier batches; a batch that has not arrived yet counts with its maximum.
    #[must_use]
    pub fn next_batch_size(&self, items: u64) -> (usize, usize) {
        let left = self.max_items.map(|max| max.saturating_sub(items));
        let left = left.map_or(usize::MAX, |left| {
            usize::try_from(left).unwrap_or(usize::MAX)
        });
        let n = self.batch_size.min(left);
        (n, self.at_least.min(n))
    }
}

/// Prefetched batches of a table, in this process or of a server.
///
/// The reader reports how many of the stream's items it has delivered in total. The stream
/// acknowledges the batches that are delivered completely; on close, it acknowledges the delivered part
/// of the last batch and returns all other items to the table.
pub trait BatchStream: Debug + Send {
    /// Returns the next batch; `None` at the end, at the deadline, after an interruption, or if the stream is closed.
    /// Before that, waits until earlier acknowledgements are durable, if they may have removed items.
    ///
    /// # Errors
    /// The error that ended the stream, for example because the table was dropped, the store was closed, the server
    /// cannot be reached, or items could not be read and were removed. [`Error::Storage`] if acknowledgements cannot be
    /// made durable: the next call retries.
    fn next(&mut self, options: &mut WaitOptions<'_>) -> Result<Option<Batch>>;

    /// Reports that the first `items` of the stream's items are delivered: the caller has them, or nothing can now
    /// prevent that it gets them. Returns true if this was recorded; false after [`Self::close`], which has returned
    /// undelivered items to the table.
    fn deliver(&mut self, items: u64) -> bool;

    /// Returns the items of the newest batch, which did not reach its reader, to the table.
    fn return_last(&mut self);

    /// Stops prefetching. Acknowledges the delivered items and returns all others to the table. Then waits
    /// until the acknowledgements are durable, if they may have removed items. Calling it again waits again.
    ///
    /// `at_most` limits the wait for a server's other replies, which begins after that; if `options` has a deadline, it
    /// is counted from the call.
    fn close(
        &mut self,
        at_most: Duration,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>>;

    /// True while a reader would wait for the table of this process: no batch is ready, the stream has not ended, and no
    /// acknowledgement waits for the disk.
    fn waits_for_table(&self) -> bool {
        false
    }

    /// The time after which a server returns the items of a batch that is not acknowledged to their table; `None` if they
    /// do not return, or if it is unknown.
    fn lease_timeout(&self) -> Option<Duration> {
        None
    }
}

/// The reader's end of a running prefetch thread.
#[derive(Debug)]
pub struct Stream {
    prefetcher: Arc<Prefetcher>,
    /// `None` once the stream is closed.
    thread: Option<JoinHandle<()>>,
    /// Batches that the reader has and that are not acknowledged.
    deliveries: DeliveryTracker<Lease>,
}

/// State shared by the reader and the prefetch thread.
#[derive(Debug)]
struct Prefetcher {
    table: Arc<Table>,
    pool: Arc<Pool>,
    options: StreamOptions,
    /// Set to true to make the thread end.
    stop: AtomicBool,
    ready: Mutex<ReadyBatches>,
    /// Notified when `ready` or `stop` changes.
    changed: Condvar,
}

/// Batches that the reader has not requested yet.
#[derive(Debug, Default)]
struct ReadyBatches {
    batches: VecDeque<(Batch, Lease)>,
    /// True while the reader waits for a batch, or did until its deadline.
    is_requested: bool,
    /// Result of the prefetch thread; `None` while it runs.
    ended: Option<Result<()>>,
}

impl Stream {
    /// Starts prefetching.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] if the table can never yield the minimum number of items of a batch;
    /// [`Error::InvalidArgument`] if a size or `max_items` is 0, or `at_least` is out of range;
    /// [`Error::Closed`]; [`Error::Unavailable`] if no thread can be started.
    pub fn open(table: Arc<Table>, pool: Arc<Pool>, options: StreamOptions) -> Result<Self> {
        options.check()?;
        table.check_sample(options.next_batch_size(0).1)?;
        let prefetcher = Arc::new(Prefetcher {
            table,
            pool,
            options,
            stop: AtomicBool::new(false),
            ready: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = {
            let prefetcher = Arc::clone(&prefetcher);
            std::thread::Builder::new()
                .name("engram-prefetch".into())
                .spawn(move || {
                    // If `fetch` panics, the reader gets an error instead of waiting forever.
                    let fetch = AssertUnwindSafe(|| prefetcher.fetch());
                    let outcome = catch_unwind(fetch).unwrap_or_else(|_| {
                        let text = "the stream was closed after an internal error: its prefetch thread panicked";
                        Err(Error::Closed(text.into()))
                    });
                    prefetcher.ready.lock().ended = Some(outcome);
                    prefetcher.changed.notify_all();
                })
        };
        let thread = thread.map_err(|error| {
            Error::Unavailable(format!("cannot start the prefetch thread: {error}"))
        })?;
        Ok(Self {
            prefetcher,
            thread: Some(thread),
            deliveries: DeliveryTracker::default(),
        })
    }

    /// Waits until all acknowledgements that may have removed items from the table are durable.
    fn wait_until_durable(&mut self, options: &mut WaitOptions<'_>) -> WaitOutcome<Result<()>> {
        let Some(durable) = &mut self.deliveries.durable else {
            return WaitOutcome::Ready(Ok(()));
        };
        let outcome = wait(durable, options);
        if matches!(outcome, WaitOutcome::Ready(Ok(()))) {
            self.deliveries.durable = None;
        }
        outcome
    }

    fn stop(&mut self) {
        self.prefetcher.stop.store(true, Ordering::Release);
        self.prefetcher.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread catches panics, so this cannot fail.
            let _ = thread.join();
        }
        self.deliveries.finish();
        let batches = std::mem::take(&mut self.prefetcher.ready.lock().batches);
        drop(batches);
    }
}

impl BatchStream for Stream {
    fn next(&mut self, options: &mut WaitOptions<'_>) -> Result<Option<Batch>> {
        self.deliveries.acknowledge_delivered();
        match self.wait_until_durable(options) {
            WaitOutcome::Ready(outcome) => outcome?,
            WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(None),
        }
        let mut ready = self.prefetcher.ready.lock();
        loop {
            if let Some((batch, lease)) = ready.batches.pop_front() {
                self.deliveries.push(batch.infos.len(), lease);
                ready.is_requested = false;
                self.prefetcher.changed.notify_all();
                return Ok(Some(batch));
            }
            if let Some(outcome) = &ready.ended {
                return outcome.clone().map(|()| None);
            }
            if !ready.is_requested {
                ready.is_requested = true;
                self.prefetcher.changed.notify_all();
            }
            let now = Instant::now();
            if options.deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(None);
            }
            let until = options.deadline.map_or(now + POLL_INTERVAL, |deadline| {
                deadline.min(now + POLL_INTERVAL)
            });
            self.prefetcher.changed.wait_until(&mut ready, until);
            if MutexGuard::unlocked(&mut ready, || (options.interrupted)()) {
                return Ok(None);
            }
        }
    }

    fn waits_for_table(&self) -> bool {
        let ready = self.prefetcher.ready.lock();
        ready.batches.is_empty() && ready.ended.is_none() && self.deliveries.durable.is_none()
    }

    fn deliver(&mut self, items: u64) -> bool {
        if self.thread.is_none() {
            return false;
        }
        self.deliveries.delivered = items;
        if !self.prefetcher.options.hold {
            self.deliveries.acknowledge_delivered();
        }
        true
    }

    fn return_last(&mut self) {
        self.deliveries.return_newest();
    }

    fn close(
        &mut self,
        _at_most: Duration,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>> {
        self.stop();
        self.wait_until_durable(options)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Prefetcher {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Body of the prefetch thread: fetches batches until the stream ends or is stopped.
    fn fetch(&self) -> Result<()> {
        let StreamOptions {
            prefetch,
            max_batches,
            length_policy,
            ..
        } = self.options;
        let (mut batches_fetched, mut items_fetched) = (0, 0);
        while max_batches.is_none_or(|max| batches_fetched < max) {
            let mut ready = self.ready.lock();
            while ready.batches.len() >= prefetch.max(usize::from(ready.is_requested))
                && !self.is_stopped()
            {
                self.changed.wait_for(&mut ready, POLL_INTERVAL);
            }
            drop(ready);
            if self.is_stopped() {
                return Ok(());
            }
            let (n, at_least) = self.options.next_batch_size(items_fetched);
            if n == 0 {
                return Ok(());
            }
            let options = SampleOptions {
                n,
                at_least,
                lease: true,
                timeout: None,
            };
            let mut sampled = pin!(self.table.sample_batch(options, length_policy, &self.pool));
            let mut wait_options = WaitOptions {
                deadline: None,
                interrupted: &mut || self.is_stopped(),
            };
            let (batch, lease) = match wait(&mut sampled, &mut wait_options) {
                WaitOutcome::Ready(sampled) => sampled?,
                WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(()),
            };
            let Some(lease) = lease else {
                return Ok(());
            };
            if self.is_stopped() {
                return Ok(());
            }
            items_fetched += batch.infos.len() as u64;
            self.ready.lock().batches.push_back((batch, lease));
            self.changed.notify_all();
            batches_fetched += 1;
        }
        Ok(())
    }
}
