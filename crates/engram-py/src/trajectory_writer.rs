//! The native class of `engram.TrajectoryWriter`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use engram_core::pool::Pool;
use engram_core::writer::{CellPositions, ColumnSelection, Recorder, Selection};
use engram_core::{Error, Layout};
use pyo3::prelude::*;

use crate::gil::{Timeout, exclusive, shared};
use crate::history::{ColumnHistory, TrajectoryColumn};
use crate::item_recorder::ItemRecorder;
use crate::sender::Sender;
use crate::step_flattener::{StepEffects, StepFlattener, StepLeaf};
use crate::store::Store;
use crate::structure::{Structure, with_array_hint, with_array_hint_for, with_history_hint};
use crate::writer::{Writer, WriterConfig, WriterState};
use crate::{arguments, errors};

/// Writes steps, and creates items of slices of their history.
#[pyclass(extends = Writer, module = "engram._engram", weakref)]
#[derive(Debug)]
pub(crate) struct TrajectoryWriter;

#[derive(Debug)]
pub(crate) struct TrajectoryState {
    pub(crate) recorder: Recorder,
    /// Flattens and checks steps, and writes them into `recorder`.
    pub(crate) steps: StepFlattener,
    sender: Sender,
    /// Position of the step with index 0 in `history`: the first one since the last `end_episode(clear=True)`.
    first_indexed: u64,
    /// Incremented when the structure changes, so that nests of column histories are rebuilt.
    structure_version: u64,
    /// Layouts of trajectories, by structure text.
    layouts: HashMap<String, Arc<Layout>>,
    /// Structure and layout of the last trajectory; the next one usually matches them.
    last_trajectory: Option<(Structure, Arc<Layout>)>,
}

impl WriterState for TrajectoryState {
    fn parts(&self) -> (Option<&dyn ItemRecorder>, &Sender) {
        (Some(&self.recorder), &self.sender)
    }

    fn parts_mut(&mut self) -> (Option<&mut dyn ItemRecorder>, &mut Sender) {
        (Some(&mut self.recorder), &mut self.sender)
    }
}

impl TrajectoryState {
    /// Returns the pool of buffers for arrays.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.sender.pool()
    }

    /// Positions of the steps that have an index in `history`. The recorder may no longer retain the first ones.
    pub(crate) fn indexed_steps(&self) -> Range<u64> {
        self.first_indexed..self.recorder.available_steps().end
    }

    /// Returns the layout of a trajectory and its columns.
    fn layout<'py>(
        &mut self,
        tree: &Bound<'py, PyAny>,
    ) -> PyResult<(Arc<Layout>, Vec<Bound<'py, TrajectoryColumn>>)> {
        let mut leaves = Vec::new();
        let is_last_structure = match &self.last_trajectory {
            Some((structure, _)) => structure.flatten(tree, &mut leaves)?,
            None => false,
        };
        if !is_last_structure {
            let (structure, new_leaves) = Structure::of(tree)?;
            leaves = new_leaves;
            // Items with a shared layout can be batched without comparing their layouts.
            let shared = self
                .layouts
                .entry(structure.text.clone())
                .or_insert_with(|| structure.layout());
            self.last_trajectory = Some((structure, Arc::clone(shared)));
        }
        let Some((structure, layout)) = &self.last_trajectory else {
            return Ok((Arc::clone(&self.recorder.schema().layout), Vec::new()));
        };
        let columns = leaves
            .into_iter()
            .zip(&structure.names)
            .map(|(leaf, name)| {
                leaf.cast_into::<TrajectoryColumn>().map_err(|error| {
                    let leaf = error.into_inner();
                    let text = errors::class_name(&leaf).map(|class| {
                        format!(
                            "{} must be a slice of the writer's history, such as \
                             writer.history[\"obs\"][-2:]; got {class}",
                            describe_trajectory_column(name)
                        )
                    });
                    errors::signature_about(tree.py(), text)
                })
            });
        Ok((Arc::clone(layout), columns.collect::<PyResult<_>>()?))
    }
}

