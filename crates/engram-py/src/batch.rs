//! Batches: arrays over the engine's buffers, and metadata of the items on demand.

use std::sync::Arc;

use engram_core::SampledItemInfo;
use engram_core::gather::{Column, ColumnData, Columns, LengthPolicy, TimeAxis};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrays;
use crate::importance_weights::importance_weights;
use crate::structure::Structure;

/// One array per column; None for columns without one.
type OptionalLeaves = Vec<Option<Py<PyAny>>>;

/// The native class of `engram.Batch`. Arrays of metadata are created on demand.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct Batch {
    data: Py<PyAny>,
    row_splits: Option<Py<PyAny>>,
    lengths: Option<Py<PyAny>>,
    /// For each column, true if it has no time axis.
    squeezed: Vec<bool>,
    infos: Vec<SampledItemInfo>,
    /// Leaves of `data`.
    leaves: Vec<Py<PyAny>>,
    /// Leaves of `row_splits`; None for columns that are not ragged.
    leaf_splits: OptionalLeaves,
    /// Leaves of `lengths`; None for columns that are not padded.
    leaf_lengths: OptionalLeaves,
    structure: Arc<Structure>,
}

impl Batch {
    /// Builds a batch. With `single`, the batch has one item, and its data has no axis for items.
    pub(crate) fn new(
        py: Python<'_>,
        columns: Columns,
        infos: Vec<SampledItemInfo>,
        single: bool,
    ) -> PyResult<Self> {
        let structure = Structure::parse(py, &columns.layout.structure)?;
        let items = infos.len();
        let squeezed = (columns.columns.iter())
            .map(|column| matches!(column.time, TimeAxis::Squeezed))
            .collect();
        let mut arrays = Vec::with_capacity(columns.columns.len());
        let mut leaf_splits = Vec::new();
        let mut leaf_lengths = Vec::new();
        for column in columns.columns {
            match &column.time {
                TimeAxis::Ragged(splits) => {
                    leaf_splits.push(Some(PyArray1::from_slice(py, splits).into_any().unbind()));
                    leaf_lengths.push(None);
                }
                TimeAxis::Padded {
                    lengths: item_lengths,
                    ..
                } => {
                    let item_lengths = item_lengths
                        .iter()
                        .map(|len| i64::try_from(*len).unwrap_or(i64::MAX));
                    leaf_splits.push(None);
                    leaf_lengths.push(Some(
                        PyArray1::from_iter(py, item_lengths).into_any().unbind(),
                    ));
                }
                TimeAxis::Squeezed | TimeAxis::Even(_) => {
                    leaf_splits.push(None);
                    leaf_lengths.push(None);
                }
            }
            arrays.push(to_array(py, column, items, single)?);
        }
        // Columns that are neither ragged nor padded have None in the nest.
        let build_nest = |leaves: &[Option<Py<PyAny>>]| -> PyResult<Option<Py<PyAny>>> {
            if leaves.iter().all(Option::is_none) {
                return Ok(None);
            }
            let leaves = leaves
                .iter()
                .map(|leaf| {
                    leaf.as_ref()
                        .map_or_else(|| py.None().into_bound(py), |leaf| leaf.bind(py).clone())
                })
                .collect();
            structure
                .unflatten(py, leaves)
                .map(|nest| Some(nest.unbind()))
        };
        let leaves = arrays.iter().map(|array| array.clone().unbind()).collect();
        Ok(Self {
            row_splits: build_nest(&leaf_splits)?,
            lengths: build_nest(&leaf_lengths)?,
            data: structure.unflatten(py, arrays)?.unbind(),
            squeezed,
            infos,
            leaves,
            leaf_splits,
            leaf_lengths,
            structure,
        })
    }
}

/// How a batch represents items of different lengths, given the argument `pad`.
pub(crate) fn length_policy(pad: bool) -> LengthPolicy {
    if pad {
        LengthPolicy::Pad
    } else {
        LengthPolicy::Ragged
    }
}

