//! Streams of prefetched batches, for `engram.Dataset`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use engram_core::gather::Columns;
use engram_core::{Draw, Result, SampledItemInfo};
use engram_engine::stream::NextBatch;
use engram_engine::{Stream, WaitOptions};
use engram_rpc::client::{RemoteNextBatch, RemoteStream};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::errors;
use crate::gil::{ForkGuard, Timeout, check_signals, detached};

/// A stream of batches of a local or a remote table.
#[derive(Debug)]
pub(crate) enum BatchStream {
    Local(Stream),
    Remote(RemoteStream),
}

/// What `next` returns, for both kinds of streams.
enum Fetched {
    Batch(Columns, Vec<SampledItemInfo>),
    End,
    Interrupted,
}

impl BatchStream {
    fn next(&mut self, delivered: u64, options: &mut WaitOptions<'_>) -> Result<Fetched> {
        Ok(match self {
            Self::Local(stream) => match stream.next(delivered, options)? {
                NextBatch::Batch(batch) => {
                    let infos = batch.draws.iter().map(Draw::info).collect();
                    Fetched::Batch(batch.columns, infos)
                }
                NextBatch::End => Fetched::End,
                NextBatch::Interrupted => Fetched::Interrupted,
            },
            Self::Remote(stream) => match stream.next(delivered, options)? {
                RemoteNextBatch::Batch(batch) => Fetched::Batch(batch.columns, batch.infos),
                RemoteNextBatch::End => Fetched::End,
                RemoteNextBatch::Interrupted => Fetched::Interrupted,
            },
        })
    }

    fn return_last(&mut self) {
        match self {
            Self::Local(stream) => stream.return_last(),
            Self::Remote(stream) => stream.return_last(),
        }
    }

    fn close(&mut self, delivered: u64) {
        match self {
            Self::Local(stream) => stream.close(delivered),
            Self::Remote(stream) => stream.close(delivered),
        }
    }
}

/// The native half of an iterator of `engram.Dataset`.
#[pyclass(frozen, name = "Stream", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyStream {
    /// A waiting reader holds the lock, without the GIL.
    stream: ForkGuard<Mutex<BatchStream>>,
    /// Makes a waiting reader release the lock, so that another thread can close the stream.
    closing: AtomicBool,
    timeout: Timeout,
    single: bool,
}

impl PyStream {
    pub(crate) fn new(stream: BatchStream, timeout: Timeout, single: bool) -> Self {
        Self {
            stream: ForkGuard::new("dataset", Mutex::new(stream)),
            closing: AtomicBool::new(false),
            timeout,
            single,
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

#[pymethods]
impl PyStream {
    /// Returns the next batch, or None at the end. `delivered` is the number of items that the reader has received so
    /// far. If the batch cannot be built, its items return to the table.
    fn next(&self, py: Python<'_>, delivered: u64) -> PyResult<Option<Batch>> {
        let deadline = self.timeout.deadline();
        let stream = self.stream.get(py)?;
        let mut raised = None;
        let next = py.detach(|| {
            let mut interrupted = || self.is_closing() || check_signals(&mut raised);
            let mut options = WaitOptions {
                deadline,
                interrupted: &mut interrupted,
            };
            let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.next(delivered, &mut options)
        });
        match next.map_err(|error| errors::to_py(py, &error))? {
            Fetched::Batch(columns, infos) => {
                let batch = Batch::new(py, columns, infos, self.single);
                if batch.is_err() {
                    py.detach(|| {
                        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                        stream.return_last();
                    });
                }
                batch.map(Some)
            }
            // If nothing was raised, another thread closed the stream.
            Fetched::End | Fetched::Interrupted => raised.map_or(Ok(None), Err),
        }
    }

    /// Stops fetching. All items except the first `delivered` return to the table. The caller passes the number because
    /// `next` may be running in another thread.
    fn close(&self, py: Python<'_>, delivered: u64) -> PyResult<()> {
        let stream = self.stream.get(py)?;
        self.closing.store(true, Ordering::Release);
        detached(py, || {
            let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.close(delivered);
            Ok(())
        })
    }
}
