//! An allocator that counts the bytes in use for each thread: allocated by it, and not freed by it.

#![expect(unsafe_code, reason = "an allocator implements an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes that each thread has in use. To be used as the global allocator of a test program.
#[derive(Debug)]
pub struct CountingAllocator;

fn count(bytes: isize) {
    let current = CURRENT.get() + bytes;
    CURRENT.set(current);
    PEAK.set(PEAK.get().max(current));
}

fn to_isize(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: all calls are forwarded to the system's allocator. Counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(to_isize(layout.size()));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(to_isize(layout.size()));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-to_isize(layout.size()));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While the data is moved, both allocations may exist.
        count(to_isize(size));
        count(-to_isize(layout.size()));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work`, and returns its result and its peak memory in bytes.
pub fn measure_peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let initial = CURRENT.get();
    PEAK.set(initial);
    let result = work();
    (result, usize::try_from(PEAK.get() - initial).unwrap_or(0))
}
