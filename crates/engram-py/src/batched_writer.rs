//! The native class of `engram.BatchedWriter`.

mod append_steps;

use std::sync::Arc;

use engram_core::text::{count, describe_column};
use engram_core::writer::{BatchedRecorder, ColumnInput, ItemRecorder, Pattern};
use engram_core::{CellSpec, Schema, Shape};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::exclusive;
use crate::leaf::{Leaf, bytes_of, prevent_resize};
use crate::patterns::{PatternConfig, check_signature};
use crate::sender::{PatternTables, Sender};
use crate::step_flattener::structure_differs;
use crate::store::Store;
use crate::structure::{Structure, with_array_hint};
use crate::writer::{Writer, WriterConfig, WriterState};

/// Writes one step of N environments at a time, and creates items as patterns declare.
#[pyclass(extends = Writer, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct BatchedWriter;

#[derive(Debug)]
struct BatchedState {
    options: engram_core::writer::WriterOptions,
    num_envs: usize,
    /// Structure of the steps and their recorder; set by the first step.
    recording: Option<(Structure, BatchedRecorder)>,
    sender: Sender,
    /// Python function that compiles the declared patterns for the structure of the steps.
    compile: Py<PyAny>,
    /// Compiled patterns, to check against signatures again if the shape of a column changes.
    patterns: Vec<Pattern>,
    /// The patterns' tables, to check priorities against.
    tables: PatternTables,
}

/// Dtype and shape of one environment's part of a leaf, whose first axis must have size `envs`.
pub(crate) fn env_cell(
    py: Python<'_>,
    leaf: &Leaf<'_>,
    name: &str,
    envs: usize,
) -> PyResult<CellSpec> {
    let CellSpec { dtype, shape } = leaf.spec();
    match shape.split_first() {
        Some((first, rest)) if *first == envs => Ok(CellSpec {
            dtype,
            shape: Shape::from_slice(rest),
        }),
        _ => {
            let text = format!(
                "{} must have shape [{envs}, ...] with {}; got shape {:?}",
                describe_column(name),
                count(envs, "environment"),
                shape.as_slice()
            );
            Err(errors::signature(py, text))
        }
    }
}

/// Warns of a column with a flag that no item has, once per column.
fn warn_of_lost_flags(py: Python<'_>, recorder: &mut BatchedRecorder) -> PyResult<()> {
    match recorder.take_lost_flag() {
        Some(column) => warn_of_lost_flag(py, column),
        None => Ok(()),
    }
}

/// Warns that no item has a flag that marks the end of an episode.
#[cold]
fn warn_of_lost_flag(py: Python<'_>, column: &str) -> PyResult<()> {
    let text = format!(
        "{} is True at the last step of an episode, but patterns select this column of earlier steps only, so no item \
         contains this value. If it marks the end of the episode, `episode_ends` must be True one step later, at a \
         step with the last observation. For vector environments of Gymnasium, use engram.gymnasium.VectorWriter",
        describe_column(column)
    );
    let text = std::ffi::CString::new(text)?;
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)
}

impl WriterState for BatchedState {
    fn parts(&self) -> (Option<&dyn ItemRecorder>, &Sender) {
        let recorder = self.recording.as_ref().map(|(_, recorder)| recorder as _);
        (recorder, &self.sender)
    }

    fn parts_mut(&mut self) -> (Option<&mut dyn ItemRecorder>, &mut Sender) {
        let recorder = self.recording.as_mut().map(|(_, recorder)| recorder as _);
        (recorder, &mut self.sender)
    }
}

impl BatchedState {
    /// Prepares for steps of this structure: compiles the patterns, and creates the recorder.
    fn start(
        &mut self,
        py: Python<'_>,
        structure: Structure,
        cells: Vec<CellSpec>,
    ) -> PyResult<()> {
        let to_py = |error| errors::to_py(py, &error);
        let schema = Arc::new(Schema {
            layout: structure.layout(),
            cells: cells.into(),
        });
        let configs: Vec<PatternConfig> =
            self.compile.bind(py).call1((&structure.text,))?.extract()?;
        let patterns = configs
            .into_iter()
            .filter_map(|config| config.compile(py, &mut self.sender, Some).transpose())
            .collect::<PyResult<Vec<_>>>()?;
        for pattern in &patterns {
            check_signature(py, pattern, &self.sender, &schema)?;
        }
        self.patterns.clone_from(&patterns);
        self.tables = PatternTables::new(&self.sender, patterns.iter());
        let base = self.sender.unique_number();
        let recorder =
            BatchedRecorder::new(self.options.clone(), base, self.num_envs, schema, patterns);
        self.recording = Some((structure, recorder.map_err(to_py)?));
        Ok(())
    }

