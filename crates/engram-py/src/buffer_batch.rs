//! The native class of `engram.buffers.BufferBatch`.

use engram_core::ring::Drawn;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::buffer_columns::BatchArrays;
use crate::importance_weights::importance_weights;

/// Items that a replay buffer returned. Arrays of metadata are created on demand.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct BufferBatch {
    arrays: BatchArrays,
    drawn: Drawn,
    num_envs: usize,
    /// Number of steps whose cells were staged for a device when the items were drawn, ever.
    staged_end: u64,
}

impl BufferBatch {
    pub(crate) fn new(arrays: BatchArrays, drawn: Drawn, num_envs: usize) -> Self {
        Self {
            arrays,
            drawn,
            num_envs,
            staged_end: 0,
        }
    }

    /// Returns the batch of items that were drawn when this many steps had been staged for a device.
    pub(crate) fn with_staged_end(mut self, staged_end: u64) -> Self {
        self.staged_end = staged_end;
        self
    }

    /// The probability of each item.
    fn probabilities(&self) -> impl Iterator<Item = f64> + Clone {
        // If there is only one, it applies to all items.
        let each = self.drawn.probabilities.iter().copied().cycle();
        each.take(self.drawn.starts.len())
    }
}

#[pymethods]
impl BufferBatch {
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyAny> {
        self.arrays.data.clone_ref(py)
    }

    /// Number of steps whose cells must be on the device before those of this batch are read there, ever staged.
    #[getter]
    fn staged_end(&self) -> u64 {
        self.staged_end
    }

    /// Arrays of the columns that are not part of `data`, in order.
    fn hidden(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let arrays = self.arrays.hidden.iter();
        arrays.map(|array| array.clone_ref(py)).collect()
    }

    fn __len__(&self) -> usize {
        self.drawn.starts.len()
    }

    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let keys = (self.drawn.starts.iter()).map(|start| start.key(self.num_envs));
        PyArray1::from_iter(py, keys)
    }

    fn env_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let envs = (self.drawn.starts.iter()).map(|start| i64::try_from(start.env).unwrap_or(0));
        PyArray1::from_iter(py, envs)
    }

    fn position<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_iter(py, self.drawn.starts.iter().map(|start| start.position))
    }

    fn probability<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(py, self.probabilities())
    }

    /// None if the buffer has no priorities.
    fn priority<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<f64>>> {
        let priorities = &self.drawn.priorities;
        (priorities.len() == self.drawn.starts.len()).then(|| PyArray1::from_slice(py, priorities))
    }

    /// None if goals are not replaced.
    fn relabeled<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<bool>>> {
        let relabeled = self.drawn.relabeled()?;
        Some(PyArray1::from_iter(py, relabeled))
    }

    /// Computes `(1 / (N p)) ^ beta`, divided as `normalize` requires. Python has checked the arguments.
    fn importance_weights<'py>(
        &self,
        py: Python<'py>,
        beta: f64,
        normalize: Option<&str>,
    ) -> Bound<'py, PyArray1<f32>> {
        let distribution = self.drawn.distribution;
        let draws = self
            .probabilities()
            .map(|probability| (distribution, probability));
        importance_weights(py, draws, beta, normalize)
    }
}
