//! Streams of prefetched batches, for `engram.Dataset`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engram_core::Error;
use engram_engine::{BatchStream, StreamOptions, WaitOptions, WaitOutcome};
use pyo3::prelude::*;

use crate::batch::{Batch, length_policy};
use crate::blocked_reason::{Blocked, blocked_reason};
use crate::errors;
use crate::gil::{ForkGuard, Timeout, check_signals};
use crate::long_wait::LongWait;
use crate::native_readers;
use crate::only_thread::{call_check_interval, is_only_thread};
use crate::tables::Tables;

/// The options of an `engram.Dataset`. Python has checked all but `timeout`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct StreamConfig<'py> {
    /// `None` for batches of one item without an axis for items.
    batch_size: Option<usize>,
    at_least: Option<usize>,
    prefetch: usize,
    max_batches: Option<u64>,
    max_items: Option<u64>,
    /// Limit of the wait for the options of a server's table, in seconds; `None` means no limit.
    pub(crate) open_timeout: Option<f64>,
    /// Limit of the wait for each batch.
    timeout: Bound<'py, PyAny>,
    pad: bool,
    hold: bool,
}

impl StreamConfig<'_> {
    pub(crate) fn options(&self) -> StreamOptions {
        let batch_size = self.batch_size.unwrap_or(1);
        StreamOptions {
            batch_size,
            at_least: self.at_least.unwrap_or(batch_size),
            prefetch: self.prefetch,
            max_batches: self.max_batches,
            max_items: self.max_items,
            length_policy: length_policy(self.pad),
            hold: self.hold,
        }
    }

    pub(crate) fn timeout(&self) -> PyResult<Timeout> {
        Timeout::from_python(&self.timeout)
    }

    pub(crate) fn is_single(&self) -> bool {
        self.batch_size.is_none()
    }
}

/// The native class of the iterators of `engram.Dataset`.
#[pyclass(frozen, name = "Stream", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyStream {
    /// The first field, so that it is dropped before the stream, which may wait.
    open: native_readers::Open,
    /// A waiting reader holds the lock, without the GIL.
    stream: ForkGuard<Mutex<Box<dyn BatchStream>>>,
    /// For the message of a long wait: the tables, and the name of the one that is sampled.
    tables: ForkGuard<Tables>,
    table: String,
    /// Makes a waiting reader release the lock, so that another thread can close the stream.
    closing: AtomicBool,
    /// Number of items that the reader has delivered, all batches together.
    delivered: AtomicU64,
    /// Limit of the wait for each batch.
    timeout: Timeout,
    /// True if batches have one item and no axis for items.
    single: bool,
}

impl PyStream {
    pub(crate) fn new(
        stream: Box<dyn BatchStream>,
        tables: Tables,
        table: &str,
        timeout: Timeout,
        single: bool,
    ) -> Self {
        Self {
            open: native_readers::Open::new(),
            stream: ForkGuard::new("dataset", Mutex::new(stream)),
            tables: ForkGuard::new("dataset", tables),
            table: table.into(),
            closing: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            timeout,
            single,
        }
    }

