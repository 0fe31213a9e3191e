//! Whether a call waits for other threads although there are none.

use std::fmt::{self, Debug};
use std::time::{Duration, Instant};

use engram_core::Error;
use engram_engine::Engine;
use pyo3::prelude::*;

use crate::{errors, native_readers};

/// Name of the threads that `engram._checkpoint_thread` starts.
const CHECKPOINT_THREAD: &str = "engram-checkpoints";

/// How often a waiting writer checks whether another thread could end the wait.
pub(crate) const WRITER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often other waiting calls check that. Longer, because threads of C such as those of JAX's callbacks are seen only
/// while they run Python.
const CALL_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Returns the error of a call that waits for other threads, although there are none; `None` while it waits for the disk.
pub(crate) type Deadlock<'a> = dyn Fn() -> Option<Error> + Send + Sync + 'a;

/// Checks from time to time whether a waiting call is deadlocked.
pub(crate) struct DeadlockCheck<'a> {
    next: Instant,
    own_readers: usize,
    deadlock: Option<&'a Deadlock<'a>>,
}

impl Debug for DeadlockCheck<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DeadlockCheck")
    }
}

impl<'a> DeadlockCheck<'a> {
    /// For a call that starts to wait, for one of this thread's `own_readers` datasets if there are any. Without
    /// `deadlock`, it may wait forever.
    pub(crate) fn begin(own_readers: usize, deadlock: Option<&'a Deadlock<'a>>) -> Self {
        Self {
            next: Instant::now() + CALL_CHECK_INTERVAL,
            own_readers,
            deadlock,
        }
    }

    /// True if the call is deadlocked; the error is then in `raised`. Must be called without the GIL.
    pub(crate) fn report(&mut self, raised: &mut Option<PyErr>) -> bool {
        let Some(deadlock) = self.deadlock.filter(|_| Instant::now() >= self.next) else {
            return false;
        };
        self.next += CALL_CHECK_INTERVAL;
        let is_only = Python::try_attach(|py| is_only_thread(py, self.own_readers));
        *raised = match is_only.unwrap_or(Ok(false)) {
            Ok(false) => None,
            Ok(true) => {
                deadlock().and_then(|error| Python::try_attach(|py| errors::to_py(py, &error)))
            }
            Err(error) => Some(error),
        };
        raised.is_some()
    }
}

/// True if nothing but this thread can use the stores of this process: it is the only one of Python, except those that
/// write checkpoints, no dataset is open except its `own_readers`, and the process has no server.
pub(crate) fn is_only_thread(py: Python<'_>, own_readers: usize) -> PyResult<bool> {
    if native_readers::num_open() > own_readers {
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
