//! Columns of a replay buffer whose cells are in arrays on a device, which Python code owns. The ring has their numbers.
//!
//! Cells of added steps are staged in memory. Python code copies them to the device in blocks: before it reads the cells of
//! items that were drawn, and when too many are staged.

use std::sync::Arc;

use engram_core::pool::{Pool, PooledBytes};
use engram_core::ring::{DeviceCells, StepBuffer};
use engram_core::{CellSpec, DType, Error, Result, SharedBytes};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{arrays, errors};

/// What Python decides: the columns that must not be on the device; the function that copies all staged cells to the device, whose
/// argument is the buffer; and the maximum size of a block in bytes.
#[derive(Debug, FromPyObject)]
pub(crate) struct DeviceConfig(Vec<usize>, Py<PyAny>, usize);

/// The columns on a device, and their staged cells.
#[derive(Debug)]
pub(crate) struct DeviceColumns {
    columns: Vec<DeviceColumn>,
    /// Bytes of a step in these columns.
    step_bytes: usize,
    /// Slots per environment.
    length: usize,
    /// Maximum size in bytes of a block, and of the cells that several calls stage together.
    max_bytes: usize,
    write: Py<PyAny>,
    /// No Python code runs while a thread holds this lock: it could use the buffer.
    staged: Mutex<StagedCells>,
}

#[derive(Debug)]
struct DeviceColumn {
    /// Number of the column in a step.
    number: usize,
    cell: CellSpec,
    cell_bytes: usize,
}

/// Staged cells, in the order of the steps. A cell number occurs at most once in those that are not written yet.
#[derive(Debug, Default)]
struct StagedCells {
    numbers: Vec<[u8; 8]>,
    /// For each column on the device: the cells.
    columns: Vec<Vec<u8>>,
    /// Number of steps, the first ones, whose cells are on the device.
    written: usize,
    /// Number of steps that were staged before the first one of `numbers`.
    removed: u64,
    /// Maximum number of steps of an environment.
    steps_per_env: usize,
}

/// Staged cells: the number of steps that were staged up to the last one of them, the cell numbers, i64 `[n]`, and for each
/// column on the device an array `[n, ...]`.
pub(crate) type StagedBlock<'py> = (u64, Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>);

/// A copy of staged cells.
struct CopiedBlock {
    /// Number of steps that were staged up to the last one of them.
    end: u64,
    /// Number of steps, with padding.
    size: usize,
    /// The numbers of the cells, then the cells of each column.
    columns: Vec<PooledBytes>,
}

/// Dtype and shape of the number of a cell, or of the numbers of a sequence of this many cells.
fn number_cell(sequence_length: Option<usize>) -> CellSpec {
    CellSpec {
        dtype: DType::Int64,
        shape: sequence_length.into_iter().collect(),
    }
}

impl DeviceColumns {
    /// Chooses columns out of those of a step: the ones whose cells are larger than their number, except those that the host
    /// needs. `None` if there are none.
    pub(crate) fn new(config: DeviceConfig, cells: &[CellSpec], length: usize) -> Option<Self> {
        let DeviceConfig(host_columns, write, max_bytes) = config;
        let columns = cells.iter().enumerate().map(|(number, cell)| DeviceColumn {
            number,
            cell: cell.clone(),
            cell_bytes: cell.bytes(),
        });
        let columns = columns.filter(|column| {
            column.cell_bytes > number_cell(None).bytes() && !host_columns.contains(&column.number)
        });
        let columns: Vec<DeviceColumn> = columns.collect();
        (!columns.is_empty()).then(|| Self {
            step_bytes: columns.iter().map(|column| column.cell_bytes).sum(),
            staged: Mutex::new(StagedCells {
                columns: vec![Vec::new(); columns.len()],
                ..StagedCells::default()
            }),
            columns,
            length,
            max_bytes,
            write,
        })
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.columns.iter().map(|column| column.number).collect()
    }

