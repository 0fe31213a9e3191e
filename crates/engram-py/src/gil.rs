//! The one way from Python into the engine: without the GIL, interruptible, errors mapped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engram_core::Result;
use engram_engine::close_after_fork;
use engram_engine::{WaitOptions, WaitOutcome, wait};
use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::False;

use crate::errors;

/// How many forks lie between the process that loaded the module and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Called by Python in each forked child.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    close_after_fork();
}

/// How often this process's line has forked since the module was loaded.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// An object, to be read in a call.
///
/// # Errors
/// `EngramError` while another call changes it.
pub(crate) fn shared<'py, T: PyClass>(object: &Bound<'py, T>) -> PyResult<PyRef<'py, T>> {
    object.try_borrow().map_err(|_| errors::in_use(object.py()))
}

/// An object, to be changed in a call.
///
/// # Errors
/// `EngramError` while another call uses it.
pub(crate) fn alone<'py, T: PyClass<Frozen = False>>(
    object: &Bound<'py, T>,
) -> PyResult<PyRefMut<'py, T>> {
    object
        .try_borrow_mut()
        .map_err(|_| errors::in_use(object.py()))
}

/// A value that must not be used, nor dropped, in a forked child: its locks may be held for ever
/// by threads that do not exist there.
#[derive(Debug)]
pub(crate) struct ForkGuard<T: Send> {
    value: Option<T>,
    forks: u64,
    what: &'static str,
}

impl<T: Send> ForkGuard<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self {
            value: Some(value),
            forks: forks(),
            what,
        }
    }

    /// The value.
    ///
    /// # Errors
    /// `ForkedError` in a child of the process that made it.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        self.check(py)?;
        self.value
            .as_ref()
            .ok_or_else(|| errors::forked(py, self.what))
    }

    /// The value, to be changed.
    ///
    /// # Errors
    /// As [`ForkGuard::get`].
    pub(crate) fn get_mut(&mut self, py: Python<'_>) -> PyResult<&mut T> {
        self.check(py)?;
        self.value
            .as_mut()
            .ok_or_else(|| errors::forked(py, self.what))
    }

    fn is_same_process(&self) -> bool {
        self.forks == forks()
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_same_process() {
            Ok(())
        } else {
            Err(errors::forked(py, self.what))
        }
    }
}

impl<T: Send> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.is_same_process() {
            // Python drops its objects with the GIL held; freeing millions of items takes a while.
            Python::try_attach(|py| py.detach(|| drop(value)));
        } else {
            std::mem::forget(value);
        }
    }
}

/// Runs engine work without the GIL.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| errors::to_py(py, &error))
}

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout {
    seconds: Option<f64>,
}

impl Timeout {
    /// Checks a timeout from Python.
    ///
    /// # Errors
    /// `InvalidArgumentError` when it is negative or NaN.
    pub(crate) fn new(py: Python<'_>, seconds: Option<f64>) -> PyResult<Self> {
        match seconds {
            Some(bad) if bad.is_nan() || bad < 0.0 => Err(errors::invalid(
                py,
                format!("timeout is {bad} s; it must be at least 0, or None to wait for ever"),
            )),
            _ => Ok(Self { seconds }),
        }
    }

    /// The time it leaves; `None` when it never ends.
    pub(crate) fn duration(self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds?).ok()
    }

    /// Seconds, infinite for none.
    pub(crate) fn seconds(self) -> f64 {
        self.seconds.unwrap_or(f64::INFINITY)
    }

    /// The moment it ends, counted from now; `None` when that is never.
    pub(crate) fn deadline(self) -> Option<Instant> {
        let timeout = Duration::try_from_secs_f64(self.seconds?).ok()?;
        Instant::now().checked_add(timeout)
    }
}

/// Waits for a ticket without the GIL; `None` when the deadline passed first.
///
/// # Errors
/// What the ticket ends with, or the exception of a signal handler: Ctrl-C.
pub(crate) fn wait_for<F, T>(
    py: Python<'_>,
    ticket: &mut F,
    deadline: Option<Instant>,
) -> PyResult<Option<T>>
where
    F: Future<Output = Result<T>> + Unpin + Send,
    T: Send,
{
    let mut raised = None;
    let waited = py.detach(|| {
        let mut interrupted = || check_signals(&mut raised);
        wait(
            ticket,
            &mut WaitOptions {
                deadline,
                interrupted: &mut interrupted,
            },
        )
    });
    match waited {
        WaitOutcome::Ready(result) => result.map(Some).map_err(|error| errors::to_py(py, &error)),
        WaitOutcome::TimedOut => Ok(None),
        WaitOutcome::Interrupted => {
            Err(raised.unwrap_or_else(|| errors::invalid(py, "interrupted".into())))
        }
    }
}

/// Runs Python's signal handlers; true, with the exception kept, when one of them raised.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method itself is tied to one lifetime"
)]
pub(crate) fn check_signals(raised: &mut Option<PyErr>) -> bool {
    // None where the interpreter ends: nobody hears of signals then.
    *raised = Python::try_attach(|py| py.check_signals()).and_then(Result::err);
    raised.is_some()
}
