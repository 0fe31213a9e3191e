//! Histories of columns, and slices of them for trajectories.

use std::ops::Range;

use engram_core::Error;
use engram_core::text::count;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyWeakrefMethods, PyWeakrefReference};

use crate::arrays;
use crate::dtypes;
use crate::errors;
use crate::gil::shared;
use crate::step_flattener::StepLeaf;
use crate::trajectory_writer::state::TrajectoryState;
use crate::writer::Writer;

/// The steps of one column since the last `end_episode(clear=True)`, oldest first. It includes steps that the writer no
/// longer retains: they have an index, but to read them or to create items of them is an error.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct ColumnHistory {
    /// Weak, so that a history does not keep its writer alive.
    writer: Py<PyWeakrefReference>,
    leaf: StepLeaf,
}

/// Steps of one column, for an item.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct TrajectoryColumn {
    writer: Py<Writer>,
    /// The leaf whose column the steps belong to.
    pub(crate) leaf: StepLeaf,
    pub(crate) positions: Positions,
    /// True for a single step without a time axis.
    pub(crate) squeeze: bool,
}

/// Positions of selected steps. The writer's first step has position 0.
#[derive(Debug)]
pub(crate) enum Positions {
    /// Evenly spaced, oldest first.
    Range { first: u64, stride: u64, len: u64 },
    /// In any order.
    List(Vec<u64>),
}

impl Positions {
    fn len(&self) -> usize {
        match self {
            Self::Range { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
            Self::List(list) => list.len(),
        }
    }

    fn to_vec(&self) -> Vec<u64> {
        match self {
            Self::Range { first, stride, len } => (0..*len).map(|n| first + n * stride).collect(),
            Self::List(list) => list.clone(),
        }
    }
}

impl ColumnHistory {
    pub(crate) fn new(writer: &Bound<'_, Writer>, leaf: StepLeaf) -> PyResult<Self> {
        let writer = PyWeakrefReference::new(writer)?.unbind();
        Ok(Self { writer, leaf })
    }

    fn writer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Writer>> {
        let writer = self.writer.bind(py).upgrade_as::<Writer>()?;
        writer.ok_or_else(|| {
            let text =
                "the writer of this history was garbage-collected; keep a reference to the writer";
            errors::to_py(py, &Error::Closed(text.into()))
        })
    }

    fn trajectory_column(
        &self,
        writer: &Bound<'_, Writer>,
        positions: Positions,
        squeeze: bool,
    ) -> TrajectoryColumn {
        TrajectoryColumn {
            writer: writer.clone().unbind(),
            leaf: self.leaf.clone(),
            positions,
            squeeze,
        }
    }
}

/// Positions of the steps that have an index in the history of a writer.
fn indexed_steps(writer: &Bound<'_, Writer>) -> PyResult<Range<u64>> {
    let writer = shared(writer)?;
    let state: &TrajectoryState = writer.state(writer.py())?;
    Ok(state.indexed_steps())
}

/// Names a column of the history in error texts. Steps that are one array have one column, whose name is empty.
fn describe_history(leaf: &StepLeaf) -> String {
    match leaf.name() {
        "" => "`history`".into(),
        name => format!("column `{name}` of `history`"),
    }
}

/// Returns the position of the step with this index in a history of `len` steps, the first of which has position
/// `first`. A negative index counts from the end. `column` names the column in the error.
fn position(
    index: &Bound<'_, PyAny>,
    first: u64,
    len: u64,
    column: impl Fn() -> String,
) -> PyResult<u64> {
    let out_of_range = |index: &str| {
        PyIndexError::new_err(format!(
            "{index} is out of range for {}, which has {}",
            column(),
            count(len, "step")
        ))
    };
    let index = match step_index(index, &column) {
        Err(error) if error.is_instance_of::<PyOverflowError>(index.py()) => {
            return Err(out_of_range("an index of more than 64 bits"));
        }
        index => index?,
    };
    let signed_len = i64::try_from(len).unwrap_or(i64::MAX);
    let offset = if index < 0 { index + signed_len } else { index };
    match u64::try_from(offset) {
        Ok(offset) if offset < len => Ok(first + offset),
        _ => Err(out_of_range(&format!("index {index}"))),
    }
}

/// Reads the index of a step. `column` names the column in the error. Fails with an `OverflowError` for an integer of
/// more than 64 bits.
fn step_index(index: &Bound<'_, PyAny>, column: impl Fn() -> String) -> PyResult<i64> {
    index.extract::<i64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(index.py()) {
            return error;
        }
        errors::replace_ordinary_error(index.py(), error, || {
            errors::class_name(index).map_or_else(
                |raised| raised,
                |class| {
                    PyTypeError::new_err(format!(
                        "indices of {} must be integers, slices or lists of integers; got {class}",
                        column()
                    ))
                },
            )
        })
    })
}

