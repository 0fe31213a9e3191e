//! The pattern writer, as `engram.PatternWriter` sees it.

use std::sync::Arc;

use engram_core::Schema;
use engram_core::writer::{PatternSet, Recorder, WriterOptions};
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{ForkGuard, Timeout, alone, shared};
use crate::patterns::{PatternConfig, check};
use crate::sender::Sender;
use crate::step_recorder::{StepEffects, StepRecorder};
use crate::store::Store;
use crate::writer::options;

/// Steps in; items out by themselves.
#[pyclass(module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PatternWriter {
    state: ForkGuard<PatternState>,
}

#[derive(Debug)]
struct PatternState {
    recorder: Recorder,
    steps: StepRecorder,
    sender: Sender,
    patterns: PatternSet,
    /// Compiles the declared patterns once the first step shows the structure.
    compile: Py<PyAny>,
    /// They were compiled for the columns that there are.
    compiled: bool,
    /// The columns that were last held against the tables' signatures.
    checked: Option<Arc<Schema>>,
    options: WriterOptions,
    /// How many patterns there are.
    declared: usize,
    /// All steps, and all parts of steps, have one structure: the patterns are compiled with the
    /// first part.
    uniform: bool,
    /// Appends taken, of steps and of parts of steps.
    appends: u64,
}

impl PatternState {
    fn send(&mut self, py: Python<'_>) -> PyResult<()> {
        let waiting = self.recorder.pending_items() - self.recorder.ready_items();
        let ready = self.recorder.take_ready();
        self.sender.send(py, ready, waiting)
    }

    /// Sends everything, and waits for the tables.
    fn flush(&mut self, py: Python<'_>, timeout: Timeout, allowed: usize) -> PyResult<()> {
        self.recorder
            .flush()
            .map_err(|error| errors::to_py(py, &error))?;
        self.send(py)?;
        self.sender.wait(py, timeout, allowed)
    }

    /// Compiles all patterns whose columns have appeared.
    fn compile(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(structure) = self.steps.structure() else {
            return Ok(());
        };
        let configs: Vec<PatternConfig> =
            self.compile.bind(py).call1((&structure.text,))?.extract()?;
        for (number, config) in configs.into_iter().enumerate() {
            // Also of one whose columns have not appeared: all patterns together say what is kept.
            let history = config.history();
            let column = |leaf| self.steps.column(leaf);
            let pattern = config.compile(py, &mut self.sender, column)?;
            self.recorder.extend_history(history);
            let Some(pattern) = pattern else {
                continue;
            };
            check(py, &pattern, &self.sender, self.recorder.schema())?;
            self.patterns.set(number, pattern, self.recorder.schema());
        }
        self.compiled = true;
        self.checked = Some(Arc::clone(self.recorder.schema()));
        Ok(())
    }

    /// Holds the patterns against their tables' signatures again when cells changed their shape.
    fn check_again(&mut self, py: Python<'_>) -> PyResult<()> {
        let schema = self.recorder.schema();
        if !self.compiled
            || self
                .checked
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, schema))
        {
            return Ok(());
        }
        for number in 0..self.declared {
            if let Some(pattern) = self.patterns.get(number) {
                check(py, pattern, &self.sender, schema)?;
            }
        }
        self.checked = Some(Arc::clone(schema));
        Ok(())
    }

    fn begin_anew(&mut self, py: Python<'_>) -> PyResult<()> {
        let recorder = Recorder::new(self.options.clone(), self.sender.unique_number());
        self.recorder = recorder.map_err(|error| errors::to_py(py, &error))?;
        self.steps = StepRecorder::default();
        self.patterns = PatternSet::new(self.declared);
        self.compiled = false;
        self.checked = None;
        Ok(())
    }

    fn apply(&mut self, py: Python<'_>, end_of_episode: bool) -> PyResult<()> {
        let sender = &self.sender;
        let made = self
            .patterns
            .apply(&mut self.recorder, end_of_episode, |table, priority| {
                sender.options(table).check_priority(priority)
            });
        let sent = self.send(py);
        made.map_err(|error| errors::to_py(py, &error))?;
        sent
    }
}

