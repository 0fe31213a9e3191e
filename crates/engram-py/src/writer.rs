//! The trajectory writer, as `engram.TrajectoryWriter` sees it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use engram_core::pool::Pool;
use engram_core::writer::{CellPositions, ColumnSelection, Recorder, Selection, WriterOptions};
use engram_core::{Compression, Layout};
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{ForkGuard, Timeout, alone, shared};
use crate::history::{ColumnHistory, TrajectoryColumn};
use crate::sender::Sender;
use crate::step_recorder::{StepEffects, StepRecorder};
use crate::store::Store;
use crate::structure::Structure;

/// Steps in, items out.
#[pyclass(module = "engram._engram", weakref)]
#[derive(Debug)]
pub(crate) struct TrajectoryWriter {
    state: ForkGuard<TrajectoryState>,
}

#[derive(Debug)]
pub(crate) struct TrajectoryState {
    pub(crate) recorder: Recorder,
    pub(crate) steps: StepRecorder,
    sender: Sender,
    /// Position of the first step that the history shows.
    base: u64,
    /// Grows with the structure: tells when a nest of column histories is out of date.
    version: u64,
    layouts: HashMap<String, Arc<Layout>>,
    /// What the last trajectory looked like: usually the next one looks the same.
    item: Option<(Structure, Arc<Layout>)>,
}

/// Numbers that all writers take.
pub(crate) fn options(
    history: u64,
    chunk_length: Option<usize>,
    compression: &str,
    py: Python<'_>,
) -> PyResult<WriterOptions> {
    let compression = match compression {
        "auto" => Compression::Auto,
        "delta" => Compression::Delta,
        "off" => Compression::Off,
        other => {
            let text =
                format!("compression is {other:?}; it must be \"auto\", \"delta\" or \"off\"");
            return Err(errors::invalid(py, text));
        }
    };
    Ok(WriterOptions {
        history,
        chunk_length,
        compression,
    })
}

impl TrajectoryState {
    /// Where arrays take their memory from.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.sender.pool()
    }

    /// Positions that the history shows, expired ones included.
    pub(crate) fn shown(&self) -> Range<u64> {
        self.base..self.recorder.available_steps().end
    }

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

    /// The layout of a trajectory, and its columns.
    fn layout<'py>(
        &mut self,
        tree: &Bound<'py, PyAny>,
    ) -> PyResult<(Arc<Layout>, Vec<Bound<'py, TrajectoryColumn>>)> {
        let mut leaves = Vec::new();
        let known = match &self.item {
            Some((structure, _)) => structure.flatten(tree, &mut leaves)?,
            None => false,
        };
        if !known {
            let (structure, found) = Structure::of(tree)?;
            leaves = found;
            let names = structure
                .names
                .iter()
                .map(|name| name.as_str().into())
                .collect();
            let layout = Layout {
                names,
                structure: structure.text.as_str().into(),
            };
            // Layouts are shared: items of one shape then go side by side at the least cost.
            let shared = self
                .layouts
                .entry(structure.text.clone())
                .or_insert_with(|| Arc::new(layout));
            self.item = Some((structure, Arc::clone(shared)));
        }
        let Some((structure, layout)) = &self.item else {
            return Ok((Arc::clone(&self.recorder.schema().layout), Vec::new()));
        };
        let columns = leaves.into_iter().zip(&structure.names).map(|(leaf, name)| {
            leaf.cast_into::<TrajectoryColumn>().map_err(|error| {
                let leaf = error.into_inner();
                let class = leaf.get_type().name().map(|name| name.to_string()).unwrap_or_default();
                let text = format!(
                    "column `{name}` of the trajectory is a {class}; it must be a slice of the writer's history, \
                     such as writer.history[\"obs\"][-2:]"
                );
                errors::signature(tree.py(), text)
            })
        });
        Ok((Arc::clone(layout), columns.collect::<PyResult<_>>()?))
    }
}

impl TrajectoryWriter {
    pub(crate) fn state(&self, py: Python<'_>) -> PyResult<&TrajectoryState> {
        self.state.get(py)
    }
}

