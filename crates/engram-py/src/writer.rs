//! The base class of the native writers, and the options that all of them have.

use std::any::Any;
use std::fmt::Debug;

use engram_core::Compression;
use engram_core::writer::WriterOptions;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{ForkGuard, Timeout, exclusive, shared};
use crate::item_recorder::ItemRecorder;
use crate::sender::Sender;
use crate::store::Store;

/// A writer: sends items and waits for their tables. Each kind of writer is a subclass with a state of its own.
#[pyclass(subclass, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct Writer {
    state: ForkGuard<Box<dyn WriterState>>,
}

/// The state of a writer of any kind.
pub(crate) trait WriterState: Any + Debug + Send + Sync {
    /// The recorder, which may not exist before the first step, and the sender.
    fn parts(&self) -> (Option<&dyn ItemRecorder>, &Sender);

    /// As [`WriterState::parts`], for changes.
    fn parts_mut(&mut self) -> (Option<&mut dyn ItemRecorder>, &mut Sender);
}

/// An `engram.WriterOptions` with all keys, which Python has checked.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct WriterConfig {
    chunk_length: Option<usize>,
    max_in_flight_items: usize,
    max_waiting_items: Option<usize>,
    /// In seconds; `None` means no limit.
    timeout: Option<f64>,
    compression: String,
}

impl WriterConfig {
    /// Returns the options of a recorder that retains the last `history` steps.
    pub(crate) fn recorder_options(self, history: u64, sender: &Sender) -> WriterOptions {
        WriterOptions {
            history,
            chunk_length: self.chunk_length,
            shard: sender.shard(),
            compression: match self.compression.as_str() {
                "delta" => Compression::Delta,
                "off" => Compression::Off,
                _ => Compression::Auto,
            },
        }
    }

    /// Returns a new sender to the tables of a store.
    pub(crate) fn sender(&self, py: Python<'_>, store: &Store) -> PyResult<Sender> {
        Ok(Sender::new(
            &store.tables(py)?,
            self.max_in_flight_items,
            self.max_waiting_items,
            Timeout::from_seconds(self.timeout),
        ))
    }
}

impl Writer {
    /// Returns what creates a writer with this state.
    pub(crate) fn with_state(state: impl WriterState) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Self {
            state: ForkGuard::new("writer", Box::new(state)),
        })
    }

    /// Returns the state of a writer of the kind that has states of type `S`.
    ///
    /// # Errors
    /// Those of [`ForkGuard::get`].
    pub(crate) fn state<S: WriterState>(&self, py: Python<'_>) -> PyResult<&S> {
        let state: &dyn Any = &**self.state.get(py)?;
        state.downcast_ref().ok_or_else(|| wrong_kind(py))
    }

    /// Returns the state for changes, as [`Writer::state`] does.
    ///
    /// # Errors
    /// Those of [`ForkGuard::get`].
    pub(crate) fn state_mut<S: WriterState>(&mut self, py: Python<'_>) -> PyResult<&mut S> {
        let state: &mut dyn Any = &mut **self.state.get_mut(py)?;
        state.downcast_mut().ok_or_else(|| wrong_kind(py))
    }
}

/// The error of a method that was called with a writer of another class, which Python rules out.
#[cold]
fn wrong_kind(py: Python<'_>) -> PyErr {
    errors::invalid(py, "a writer of another kind".into())
}

#[pymethods]
impl Writer {
    /// Sends all items, and waits until at most `allowed` of them are in flight.
    #[pyo3(signature = (timeout, allowed = 0))]
    fn flush(slf: &Bound<'_, Self>, timeout: &Bound<'_, PyAny>, allowed: usize) -> PyResult<()> {
        let py = slf.py();
        let mut this = exclusive(slf)?;
        let timeout = Timeout::from_python(timeout)?;
        let (recorder, sender) = this.state.get_mut(py)?.parts_mut();
        sender.flush(py, recorder, timeout, allowed)
    }

    fn close(slf: &Bound<'_, Self>, timeout: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let mut this = exclusive(slf)?;
        let (recorder, sender) = this.state.get_mut(py)?.parts_mut();
        if sender.closed {
            return Ok(());
        }
        sender.flush(py, recorder, Timeout::from_python(timeout)?, 0)?;
        sender.closed = true;
        Ok(())
    }

    /// While false, writes do not wait for the items of earlier writes. An adder sets it to false where an error must
    /// not interrupt it: between a row and the row's items, and at the end of an episode.
    #[getter]
    fn waits_for_tables(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = shared(slf)?;
        Ok(this.state.get(slf.py())?.parts().1.waits_for_tables)
    }

    #[setter]
    fn set_waits_for_tables(slf: &Bound<'_, Self>, waits: bool) -> PyResult<()> {
        let mut this = exclusive(slf)?;
        this.state.get_mut(slf.py())?.parts_mut().1.waits_for_tables = waits;
        Ok(())
    }

    /// Number of created items that wait for a chunk that is not sealed: their own, or that of an earlier item.
    #[getter]
    fn unsent_items(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let this = shared(slf)?;
        let (recorder, _) = this.state.get(slf.py())?.parts();
        Ok(recorder.map_or(0, ItemRecorder::unsent_items))
    }

    /// Number of created items that are not known to be in their table.
    #[getter]
    fn pending_items(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let py = slf.py();
        let this = shared(slf)?;
        let (recorder, sender) = this.state.get(py)?.parts();
        Ok(recorder.map_or(0, ItemRecorder::pending_items) + sender.items_left(py))
    }
}
