//! Stores that live in a directory: what Python says of them, and what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engram_core::Result;
use engram_engine::{Durability, OpenOptions, ReadProgress, StorageOptions};
use pyo3::prelude::*;

use crate::gil::detached;

pub(crate) fn storage_of((durability, interval, keep): (String, f64, usize)) -> StorageOptions {
    let durability = match durability.as_str() {
        "none" => Durability::None,
        "process" => Durability::Process,
        _ => Durability::Disk {
            interval: Duration::try_from_secs_f64(interval).unwrap_or(Duration::MAX),
        },
    };
    StorageOptions { durability, keep }
}

pub(crate) fn opening_of(
    (rename, drop, repair): (BTreeMap<String, String>, BTreeSet<String>, bool),
) -> OpenOptions {
    OpenOptions {
        rename,
        drop,
        repair,
    }
}

/// Works without the GIL, and tells a Python function of bytes done and bytes in all. What that raises is raised
/// once the work is done.
pub(crate) fn told<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(ReadProgress<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let mut tell = |done: u64, total: u64| {
        if let (Some(progress), None) = (progress, &raised) {
            raised = Python::attach(|py| progress.call1(py, (done, total))).err();
        }
    };
    let outcome = detached(py, || work(&mut tell));
    match raised {
        Some(error) => Err(error),
        None => outcome,
    }
}
