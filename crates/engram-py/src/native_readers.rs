//! Counts what may sample without a thread of Python: servers and streams.

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

/// True while this process has a server, whose clients may sample at any time, or a stream, whose thread samples ahead.
pub(crate) fn any_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}
