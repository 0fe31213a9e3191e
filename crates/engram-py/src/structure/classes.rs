//! The namedtuple classes of nests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyType;

/// The last class for each name and fields of a namedtuple. Stored namedtuples become instances of it.
static CLASSES: Mutex<Option<HashMap<NamedTuple, Py<PyType>>>> = Mutex::new(None);

/// Name and fields of a namedtuple class.
type NamedTuple = (String, Vec<String>);

/// Number of classes that were replaced.
static REPLACED: AtomicU64 = AtomicU64::new(0);

/// Number of registered classes that were replaced by another one, as in notebooks: structures that were parsed before
/// may refer to an old class.
pub(super) fn replaced_classes() -> u64 {
    REPLACED.load(Ordering::Acquire)
}

/// Registers a namedtuple class.
pub(super) fn remember_class(name: &str, fields: &[String], class: &Bound<'_, PyType>) {
    let key = (name.to_string(), fields.to_vec());
    let mut classes = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
    let before = classes
        .get_or_insert_default()
        .insert(key, class.clone().unbind());
    // Dropping the previous class may run Python code, so the lock is released first.
    drop(classes);
    if before.is_some_and(|before| !before.is(class)) {
        REPLACED.fetch_add(1, Ordering::Release);
    }
}

/// Returns the registered namedtuple class with this name and these fields, or creates one.
pub(super) fn named_class(py: Python<'_>, name: &str, fields: &[String]) -> PyResult<Py<PyType>> {
    let key = (name.to_string(), fields.to_vec());
    let known = CLASSES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .and_then(|classes| classes.get(&key).map(|class| class.clone_ref(py)));
    if let Some(class) = known {
        return Ok(class);
    }
    let collections = py.import("collections")?;
    let class = collections.call_method1("namedtuple", (name, fields.to_vec()))?;
    let class = class.cast_into::<PyType>()?;
    remember_class(name, fields, &class);
    Ok(class.unbind())
}
