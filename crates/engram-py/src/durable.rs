//! Options of stores with a directory, and progress reports to Python while one is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engram_core::Result;
use engram_engine::{Durability, OpenOptions, ReadProgress, StorageOptions};
use pyo3::prelude::*;

use crate::gil::detached;

/// Storage options from a durability, a sync interval in seconds, and a number of checkpoints to keep.
pub(crate) fn storage_options(
    (durability, interval, keep): (String, f64, usize),
) -> StorageOptions {
    let durability = match durability.as_str() {
        "none" => Durability::None,
        "process" => Durability::Process,
        _ => Durability::Disk {
            interval: Duration::try_from_secs_f64(interval).unwrap_or(Duration::MAX),
        },
    };
    StorageOptions { durability, keep }
}

/// Open options from new table names by old name, tables to drop, and whether to repair.
pub(crate) fn open_options(
    (rename, drop, repair): (BTreeMap<String, String>, BTreeSet<String>, bool),
) -> OpenOptions {
    OpenOptions {
        rename,
        drop,
        repair,
    }
}

/// Runs engine work without the GIL, and reports its progress to a Python function, as bytes read and bytes in total.
/// An exception of that function is raised after the work.
pub(crate) fn with_progress<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(ReadProgress<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let mut report = |done: u64, total: u64| {
        if let (Some(progress), None) = (progress, &raised) {
            raised = Python::attach(|py| progress.call1(py, (done, total))).err();
        }
    };
    let outcome = detached(py, || work(&mut report));
    match raised {
        Some(error) => Err(error),
        None => outcome,
    }
}