    /// Returns the error of a reader that waits for items although no other thread can insert any; `None` otherwise.
    fn deadlock(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        // Before looking for batches: what another thread inserted before it ended must not be missed.
        if !is_only_thread(py, 1)? {
            return Ok(None);
        }
        let (tables, stream) = (self.tables.get(py)?, self.stream.get(py)?);
        let Tables::Local(engine) = tables else {
            return Ok(None);
        };
        let error = py.detach(|| {
            let info = engine.table(&self.table).ok()?.info();
            // In this order: if the prefetch thread waits for its next batch, all earlier ones are ready.
            (info.waiting_samples > 0 && Self::lock(stream).waits_for_table()).then(|| {
                Error::Unsatisfiable(format!(
                    "a dataset of table `{}` cannot fill its next batch, and returns the items that it has taken for it{}; \
                     this is the only thread of the process, so nothing is inserted while it waits: insert more before the \
                     iteration, call `flush` of the writers, or pass `timeout`",
                    self.table,
                    blocked_reason(tables, &self.table, Blocked::Sampling)
                ))
            })
        });
        Ok(error.map(|error| errors::to_py(py, &error)))
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn lock(stream: &Mutex<Box<dyn BatchStream>>) -> MutexGuard<'_, Box<dyn BatchStream>> {
        stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyStream {
    /// Returns the next batch; None at the end, after the timeout, or if another thread closes the stream. If the batch
    /// cannot be built, its items return to the table.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let deadline = self.timeout.deadline();
        let stream = self.stream.get(py)?;
        let tables = self.tables.get(py)?;
        let describe = |waited: &str| {
            let reason = blocked_reason(tables, &self.table, Blocked::Sampling);
            format!(
                "a dataset of table `{}` has waited {waited} for its next batch{reason}",
                self.table
            )
        };
        let may_deadlock = deadline.is_none() && matches!(tables, Tables::Local(_));
        let mut long_wait = LongWait::begin();
        loop {
            let until = if may_deadlock {
                Some(Instant::now() + call_check_interval())
            } else {
                deadline
            };
            let mut raised = None;
            let next = py.detach(|| {
                let mut interrupted = || {
                    self.is_closing()
                        || check_signals(&mut raised)
                        || long_wait.report(&mut raised, describe)
                };
                let mut options = WaitOptions {
                    deadline: until,
                    interrupted: &mut interrupted,
                };
                Self::lock(stream).next(&mut options)
            });
            if let Some(batch) = next.map_err(|error| errors::to_py(py, &error))? {
                let batch = Batch::new(py, batch.columns, batch.infos, self.single);
                if batch.is_err() {
                    py.detach(|| Self::lock(stream).return_last());
                }
                return batch.map(Some);
            }
            if let Some(error) = raised {
                return Err(error);
            }
            // The end, the timeout, or another thread closed the stream.
            let is_interval_over = until.is_some_and(|until| until <= Instant::now());
            if !may_deadlock || !is_interval_over || self.is_closing() {
                return Ok(None);
            }
            if let Some(error) = self.deadlock(py)? {
                return Err(error);
            }
        }
    }

    /// Number of items that the reader has delivered, all batches together. Assigning it acknowledges the batches that
    /// are delivered completely. With `hold`, and for a server's table from which sampling removes nothing, they are
    /// acknowledged when the next batch is requested. After `close`, an assignment has no effect.
    ///
    /// An attribute and not a method: after a call, Python runs signal handlers, and Ctrl-C would then strike between
    /// the acknowledgement and the delivery.
    #[getter]
    fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Acquire)
    }

    #[setter]
    fn set_delivered(&self, py: Python<'_>, items: u64) -> PyResult<()> {
        let stream = self.stream.get(py)?;
        py.detach(|| {
            let mut stream = Self::lock(stream);
            if stream.deliver(items) {
                self.delivered.store(items, Ordering::Release);
            }
        });
        Ok(())
    }

    /// Seconds after which the items of a batch that is not acknowledged return to their table; None if they never do,
    /// or if the server has not stated it yet.
    #[getter]
    fn lease_timeout(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let stream = self.stream.get(py)?;
        let timeout = py.detach(|| Self::lock(stream).lease_timeout());
        Ok(timeout.map(|timeout| timeout.as_secs_f64()))
    }

    /// Makes a thread that waits in `next` return None. `close` must follow.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.stream.get(py)?;
        self.closing.store(true, Ordering::Release);
        Ok(())
    }

    /// Stops fetching. The items that are not delivered return to the table. Then waits until the acknowledgements are
    /// durable, if sampling removes items; returns False if they are not after `durability_timeout` seconds, where None
    /// means no limit. `timeout` limits the wait for a server's other replies, in seconds.
    fn close(
        &self,
        py: Python<'_>,
        timeout: f64,
        durability_timeout: Option<f64>,
    ) -> PyResult<bool> {
        let stream = self.stream.get(py)?;
        let at_most = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
        let deadline = Timeout::from_seconds(durability_timeout).deadline();
        self.closing.store(true, Ordering::Release);
        let mut raised = None;
        let durable = py.detach(|| {
            let mut options = WaitOptions {
                deadline,
                interrupted: &mut || check_signals(&mut raised),
            };
            Self::lock(stream).close(at_most, &mut options)
        });
        self.open.close();
        match durable {
            WaitOutcome::Ready(Ok(())) => Ok(true),
            WaitOutcome::Ready(Err(error)) => Err(errors::to_py(py, &error)),
            WaitOutcome::TimedOut | WaitOutcome::Interrupted => raised.map_or(Ok(false), Err),
        }
    }
}
