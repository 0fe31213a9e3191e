//! The reader's end of a prefetching stream, as `engram.Dataset` sees it.

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

/// Batches fetched ahead by a thread, or from a server.
#[derive(Debug)]
pub(crate) enum BatchStream {
    Local(Stream),
    Remote(RemoteStream),
}

enum Fetched {
    Batch(Columns, Vec<SampledItemInfo>),
    End,
    Interrupted,
}

impl BatchStream {
    fn next(&mut self, delivered: u64, patience: &mut WaitOptions<'_>) -> Result<Fetched> {
        Ok(match self {
            Self::Local(stream) => match stream.next(delivered, patience)? {
                NextBatch::Batch(batch) => {
                    let infos = batch.draws.iter().map(Draw::info).collect();
                    Fetched::Batch(batch.columns, infos)
                }
                NextBatch::End => Fetched::End,
                NextBatch::Interrupted => Fetched::Interrupted,
            },
            Self::Remote(stream) => match stream.next(delivered, patience)? {
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

/// A reader's end of prefetched batches.
#[pyclass(frozen, name = "Stream", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyStream {
    /// Held, without the GIL, by a reader that waits.
    reading: ForkGuard<Mutex<BatchStream>>,
    /// Asks a waiting reader to let go, so that another thread can close the stream.
    closing: AtomicBool,
    timeout: Timeout,
    single: bool,
}

impl PyStream {
    pub(crate) fn new(stream: BatchStream, timeout: Timeout, single: bool) -> Self {
        Self {
            reading: ForkGuard::new("dataset", Mutex::new(stream)),
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
    /// The next batch, or None at the end; the first `delivered` items so far have reached their reader. A
    /// batch that cannot be made goes back.
    fn next(&self, py: Python<'_>, delivered: u64) -> PyResult<Option<Batch>> {
        let deadline = self.timeout.deadline();
        let reading = self.reading.get(py)?;
        let mut raised = None;
        let next = py.detach(|| {
            let mut interrupted = || self.is_closing() || check_signals(&mut raised);
            let mut patience = WaitOptions {
                deadline,
                interrupted: &mut interrupted,
            };
            let mut stream = reading.lock().unwrap_or_else(PoisonError::into_inner);
            stream.next(delivered, &mut patience)
        });
        match next.map_err(|error| errors::to_py(py, &error))? {
            Fetched::Batch(columns, infos) => {
                let made = Batch::new(py, columns, infos, self.single);
                if made.is_err() {
                    py.detach(|| {
                        let mut stream = reading.lock().unwrap_or_else(PoisonError::into_inner);
                        stream.return_last();
                    });
                }
                made.map(Some)
            }
            // Without an exception, another thread closed the stream.
            Fetched::End | Fetched::Interrupted => raised.map_or(Ok(None), Err),
        }
    }

    /// Stops fetching; all but the first `delivered` items go back. It is a number because `next` may run in
    /// another thread meanwhile.
    fn close(&self, py: Python<'_>, delivered: u64) -> PyResult<()> {
        let reading = self.reading.get(py)?;
        self.closing.store(true, Ordering::Release);
        detached(py, || {
            let mut stream = reading.lock().unwrap_or_else(PoisonError::into_inner);
            stream.close(delivered);
            Ok(())
        })
    }
}
