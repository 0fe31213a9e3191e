//! Log messages of calls that wait long for other threads or processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Milliseconds of a wait after which its first message is logged.
static FIRST_REPORT_MS: AtomicU64 = AtomicU64::new(10_000);

/// Sets the time in seconds after which a wait is logged for the first time: tests do not want to wait 10 s.
#[pyfunction]
pub(crate) fn set_long_wait(seconds: f64) {
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    FIRST_REPORT_MS.store(milliseconds, Ordering::Relaxed);
}

/// A wait that logs a warning when it gets long, and again each time it has become twice as long.
#[derive(Debug)]
pub(crate) struct LongWait {
    began: Instant,
    /// Time since `began` of the next message.
    next: Duration,
}

impl LongWait {
    /// Starts to measure a wait.
    pub(crate) fn begin() -> Self {
        Self {
            began: Instant::now(),
            next: Duration::from_millis(FIRST_REPORT_MS.load(Ordering::Relaxed)),
        }
    }

    /// When the wait began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// When the next message is due; `None` means never.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.began.checked_add(self.next)
    }

    /// Logs a message if one is due. `describe` receives the time waited, such as `10 s`, and returns the message; it may
    /// wait for locks and for a server, so call this without the GIL. True if a signal handler or a log handler raised an
    /// exception, which is then in `raised`.
    pub(crate) fn report(
        &mut self,
        raised: &mut Option<PyErr>,
        describe: impl FnOnce(&str) -> String,
    ) -> bool {
        let waited = self.began.elapsed();
        if waited < self.next {
            return false;
        }
        self.next = self.next.saturating_mul(2).max(waited);
        let text = describe(&format!("{} s", waited.as_secs()));
        *raised = Python::try_attach(|py| log(py, &text)).and_then(Result::err);
        raised.is_some()
    }
}

/// Logs a warning with Python's logger of the package.
pub(crate) fn log(py: Python<'_>, text: &str) -> PyResult<()> {
    let logger = py
        .import("logging")?
        .call_method1("getLogger", ("engram",))?;
    logger.call_method1("warning", ("%s", text)).map(drop)
}
