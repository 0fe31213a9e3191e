//! Fast path for the common step, in which every leaf is None, or an array or NumPy scalar with exactly its column's
//! dtype and shape. Arrays must be small, aligned, and in C order and native byte order. Such a step is copied in one
//! pass. Other steps are left to [`crate::step_flattener`].

use std::sync::Arc;

use engram_core::writer::Recorder;
use engram_core::{DType, Schema};
use numpy::npyffi::PY_ARRAY_API;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::dtypes;
use crate::leaf::{MIN_DETACHED_BYTES, bytes_of, is_plain};

/// Writes steps of one schema.
#[derive(Debug)]
pub(crate) struct FastPath {
    schema: Arc<Schema>,
    /// NumPy's scalar class of each column; empty if a column has none.
    scalars: Vec<Py<PyType>>,
}

impl FastPath {
    /// Creates the fast path for a schema.
    pub(crate) fn new(py: Python<'_>, schema: &Arc<Schema>) -> PyResult<Self> {
        let has_only_fixed_size_cells = schema.cells.iter().all(|cell| !cell.dtype.is_string());
        let class = |dtype| Ok(dtypes::to_numpy(py, dtype)?.typeobj().unbind());
        let scalars = if has_only_fixed_size_cells {
            schema
                .cells
                .iter()
                .map(|cell| class(cell.dtype))
                .collect::<PyResult<_>>()?
        } else {
            Vec::new()
        };
        Ok(Self {
            schema: Arc::clone(schema),
            scalars,
        })
    }

    /// True if it was created for this schema.
    pub(crate) fn is_for(&self, schema: &Arc<Schema>) -> bool {
        Arc::ptr_eq(&self.schema, schema)
    }

    /// Writes the cells of a step, except for leaves that are None. Returns false if the step needs the slow path;
    /// what was written of it is then discarded.
    pub(crate) fn write(
        &self,
        recorder: &mut Recorder,
        values: &[Bound<'_, PyAny>],
        columns: &[Option<usize>],
    ) -> bool {
        let wrote = self.scalars.len() == values.len()
            && values.iter().zip(columns).all(|(value, column)| {
                value.is_none()
                    || column.is_some_and(|column| self.write_cell(recorder, value, column))
            });
        if !wrote {
            recorder.abort_step();
        }
        wrote
    }

    /// Writes a cell. Returns false if the value needs the slow path.
    fn write_cell(&self, recorder: &mut Recorder, value: &Bound<'_, PyAny>, column: usize) -> bool {
        let cell = &self.schema.cells[column];
        // Subclasses may be masked arrays, which the slow path rejects.
        if let Ok(array) = value.cast_exact::<PyUntypedArray>() {
            let descr = array.dtype();
            let fits = array.shape() == cell.shape.as_slice()
                && dtypes::from_numpy(&descr) == Some(cell.dtype)
                && is_plain(array, &descr);
            if !fits || cell.bytes() >= MIN_DETACHED_BYTES {
                return false;
            }
            let Ok(target) = recorder.cell_mut(column) else {
                return false;
            };
            bytes_of(array).copy_to(target);
            return true;
        }
        if !cell.shape.is_empty() || !value.get_type().is(&self.scalars[column]) {
            return false;
        }
        let Some(bytes) = scalar_bytes(value, cell.dtype) else {
            return false;
        };
        let Ok(target) = recorder.cell_mut(column) else {
            return false;
        };
        target.copy_from_slice(&bytes[..target.len()]);
        true
    }
}

/// The bytes of a NumPy scalar of this dtype, padded with zeros to 16. `None` for bfloat16 and float8 types, because
/// `PyArray_ScalarAsCtype` writes a pointer instead of their value.
#[expect(unsafe_code, reason = "NumPy's C API")]
pub(crate) fn scalar_bytes(scalar: &Bound<'_, PyAny>, dtype: DType) -> Option<[u8; 16]> {
    if dtype.is_small_float() {
        return None;
    }
    let mut bytes = [0; 16];
    // SAFETY: the caller has checked that the object is a NumPy scalar of an engine dtype, none of
    // which is larger than 16 bytes.
    unsafe {
        PY_ARRAY_API.PyArray_ScalarAsCtype(scalar.py(), scalar.as_ptr(), bytes.as_mut_ptr().cast());
    }
    Some(bytes)
}
