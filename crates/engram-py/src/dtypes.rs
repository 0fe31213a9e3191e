//! Engine dtypes and NumPy's, both ways.

use engram_core::DType;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors;

/// The engine's name for a NumPy dtype; `None` where there is none.
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
        (b'S' | b'U' | b'O' | b'T', _) => DType::String,
        // `ml_dtypes` registers types of its own.
        _ => return DType::from_name(&descr.getattr("name").ok()?.extract::<String>().ok()?),
    })
}

/// NumPy's dtype for an engine dtype; strings come back as objects.
///
/// # Errors
/// `SignatureError` when it needs the package `ml_dtypes`, which is not installed.
pub(crate) fn to_numpy(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    static CACHE: [PyOnceLock<Py<PyArrayDescr>>; DType::ALL.len()] =
        [const { PyOnceLock::new() }; DType::ALL.len()];
    let made = CACHE[dtype as usize].get_or_try_init(py, || make(py, dtype).map(Bound::unbind))?;
    Ok(made.bind(py).clone())
}

fn make(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    match dtype {
        DType::String => PyArrayDescr::new(py, "O"),
        DType::Bfloat16 | DType::Float8E4m3fn | DType::Float8E5m2 => {
            let missing = |_| {
                errors::signature(
                    py,
                    format!(
                        "columns of {dtype} need the package `ml_dtypes`: pip install ml_dtypes"
                    ),
                )
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

/// What a column may be made of, for messages.
pub(crate) fn supported() -> String {
    DType::ALL.map(DType::name).join(", ")
}
