//! Blocking a thread until a ticket is ready.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often a parked thread checks whether to stop waiting, for example after Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A waker that unparks a thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// When a thread stops waiting for a ticket that is not ready.
pub struct WaitOptions<'a> {
    /// When the wait ends at the latest; `None` means no limit.
    pub deadline: Option<Instant>,
    /// Called while the ticket is not ready, at least every 50 ms and after each wake-up; returns true to end the wait.
    pub interrupted: &'a mut dyn FnMut() -> bool,
}

impl std::fmt::Debug for WaitOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitOptions")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// How a wait ended.
#[derive(Debug)]
pub enum WaitOutcome<T> {
    /// The ticket's result.
    Ready(T),
    /// The deadline passed.
    TimedOut,
    /// [`WaitOptions::interrupted`] returned true.
    Interrupted,
}

/// Parks this thread until the future is ready, the deadline passes or the wait is interrupted.
pub fn wait<F: Future + Unpin>(
    future: &mut F,
    options: &mut WaitOptions<'_>,
) -> WaitOutcome<F::Output> {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return WaitOutcome::Ready(output);
        }
        let now = Instant::now();
        if options.deadline.is_some_and(|deadline| deadline <= now) {
            return WaitOutcome::TimedOut;
        }
        if (options.interrupted)() {
            return WaitOutcome::Interrupted;
        }
        let left = options
            .deadline
            .map_or(POLL_INTERVAL, |deadline| deadline - now);
        thread::park_timeout(left.min(POLL_INTERVAL));
    }
}

/// Parks this thread until the future is ready. Returns `None` if the deadline passes first; a deadline of `None` means
/// no limit.
pub fn wait_by<F: Future + Unpin>(future: &mut F, deadline: Option<Instant>) -> Option<F::Output> {
    let mut options = WaitOptions {
        deadline,
        interrupted: &mut || false,
    };
    match wait(future, &mut options) {
        WaitOutcome::Ready(output) => Some(output),
        WaitOutcome::TimedOut | WaitOutcome::Interrupted => None,
    }
}
