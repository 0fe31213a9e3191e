//! The native class of `engram.buffers.ReplayBuffer`.

mod adding;
mod methods;

use std::borrow::Cow;
use std::sync::Arc;

use engram_core::pool::Pool;
use engram_core::ring::{DeviceCells, EpisodeColumns, StepBuffer};
use engram_core::{CellSpec, Result, Schema};
use engram_engine::{self as engine};
use numpy::PyReadwriteArray1;
use parking_lot::{RwLock, RwLockWriteGuard};
use pyo3::prelude::*;

use crate::buffer_columns::{BatchColumns, Column};
use crate::buffer_steps::StepColumns;
use crate::device_columns::DeviceColumns;
use crate::errors;
use crate::gil::ForkGuard;
use crate::structure::Structure;

/// A ring of steps per environment, and the items that are sampled from it.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    /// No thread acquires the GIL while it holds this lock.
    buffer: ForkGuard<RwLock<engine::ReplayBuffer>>,
    columns: StepColumns,
    /// The columns on a device; `None` if all are in the ring.
    device: Option<DeviceColumns>,
    /// Names, nesting, dtypes and shapes of the columns of a step.
    schema: Arc<Schema>,
    /// Structure of an item.
    structure: Arc<Structure>,
    /// Names, dtypes and shapes of the columns of an item, with the time axis; then those of hidden columns.
    outputs: Vec<(String, CellSpec)>,
    /// Maximum number of steps of an item.
    steps_per_item: usize,
    /// The columns `terminated` and `truncated`, if the buffer uses them.
    episode_columns: Option<EpisodeColumns>,
    /// Minimum number of bytes that are copied without the GIL.
    min_detached_bytes: usize,
    pool: Arc<Pool>,
    /// The numbers of all environments, from 0 on.
    envs: Vec<usize>,
    /// Slots per environment.
    length: usize,
}

/// Bytes whose copying takes about as long as a change of one priority in the sum tree.
const BYTES_PER_PRIORITY_CHANGE: usize = 512;

impl ReplayBuffer {
    /// Locks the buffer and runs `work`: without the GIL if `work` copies many bytes (`bytes`), or if the lock is
    /// taken.
    pub(crate) fn locked<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(RwLockWriteGuard<'_, engine::ReplayBuffer>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let lock = self.buffer.get(py)?;
        let free = if bytes < self.min_detached_bytes {
            lock.try_write()
        } else {
            None
        };
        let work = |guard: RwLockWriteGuard<'_, engine::ReplayBuffer>| {
            guard.check_open()?;
            work(guard)
        };
        let outcome = match free {
            Some(guard) => work(guard),
            None => py.detach(|| work(lock.write())),
        };
        outcome.map_err(|error| errors::to_py(py, &error))
    }

    /// Like [`Self::locked`], but shares the lock with other threads that only read.
    pub(crate) fn reading<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(&StepBuffer) -> Result<T> + Send,
    ) -> PyResult<T> {
        let lock = self.buffer.get(py)?;
        let free = if bytes < self.min_detached_bytes {
            lock.try_read()
        } else {
            None
        };
        let work = |buffer: &engine::ReplayBuffer| {
            buffer.check_open()?;
            work(buffer)
        };
        let outcome = match free {
            Some(buffer) => work(&buffer),
            None => py.detach(|| work(&lock.read())),
        };
        outcome.map_err(|error| errors::to_py(py, &error))
    }

    /// The columns of a batch of the buffer's items.
    pub(crate) fn item_columns(&self) -> BatchColumns<'_> {
        BatchColumns {
            structure: &self.structure,
            columns: Cow::Borrowed(&self.outputs),
            steps_per_item: self.steps_per_item,
            pool: &self.pool,
        }
    }

    /// Names, dtypes and shapes of the columns of steps in the ring, or of sequences of this many steps.
    fn step_cells(&self, sequence_length: Option<usize>) -> Vec<Column> {
        let mut columns = self.columns.columns(sequence_length);
        if let Some(device) = &self.device {
            device.replace_cells(columns.iter_mut().map(|(_, cell)| cell), sequence_length);
        }
        columns
    }

    /// The columns of a batch of steps.
    pub(crate) fn step_columns(&self) -> BatchColumns<'_> {
        BatchColumns {
            structure: self.columns.structure(),
            columns: Cow::Owned(self.step_cells(None)),
            steps_per_item: 1,
            pool: &self.pool,
        }
    }

    /// The columns of a batch of sequences of `length` steps.
    ///
    /// # Errors
    /// `InvalidArgumentError` if `length` is not from 1 to the number of slots.
    fn sequence_columns(&self, py: Python<'_>, length: usize) -> PyResult<BatchColumns<'_>> {
        if !(1..=self.length).contains(&length) {
            let text = format!("`length` must be from 1 to {}; got {length}", self.length);
            return Err(errors::invalid(py, text));
        }
        Ok(BatchColumns {
            columns: Cow::Owned(self.step_cells(Some(length))),
            steps_per_item: length,
            ..self.step_columns()
        })
    }

    /// Number of environments.
    pub(crate) fn num_envs(&self) -> usize {
        self.envs.len()
    }

    /// Number of steps whose cells were ever staged for a device.
    pub(crate) fn staged_end(&self) -> u64 {
        self.device.as_ref().map_or(0, DeviceColumns::staged_end)
    }

    /// The cells on a device, in these copies of its arrays.
    fn device_cells<'a>(
        &self,
        copies: &'a mut [PyReadwriteArray1<'_, u8>],
    ) -> PyResult<DeviceCells<'a>> {
        let copies = copies.iter_mut().map(PyReadwriteArray1::as_slice_mut);
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        let device = self.device.as_ref();
        Ok(device.map_or_else(Vec::new, |device| device.device_cells(copies)))
    }
}
