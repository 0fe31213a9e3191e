//! Saves of replay buffers, for `engram.buffers.ReplayBuffer`.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use engram_core::{ColumnSpec, Error, Result, Schema, Signature};
use pyo3::prelude::*;

use crate::config::signature_to_python;
use crate::errors;
use crate::gil::{check_signals, detached};

/// A save that is open for reading. It can be restored once.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct SavedBuffer {
    saved: Mutex<Option<engram_engine::SavedBuffer>>,
    /// Of the steps.
    signature: Signature,
}

impl SavedBuffer {
    /// Returns the save, the first time.
    ///
    /// # Errors
    /// `InvalidArgumentError` later.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<engram_engine::SavedBuffer> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let text = "a save can be restored only once";
        saved.take().ok_or_else(|| errors::invalid(py, text.into()))
    }
}

#[pymethods]
impl SavedBuffer {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let saved = detached(py, move || engram_engine::SavedBuffer::open(&path))?;
        Ok(Self {
            signature: signature_of(saved.schema()),
            saved: Mutex::new(Some(saved)),
        })
    }

    /// Nest of an `ArraySpec` per column.
    fn signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        signature_to_python(py, &self.signature)
    }
}

/// Returns the signature of the steps in the file of a buffer; `None` if there is no file.
#[pyfunction]
pub(crate) fn mapped_signature(
    py: Python<'_>,
    path: PathBuf,
) -> PyResult<Option<Bound<'_, PyAny>>> {
    let schema = detached(py, move || engram_engine::ReplayBuffer::schema_of(&path))?;
    let schema = schema.map(|schema| signature_to_python(py, &signature_of(&schema)));
    schema.transpose()
}

/// The signature of steps of this schema.
pub(crate) fn signature_of(schema: &Schema) -> Signature {
    let columns = schema.layout.names.iter().zip(&schema.cells);
    let columns = columns.map(|(name, cell)| ColumnSpec {
        name: name.clone(),
        dtype: cell.dtype,
        shape: cell.shape.iter().copied().map(Some).collect(),
    });
    Signature {
        columns: columns.collect(),
        structure: schema.layout.structure.clone(),
    }
}

/// Interval at which a call that can be interrupted runs signal handlers.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs engine work without the GIL in another thread, while this one runs signal handlers: those may use the buffer that
/// the work has locked. `work` receives a function that returns true once a handler has raised an exception, and should
/// return early then. Such an exception is raised after the work, even if that was complete: then `undo` receives the outcome.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut (dyn FnMut() -> bool + Send)) -> Result<T> + Send,
    undo: impl FnOnce(T),
) -> PyResult<T> {
    let interrupted = AtomicBool::new(false);
    let mut raised = None;
    let outcome = py.detach(|| {
        // Never used to send: the receiver notices when the work has ended and the sender is dropped.
        let (running, ended) = sync_channel::<()>(1);
        let is_interrupted = || interrupted.load(Ordering::Relaxed);
        let work = move || {
            let _running = running;
            work(&mut { is_interrupted })
        };
        thread::scope(|scope| {
            let worker = thread::Builder::new().name("engram-file".into());
            let worker = worker.spawn_scoped(scope, work).map_err(|error| {
                Error::Unavailable(format!("the system provides no thread: {error}"))
            })?;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(SIGNAL_INTERVAL) {
                if raised.is_none() && check_signals(&mut raised) {
                    interrupted.store(true, Ordering::Relaxed);
                }
            }
            if raised.is_none() {
                check_signals(&mut raised);
            }
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    });
    match raised {
        Some(error) => {
            let _ = outcome.map(undo);
            Err(error)
        }
        None => outcome.map_err(|error| errors::to_py(py, &error)),
    }
}
