//! Distributes the tables of closed directories to new ones.

#![expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]

use std::path::PathBuf;

use engram_rpc::random_u64;
use pyo3::prelude::*;

use crate::gil::detached;
use crate::inspection::clean_all;

/// The new directories; each table's name and its number of items in each shard; notes.
type Outcome = (Vec<PathBuf>, Vec<(String, Vec<u64>)>, Vec<String>);

/// Writes the tables of closed stores to `into` directories in `output`. `progress` is called with the number of bytes
/// processed and in total. If it raises an exception, or a signal handler does, the call stops with that exception.
#[pyfunction]
pub(crate) fn reshard(
    py: Python<'_>,
    directories: Vec<PathBuf>,
    into: u32,
    output: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Outcome> {
    let mut raised = None;
    let mut report = |done: u64, total: u64| {
        let outcome = Python::attach(|py| {
            py.check_signals()?;
            if let Some(progress) = &progress {
                progress.call1(py, (done, total))?;
            }
            Ok(())
        });
        raised = outcome.err();
        raised.is_none()
    };
    let outcome = detached(py, || {
        engram_engine::reshard(&directories, into, &output, random_u64()?, &mut report)
    });
    if let Some(error) = raised {
        return Err(error);
    }
    let resharded = outcome?;
    Ok((
        resharded.directories,
        resharded.tables,
        clean_all(resharded.notes),
    ))
}
