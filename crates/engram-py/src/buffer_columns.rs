//! The columns of a batch of a replay buffer, and the arrays that they are written to.

use std::borrow::Cow;
use std::sync::Arc;

use engram_core::pool::{Pool, PooledBytes};
use engram_core::text::{count, describe_column};
use engram_core::{CellSpec, Error};
use pyo3::prelude::*;

use crate::buffer_output::OutputArrays;
use crate::structure::Structure;
use crate::{arrays, errors};

/// Bytes whose copying takes about as long as reading the reward and the flags of one step of an item.
const BYTES_PER_STEP_READ: usize = 16;

/// Name of a column, and dtype and shape without the batch axis.
pub(crate) type Column = (String, CellSpec);

/// The arrays of a batch.
#[derive(Debug)]
pub(crate) struct BatchArrays {
    /// The nest of those that the user receives.
    pub(crate) data: Py<PyAny>,
    /// The others.
    pub(crate) hidden: Vec<Py<PyAny>>,
}

/// The columns of a batch.
#[derive(Debug)]
pub(crate) struct BatchColumns<'a> {
    /// The nest that contains the first of them. The others are hidden from the user.
    pub(crate) structure: &'a Structure,
    pub(crate) columns: Cow<'a, [Column]>,
    /// Maximum number of steps that are read for an item.
    pub(crate) steps_per_item: usize,
    /// Where buffers are taken from.
    pub(crate) pool: &'a Arc<Pool>,
}

impl BatchColumns<'_> {
    /// Fills `out`, or new arrays if it is None, with a batch of `items` items; `fill` receives the bytes of the
    /// columns. Hidden columns are always new arrays. Returns the arrays, and what `fill` returned.
    pub(crate) fn fill<T>(
        &self,
        py: Python<'_>,
        items: usize,
        out: Option<&Bound<'_, PyAny>>,
        fill: impl FnOnce(Vec<&mut [u8]>) -> PyResult<T>,
    ) -> PyResult<(BatchArrays, T)> {
        if let Some(out) = out {
            let (columns, hidden_columns) = self.parts();
            let mut arrays = OutputArrays::read(out, self.structure, columns, items)?;
            let mut buffers = self.allocate_each(py, hidden_columns, items)?;
            let hidden = buffers.iter_mut().map(|buffer| &mut **buffer);
            let filled = fill(arrays.bytes()?.into_iter().chain(hidden).collect())?;
            let arrays = BatchArrays {
                data: out.clone().unbind(),
                hidden: arrays_over(py, buffers, hidden_columns, items)?,
            };
            return Ok((arrays, filled));
        }
        let mut buffers = self.allocate(py, items)?;
        let filled = fill(buffers.iter_mut().map(|buffer| &mut **buffer).collect())?;
        Ok((self.arrays(py, buffers, items)?, filled))
    }

    /// The columns in the nest, and the hidden ones.
    fn parts(&self) -> (&[Column], &[Column]) {
        self.columns.split_at(self.structure.names.len())
    }

    /// Buffers for a batch of `items` items.
    pub(crate) fn allocate(&self, py: Python<'_>, items: usize) -> PyResult<Vec<PooledBytes>> {
        self.allocate_each(py, &self.columns, items)
    }

    fn allocate_each(
        &self,
        py: Python<'_>,
        columns: &[Column],
        items: usize,
    ) -> PyResult<Vec<PooledBytes>> {
        let buffers = columns.iter().map(|(name, cell)| {
            let bytes = cell
                .checked_size()
                .and_then(|(_, bytes)| bytes.checked_mul(items));
            bytes
                .and_then(|bytes| self.pool.take(bytes))
                .ok_or_else(|| {
                    let column = describe_column(name);
                    let what = format!("{column} of a batch of {}", count(items, "item"));
                    errors::to_py(py, &Error::out_of_memory(what, bytes))
                })
        });
        buffers.collect()
    }

    /// The arrays over these buffers.
    pub(crate) fn arrays(
        &self,
        py: Python<'_>,
        mut buffers: Vec<PooledBytes>,
        items: usize,
    ) -> PyResult<BatchArrays> {
        let (columns, hidden_columns) = self.parts();
        let hidden = buffers.split_off(columns.len());
        let data = arrays_over(py, buffers, columns, items)?;
        let data = data.into_iter().map(|array| array.into_bound(py)).collect();
        Ok(BatchArrays {
            data: self.structure.unflatten(py, data)?.unbind(),
            hidden: arrays_over(py, hidden, hidden_columns, items)?,
        })
    }

    /// How long filling a batch takes, in bytes that are copied in this time; `usize::MAX` if there are more.
    pub(crate) fn batch_bytes(&self, items: usize) -> usize {
        let read = self.steps_per_item.saturating_mul(BYTES_PER_STEP_READ);
        let bytes = self.columns.iter().map(|(_, cell)| cell.bytes());
        bytes
            .fold(read, usize::saturating_add)
            .saturating_mul(items)
    }
}

/// Arrays over these buffers, which have the columns of a batch of `items` items.
fn arrays_over(
    py: Python<'_>,
    buffers: Vec<PooledBytes>,
    columns: &[Column],
    items: usize,
) -> PyResult<Vec<Py<PyAny>>> {
    let arrays = buffers.into_iter().zip(columns).map(|(buffer, (_, cell))| {
        let shape: Vec<usize> = std::iter::once(items)
            .chain(cell.shape.iter().copied())
            .collect();
        Ok(arrays::from_bytes(py, buffer, cell.dtype, &shape)?.unbind())
    });
    arrays.collect()
}
