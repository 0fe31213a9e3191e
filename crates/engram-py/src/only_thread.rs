//! Whether a call waits for other threads although there are none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engram_engine::Engine;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::native_readers;

/// Name of the threads that `engram._checkpoint_thread` starts.
const CHECKPOINT_THREAD: &str = "engram-checkpoints";

static WRITER_CHECK_MS: AtomicU64 = AtomicU64::new(1_000);
static CALL_CHECK_MS: AtomicU64 = AtomicU64::new(5_000);

/// Sets the seconds between two checks of a waiting writer, and of other waiting calls: tests do not want to wait 5 s.
#[pyfunction]
pub(crate) fn set_only_thread_checks(writers: f64, calls: f64) -> PyResult<()> {
    let milliseconds = |seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_millis());
        match u64::try_from(time) {
            Ok(time) if time > 0 => Ok(time),
            _ => Err(PyValueError::new_err(format!(
                "an interval must be at least a millisecond; got {seconds} s"
            ))),
        }
    };
    let (writers, calls) = (milliseconds(writers)?, milliseconds(calls)?);
    WRITER_CHECK_MS.store(writers, Ordering::Relaxed);
    CALL_CHECK_MS.store(calls, Ordering::Relaxed);
    Ok(())
}

/// How often a waiting writer checks whether another thread could end the wait.
pub(crate) fn writer_check_interval() -> Duration {
    Duration::from_millis(WRITER_CHECK_MS.load(Ordering::Relaxed))
}

/// How often other waiting calls check that. Longer, because threads of C such as those of JAX's callbacks are seen only
/// while they run Python.
pub(crate) fn call_check_interval() -> Duration {
    Duration::from_millis(CALL_CHECK_MS.load(Ordering::Relaxed))
}

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
