//! Test helpers: items, tables, and clocks, wakers and logs that a test controls.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use engram_core::{Error, Lsn, NewItem, OpSink, RateLimits, Result, TableOp, TableOptions};
use engram_engine::{Clock, Engine, Sample, Table, WaitOptions, WaitOutcome, wait};
pub(crate) use engram_testkit::{byte_item, table_options};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// An item with a chunk of 1 byte.
pub(crate) fn item(key: u64, priority: f64) -> NewItem {
    byte_item(key, priority, 1)
}

/// Items with these keys and priority 1.
pub(crate) fn items(keys: impl IntoIterator<Item = u64>) -> Vec<NewItem> {
    keys.into_iter().map(|key| item(key, 1.0)).collect()
}

/// Options of a queue of at most `size` items, each sampled once.
pub(crate) fn queue_options(name: &str, size: u64) -> TableOptions {
    TableOptions {
        max_size: size,
        max_times_sampled: 1,
        limits: RateLimits::queue(size),
        ..table_options(name)
    }
}

pub(crate) fn new_engine(tables: Vec<TableOptions>) -> Engine {
    Engine::new(tables, 1).unwrap()
}

/// Creates a table in a new engine.
pub(crate) fn new_table(options: TableOptions) -> Arc<Table> {
    let name = options.name.clone();
    new_engine(vec![options]).table(&name).unwrap()
}

/// Waits for a ticket; panics if it is not ready after 20 s.
pub(crate) fn wait_ready<T>(mut ticket: impl Future<Output = T> + Unpin) -> T {
    match wait_for(&mut ticket, 20 * SECOND) {
        WaitOutcome::Ready(output) => output,
        other => panic!("not ready: {}", outcome_name(&other)),
    }
}

fn outcome_name<T>(outcome: &WaitOutcome<T>) -> &'static str {
    match outcome {
        WaitOutcome::Ready(_) => "ready",
        WaitOutcome::TimedOut => "timed out",
        WaitOutcome::Interrupted => "interrupted",
    }
}

/// Waits for a ticket, for at most `timeout`.
pub(crate) fn wait_for<F: Future + Unpin>(
    ticket: &mut F,
    timeout: Duration,
) -> WaitOutcome<F::Output> {
    let mut options = WaitOptions {
        deadline: Some(Instant::now() + timeout),
        interrupted: &mut || false,
    };
    wait(ticket, &mut options)
}

/// Inserts items; waits until they are in the table.
pub(crate) fn insert_items(table: &Arc<Table>, items: Vec<NewItem>) {
    wait_ready(table.insert(items).unwrap()).unwrap();
}

/// Keys of a sample's items.
pub(crate) fn keys(sample: &Sample) -> Vec<u64> {
    sample.draws.iter().map(|draw| draw.key).collect()
}

/// Samples `n` items, which must be available; returns their keys.
pub(crate) fn sample_keys(table: &Arc<Table>, n: usize) -> Vec<u64> {
    keys(&wait_ready(table.sample(n, false).unwrap()).unwrap())
}

/// A waker that counts how often it is woken.
#[derive(Debug, Default)]
pub(crate) struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl WakeCounter {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Polls a ticket once; `counter` counts how often it wakes its task afterwards.
pub(crate) fn poll<F: Future + Unpin>(
    ticket: &mut F,
    counter: &Arc<WakeCounter>,
) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(counter));
    Pin::new(ticket).poll(&mut Context::from_waker(&waker))
}

/// A clock that stands still between calls of `set`.
#[derive(Debug, Default)]
pub(crate) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(crate) fn set(&self, now: u64) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A log whose changes become durable only when the test calls `make_durable`.
#[derive(Debug, Default)]
pub(crate) struct ManualLog(Mutex<ManualLogState>);

#[derive(Debug, Default)]
struct ManualLogState {
    /// Number of changes so far.
    appended: u64,
    /// Number of the last durable change.
    durable: u64,
    wakers: Vec<Waker>,
}

impl ManualLog {
    /// Number of changes so far.
    pub(crate) fn appended(&self) -> u64 {
        self.0.lock().unwrap().appended
    }

    /// Makes all changes up to `lsn` durable.
    pub(crate) fn make_durable(&self, lsn: u64) {
        let mut log = self.0.lock().unwrap();
        log.durable = lsn;
        log.wakers.drain(..).for_each(Waker::wake);
    }
}

impl OpSink for ManualLog {
    fn append(&self, _table: &str, _op: &TableOp<'_>) -> Lsn {
        let mut log = self.0.lock().unwrap();
        log.appended += 1;
        Lsn(log.appended)
    }

    fn last(&self) -> Lsn {
        Lsn(self.appended())
    }

    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>> {
        let mut log = self.0.lock().unwrap();
        if lsn.0 > log.durable {
            log.wakers.push(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

/// Text of an error; panics if there is none.
pub(crate) fn error_text<T>(outcome: Result<T>) -> String {
    match outcome {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

/// The error of calls whose table was dropped.
pub(crate) fn table_dropped_error(name: &str) -> Error {
    Error::Closed(format!("table `{name}` was dropped"))
}
