//! Converts engine errors into Python exceptions.

use engram_core::Error;
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::PyModule;

use crate::lazy::Lazy;

/// Returns the exception of `engram.errors` for an engine error; `EngramError` for an error without a class of its own.
pub(crate) fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::UnknownTable { .. } => "UnknownTableError",
        Error::Signature(_) => "SignatureError",
        Error::Priority(_) => "PriorityError",
        Error::InvalidArgument(_) => "InvalidArgumentError",
        Error::DeadlineExceeded(_) => "DeadlineExceededError",
        Error::Unsatisfiable(_) => "UnsatisfiableError",
        Error::Closed(_) => "ClosedError",
        Error::ExpiredStep(_) => "ExpiredStepError",
        Error::Backpressure(_) => "BackpressureError",
        Error::Unavailable(_) => "UnavailableError",
        Error::Storage(_) => "StorageError",
        Error::Handshake(_) => "HandshakeError",
        Error::OutOfMemory(_) => "OutOfMemoryError",
        _ => "EngramError",
    };
    new(py, class, error.to_string())
}

/// Returns a `SignatureError` with this text.
pub(crate) fn signature(py: Python<'_>, text: String) -> PyErr {
    new(py, "SignatureError", text)
}

/// Returns an `InvalidArgumentError` with this text.
pub(crate) fn invalid(py: Python<'_>, text: String) -> PyErr {
    new(py, "InvalidArgumentError", text)
}

/// Returns a `ForkedError`, for an object that a forked child must not use: the engine's threads exist in the parent
/// process only, and a lock that one of them held at the fork stays locked in the child. `what` names the object.
pub(crate) fn forked(py: Python<'_>, what: &str) -> PyErr {
    let advice = match what {
        "store" => {
            "only the process that created it can use it; to share its tables, serve them there with `engram.Server`, and \
             use an `engram.Client` in the child"
        }
        _ => "create a new one in the child",
    };
    let text = format!("this {what} was created before the process forked; {advice}");
    new(py, "ForkedError", text)
}

/// Returns the `EngramError` for a writer that two threads use at once.
pub(crate) fn in_use(py: Python<'_>) -> PyErr {
    let text = "this writer is in use by another call; use each writer from one thread only";
    new(py, "EngramError", text.into())
}

/// True for an error that an unsuitable value may have caused; false for Ctrl-C, an exit or a lack of memory, which the
/// caller must get unchanged.
pub(crate) fn is_ordinary_error(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py)
}

/// Replaces an error if it is ordinary, as [`is_ordinary_error`] defines it.
pub(crate) fn replace_ordinary_error(
    py: Python<'_>,
    error: PyErr,
    replacement: impl FnOnce() -> PyErr,
) -> PyErr {
    if is_ordinary_error(py, &error) {
        replacement()
    } else {
        error
    }
}

/// Returns a value's class, for an error text.
///
/// # Errors
/// Any exception, such as Ctrl-C. `Display` of a Python object, `to_string` included, runs signal handlers and loses
/// what they raise.
pub(crate) fn class_name(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let name = value.get_type().name()?;
    Ok(name.to_string_lossy().into_owned())
}

/// Returns a value's `repr`, for an error text.
///
/// # Errors
/// Any exception, as for [`class_name`].
pub(crate) fn repr(value: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(value.repr()?.to_string_lossy().into_owned())
}

/// Returns a value's `str`, for an error text.
///
/// # Errors
/// Any exception, as for [`class_name`].
pub(crate) fn str(value: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(value.str()?.to_string_lossy().into_owned())
}

/// Returns a `SignatureError` with a text about Python objects, or the exception raised by reading that text.
pub(crate) fn signature_about(py: Python<'_>, text: PyResult<String>) -> PyErr {
    text.map_or_else(|error| error, |text| signature(py, text))
}

/// True if an error means that an item does not fit its table.
pub(crate) fn is_item_rejection(py: Python<'_>, error: &PyErr) -> bool {
    let kinds = ["SignatureError", "PriorityError", "UnsatisfiableError"];
    let name = error.get_type(py).name();
    name.is_ok_and(|name| kinds.iter().any(|kind| name == *kind))
}

/// True for an error of a store's disk.
pub(crate) fn is_storage(py: Python<'_>, error: &PyErr) -> bool {
    (error.get_type(py).name()).is_ok_and(|name| name == "StorageError")
}

/// True for the error of a server that cannot be reached.
pub(crate) fn is_unavailable(py: Python<'_>, error: &PyErr) -> bool {
    (error.get_type(py).name()).is_ok_and(|name| name == "UnavailableError")
}

/// True for an error that the structure or the columns of data may have caused.
pub(crate) fn is_about_columns(py: Python<'_>, error: &PyErr) -> bool {
    let name = error.get_type(py).name();
    name.is_ok_and(|name| name == "SignatureError" || name == "InvalidArgumentError")
}

/// Returns the first of the errors, with the texts of the others appended. If one is not ordinary, as
/// [`is_ordinary_error`] defines it, that one, with another one as its cause.
pub(crate) fn all_of<const N: usize>(py: Python<'_>, outcomes: [PyResult<()>; N]) -> PyResult<()> {
    let mut errors = outcomes.into_iter().filter_map(Result::err);
    let Some(mut first) = errors.next() else {
        return Ok(());
    };
    for mut error in errors {
        if is_ordinary_error(py, &first) && !is_ordinary_error(py, &error) {
            std::mem::swap(&mut first, &mut error);
        }
        if is_ordinary_error(py, &first) {
            let text = str(error.value(py))?;
            first = append_text(py, first, &format!("; also: {text}"));
        } else if first.cause(py).is_none() {
            first.set_cause(py, Some(error));
        }
    }
    Err(first)
}

/// Returns the error with a text appended.
pub(crate) fn append_text(py: Python<'_>, error: PyErr, text: &str) -> PyErr {
    let longer = str(error.value(py)).map(|shown| shown + text);
    match longer.and_then(|longer| error.get_type(py).call1((longer,))) {
        Ok(exception) => {
            let appended = PyErr::from_value(exception);
            appended.set_cause(py, error.cause(py));
            appended
        }
        Err(raised) => replace_ordinary_error(py, raised, || error),
    }
}

fn new(py: Python<'_>, class: &str, text: String) -> PyErr {
    static MODULE: Lazy<Py<PyModule>> = Lazy::new();
    let module = MODULE.get(py, || py.import("engram.errors").map(Bound::unbind));
    match module.and_then(|module| module.bind(py).getattr(class)?.call1((text,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
