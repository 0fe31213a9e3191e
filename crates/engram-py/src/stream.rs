//! The reader's end of a prefetching stream, as `engram.Dataset` sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use engram_engine::stream::Next;
use engram_engine::{Patience, Stream};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::door::{Home, Timeout, check_signals, enter};
use crate::errors;

/// Batches fetched ahead by a thread.
#[pyclass(frozen, name = "Stream", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyStream {
    /// Held, without the GIL, by a reader that waits.
    reading: Home<Mutex<Reading>>,
    /// Asks a waiting reader to let go, so that another thread can close the stream.
    closing: AtomicBool,
    timeout: Timeout,
    single: bool,
}

#[derive(Debug)]
struct Reading {
    stream: Stream,
    /// Batches that `next` has returned, or tried to.
    fetched: u64,
}

impl PyStream {
    pub(crate) fn new(stream: Stream, timeout: Timeout, single: bool) -> Self {
        Self {
            reading: Home::new("dataset", Mutex::new(Reading { stream, fetched: 0 })),
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
    /// The next batch, or None at the end; acknowledges the one before. A batch that cannot be made
    /// goes back.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let deadline = self.timeout.deadline();
        let reading = self.reading.get(py)?;
        let mut raised = None;
        let next = py.detach(|| {
            let mut interrupted = || self.is_closing() || check_signals(&mut raised);
            let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            let next = reading.stream.next(&mut Patience {
                deadline,
                interrupted: &mut interrupted,
            });
            reading.fetched += u64::from(matches!(next, Ok(Next::Batch(_))));
            next
        });
        match next.map_err(|error| errors::to_py(py, &error))? {
            Next::Batch(batch) => {
                let made = Batch::new(py, batch.columns, &batch.draws, self.single);
                if made.is_err() {
                    py.detach(|| {
                        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
                        reading.stream.take_back();
                    });
                }
                made.map(Some)
            }
            // Without an exception, another thread closed the stream.
            Next::End | Next::Interrupted => raised.map_or(Ok(None), Err),
        }
    }

    /// Stops fetching; of the batches, all but the first `delivered` go back. It is a number because
    /// `next` may run in another thread meanwhile.
    fn close(&self, py: Python<'_>, delivered: u64) -> PyResult<()> {
        let reading = self.reading.get(py)?;
        self.closing.store(true, Ordering::Release);
        enter(py, || {
            let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            let all = reading.fetched <= delivered;
            reading.stream.close(all);
            Ok(())
        })
    }
}
