//! Helpers: items, tables, and clocks, wakers and logs that a test controls.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use engram_core::{
    CellSpec, ChunkBuilder, Compression, Compressor, DType, Error, Layout, Lsn, NewItem, OpSink,
    Origin, RateLimits, Result, Schema, SelectorKind, TableOp, TableOptions, Trajectory,
};
use engram_engine::{Clock, Engine, Sample, Table, WaitOptions, WaitOutcome, wait};
use smallvec::smallvec;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn item(key: u64, priority: f64) -> NewItem {
    item_of(key, priority, 1)
}

/// An item with its own chunk of `size` bytes, each with the value of the key's lowest byte.
pub(crate) fn item_of(key: u64, priority: f64, size: usize) -> NewItem {
    let schema = Arc::new(Schema {
        layout: Arc::new(Layout {
            names: Box::new(["obs".into()]),
            structure: "".into(),
        }),
        cells: Box::new([CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![size],
        }]),
    });
    let mut builder = ChunkBuilder::new(schema, 1).unwrap();
    builder.cell_mut(0, 0).fill(key.to_le_bytes()[0]);
    builder.commit(0);
    let origin = Origin {
        key,
        episodes: smallvec![key],
        first_step: 0,
        steps: 1,
    };
    let mut compressor = Compressor::new(Compression::Off);
    NewItem {
        key,
        trajectory: Trajectory::Rows {
            chunk: Arc::new(builder.seal(origin, &mut compressor).unwrap()),
            offset: 0,
            len: 1,
            squeeze: true,
        },
        priority,
    }
}

pub(crate) fn items(keys: impl IntoIterator<Item = u64>) -> Vec<NewItem> {
    keys.into_iter().map(|key| item(key, 1.0)).collect()
}

/// A first-in-first-out table that never blocks inserts.
pub(crate) fn fifo(name: &str) -> TableOptions {
    TableOptions {
        name: name.into(),
        max_size: 1_000,
        max_bytes: None,
        max_times_sampled: 0,
        ttl: None,
        sampler: SelectorKind::Fifo,
        remover: SelectorKind::Fifo,
        limits: RateLimits::min_size(1),
        signature: None,
        seed: 7,
        note: None,
    }
}

pub(crate) fn queue(name: &str, size: u64) -> TableOptions {
    TableOptions {
        max_size: size,
        max_times_sampled: 1,
        limits: RateLimits::queue(size),
        ..fifo(name)
    }
}

pub(crate) fn engine(tables: Vec<TableOptions>) -> Engine {
    Engine::new(tables, 1).unwrap()
}

/// A table in an engine of its own.
pub(crate) fn table(options: TableOptions) -> Arc<Table> {
    let name = options.name.clone();
    engine(vec![options]).table(&name).unwrap()
}

/// Waits for a ticket; panics after 20 s.
pub(crate) fn wait_ready<T>(mut ticket: impl Future<Output = T> + Unpin) -> T {
    match wait_for(&mut ticket, 20 * SECOND) {
        WaitOutcome::Ready(output) => output,
        other => panic!("not ready: {}", outcome_name(&other)),
    }
}

fn outcome_name<T>(waited: &WaitOutcome<T>) -> &'static str {
    match waited {
        WaitOutcome::Ready(_) => "ready",
        WaitOutcome::TimedOut => "timed out",
        WaitOutcome::Interrupted => "interrupted",
    }
}

pub(crate) fn wait_for<F: Future + Unpin>(
    ticket: &mut F,
    time: Duration,
) -> WaitOutcome<F::Output> {
    let mut options = WaitOptions {
        deadline: Some(Instant::now() + time),
        interrupted: &mut || false,
    };
    wait(ticket, &mut options)
}

pub(crate) fn insert_items(table: &Arc<Table>, items: Vec<NewItem>) {
    wait_ready(table.insert(items).unwrap()).unwrap();
}

pub(crate) fn keys(sample: &Sample) -> Vec<u64> {
    sample.draws.iter().map(|draw| draw.key).collect()
}

/// Samples `n` items, which must be available; returns their keys.
pub(crate) fn sample_keys(table: &Arc<Table>, n: usize) -> Vec<u64> {
    keys(&wait_ready(table.sample(n, false).unwrap()).unwrap())
}

/// Counts how often it is woken.
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

/// Polls once; `counter` counts the wake-ups after it.
pub(crate) fn poll<F: Future + Unpin>(
    ticket: &mut F,
    counter: &Arc<WakeCounter>,
) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(counter));
    Pin::new(ticket).poll(&mut Context::from_waker(&waker))
}

/// A clock that only moves by `set`.
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

/// A log whose changes become durable only by `make_durable`.
#[derive(Debug, Default)]
pub(crate) struct ManualLog(Mutex<ManualLogState>);

#[derive(Debug, Default)]
struct ManualLogState {
    appended: u64,
    durable: u64,
    wakers: Vec<Waker>,
}

impl ManualLog {
    pub(crate) fn appended(&self) -> u64 {
        self.0.lock().unwrap().appended
    }

    pub(crate) fn make_durable(&self, durable: u64) {
        let mut log = self.0.lock().unwrap();
        log.durable = durable;
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

pub(crate) fn error_text<T>(outcome: Result<T>) -> String {
    match outcome {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn dropped_error(name: &str) -> Error {
    Error::Closed(format!("table `{name}` was dropped"))
}
