//! The one place where engine errors become Python exceptions.

use engram_core::Error;
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// The exception of `engram.errors` that an engine error maps to.
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

/// A `SignatureError` with this text.
pub(crate) fn signature(py: Python<'_>, text: String) -> PyErr {
    new(py, "SignatureError", text)
}

/// An `InvalidArgumentError` with this text.
pub(crate) fn invalid(py: Python<'_>, text: String) -> PyErr {
    new(py, "InvalidArgumentError", text)
}

/// A `ForkedError`: the engine's threads and locks did not come along into this process.
pub(crate) fn forked(py: Python<'_>, what: &str) -> PyErr {
    let text = format!(
        "this {what} was made before the process forked; make a new one in the child, or start the \
         child with the `spawn` or `forkserver` method"
    );
    new(py, "ForkedError", text)
}

/// An `EngramError`: somebody uses a writer from two places at once.
pub(crate) fn in_use(py: Python<'_>) -> PyErr {
    let text = "this writer is in the middle of another call; a writer belongs to one thread";
    new(py, "EngramError", text.into())
}

/// True when an error only says that a value will not do. Ctrl-C, an exit and a lack of memory say
/// something else.
pub(crate) fn is_refusal(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py)
}

/// What to raise instead of an error, if that is a refusal.
pub(crate) fn instead(py: Python<'_>, error: PyErr, refusal: impl FnOnce() -> PyErr) -> PyErr {
    if is_refusal(py, &error) {
        refusal()
    } else {
        error
    }
}

/// True for an error that says that data do not suit a table.
pub(crate) fn is_about_data(py: Python<'_>, error: &PyErr) -> bool {
    let kinds = ["SignatureError", "PriorityError", "UnsatisfiableError"];
    let name = error.get_type(py).name();
    name.is_ok_and(|name| kinds.iter().any(|kind| name == *kind))
}

fn new(py: Python<'_>, class: &str, text: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("engram.errors").map(Bound::unbind));
    match module.and_then(|module| module.bind(py).getattr(class)?.call1((text,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