#[pymethods]
impl TrajectoryWriter {
    #[new]
    fn new(
        py: Python<'_>,
        store: &Store,
        history: u64,
        chunk_length: Option<usize>,
        max_in_flight_items: usize,
        timeout: Option<f64>,
        compression: &str,
    ) -> PyResult<Self> {
        let tables = store.tables(py)?;
        let timeout = Timeout::new(py, timeout)?;
        let options = options(history, chunk_length, compression, py)?;
        let recorder = Recorder::new(options, tables.unique_number())
            .map_err(|error| errors::to_py(py, &error))?;
        let state = TrajectoryState {
            recorder,
            steps: StepRecorder::default(),
            sender: Sender::new(&tables, max_in_flight_items, timeout),
            base: 0,
            version: 0,
            layouts: HashMap::new(),
            item: None,
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
        let mut effects = StepEffects::default();
        let wrote = state
            .steps
            .write(&mut state.recorder, step, false, &mut effects);
        if effects.grown {
            state.version += 1;
        }
        state
            .steps
            .finish(&mut state.recorder, partial_step, &effects, py, wrote)?;
        state.send(py)
    }

    /// A nest of column histories. They refer to the writer, so it must not keep them itself.
    fn history(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let this = shared(slf)?;
        let Some(structure) = this.state(py)?.steps.structure() else {
            let text = "the writer has no history before its first append".into();
            return Err(errors::invalid(py, text));
        };
        let leaves = (0..structure.names.len())
            .map(|leaf| Ok(Bound::new(py, ColumnHistory::new(slf, leaf)?)?.into_any()))
            .collect::<PyResult<Vec<_>>>()?;
        structure.unflatten(py, leaves).map(Bound::unbind)
    }

    #[getter]
    fn structure_version(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let py = slf.py();
        let this = shared(slf)?;
        Ok(this.state(py)?.version)
    }

    /// Makes an item of columns of the history, or of the last `num_steps` steps.
    #[pyo3(signature = (table, priority, trajectory, num_steps))]
    fn create_item(
        slf: &Bound<'_, Self>,
        table: &str,
        priority: f64,
        trajectory: Option<&Bound<'_, PyAny>>,
        num_steps: Option<i64>,
    ) -> PyResult<u64> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let state = this.state.get_mut(py)?;
        state.sender.make_room(py)?;
        let wrong = |error| errors::to_py(py, &error);
        let number = state.sender.table_number(py, table)?;
        let options = Arc::clone(state.sender.options(number));
        options.check_priority(priority).map_err(wrong)?;
        let key = state.recorder.next_key();
        let check = |columns: &engram_core::writer::ItemColumns<'_>| match &options.signature {
            Some(signature) => columns.check(&options.name, signature),
            None => Ok(()),
        };
        match (trajectory, num_steps) {
            (None, Some(n)) => {
                let n = u64::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| {
                    errors::invalid(py, format!("`num_steps` must be at least 1; got {n}"))
                })?;
                state
                    .recorder
                    .create_item(number, key, priority, &Selection::Last(n), check)
            }
            (Some(tree), None) => {
                let (layout, columns) = state.layout(tree)?;
                let mut picked = Vec::with_capacity(columns.len());
                for (column, name) in columns.iter().zip(&layout.names) {
                    let column = column.get();
                    if !column.is_of(slf) {
                        let text = format!(
                            "column `{name}` of the trajectory is from another writer's history"
                        );
                        return Err(errors::signature(py, text));
                    }
                    let Some(source) = state.steps.column(column.leaf) else {
                        let text =
                            format!("column `{name}` of the trajectory has never had a value");
                        return Err(errors::signature(py, text));
                    };
                    picked.push(ColumnSelection {
                        source,
                        cells: column.cells(),
                        squeeze: column.squeeze,
                    });
                }
                let selection = Selection::Columns {
                    layout: &layout,
                    columns: &picked,
                };
                state
                    .recorder
                    .create_item(number, key, priority, &selection, check)
            }
            _ => {
                let text =
                    "create_item takes either a trajectory or num_steps, not both and not neither"
                        .into();
                return Err(errors::invalid(py, text));
            }
        }
        .map_err(wrong)?;
        state.send(py)?;
        Ok(key)
    }

    #[pyo3(signature = (timeout, allowed = 0))]
    fn flush(slf: &Bound<'_, Self>, timeout: Option<f64>, allowed: usize) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let timeout = Timeout::new(py, timeout)?;
        this.state.get_mut(py)?.flush(py, timeout, allowed)
    }

    /// Keeps at least the newest `history` steps from now on.
    fn extend_history(slf: &Bound<'_, Self>, history: u64) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        this.state.get_mut(py)?.recorder.extend_history(history);
        Ok(())
    }

    fn end_episode(slf: &Bound<'_, Self>, timeout: Option<f64>, clear: bool) -> PyResult<()> {
        let py = slf.py();
        let mut this = alone(slf)?;
        let timeout = Timeout::new(py, timeout)?;
        let state = this.state.get_mut(py)?;
        state
            .recorder
            .end_episode(clear)
            .map_err(|error| errors::to_py(py, &error))?;
        if clear {
            state.base = state.recorder.available_steps().end;
        }
        state.send(py)?;
        state.sender.wait(py, timeout, 0)
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

    /// Items created and not yet in their table, as far as is known.
    #[getter]
    fn pending_items(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let py = slf.py();
        let this = shared(slf)?;
        let state = this.state.get(py)?;
        Ok(state.recorder.pending_items() + state.sender.items_left(py))
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