    /// Replaces the dtypes and shapes of columns of a step, or of a sequence of this many steps, by those of the ring.
    pub(crate) fn replace_cells<'a>(
        &self,
        cells: impl Iterator<Item = &'a mut CellSpec>,
        sequence_length: Option<usize>,
    ) {
        for (number, cell) in cells.enumerate() {
            if self.columns.iter().any(|column| column.number == number) {
                *cell = number_cell(sequence_length);
            }
        }
    }

    /// Stages the cells of steps that are about to be added. Returns their numbers; `None` if too many are staged: then
    /// [`Self::write`] must be called first.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn stage(
        &self,
        buffer: &StepBuffer,
        envs: &[usize],
        columns: &[SharedBytes<'_>],
        steps: usize,
    ) -> Result<Option<Vec<[u8; 8]>>> {
        // Earlier steps are overwritten by this call.
        let stored = steps.min(self.length);
        let mut staged = self.staged.lock();
        let bytes = (staged.numbers.len() + envs.len() * stored).saturating_mul(self.step_bytes);
        let is_full = staged.steps_per_env + stored > self.length || bytes > self.max_bytes;
        if is_full && !staged.numbers.is_empty() {
            return Ok(None);
        }
        let lacking = |_| Error::out_of_memory("the replay buffer", Some(bytes));
        let numbers: Vec<[u8; 8]> = buffer.cell_numbers(envs, steps).collect();
        for (column, cells) in self.columns.iter().zip(&mut staged.columns) {
            let bytes = envs.len() * stored * column.cell_bytes;
            cells.try_reserve(bytes).map_err(lacking)?;
        }
        for env in 0..envs.len() {
            let first = (env + 1) * steps - stored;
            staged
                .numbers
                .extend_from_slice(&numbers[first..first + stored]);
            for (column, cells) in self.columns.iter().zip(&mut staged.columns) {
                let (begin, len) = (first * column.cell_bytes, stored * column.cell_bytes);
                let end = cells.len();
                cells.resize(end + len, 0);
                columns[column.number]
                    .slice(begin, len)
                    .copy_to(&mut cells[end..]);
            }
        }
        staged.steps_per_env += stored;
        Ok(Some(numbers))
    }

    /// The columns of steps with these cell numbers, as the ring stores them.
    pub(crate) fn with_numbers<'a>(
        &self,
        columns: &[SharedBytes<'a>],
        numbers: &'a [[u8; 8]],
    ) -> Vec<SharedBytes<'a>> {
        let mut columns = columns.to_vec();
        for column in &self.columns {
            columns[column.number] = SharedBytes::from(numbers.as_flattened());
        }
        columns
    }

    /// Copies all staged cells to the device.
    ///
    /// # Errors
    /// Those of the Python function.
    pub(crate) fn write(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write.call1(buffer.py(), (buffer,)).map(drop)
    }

    /// Number of steps that were ever staged.
    pub(crate) fn staged_end(&self) -> u64 {
        let staged = self.staged.lock();
        staged.removed + staged.numbers.len() as u64
    }

    /// The next cells that are not on the device, out of the first `end` that were staged; `None` if there are none. With
    /// `padded`, their number is a power of two: zeros follow, with the number 0.
    pub(crate) fn staged<'py>(
        &self,
        py: Python<'py>,
        pool: &Arc<Pool>,
        end: u64,
        padded: bool,
    ) -> PyResult<Option<StagedBlock<'py>>> {
        let copied = py.detach(|| self.copy_staged(pool, end, padded));
        let Some(block) = copied.map_err(|error| errors::to_py(py, &error))? else {
            return Ok(None);
        };
        let numbers = number_cell(None);
        let cells = self.columns.iter().map(|column| &column.cell);
        let cells = std::iter::once(&numbers).chain(cells);
        let arrays = block.columns.into_iter().zip(cells).map(|(bytes, cell)| {
            let shape: Vec<usize> = std::iter::once(block.size)
                .chain(cell.shape.iter().copied())
                .collect();
            arrays::from_bytes(py, bytes, cell.dtype, &shape)
        });
        let mut arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        let columns = arrays.split_off(1);
        Ok(arrays.pop().map(|numbers| (block.end, numbers, columns)))
    }

    /// Copies the cells of [`Self::staged`].
    fn copy_staged(&self, pool: &Arc<Pool>, end: u64, padded: bool) -> Result<Option<CopiedBlock>> {
        let staged = self.staged.lock();
        let begin = staged.written;
        let left = end.saturating_sub(staged.removed + begin as u64);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let max_steps = (self.max_bytes / self.step_bytes.max(1)).max(1);
        let steps = left
            .min(staged.numbers.len() - begin)
            .min(1 << max_steps.ilog2());
        if steps == 0 {
            return Ok(None);
        }
        let size = if padded {
            steps.next_power_of_two()
        } else {
            steps
        };
        let copy = |cells: &[u8], cell_bytes: usize| {
            let bytes = size * cell_bytes;
            let lacking = || Error::out_of_memory("the replay buffer", Some(bytes));
            let mut copy = pool.take(bytes).ok_or_else(lacking)?;
            let (taken, padding) = copy.split_at_mut(steps * cell_bytes);
            taken.copy_from_slice(&cells[begin * cell_bytes..(begin + steps) * cell_bytes]);
            padding.fill(0);
            Ok(copy)
        };
        let numbers = copy(staged.numbers.as_flattened(), size_of::<u64>());
        let columns = self.columns.iter().zip(&staged.columns);
        let columns = columns.map(|(column, cells)| copy(cells, column.cell_bytes));
        Ok(Some(CopiedBlock {
            end: staged.removed + (begin + steps) as u64,
            size,
            columns: std::iter::once(numbers)
                .chain(columns)
                .collect::<Result<_>>()?,
        }))
    }

    /// Records that the first `end` cells that were staged are on the device.
    pub(crate) fn mark_written(&self, end: u64) {
        let mut staged = self.staged.lock();
        let written = usize::try_from(end.saturating_sub(staged.removed)).unwrap_or(usize::MAX);
        let staged = &mut *staged;
        staged.written = staged.written.max(written.min(staged.numbers.len()));
        if 2 * staged.written < staged.numbers.len() {
            return;
        }
        staged.numbers.drain(..staged.written);
        for (column, cells) in self.columns.iter().zip(&mut staged.columns) {
            cells.drain(..staged.written * column.cell_bytes);
            cells.shrink_to(self.max_bytes.max(cells.len()));
        }
        staged.removed += staged.written as u64;
        staged.written = 0;
        if staged.numbers.is_empty() {
            staged.steps_per_env = 0;
        }
    }

    /// The cells of all rows of the ring, out of copies of the arrays on the device.
    pub(crate) fn device_cells<'a>(&self, copies: Vec<&'a mut [u8]>) -> DeviceCells<'a> {
        let mut cells = DeviceCells::new();
        for (column, copy) in self.columns.iter().zip(copies) {
            cells.resize_with(column.number, || None);
            // The first cell has number 0.
            cells.push(copy.split_at_mut_checked(column.cell_bytes).map(|it| it.1));
        }
        cells
    }

    /// Adds the staged cells to copies of those on the device.
    pub(crate) fn add_staged(&self, cells: &mut DeviceCells<'_>) {
        let staged = self.staged.lock();
        for (column, new) in self.columns.iter().zip(&staged.columns) {
            let Some(Some(all)) = cells.get_mut(column.number) else {
                continue;
            };
            let new = new.chunks_exact(column.cell_bytes);
            for (number, cell) in staged.numbers.iter().zip(new) {
                let row = usize::try_from(u64::from_le_bytes(*number) - 1).unwrap_or(usize::MAX);
                all[row * column.cell_bytes..][..column.cell_bytes].copy_from_slice(cell);
            }
        }
    }
}
