//! The engine's allocator, and who gives memory back to the system: a thread of its own, so that no call pays for it.

#![expect(unsafe_code, reason = "mimalloc's settings have no other face")]

use std::sync::Once;
use std::thread;
use std::time::Duration;

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3, which the crate does not name.
const PURGE_DELAY: mi_option_t = 15;

/// Milliseconds; longer than anybody runs.
const NEVER: std::ffi::c_long = 1_000_000_000;

/// How often free memory is given back.
const EVERY: Duration = Duration::from_secs(30);

/// Freed memory is kept: by itself, mimalloc gives it back within whatever call is made a second
/// later, which took up to 100 ms of that call after a table of millions of items was dropped.
pub(crate) fn keep() {
    // SAFETY: an option that mimalloc knows, and reads whenever memory is freed.
    unsafe { mi_option_set(PURGE_DELAY, NEVER) };
}

/// Gives back what is free, from now on, every now and then.
pub(crate) fn give_back() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let begun = thread::Builder::new().name("engram-memory".into());
        // Without it, memory is used again all the same.
        let _ = begun.spawn(|| {
            loop {
                thread::sleep(EVERY);
                // SAFETY: may be called from any thread at any time.
                unsafe { mi_collect(true) };
            }
        });
    });
}