/// Converts a column into an array.
fn to_array(
    py: Python<'_>,
    column: Column,
    items: usize,
    single: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let outer = match &column.time {
        TimeAxis::Squeezed => [Some(items), None],
        TimeAxis::Even(len) => [Some(items), Some(*len)],
        TimeAxis::Padded { longest, .. } => [Some(items), Some(*longest)],
        TimeAxis::Ragged(splits) => [
            splits.last().and_then(|end| usize::try_from(*end).ok()),
            None,
        ],
    };
    let outer = outer.into_iter().flatten().skip(usize::from(single));
    let shape: Vec<usize> = outer.chain(column.cell.shape.iter().copied()).collect();
    match column.data {
        ColumnData::Bytes(bytes) => arrays::from_bytes(py, bytes, column.cell.dtype, &shape),
        ColumnData::Strings(encoded) => {
            arrays::from_strings(py, &encoded, column.cell.dtype, &shape)
        }
    }
}

#[pymethods]
impl Batch {
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyAny> {
        self.data.clone_ref(py)
    }

    #[getter]
    fn row_splits(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.row_splits.as_ref().map(|splits| splits.clone_ref(py))
    }

    #[getter]
    fn lengths(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.lengths.as_ref().map(|lengths| lengths.clone_ref(py))
    }

    /// For each column, true if it has no time axis.
    #[getter]
    fn squeezed(&self) -> Vec<bool> {
        self.squeezed.clone()
    }

    /// The leaves of `data`, of `row_splits` and of `lengths`, and the serialized structure of `data`. Nests that are
    /// None have leaves that are None.
    fn flat(&self, py: Python<'_>) -> (Vec<Py<PyAny>>, OptionalLeaves, OptionalLeaves, &str) {
        let optional = |leaves: &OptionalLeaves| {
            leaves
                .iter()
                .map(|leaf| leaf.as_ref().map(|leaf| leaf.clone_ref(py)))
                .collect()
        };
        (
            self.leaves.iter().map(|leaf| leaf.clone_ref(py)).collect(),
            optional(&self.leaf_splits),
            optional(&self.leaf_lengths),
            &self.structure.text,
        )
    }

    fn __len__(&self) -> usize {
        self.infos.len()
    }

    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_iter(py, self.infos.iter().map(|info| info.key))
    }

    fn probability<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(py, self.infos.iter().map(|info| info.probability))
    }

    fn priority<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(py, self.infos.iter().map(|info| info.priority))
    }

    fn times_sampled<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        let times = |info: &SampledItemInfo| i32::try_from(info.times_sampled).unwrap_or(i32::MAX);
        PyArray1::from_iter(py, self.infos.iter().map(times))
    }

    fn table_size<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let size = |info: &SampledItemInfo| i64::try_from(info.table_size).unwrap_or(i64::MAX);
        PyArray1::from_iter(py, self.infos.iter().map(size))
    }

    /// For each item, the number of items that its draw could have chosen: `N` of `importance_weights`.
    #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
    fn candidates<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(
            py,
            self.infos
                .iter()
                .map(|info| info.distribution.candidates as f64),
        )
    }

    /// For each item, the smallest probability of the items that its draw could have chosen.
    fn min_probability<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(
            py,
            self.infos
                .iter()
                .map(|info| info.distribution.min_probability),
        )
    }

    /// Computes `(1 / (N p)) ^ beta`, divided as `normalize` requires. Python has checked the arguments.
    fn importance_weights<'py>(
        &self,
        py: Python<'py>,
        beta: f64,
        normalize: Option<&str>,
    ) -> Bound<'py, PyArray1<f32>> {
        let draws = self
            .infos
            .iter()
            .map(|info| (info.distribution, info.probability));
        importance_weights(py, draws, beta, normalize)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let list = PyList::new(slf.py(), [slf.borrow().infos.len()])?;
        Ok(format!("Batch{list}"))
    }
}
