//! Checks of Python arguments. Errors name the argument as `what`, the value given and what is allowed.
//!
//! The error texts are those of `engram._checks`, whose checks are called from here only for values that fail.

use std::fmt::Display;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors;

/// Returns the name of a table.
///
/// # Errors
/// `InvalidArgumentError` if the value is not a str.
pub(crate) fn table_name<'a>(what: impl Display, value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    match value.cast::<PyString>() {
        Ok(name) => name.to_str(),
        Err(error) => Err(check_error(value, "table_name", what, error.into())),
    }
}

/// Returns a bool; NumPy's are allowed.
///
/// # Errors
/// `InvalidArgumentError` for any other value.
pub(crate) fn boolean(what: impl Display, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value
        .extract()
        .map_err(|error| check_error(value, "boolean", what, error))
}

/// Returns a number. Python and NumPy bools are numbers here, and NaN is allowed.
///
/// # Errors
/// `InvalidArgumentError` for any other value.
pub(crate) fn number(what: impl Display, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value
        .extract()
        .map_err(|error| check_error(value, "number", what, error))
}

/// Returns a signed integer of 64 bits. Python's bools are integers here, NumPy's are not.
///
/// # Errors
/// `InvalidArgumentError` for any other value.
pub(crate) fn integer(what: impl Display, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value
        .extract()
        .map_err(|error| check_error(value, "integer", what, error))
}

/// Returns a timeout in seconds, at least 0; `None` means no limit.
///
/// # Errors
/// `InvalidArgumentError` for any other value.
pub(crate) fn seconds(what: impl Display, value: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    if value.is_none() {
        return Ok(None);
    }
    let error = match value.extract::<f64>() {
        Ok(seconds) if seconds >= 0.0 => return Ok(Some(seconds)),
        Ok(seconds) => PyValueError::new_err(format!("{what} is {seconds}")),
        Err(error) => error,
    };
    Err(check_error(value, "seconds", what, error))
}

/// Returns the error of a check in `engram._checks`, or `error` if that check allows the value.
#[cold]
fn check_error(value: &Bound<'_, PyAny>, check: &str, what: impl Display, error: PyErr) -> PyErr {
    if !errors::is_ordinary_error(value.py(), &error) {
        return error;
    }
    let checks = value.py().import("engram._checks");
    let checked = checks.and_then(|checks| checks.call_method1(check, (what.to_string(), value)));
    checked.err().unwrap_or(error)
}
