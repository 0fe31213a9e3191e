//! The extension module.
use pyo3::prelude::*;

/// Native half of `engram`.
#[pymodule]
fn _engram(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