#[pymethods]
impl PatternWriter {
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "one per keyword of Store.pattern_writer"
    )]
    fn new(
        py: Python<'_>,
        store: &Store,
        patterns: usize,
        compile: Py<PyAny>,
        chunk_length: Option<usize>,
        max_in_flight_items: usize,
        timeout: Option<f64>,
        compression: &str,
        uniform: bool,
    ) -> PyResult<Self> {
        let tables = store.tables(py)?;
        let timeout = Timeout::new(py, timeout)?;
        let options = options(1, chunk_length, compression, py)?;
        let recorder = Recorder::new(options.clone(), tables.unique_number())
            .map_err(|error| errors::to_py(py, &error))?;
        let state = PatternState {
            recorder,
            steps: StepRecorder::default(),
            sender: Sender::new(&tables, max_in_flight_items, timeout),
            patterns: PatternSet::new(patterns),
            compile,
            compiled: false,
            checked: None,
            options,
            declared: patterns,
            uniform,
            appends: 0,
        };
        Ok(Self {
            state: ForkGuard::new("writer", state),
        })
    }

    #[pyo3(signature = (step, *, partial_step = false))]
    fn append(slf: &Bound<'_, Self>, step: &Bound<'_, PyAny>, partial_step: bool) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let state = this.state.get_mut(py)?;
        state.sender.make_room(py)?;
        // The parts of a step may come in any grouping; a whole one must look like those before.
        let whole = state.uniform || !(partial_step || state.recorder.step_is_open());
        let mut effects = StepEffects::default();
        let wrote = state
            .steps
            .write(&mut state.recorder, step, whole, &mut effects);
        // Columns have moved whether or not the step is taken.
        if let Some(map) = &effects.map {
            state.compiled = false;
            state
                .patterns
                .remap(map)
                .map_err(|error| errors::to_py(py, &error))?;
        }
        let ready = match wrote {
            Ok(()) if !state.compiled && (state.uniform || !partial_step) => state.compile(py),
            Ok(()) => state.check_again(py),
            other => other,
        };
        let finished = state
            .steps
            .finish(&mut state.recorder, partial_step, &effects, py, ready);
        if let Err(error) = finished {
            // A writer that never took a step is as good as new: its next one decides.
            if state.appends == 0 {
                state.begin_anew(py)?;
            }
            return Err(error);
        }
        state.appends += 1;
        state.apply(py, false)
    }

    /// Ends the episode, whatever the tables say to its last items. Only when its last steps cannot be
    /// sealed, for lack of memory, it goes on: the call must be repeated, and makes no item twice.
    fn end_episode(slf: &Bound<'_, Self>, timeout: Option<f64>, clear: bool) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let timeout = Timeout::new(py, timeout)?;
        let state = this.state.get_mut(py)?;
        let applied = state.apply(py, true);
        let ended = state.recorder.end_episode(clear);
        let sent = state.send(py);
        let waited = state.sender.wait(py, timeout, 0);
        applied?;
        ended.map_err(|error| errors::to_py(py, &error))?;
        sent?;
        waited
    }

    #[pyo3(signature = (timeout, allowed = 0))]
    fn flush(slf: &Bound<'_, Self>, timeout: Option<f64>, allowed: usize) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let timeout = Timeout::new(py, timeout)?;
        this.state.get_mut(py)?.flush(py, timeout, allowed)
    }

    fn close(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let state = this.state.get_mut(py)?;
        if state.sender.closed {
            return Ok(());
        }
        state.flush(py, Timeout::new(py, timeout)?, 0)?;
        state.sender.closed = true;
        Ok(())
    }

    #[getter]
    fn episode_steps(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let py = slf.py();
        let this = shared(slf)?;
        Ok(this.state.get(py)?.recorder.episode_steps())
    }

    /// Appends taken, of steps and of parts of steps: one that raised an error counts if it was kept.
    #[getter]
    fn appends(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let py = slf.py();
        let this = shared(slf)?;
        Ok(this.state.get(py)?.appends)
    }

    /// Items wait in a full chunk: a flush sends them sooner than the next step.
    #[getter]
    fn has_full_unsent_chunk(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let this = shared(slf)?;
        Ok(this.state.get(py)?.recorder.has_full_unsent_chunk())
    }

    /// Items created whose chunk is not complete.
    #[getter]
    fn unsent_items(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let py = slf.py();
        let this = shared(slf)?;
        let recorder = &this.state.get(py)?.recorder;
        Ok(recorder.pending_items() - recorder.ready_items())
    }

    #[getter]
    fn pending_items(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let py = slf.py();
        let this = shared(slf)?;
        let state = this.state.get(py)?;
        Ok(state.recorder.pending_items() + state.sender.items_left(py))
    }
}