#[pymethods]
impl ColumnHistory {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let writer = self.writer(py)?;
        let indexed = indexed_steps(&writer)?;
        Ok(usize::try_from(indexed.end - indexed.start).unwrap_or(usize::MAX))
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<TrajectoryColumn> {
        let py = index.py();
        let writer = self.writer(py)?;
        let indexed = indexed_steps(&writer)?;
        let len = indexed.end - indexed.start;
        let column = || describe_history(&self.leaf);
        if let Ok(slice) = index.cast::<PySlice>() {
            let bounds = slice.indices(isize::try_from(len).unwrap_or(isize::MAX))?;
            let count = bounds.slicelength as u64;
            let nth_position = |n: u64| {
                let offset = i64::try_from(bounds.start).unwrap_or(0)
                    + i64::try_from(n).unwrap_or(0) * i64::try_from(bounds.step).unwrap_or(1);
                indexed.start.saturating_add_signed(offset)
            };
            let positions = match u64::try_from(bounds.step) {
                Ok(stride) => Positions::Range {
                    first: nth_position(0),
                    stride,
                    len: count,
                },
                Err(_) => Positions::List((0..count).map(nth_position).collect()),
            };
            return Ok(self.trajectory_column(&writer, positions, false));
        }
        if let Ok(list) = index.cast::<PyList>() {
            let positions = list
                .iter()
                .map(|index| position(&index, indexed.start, len, column));
            return Ok(self.trajectory_column(
                &writer,
                Positions::List(positions.collect::<PyResult<_>>()?),
                false,
            ));
        }
        let first = position(index, indexed.start, len, column)?;
        Ok(self.trajectory_column(
            &writer,
            Positions::Range {
                first,
                stride: 1,
                len: 1,
            },
            true,
        ))
    }
}

impl TrajectoryColumn {
    pub(crate) fn is_of(&self, writer: &Bound<'_, Writer>) -> bool {
        self.writer.is(writer)
    }

    /// The recorder's column, and the dtype and shape of its first selected cell.
    fn cell<'a>(
        &self,
        py: Python<'_>,
        state: &'a TrajectoryState,
    ) -> PyResult<(usize, &'a engram_core::CellSpec)> {
        let column = state.steps.column_of(&self.leaf);
        let first = self.positions.to_vec().first().copied();
        column
            .zip(first)
            .and_then(|(column, position)| {
                Some((column, state.recorder.cell_spec(column, position)?))
            })
            .ok_or_else(|| {
                let column = describe_history(&self.leaf);
                let text = match first {
                    None => format!("{column}: the slice selects no steps; select at least one"),
                    Some(_) => format!(
                        "{column} has no value at the first selected step, or the writer no longer retains that step; \
                         select newer steps with a value"
                    ),
                };
                errors::signature(py, text)
            })
    }
}

#[pymethods]
impl TrajectoryColumn {
    fn __len__(&self) -> usize {
        self.positions.len()
    }

    #[getter]
    fn is_squeezed(&self) -> bool {
        self.squeeze
    }

    #[getter]
    fn shape(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let writer = shared(self.writer.bind(py))?;
        let (_, cell) = self.cell(py, writer.state(py)?)?;
        let time = (!self.squeeze).then(|| self.positions.len());
        Ok(time.into_iter().chain(cell.shape.iter().copied()).collect())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let writer = shared(self.writer.bind(py))?;
        let (_, cell) = self.cell(py, writer.state(py)?)?;
        Ok(dtypes::to_numpy(py, cell.dtype)?.into_any())
    }

    /// Returns a copy of the values as an array.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = self.shape(py)?;
        let writer = shared(self.writer.bind(py))?;
        let state = writer.state(py)?;
        let (column, cell) = self.cell(py, state)?;
        let mut bytes = Vec::new();
        for position in self.positions.to_vec() {
            if let Some(other) = state.recorder.cell_spec(column, position)
                && other != cell
            {
                let text = format!(
                    "{}: steps of shape {:?} and {:?} cannot be stacked into one array",
                    describe_history(&self.leaf),
                    cell.shape.as_slice(),
                    other.shape.as_slice()
                );
                return Err(errors::signature(py, text));
            }
            state
                .recorder
                .read_cell(column, position, &mut bytes)
                .map_err(|error| errors::to_py(py, &error))?;
        }
        if cell.dtype.is_string() {
            return arrays::from_strings(py, &bytes, cell.dtype, &shape);
        }
        let mut buffer = state.pool().take(bytes.len()).ok_or_else(|| {
            let slice = format!("a slice of {}", describe_history(&self.leaf));
            let error = Error::out_of_memory(slice, Some(bytes.len()));
            errors::to_py(py, &error)
        })?;
        buffer.copy_from_slice(&bytes);
        arrays::from_bytes(py, buffer, cell.dtype, &shape)
    }
}
