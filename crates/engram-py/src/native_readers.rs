//! Counts what may use tables without a thread of Python: servers and streams.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of servers and streams of this process that are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Counts a server or stream as open, until it is closed or dropped. True until then.
#[derive(Debug)]
pub(crate) struct Open(AtomicBool);

impl Open {
    pub(crate) fn new() -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self(AtomicBool::new(true))
    }

    /// No longer counts the server or stream.
    pub(crate) fn close(&self) {
        if self.0.swap(false, Ordering::Relaxed) {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close();
    }
}

/// Number of servers of this process, whose clients may insert and sample at any time, and of streams, whose threads
/// sample ahead.
pub(crate) fn num_open() -> usize {
    OPEN.load(Ordering::Relaxed)
}
