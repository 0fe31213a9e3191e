//! Python objects that are looked up on first use.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// A value that is created on first use, by each thread that uses it meanwhile.
///
/// With `pyo3`'s `PyOnceLock`, these threads wait for the first one. It may release the GIL in between, and in a child that
/// is forked then, it does not exist: the child would wait forever.
#[derive(Debug)]
pub(crate) struct Lazy<T>(OnceLock<T>);

impl<T> Lazy<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns the value; creates it if there is none.
    ///
    /// # Errors
    /// That of `create`.
    pub(crate) fn get(
        &self,
        _py: Python<'_>,
        create: impl FnOnce() -> PyResult<T>,
    ) -> PyResult<&T> {
        if let Some(value) = self.0.get() {
            return Ok(value);
        }
        let value = create()?;
        // With the GIL, so no fork can happen meanwhile.
        Ok(self.0.get_or_init(|| value))
    }
}

impl Lazy<Py<PyAny>> {
    /// Returns an attribute of a module.
    ///
    /// # Errors
    /// That of the import.
    pub(crate) fn import<'py>(
        &self,
        py: Python<'py>,
        module: &str,
        attribute: &str,
    ) -> PyResult<&Bound<'py, PyAny>> {
        let create = || Ok(py.import(module)?.getattr(attribute)?.unbind());
        Ok(self.get(py, create)?.bind(py))
    }
}
