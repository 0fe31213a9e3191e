//! Waiting for a ticket with a thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often a parked thread looks whether it should give up: Ctrl-C, a closing stream.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Why a thread stops waiting before its ticket is served.
pub struct WaitOptions<'a> {
    /// Wait no longer than until then.
    pub deadline: Option<Instant>,
    /// Asked now and then, and after each wake-up; true ends the wait.
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
    /// The ticket was served.
    Ready(T),
    /// The deadline passed.
    TimedOut,
    /// Somebody asked to stop.
    Interrupted,
}

/// Parks this thread until the future is ready or patience ends.
pub fn wait<F: Future + Unpin>(
    future: &mut F,
    patience: &mut WaitOptions<'_>,
) -> WaitOutcome<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return WaitOutcome::Ready(output);
        }
        let now = Instant::now();
        if patience.deadline.is_some_and(|deadline| deadline <= now) {
            return WaitOutcome::TimedOut;
        }
        if (patience.interrupted)() {
            return WaitOutcome::Interrupted;
        }
        let left = patience
            .deadline
            .map_or(POLL_INTERVAL, |deadline| deadline - now);
        thread::park_timeout(left.min(POLL_INTERVAL));
    }
}