/// Names a column of a trajectory in error texts. A trajectory that is one slice has one column, whose name is empty.
fn describe_trajectory_column(name: &str) -> String {
    if name.is_empty() {
        "the trajectory".into()
    } else {
        format!("column `{name}` of the trajectory")
    }
}

impl TrajectoryState {
    /// The error of a failed `create_item`, for a trajectory or for the last steps.
    fn creation_error(
        &self,
        py: Python<'_>,
        error: &Error,
        trajectory: Option<&Bound<'_, PyAny>>,
    ) -> PyErr {
        let error = errors::to_py(py, error);
        match (trajectory, self.steps.structure()) {
            (Some(nest), _) => with_history_hint(error, nest),
            (None, Some(structure)) => {
                let cells = &self.recorder.schema().cells;
                let is_number = |leaf| {
                    let column = self.steps.column(leaf);
                    column.is_some_and(|column| cells[column].shape.is_empty())
                };
                with_array_hint_for(py, error, structure, is_number)
            }
            (None, None) => error,
        }
    }
}

#[pymethods]
impl TrajectoryWriter {
    #[new]
    fn new(
        py: Python<'_>,
        store: &Store,
        history: u64,
        options: WriterConfig,
    ) -> PyResult<PyClassInitializer<Self>> {
        let sender = options.sender(py, store)?;
        let options = options.recorder_options(history, &sender);
        let recorder = Recorder::new(options, sender.unique_number())
            .map_err(|error| errors::to_py(py, &error))?;
        let state = TrajectoryState {
            recorder,
            steps: StepFlattener::default(),
            sender,
            first_indexed: 0,
            structure_version: 0,
            layouts: HashMap::new(),
            last_trajectory: None,
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
        let py = slf.py();
        let mut this = exclusive(slf.as_super())?;
        let state: &mut TrajectoryState = this.state_mut(py)?;
        state.sender.wait_for_capacity(py)?;
        let mut effects = StepEffects::default();
        let wrote = state
            .steps
            .write(&mut state.recorder, step, false, &mut effects);
        if effects.structure_changed {
            state.structure_version += 1;
        }
        state
            .steps
            .finish(&mut state.recorder, partial_step, &effects, py, wrote)
            .map_err(|error| with_array_hint(error, step))?;
        state.sender.send(py, &mut state.recorder)
    }

    /// Returns a new nest of column histories. The Python object that owns this writer stores it.
    fn history(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let this = shared(slf.as_super())?;
        let state: &TrajectoryState = this.state(py)?;
        let Some(structure) = state.steps.structure() else {
            let text = "`history` is not available before the first append".into();
            return Err(errors::invalid(py, text));
        };
        let leaves = StepLeaf::all_of(structure)
            .map(|leaf| Ok(Bound::new(py, ColumnHistory::new(slf, leaf)?)?.into_any()))
            .collect::<PyResult<Vec<_>>>()?;
        structure.unflatten(py, leaves).map(Bound::unbind)
    }

    #[getter]
    fn structure_version(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let this = shared(slf.as_super())?;
        let state: &TrajectoryState = this.state(slf.py())?;
        Ok(state.structure_version)
    }

    /// Creates an item of slices of the history, or of the last `num_steps` steps.
    #[pyo3(signature = (table, priority, trajectory, num_steps))]
    fn create_item(
        slf: &Bound<'_, Self>,
        table: &Bound<'_, PyAny>,
        priority: &Bound<'_, PyAny>,
        trajectory: Option<&Bound<'_, PyAny>>,
        num_steps: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let num_steps = num_steps
            .map(|steps| arguments::integer("`num_steps`", steps))
            .transpose()?;
        let table = arguments::table_name("`table`", table)?;
        let priority = arguments::number("`priority`", priority)?;
        let py = slf.py();
        let mut this = exclusive(slf.as_super())?;
        let state: &mut TrajectoryState = this.state_mut(py)?;
        state.sender.wait_for_capacity(py)?;
        let to_py = |error| errors::to_py(py, &error);
        let number = state.sender.table_number(py, table)?;
        let options = Arc::clone(state.sender.options(number));
        options.check_priority(priority).map_err(to_py)?;
        let key = state.recorder.next_key();
        let check = |columns: &engram_core::writer::ItemColumns<'_>| match &options.signature {
            Some(signature) => columns.check(&options.name, signature),
            None => Ok(()),
        };
        let created = match (trajectory, num_steps) {
            (None, Some(n)) => {
                let n = u64::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| {
                    errors::invalid(py, format!("`num_steps` must be at least 1; got {n}"))
                })?;
                state
                    .recorder
                    .create_item(number, key, priority, &Selection::Last(n), check)
            }
            (Some(tree), None) => {
                let (layout, columns) = state
                    .layout(tree)
                    .map_err(|error| with_history_hint(error, tree))?;
                let mut selections = Vec::with_capacity(columns.len());
                for (column, name) in columns.iter().zip(&layout.names) {
                    let column = column.get();
                    if !column.is_of(slf) {
                        let text = format!(
                            "{} must be a slice of this writer's history; got one of another writer",
                            describe_trajectory_column(name)
                        );
                        return Err(errors::signature(py, text));
                    }
                    let Some(source) = state.steps.column_of(&column.leaf) else {
                        let text =
                            format!("{} has never had a value", describe_trajectory_column(name));
                        return Err(errors::signature(py, text));
                    };
                    selections.push(ColumnSelection {
                        source,
                        cells: column.cells(),
                        squeeze: column.squeeze,
                    });
                }
                let selection = Selection::Columns {
                    layout: &layout,
                    columns: &selections,
                };
                state
                    .recorder
                    .create_item(number, key, priority, &selection, check)
            }
            _ => {
                let got = if trajectory.is_some() {
                    "both"
                } else {
                    "neither"
                };
                let text = format!(
                    "create_item needs exactly one of `trajectory` and `num_steps`; got {got}"
                );
                return Err(errors::invalid(py, text));
            }
        };
        created.map_err(|error| state.creation_error(py, &error, trajectory))?;
        state.sender.send(py, &mut state.recorder)?;
        Ok(key)
    }

    /// Extends the history to at least the newest `history` steps.
    fn extend_history(slf: &Bound<'_, Self>, history: u64) -> PyResult<()> {
        let mut this = exclusive(slf.as_super())?;
        let state: &mut TrajectoryState = this.state_mut(slf.py())?;
        state.recorder.extend_history(history);
        Ok(())
    }

    fn end_episode(
        slf: &Bound<'_, Self>,
        timeout: &Bound<'_, PyAny>,
        clear: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let clear = arguments::boolean("`clear`", clear)?;
        let py = slf.py();
        let mut this = exclusive(slf.as_super())?;
        let timeout = Timeout::from_python(timeout)?;
        let state: &mut TrajectoryState = this.state_mut(py)?;
        state
            .recorder
            .end_episode(clear)
            .map_err(|error| errors::to_py(py, &error))?;
        if clear {
            state.first_indexed = state.recorder.available_steps().end;
        }
        state.sender.send(py, &mut state.recorder)?;
        state.sender.wait(py, timeout, 0)
    }

    #[getter]
    fn episode_steps(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let this = shared(slf.as_super())?;
        let state: &TrajectoryState = this.state(slf.py())?;
        Ok(state.recorder.episode_steps())
    }

    /// True if items wait for the open chunk to be sealed although it is full: the next step seals it, or a flush.
    #[getter]
    fn has_full_unsent_chunk(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = shared(slf.as_super())?;
        let state: &TrajectoryState = this.state(slf.py())?;
        Ok(state.recorder.has_full_unsent_chunk())
    }
}

impl TrajectoryColumn {
    fn cells(&self) -> CellPositions<'_> {
        match &self.positions {
            crate::history::Positions::Range { first, stride, len } => CellPositions::Range {
                first: *first,
                stride: *stride,
                len: *len,
            },
            crate::history::Positions::List(list) => CellPositions::List(list),
        }
    }
}
