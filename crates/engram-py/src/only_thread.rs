//! Whether a call waits for other threads although there are none.

use std::time::Duration;

use engram_engine::Engine;
use pyo3::prelude::*;

use crate::native_readers;

/// Name of the threads that `engram._checkpoint_thread` starts.
const CHECKPOINT_THREAD: &str = "engram-checkpoints";

/// How often a waiting writer checks whether another thread could end the wait.
pub(crate) const WRITER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often other waiting calls check that. Longer, because threads of C such as those of JAX's callbacks are seen only
/// while they run Python.
pub(crate) const CALL_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// True if nothing but this thread can use the stores of this process: it is the only one of Python, except those that
/// write checkpoints, the process has no server, and at most `datasets` datasets are open.
pub(crate) fn is_only_thread(py: Python<'_>, datasets: usize) -> PyResult<bool> {
    if native_readers::num_open() > datasets {
        return Ok(false);
    }
    let frames = py.import("sys")?.call_method0("_current_frames")?;
    let mut others = frames.len()?;
    for thread in py
        .import("threading")?
        .call_method0("enumerate")?
        .try_iter()?
    {
        let name: String = thread?.getattr("name")?.extract()?;
        others -= usize::from(name == CHECKPOINT_THREAD);
    }
    Ok(others == 1)
}

/// True if tables may accept more items because others expire, without any call.
pub(crate) fn any_item_expires(engine: &Engine) -> bool {
    let tables = engine.tables().unwrap_or_default();
    tables.iter().any(|table| table.options().ttl.is_some())
}
