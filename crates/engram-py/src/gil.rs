//! Calls from Python into the engine: they release the GIL and convert errors, and a signal such as Ctrl-C interrupts
//! those that wait for a ticket. Also guards against the use of engine objects in forked child processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engram_core::{Error, Result};
use engram_engine::close_after_fork;
use engram_engine::{WaitOptions, WaitOutcome, wait};
use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::False;

use crate::long_wait::LongWait;
use crate::only_thread::{call_check_interval, is_only_thread};
use crate::{arguments, errors};

/// Number of forks between the process that loaded the module and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts the fork, and closes the child's copies of the sockets and files of stores and servers. Python calls this in
/// each forked child.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    close_after_fork();
}

/// Number of forks between the process that loaded the module and this one.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Borrows a writer for a call that reads it.
///
/// # Errors
/// `EngramError` while another call changes it.
pub(crate) fn shared<'py, T: PyClass>(object: &Bound<'py, T>) -> PyResult<PyRef<'py, T>> {
    object.try_borrow().map_err(|_| errors::in_use(object.py()))
}

/// Borrows a writer for a call that changes it.
///
/// # Errors
/// `EngramError` while another call uses it.
pub(crate) fn exclusive<'py, T: PyClass<Frozen = False>>(
    object: &Bound<'py, T>,
) -> PyResult<PyRefMut<'py, T>> {
    object
        .try_borrow_mut()
        .map_err(|_| errors::in_use(object.py()))
}

/// A value that is neither used nor dropped in a forked child: a thread that does not exist there
/// may hold its locks.
#[derive(Debug)]
pub(crate) struct ForkGuard<T: Send> {
    /// `None` only while it is dropped.
    value: Option<T>,
    /// Result of [`forks`] in the process that created the value.
    forks: u64,
    what: &'static str,
}

impl<T: Send> ForkGuard<T> {
    /// Guards a value; `what` names it in errors.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self {
            value: Some(value),
            forks: forks(),
            what,
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// `ForkedError` in a child of the process that created it.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        self.check(py)?;
        self.value
            .as_ref()
            .ok_or_else(|| errors::forked(py, self.what))
    }

    /// Returns the value for changes.
    ///
    /// # Errors
    /// Those of [`ForkGuard::get`].
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
            // Without the GIL, which Python holds while it drops objects: freeing millions of items takes a while.
            Python::try_attach(|py| py.detach(|| drop(value)));
        } else {
            std::mem::forget(value);
        }
    }
}

/// Runs engine work without the GIL. Signals are handled after it: Ctrl-C does not interrupt it.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| errors::to_py(py, &error))
}

/// The argument `timeout`: how long a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout {
    /// `None` means no limit.
    seconds: Option<f64>,
}

impl Timeout {
    /// Reads a timeout from Python.
    ///
    /// # Errors
    /// `InvalidArgumentError` if it is neither a number of at least 0 nor None.
    pub(crate) fn from_python(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        arguments::seconds("`timeout`", value).map(|seconds| Self { seconds })
    }

    /// A timeout that was checked before; `None` means no limit.
    pub(crate) fn from_seconds(seconds: Option<f64>) -> Self {
        Self { seconds }
    }

    /// The timeout as a duration; `None` means no limit, also for a timeout too long for a `Duration`.
    pub(crate) fn duration(self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds?).ok()
    }

    /// The timeout in seconds; infinity means no limit.
    pub(crate) fn seconds(self) -> f64 {
        self.seconds.unwrap_or(f64::INFINITY)
    }

    /// The deadline of a wait that starts now; `None` means no limit, also for a timeout too long for an `Instant`.
    pub(crate) fn deadline(self) -> Option<Instant> {
        let timeout = Duration::try_from_secs_f64(self.seconds?).ok()?;
        Instant::now().checked_add(timeout)
    }
}

/// Waits for a ticket without the GIL; returns `None` at the deadline. Signal handlers run during the wait.
///
/// # Errors
/// The ticket's error, or the exception of a signal handler, such as Ctrl-C.
pub(crate) fn wait_for<F, T>(
    py: Python<'_>,
    ticket: &mut F,
    deadline: Option<Instant>,
) -> PyResult<Option<T>>
where
    F: Future<Output = Result<T>> + Unpin + Send,
    T: Send,
{
    wait_unless(py, ticket, deadline, check_signals)
}

/// Returns the error of a call that waits for other threads, although there are none; `None` while it waits for the disk.
pub(crate) type Deadlock<'a> = dyn Fn() -> Option<Error> + Send + Sync + 'a;

/// Waits as [`wait_for`] does, for a ticket that needs another thread or process to sample or insert. A wait that gets
/// long is logged; `describe` returns the message as in [`LongWait::report`]. If only a thread of this process could end a
/// wait without a deadline, `deadlock` returns the error for the case that there is none; `None` while the ticket waits for
/// something else.
///
/// # Errors
/// Those of [`wait_for`], and that of `deadlock`.
pub(crate) fn wait_for_table<F, T>(
    py: Python<'_>,
    ticket: &mut F,
    deadline: Option<Instant>,
    describe: impl Fn(&str) -> String + Send + Sync,
    deadlock: Option<&Deadlock<'_>>,
) -> PyResult<Option<T>>
where
    F: Future<Output = Result<T>> + Unpin + Send,
    T: Send,
{
    let mut long_wait = LongWait::begin();
    let mut next_check = long_wait.began() + call_check_interval();
    wait_unless(py, ticket, deadline, |raised| {
        if check_signals(raised) || long_wait.report(raised, &describe) {
            return true;
        }
        let Some(deadlock) = deadlock.filter(|_| Instant::now() >= next_check) else {
            return false;
        };
        next_check += call_check_interval();
        let is_only_thread = Python::try_attach(|py| is_only_thread(py, 0)).unwrap_or(Ok(false));
        *raised = match is_only_thread {
            Ok(false) => None,
            Ok(true) => {
                deadlock().and_then(|error| Python::try_attach(|py| errors::to_py(py, &error)))
            }
            Err(error) => Some(error),
        };
        raised.is_some()
    })
}

/// Waits for a ticket without the GIL; returns `None` at the deadline. `interrupted` is called often, and returns true,
/// with an exception in its argument, to end the wait.
fn wait_unless<F, T>(
    py: Python<'_>,
    ticket: &mut F,
    deadline: Option<Instant>,
    mut interrupted: impl FnMut(&mut Option<PyErr>) -> bool + Send,
) -> PyResult<Option<T>>
where
    F: Future<Output = Result<T>> + Unpin + Send,
    T: Send,
{
    let mut raised = None;
    let waited = py.detach(|| {
        let mut options = WaitOptions {
            deadline,
            interrupted: &mut || interrupted(&mut raised),
        };
        wait(ticket, &mut options)
    });
    match waited {
        WaitOutcome::Ready(result) => result.map(Some).map_err(|error| errors::to_py(py, &error)),
        WaitOutcome::TimedOut => Ok(None),
        WaitOutcome::Interrupted => {
            Err(raised.unwrap_or_else(|| errors::invalid(py, "interrupted".into())))
        }
    }
}

/// Runs Python's signal handlers. True if one of them raised; the exception is then in `raised`.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method itself is tied to one lifetime"
)]
pub(crate) fn check_signals(raised: &mut Option<PyErr>) -> bool {
    // `try_attach` returns None while the interpreter is finalized; signals are ignored then.
    *raised = Python::try_attach(|py| py.check_signals()).and_then(Result::err);
    raised.is_some()
}
