//! Counts what may use tables without a thread of Python: servers and streams.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of servers and streams of this process that are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Counts a server or stream as open.
pub(crate) fn opened() {
    OPEN.fetch_add(1, Ordering::Relaxed);
}

/// No longer counts a server or stream.
pub(crate) fn closed() {
    OPEN.fetch_sub(1, Ordering::Relaxed);
}

/// Number of servers of this process, whose clients may insert and sample at any time, and of streams, whose threads
/// sample ahead.
pub(crate) fn num_open() -> usize {
    OPEN.load(Ordering::Relaxed)
}
