//! The reader's end of a prefetching stream, as `engram.Dataset` sees it.

use engram_engine::stream::Next;
use engram_engine::{Patience, Stream};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::door::{Home, Timeout, check_signals, enter};
use crate::errors;

/// Batches fetched ahead by a thread.
#[pyclass(name = "Stream", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyStream {
    stream: Home<Stream>,
    timeout: Timeout,
    single: bool,
}

impl PyStream {
    pub(crate) fn new(stream: Stream, timeout: Timeout, single: bool) -> Self {
        Self {
            stream: Home::new("dataset", stream),
            timeout,
            single,
        }
    }
}

#[pymethods]
impl PyStream {
    /// The next batch, or None at the end; acknowledges the one before.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let deadline = self.timeout.deadline();
        let stream = self.stream.get_mut(py)?;
        let mut raised = None;
        let next = py.detach(|| {
            let mut interrupted = || check_signals(&mut raised);
            stream.next(&mut Patience {
                deadline,
                interrupted: &mut interrupted,
            })
        });
        match next.map_err(|error| errors::to_py(py, &error))? {
            Next::Batch(batch) => {
                Batch::new(py, batch.columns, &batch.draws, self.single).map(Some)
            }
            Next::End => Ok(None),
            Next::Interrupted => {
                Err(raised.unwrap_or_else(|| errors::invalid(py, "interrupted".into())))
            }
        }
    }

    /// Stops fetching; what was not handed over goes back.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        let stream = self.stream.get_mut(py)?;
        enter(py, || {
            stream.close();
            Ok(())
        })
    }
}
