//! Checks that files and directories that Python replaces or removes are not in use.

#![expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::gil::detached;

/// Raises `StorageError` if something uses the file or directory, or a file in it. With `in_own_directory`, the caller has
/// the lock of a directory above it.
#[pyfunction]
#[pyo3(signature = (path, *, in_own_directory = false))]
pub(crate) fn check_unused(py: Python<'_>, path: PathBuf, in_own_directory: bool) -> PyResult<()> {
    detached(py, || {
        if in_own_directory {
            return engram_engine::check_unlocked(&path);
        }
        engram_engine::check_unused(&path)
    })?;
    Ok(())
}

/// Renames a file or directory; replaces a file or an empty directory with the new name, unless it is in use.
#[pyfunction]
pub(crate) fn replace_unused(py: Python<'_>, source: PathBuf, target: PathBuf) -> PyResult<()> {
    detached(py, || engram_engine::replace_unused(&source, &target))?;
    Ok(())
}
