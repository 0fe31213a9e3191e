//! Stores of others, taken in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::gil::detached;
use crate::store::Store;

/// Adds the tables of a checkpoint of dm-reverb to a store in this process: where it lies, the tables and how many
/// items each has, and what could not be taken over.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 hands arguments over by value"
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