    /// Returns the leaves of steps, and their structure if it is that of the first step.
    fn flatten<'py>(
        &self,
        steps: &Bound<'py, PyAny>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Option<Structure>)> {
        let Some((structure, _)) = &self.recording else {
            let (structure, values) = Structure::of(steps)?;
            return Ok((values, Some(structure)));
        };
        let mut values = Vec::new();
        if !structure.root.flatten(steps, &mut values)? {
            let (given, _) = Structure::of(steps)?;
            return Err(structure_differs(
                steps.py(),
                "a writer",
                &given.names,
                &structure.names,
            ));
        }
        Ok((values, None))
    }

    /// The names of the columns. `new_structure` is the second result of [`BatchedState::flatten`].
    fn names<'a>(&'a self, new_structure: Option<&'a Structure>) -> &'a [String] {
        let structure = new_structure.or(self.recording.as_ref().map(|recording| &recording.0));
        structure.map_or(&[], |structure| structure.names.as_slice())
    }

    /// Prepares the recorder for steps with these cells. `new_structure` is the second result of
    /// [`BatchedState::flatten`].
    fn prepare(
        &mut self,
        py: Python<'_>,
        new_structure: Option<Structure>,
        cells: Vec<CellSpec>,
    ) -> PyResult<()> {
        if let Some(structure) = new_structure {
            return self.start(py, structure, cells);
        }
        if let Some((_, recorder)) = &mut self.recording
            && *recorder.schema().cells != *cells
        {
            let layout = Arc::clone(&recorder.schema().layout);
            let schema = Schema {
                layout,
                cells: cells.into(),
            };
            for pattern in &self.patterns {
                check_signature(py, pattern, &self.sender, &schema)?;
            }
            let reshaped = recorder.reshape(schema.cells);
            reshaped.map_err(|error| errors::to_py(py, &error))?;
        }
        Ok(())
    }

    /// Appends a step of each environment. `ends` is true for each environment whose episode ends with this step.
    fn append(&mut self, steps: &Bound<'_, PyAny>, ends: Option<&[bool]>) -> PyResult<()> {
        let py = steps.py();
        let to_py = |error| errors::to_py(py, &error);
        let (values, new_structure) = self.flatten(steps)?;
        let names = self.names(new_structure.as_ref());
        let mut leaves = Vec::with_capacity(values.len());
        let mut cells = Vec::with_capacity(values.len());
        for (value, name) in values.iter().zip(names) {
            let leaf = Leaf::new(value, name)?;
            cells.push(env_cell(py, &leaf, name, self.num_envs)?);
            leaves.push(leaf);
        }
        self.prepare(py, new_structure, cells)?;
        let Some((_, recorder)) = &mut self.recording else {
            return Ok(());
        };
        let strings: Vec<Vec<Vec<u8>>> = leaves
            .iter()
            .zip(&recorder.schema().cells)
            .map(|(leaf, cell)| leaf.split_strings(cell.elements(), self.num_envs))
            .collect();
        let arrays = leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Array { array, .. } => Some(prevent_resize(array)),
            _ => None,
        });
        // Before any address or length is read, because preventing a resize may run Python code.
        let _resize_guards = arrays.collect::<PyResult<Vec<_>>>()?;
        let columns: Vec<ColumnInput<'_>> = leaves
            .iter()
            .zip(&strings)
            .map(|(leaf, strings)| match leaf {
                Leaf::Array { array, .. } => ColumnInput::Cells(bytes_of(array)),
                _ => ColumnInput::Strings(strings),
            })
            .collect();
        let tables = &self.tables;
        let accepts = |table, priority| tables.check_priority(table, priority);
        let appended = py.detach(|| recorder.append_batch(&columns, ends, accepts));
        let sent = self.sender.send(py, recorder);
        errors::all_of(py, [appended.map(drop).map_err(to_py), sent])?;
        warn_of_lost_flags(py, recorder)
    }
}

#[pymethods]
impl BatchedWriter {
    #[new]
    fn new(
        py: Python<'_>,
        store: &Store,
        num_envs: usize,
        compile: Py<PyAny>,
        options: WriterConfig,
    ) -> PyResult<PyClassInitializer<Self>> {
        let sender = options.sender(py, store)?;
        let state = BatchedState {
            options: options.recorder_options(1, &sender),
            num_envs,
            recording: None,
            sender,
            compile,
            patterns: Vec::new(),
            tables: PatternTables::default(),
        };
        Ok(Writer::with_state(state).add_subclass(Self))
    }

    #[pyo3(signature = (steps, episode_ends))]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 passes arguments by value"
    )]
    fn append_batch(
        slf: &Bound<'_, Self>,
        steps: &Bound<'_, PyAny>,
        episode_ends: Option<PyReadonlyArray1<'_, u8>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let mut this = exclusive(slf.as_super())?;
        let state: &mut BatchedState = this.state_mut(py)?;
        state.sender.wait_for_capacity(py)?;
        let ends = match &episode_ends {
            Some(ends) => Some(
                ends.as_slice()?
                    .iter()
                    .map(|end| *end != 0)
                    .collect::<Vec<_>>(),
            ),
            None => None,
        };
        state
            .append(steps, ends.as_deref())
            .map_err(|error| with_array_hint(error, steps))
    }

    /// Appends the steps of a nest of arrays `[N, T, ...]`. `episode_ends` are the flags `[N, T]`, flattened, and `T`.
    #[pyo3(signature = (steps, episode_ends))]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 passes arguments by value"
    )]
    fn append_steps(
        slf: &Bound<'_, Self>,
        steps: &Bound<'_, PyAny>,
        episode_ends: Option<(PyReadonlyArray1<'_, u8>, usize)>,
    ) -> PyResult<()> {
        let mut this = exclusive(slf.as_super())?;
        let ends = match &episode_ends {
            Some((ends, total)) => {
                let ends = ends.as_slice()?.iter().map(|end| *end != 0);
                Some((ends.collect::<Vec<_>>(), *total))
            }
            None => None,
        };
        let state: &mut BatchedState = this.state_mut(slf.py())?;
        state.append_steps(steps, ends.as_ref())
    }
}
