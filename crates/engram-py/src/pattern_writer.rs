//! The native class of `engram.PatternWriter`.

mod append_steps;

use std::sync::Arc;

use engram_core::Schema;
use engram_core::writer::{ItemRecorder, PatternSet, Recorder, WriterOptions};
use pyo3::prelude::*;

use crate::gil::{Timeout, exclusive, shared};
use crate::patterns::{PatternConfig, check_signature};
use crate::sender::Sender;
use crate::step_flattener::{StepEffects, StepFlattener};
use crate::store::Store;
use crate::structure::with_array_hint;
use crate::writer::{Writer, WriterConfig, WriterState};
use crate::{arguments, errors};

/// Writes steps, and creates items as patterns declare.
#[pyclass(extends = Writer, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PatternWriter;

#[derive(Debug)]
struct PatternState {
    recorder: Recorder,
    /// Flattens and checks steps, and writes them into `recorder`.
    steps: StepFlattener,
    sender: Sender,
    patterns: PatternSet,
    /// Python function that compiles the declared patterns for the structure of a step.
    compile: Py<PyAny>,
    /// True if `patterns` are compiled for the current columns. Patterns whose columns have no values yet are left out.
    compiled: bool,
    /// Schema that was last checked against the tables' signatures.
    checked_schema: Option<Arc<Schema>>,
    options: WriterOptions,
    /// Number of declared patterns.
    num_patterns: usize,
    /// True if all appends have one structure, those of partial steps too. The patterns are then compiled at the first
    /// append.
    uniform: bool,
    /// Number of appends whose step was recorded, partial steps included, even if its items were then rejected. Each
    /// step of `append_steps` counts.
    appends: u64,
}

impl WriterState for PatternState {
    fn parts(&self) -> (Option<&dyn ItemRecorder>, &Sender) {
        (Some(&self.recorder), &self.sender)
    }

    fn parts_mut(&mut self) -> (Option<&mut dyn ItemRecorder>, &mut Sender) {
        (Some(&mut self.recorder), &mut self.sender)
    }
}

impl PatternState {
    /// Compiles all patterns whose columns have had values.
    fn compile(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(structure) = self.steps.structure() else {
            return Ok(());
        };
        let configs: Vec<PatternConfig> =
            self.compile.bind(py).call1((&structure.text,))?.extract()?;
        for (number, config) in configs.into_iter().enumerate() {
            // The history must be long enough for all patterns, including those whose columns do not exist yet.
            let lookback = config.lookback();
            let column = |leaf| self.steps.column(leaf);
            let pattern = config.compile(py, &mut self.sender, column)?;
            self.recorder.extend_history(lookback);
            let Some(pattern) = pattern else {
                continue;
            };
            check_signature(py, &pattern, &self.sender, self.recorder.schema())?;
            self.patterns.set(number, pattern, self.recorder.schema());
        }
        self.compiled = true;
        self.checked_schema = Some(Arc::clone(self.recorder.schema()));
        Ok(())
    }

    /// Checks the patterns against their tables' signatures again if the shape of a column has changed.
    fn check_again(&mut self, py: Python<'_>) -> PyResult<()> {
        let schema = self.recorder.schema();
        if !self.compiled
            || self
                .checked_schema
                .as_ref()
                .is_some_and(|checked| Arc::ptr_eq(checked, schema))
        {
            return Ok(());
        }
        for number in 0..self.num_patterns {
            if let Some(pattern) = self.patterns.get(number) {
                check_signature(py, pattern, &self.sender, schema)?;
            }
        }
        self.checked_schema = Some(Arc::clone(schema));
        Ok(())
    }

    /// Discards the recorder, the structure and the compiled patterns of a rejected first step.
    fn restart(&mut self, py: Python<'_>) -> PyResult<()> {
        let recorder = Recorder::new(self.options.clone(), self.sender.unique_number());
        self.recorder = recorder.map_err(|error| errors::to_py(py, &error))?;
        self.steps = StepFlattener::default();
        self.patterns = PatternSet::new(self.num_patterns);
        self.compiled = false;
        self.checked_schema = None;
        Ok(())
    }

    /// Appends a step or a part of one.
    fn append(&mut self, step: &Bound<'_, PyAny>, partial_step: bool) -> PyResult<()> {
        let py = step.py();
        self.sender.wait_for_capacity(py)?;
        // If several appends write a step, each may write any of its leaves. If one append writes a step, the step must
        // have the known structure.
        let exact = self.uniform || !(partial_step || self.recorder.step_is_open());
        let mut effects = StepEffects::default();
        let wrote = self
            .steps
            .write(&mut self.recorder, step, exact, &mut effects);
        let compiles = self.uniform || !partial_step;
        let ready = self.update_patterns(py, wrote, compiles, &effects);
        let finished = self
            .steps
            .finish(&mut self.recorder, partial_step, &effects, py, ready);
        finished.or_else(|error| self.reject(error, step))?;
        self.appends += 1;
        self.apply(py, false)
    }

