//! The columns of a batch of a replay buffer, and the arrays that they are written to.

use std::borrow::Cow;
use std::sync::Arc;

use engram_core::pool::{Pool, PooledBytes};
use engram_core::text::count;
use engram_core::{CellSpec, Error};
use pyo3::prelude::*;

use crate::buffer_output::OutputArrays;
use crate::leaf::describe_column;
use crate::structure::Structure;
use crate::{arrays, errors};

/// Bytes whose copying takes about as long as reading the reward and the flags of one step of an item.
const BYTES_PER_STEP_READ: usize = 16;

/// The columns of a batch.
#[derive(Debug)]
pub(crate) struct BatchColumns<'a> {
    /// The nest that contains them.
    pub(crate) structure: &'a Structure,
    /// Names, dtypes and shapes, without the batch axis.
    pub(crate) columns: Cow<'a, [(String, CellSpec)]>,
    /// Maximum number of steps that are read for an item.
    pub(crate) steps_per_item: usize,
    /// Where buffers are taken from.
    pub(crate) pool: &'a Arc<Pool>,
}

impl BatchColumns<'_> {
    /// Fills `out`, or new arrays if it is None, with a batch of `items` items; `fill` receives the bytes of the
    /// columns. Returns the nest of arrays, and what `fill` returned.
    pub(crate) fn fill<T>(
        &self,
        py: Python<'_>,
        items: usize,
        out: Option<&Bound<'_, PyAny>>,
        fill: impl FnOnce(Vec<&mut [u8]>) -> PyResult<T>,
    ) -> PyResult<(Py<PyAny>, T)> {
        if let Some(out) = out {
            let mut arrays = OutputArrays::read(out, self.structure, &self.columns, items)?;
            let filled = fill(arrays.bytes()?)?;
            return Ok((out.clone().unbind(), filled));
        }
        let mut buffers = self.allocate(py, items)?;
        let filled = fill(buffers.iter_mut().map(|buffer| &mut **buffer).collect())?;
        Ok((self.nest(py, buffers, items)?, filled))
    }

    /// Buffers for a batch of `items` items.
    pub(crate) fn allocate(&self, py: Python<'_>, items: usize) -> PyResult<Vec<PooledBytes>> {
        let buffers = self.columns.iter().map(|(name, cell)| {
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

    /// Arrays over these buffers, in the nest.
    pub(crate) fn nest(
        &self,
        py: Python<'_>,
        buffers: Vec<PooledBytes>,
        items: usize,
    ) -> PyResult<Py<PyAny>> {
        let arrays = buffers
            .into_iter()
            .zip(&*self.columns)
            .map(|(buffer, (_, cell))| {
                let shape: Vec<usize> = std::iter::once(items)
                    .chain(cell.shape.iter().copied())
                    .collect();
                arrays::from_bytes(py, buffer, cell.dtype, &shape)
            });
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        Ok(self.structure.unflatten(py, arrays)?.unbind())
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
