//! The engine's allocator, and a thread that returns free memory to the system so that no call has to.

#![expect(unsafe_code, reason = "mimalloc's settings have no safe API")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t, mi_thread_init};
use mimalloc::MiMalloc;

use crate::gil::forks;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Options of mimalloc 3 that the crate does not define.
const PURGE_DECOMMITS: mi_option_t = 5;
const PURGE_DELAY: mi_option_t = 15;

/// In milliseconds: 11 days. This delay never passes, because the collector returns memory every [`COLLECT_INTERVAL`].
const NEVER: std::ffi::c_long = 1_000_000_000;

/// Time between two returns of free memory.
const COLLECT_INTERVAL: Duration = Duration::from_secs(30);

/// Stops mimalloc from returning memory inside calls, and lets it use `MADV_FREE`.
///
/// By default, mimalloc returns freed memory inside a call made about a second later. After a table of millions of
/// items was dropped, this took up to 100 ms of that call. With `MADV_FREE` the system reclaims the memory only if it
/// runs short. Otherwise the next table that grows would fault every page in again, which stalls all threads for up to
/// 60 ms on a virtual machine.
pub(crate) fn configure() {
    // SAFETY: mimalloc 3 has these options, and reads them whenever memory is freed or purged.
    unsafe {
        mi_option_set(PURGE_DELAY, NEVER);
        mi_option_set(PURGE_DECOMMITS, 0);
    }
}

/// Starts the thread that returns free memory to the system, once per process. A forked child that opens a store starts
/// its own.
pub(crate) fn start_collector() {
    /// The number `process`, below, of the last process that called this function; 0 before the first call.
    static STARTED: AtomicU64 = AtomicU64::new(0);
    let process = forks() + 1;
    if STARTED.swap(process, Ordering::Relaxed) == process {
        return;
    }
    let collector = thread::Builder::new().name("engram-memory".into());
    // If the thread cannot start, the engine still reuses free memory.
    let _ = collector.spawn(|| {
        // Needed because this thread allocates nothing, and mimalloc ignores threads that it has not initialized.
        // SAFETY: a thread's first allocation does the same.
        unsafe { mi_thread_init() };
        loop {
            thread::sleep(COLLECT_INTERVAL);
            // SAFETY: any initialized thread may call it at any time.
            unsafe { mi_collect(true) };
        }
    });
}
