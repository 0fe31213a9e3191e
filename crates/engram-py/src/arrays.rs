//! NumPy arrays over engine buffers, without a copy.

#![expect(
    unsafe_code,
    reason = "only NumPy's C API can create an array over existing memory"
)]

use std::ffi::c_int;

use engram_core::DType;
use engram_core::pool::PooledBytes;
use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescrMethods, PyUntypedArray};
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::dtypes;
use crate::errors;
use crate::gil::forks;

/// Owns a buffer for the arrays that refer to it.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
struct Owner {
    bytes: Option<PooledBytes>,
    /// Result of [`forks`] in the process that created it.
    forks: u64,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Keeps the GIL, because freeing a buffer takes less time than acquiring the GIL again. It acquires the pool's
        // lock, which a forked child must not do.
        if self.forks != forks() {
            std::mem::forget(self.bytes.take());
        }
    }
}

/// Returns a writable array of `shape` that owns the buffer.
pub(crate) fn from_bytes<'py>(
    py: Python<'py>,
    mut bytes: PooledBytes,
    dtype: DType,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let descr = dtypes::to_numpy(py, dtype)?;
    let needed = shape
        .iter()
        .try_fold(dtype.size(), |bytes, axis| bytes.checked_mul(*axis));
    if needed.is_none_or(|needed| needed > bytes.len()) {
        let text = format!(
            "a buffer of {} bytes is too small for an array of shape {shape:?} and dtype {dtype}",
            bytes.len()
        );
        return Err(errors::invalid(py, text));
    }
    let mut dims = Vec::with_capacity(shape.len());
    for axis in shape {
        dims.push(npy_intp::try_from(*axis).map_err(|_| {
            errors::invalid(py, format!("an axis of size {axis} is too large for NumPy"))
        })?);
    }
    let data = bytes.as_mut_ptr();
    let owner = Bound::new(
        py,
        Owner {
            bytes: Some(bytes),
            forks: forks(),
        },
    )?;
    // SAFETY: `data` is aligned to 64 bytes, spans at least the bytes of the array, and nothing else refers to it.
    // Moving `bytes` into the owner does not move its heap buffer. The array gets a reference to the owner before
    // anything can fail, so the buffer outlives it. `NewFromDescr` steals the descr and `SetBaseObject` the owner,
    // even on failure.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            PyUntypedArray::type_object_raw(py),
            descr.into_dtype_ptr(),
            c_int::try_from(dims.len()).unwrap_or(c_int::MAX),
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            data.cast(),
            npyffi::NPY_ARRAY_WRITEABLE,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        let failed = PY_ARRAY_API.PyArray_SetBaseObject(
            py,
            array.as_ptr().cast(),
            owner.into_any().into_ptr(),
        );
        if failed < 0 {
            Err(PyErr::fetch(py))
        } else {
            Ok(array)
        }
    }
}

/// Returns an array of Python objects, one per string: `str` if `dtype` is text, otherwise `bytes`. `encoded` has the
/// length of each string in 4 bytes, and then its bytes.
pub(crate) fn from_strings<'py>(
    py: Python<'py>,
    encoded: &[u8],
    dtype: DType,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let list = PyList::empty(py);
    let mut rest = encoded;
    while let Some((head, tail)) = rest.split_at_checked(4) {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some((text, tail)) = tail.split_at_checked(len) else {
            break;
        };
        if dtype == DType::Text {
            list.append(decode_text(py, text)?)?;
        } else {
            list.append(PyBytes::new(py, text))?;
        }
        rest = tail;
    }
    // NumPy would convert the list to fixed-length strings, which lose trailing NUL characters.
    let array = (py.import("numpy")?).call_method1("empty", (list.len(), "O"))?;
    array.set_item(pyo3::types::PySlice::full(py), list)?;
    Ok(array
        .call_method1("reshape", (shape.to_vec(),))?
        .cast_into::<PyUntypedArray>()?
        .into_any())
}

/// Returns text. Bytes that are not UTF-8, which only another program can have written, become surrogates.
fn decode_text<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(text) {
        Ok(text) => Ok(PyString::new(py, text).into_any()),
        Err(_) => PyBytes::new(py, text).call_method1("decode", ("utf-8", "surrogateescape")),
    }
}
