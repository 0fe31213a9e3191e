//! Converts between engine dtypes and NumPy dtypes.

use engram_core::DType;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

use crate::errors;
use crate::lazy::Lazy;

/// Returns the engine dtype of a NumPy dtype; `None` if there is none.
pub(crate) fn from_numpy(descr: &Bound<'_, PyArrayDescr>) -> Option<DType> {
    Some(match (descr.kind(), descr.itemsize()) {
        (b'b', 1) => DType::Bool,
        (b'i', 1) => DType::Int8,
        (b'i', 2) => DType::Int16,
        (b'i', 4) => DType::Int32,
        (b'i', 8) => DType::Int64,
        (b'u', 1) => DType::Uint8,
        (b'u', 2) => DType::Uint16,
        (b'u', 4) => DType::Uint32,
        (b'u', 8) => DType::Uint64,
        (b'f', 2) if descr.char() == b'e' => DType::Float16,
        (b'f', 4) => DType::Float32,
        (b'f', 8) => DType::Float64,
        (b'c', 8) => DType::Complex64,
        (b'c', 16) => DType::Complex128,
        // Whether objects are bytes or text, their elements decide.
        (b'S' | b'O', _) => DType::Bytes,
        (b'U' | b'T', _) => DType::Text,
        // `ml_dtypes` registers additional dtypes with NumPy. Their name is that of the scalar class. It is read from
        // the class, because `dtype.name` runs Python code, which Ctrl-C may interrupt.
        _ => return DType::from_name(descr.typeobj().name().ok()?.to_str().ok()?),
    })
}

/// Returns the NumPy dtype of an engine dtype. Strings are objects.
///
/// # Errors
/// `SignatureError` if it needs the package `ml_dtypes` and that is not installed.
pub(crate) fn to_numpy(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    static CACHE: [Lazy<Py<PyArrayDescr>>; DType::ALL.len()] =
        [const { Lazy::new() }; DType::ALL.len()];
    let descr = CACHE[dtype as usize].get(py, || create(py, dtype).map(Bound::unbind))?;
    Ok(descr.bind(py).clone())
}

fn create(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    match dtype {
        DType::Bytes | DType::Text => PyArrayDescr::new(py, "O"),
        DType::Bfloat16 | DType::Float8E4m3fn | DType::Float8E5m2 => {
            let missing = |error| {
                errors::replace_ordinary_error(py, error, || {
                    let text = format!(
                        "columns of {dtype} need the package `ml_dtypes`: pip install ml_dtypes"
                    );
                    errors::signature(py, text)
                })
            };
            let class = py
                .import("ml_dtypes")
                .and_then(|module| module.getattr(dtype.name()))
                .map_err(missing)?;
            PyArrayDescr::new(py, class)
        }
        _ => PyArrayDescr::new(py, dtype.name()),
    }
}

/// The supported dtypes, for error texts.
pub(crate) fn supported() -> String {
    DType::ALL.map(DType::name).join(", ")
}
