//! Waiting for a ticket with a thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often a parked thread looks whether it should give up: Ctrl-C, a closing stream.
const GLANCE: Duration = Duration::from_millis(50);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Why a thread stops waiting before its ticket is served.
pub struct Patience<'a> {
    /// Wait no longer than until then.
    pub deadline: Option<Instant>,
    /// Asked now and then, and after each wake-up; true ends the wait.
    pub interrupted: &'a mut dyn FnMut() -> bool,
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// How a wait ended.
#[derive(Debug)]
pub enum Waited<T> {
    /// The ticket was served.
    Served(T),
    /// The deadline passed.
    Late,
    /// Somebody asked to stop.
    Interrupted,
}

/// Parks this thread until the future is ready or patience ends.
pub fn wait<F: Future + Unpin>(future: &mut F, patience: &mut Patience<'_>) -> Waited<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Waited::Served(output);
        }
        let now = Instant::now();
        if patience.deadline.is_some_and(|deadline| deadline <= now) {
            return Waited::Late;
        }
        if (patience.interrupted)() {
            return Waited::Interrupted;
        }
        let left = patience.deadline.map_or(GLANCE, |deadline| deadline - now);
        thread::park_timeout(left.min(GLANCE));
    }
}
