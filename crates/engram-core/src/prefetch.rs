//! Loads memory into the processor's cache before it is read.

#![expect(unsafe_code, reason = "prefetch instructions have no safe interface")]

use crate::aligned::ALIGN;

/// Prefetches all cache lines of a value.
#[inline]
pub(crate) fn prefetch_value<T>(value: *const T) {
    let begin = value.cast::<u8>();
    for byte_offset in (0..size_of::<T>()).step_by(ALIGN) {
        prefetch_line(begin.wrapping_add(byte_offset));
    }
    // A value that does not begin at a cache line extends into one more.
    prefetch_line(begin.wrapping_add(size_of::<T>()));
}

/// Starts loading a cache line without waiting for it, so that many cache misses overlap. Accepts
/// any address.
#[inline]
pub(crate) fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint without side effects that never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint without side effects that never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