    /// Adapts the patterns to the columns of a step: renumbers their columns, compiles those that are not compiled if
    /// `compiles`, and checks them against the tables' signatures. `wrote` is the outcome of writing the step.
    fn update_patterns<T>(
        &mut self,
        py: Python<'_>,
        wrote: PyResult<T>,
        compiles: bool,
        effects: &StepEffects,
    ) -> PyResult<T> {
        // The columns have moved even if the step is rejected.
        if let Some(map) = &effects.column_map {
            self.compiled = false;
            self.patterns
                .remap(map)
                .map_err(|error| errors::to_py(py, &error))?;
        }
        let wrote = wrote?;
        if !self.compiled && compiles {
            self.compile(py)?;
        } else {
            self.check_again(py)?;
        }
        Ok(wrote)
    }

    /// Returns the error of a step that was not recorded. If no step was recorded before, also discards the structure:
    /// the first recorded step determines it.
    fn reject<T>(&mut self, error: PyErr, step: &Bound<'_, PyAny>) -> PyResult<T> {
        let error = with_array_hint(error, step);
        if self.appends == 0 {
            self.restart(step.py())?;
        }
        Err(error)
    }

    /// Applies the patterns to the last step, and sends items.
    fn apply(&mut self, py: Python<'_>, end_of_episode: bool) -> PyResult<()> {
        let sender = &self.sender;
        let applied = self
            .patterns
            .apply(&mut self.recorder, end_of_episode, |table, priority| {
                sender.options(table).check_priority(priority)
            });
        let sent = self.sender.send(py, &mut self.recorder);
        let applied = applied.map_err(|error| errors::to_py(py, &error));
        errors::all_of(py, [applied.map(drop), sent])
    }
}

#[pymethods]
impl PatternWriter {
    #[new]
    fn new(
        py: Python<'_>,
        store: &Store,
        patterns: usize,
        compile: Py<PyAny>,
        options: WriterConfig,
        uniform: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let sender = options.sender(py, store)?;
        let options = options.recorder_options(1, &sender);
        let recorder = Recorder::new(options.clone(), sender.unique_number())
            .map_err(|error| errors::to_py(py, &error))?;
        let state = PatternState {
            recorder,
            steps: StepFlattener::default(),
            sender,
            patterns: PatternSet::new(patterns),
            compile,
            compiled: false,
            checked_schema: None,
            options,
            num_patterns: patterns,
            uniform,
            appends: 0,
        };
        Ok(Writer::with_state(state).add_subclass(Self))
    }

    #[pyo3(
        signature = (step, *, partial_step = None),
        text_signature = "($self, step, *, partial_step=False)"
    )]
    fn append(
        slf: &Bound<'_, Self>,
        step: &Bound<'_, PyAny>,
        partial_step: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let partial_step = partial_step.map_or(Ok(false), |value| {
            arguments::boolean("`partial_step`", value)
        })?;
        let mut this = exclusive(slf.as_super())?;
        let state: &mut PatternState = this.state_mut(slf.py())?;
        state.append(step, partial_step)
    }

    /// Appends the steps of a nest of arrays `[T, ...]`.
    fn append_steps(slf: &Bound<'_, Self>, steps: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut this = exclusive(slf.as_super())?;
        let state: &mut PatternState = this.state_mut(slf.py())?;
        state.append_steps(steps)
    }

    /// Ends the episode, even if tables reject its last items. If the last steps cannot be compressed for lack of
    /// memory, the episode continues: the caller must repeat the call, which creates no item twice.
    fn end_episode(
        slf: &Bound<'_, Self>,
        timeout: &Bound<'_, PyAny>,
        clear: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let clear = arguments::boolean("`clear`", clear)?;
        let py = slf.py();
        let mut this = exclusive(slf.as_super())?;
        let timeout = Timeout::from_python(timeout)?;
        let state: &mut PatternState = this.state_mut(py)?;
        let applied = state.apply(py, true);
        let ended = state.recorder.end_episode(clear);
        let sent = state.sender.send(py, &mut state.recorder);
        let waited = state.sender.wait(py, timeout, 0);
        let ended = ended.map_err(|error| errors::to_py(py, &error));
        errors::all_of(py, [applied, ended, sent, waited])
    }

    #[getter]
    fn episode_steps(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let this = shared(slf.as_super())?;
        let state: &PatternState = this.state(slf.py())?;
        Ok(state.recorder.episode_steps())
    }

    /// Number of appends whose step was recorded, partial steps included, even if an error about its items followed.
    /// Each step of `append_steps` counts.
    #[getter]
    fn appends(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let this = shared(slf.as_super())?;
        let state: &PatternState = this.state(slf.py())?;
        Ok(state.appends)
    }

    /// True if items wait for the open chunk to be sealed although it is full: the next step seals it, or a flush.
    #[getter]
    fn has_full_unsent_chunk(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = shared(slf.as_super())?;
        let state: &PatternState = this.state(slf.py())?;
        Ok(state.recorder.has_full_unsent_chunk())
    }
}
