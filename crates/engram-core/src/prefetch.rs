//! Asking for memory before it is needed.

#![expect(unsafe_code, reason = "processors offer this by instructions only")]

use crate::aligned::ALIGN;

/// Asks for all cache lines of a value.
#[inline]
pub(crate) fn prefetch_all<T>(value: *const T) {
    let begin = value.cast::<u8>();
    for at in (0..size_of::<T>()).step_by(ALIGN) {
        prefetch(begin.wrapping_add(at));
    }
    // One more where it does not begin with a line.
    prefetch(begin.wrapping_add(size_of::<T>()));
}

/// Asks for a cache line and does not wait for it, so that many misses overlap. Any address will do.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that changes nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint that changes nothing and never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
