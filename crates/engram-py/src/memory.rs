//! The engine's allocator, and who offers free memory to the system: a thread of its own, so that no call pays for it.

#![expect(unsafe_code, reason = "mimalloc's settings have no other face")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t, mi_thread_init};
use mimalloc::MiMalloc;

use crate::gil::forks;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Options of mimalloc 3 that the crate does not name.
const PURGE_DECOMMITS: mi_option_t = 5;
const PURGE_DELAY: mi_option_t = 15;

/// Milliseconds; longer than anybody runs.
const NEVER: std::ffi::c_long = 1_000_000_000;

/// How often free memory is offered.
const EVERY: Duration = Duration::from_secs(30);

/// Freed memory is kept: by itself, mimalloc gives it back within whatever call is made a second
/// later, which took up to 100 ms of that call after a table of millions of items was dropped.
///
/// And it is offered (`MADV_FREE`), not given: the system takes it when it runs short. Memory that went has to come
/// again page by page when the next table grows, which stalls everybody for up to 60 ms on a virtual machine.
pub(crate) fn keep() {
    // SAFETY: options that mimalloc knows, and reads whenever memory is freed or purged.
    unsafe {
        mi_option_set(PURGE_DELAY, NEVER);
        mi_option_set(PURGE_DECOMMITS, 0);
    }
}

/// Offers what is free to the system, from now on, every now and then. Each forked child has a thread of its own.
pub(crate) fn offer() {
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    let here = forks() + 1;
    if BEGUN.swap(here, Ordering::Relaxed) == here {
        return;
    }
    let begun = thread::Builder::new().name("engram-memory".into());
    // Without it, memory is used again all the same.
    let _ = begun.spawn(|| {
        // SAFETY: what a thread's first allocation does; this one makes none, and mimalloc does nothing for such.
        unsafe { mi_thread_init() };
        loop {
            thread::sleep(EVERY);
            // SAFETY: may be called from any thread at any time.
            unsafe { mi_collect(true) };
        }
    });
}
