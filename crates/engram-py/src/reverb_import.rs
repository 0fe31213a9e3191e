//! Imports checkpoints of dm-reverb.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::gil::detached;
use crate::store::Store;

/// Adds the tables of a dm-reverb checkpoint to a store in this process. Returns the checkpoint's directory, the
/// number of items of each table, and descriptions of what could not be imported.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]
pub(crate) fn import_reverb(
    py: Python<'_>,
    store: &Store,
    path: PathBuf,
) -> PyResult<(PathBuf, BTreeMap<String, u64>, Vec<String>)> {
    let engine = store.engine(py)?;
    let seed = store.next_seed();
    let imported = detached(py, || engram_reverb::import(&engine, &path, seed))?;
    Ok((imported.path, imported.tables, imported.notes))
}
