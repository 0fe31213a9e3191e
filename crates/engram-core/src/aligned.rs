//! Buffers aligned to cache lines.

#![expect(
    unsafe_code,
    reason = "std has neither aligned nor uninitialised byte buffers"
)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer, in bytes: one cache line, enough for any vector load.
pub const ALIGN: usize = 64;

/// Rounds up to the next multiple of [`ALIGN`].
#[must_use]
pub const fn align_up(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// An owned byte buffer of fixed length, aligned to [`ALIGN`].
pub struct AlignedBytes {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is owned by this value alone and contains plain bytes.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads plain bytes.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Layout of `len` bytes; `None` if no allocation can be that large.
    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.max(1), ALIGN).ok()
    }

    /// A buffer of `len` zero bytes; `None` if the allocation fails.
    #[must_use]
    pub fn zeroed(len: usize) -> Option<Self> {
        #[cfg(test)]
        if failing::must_fail() {
            return None;
        }
        let layout = Self::layout(len)?;
        // SAFETY: the layout's size is at least 1.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, len })
    }

    /// The bytes as numbers; up to 7 bytes at the end are left out.
    #[must_use]
    pub fn as_f64s(&self) -> &[f64] {
        // SAFETY: the buffer is aligned for `f64`, and has this many; all bits are valid.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast(), self.len / size_of::<f64>()) }
    }

    /// [`Self::as_f64s`] for changes.
    #[must_use]
    pub fn as_f64s_mut(&mut self) -> &mut [f64] {
        let len = self.len / size_of::<f64>();
        // SAFETY: as in `as_f64s`; `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), len) }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: allocated in this module with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// Fills an [`AlignedBytes`] from front to back without clearing it first.
#[derive(Debug)]
pub struct AlignedBytesBuilder {
    /// Initialised only up to `filled`.
    bytes: AlignedBytes,
    filled: usize,
}

impl AlignedBytesBuilder {
    /// A builder for a buffer of `len` bytes; `None` if the allocation fails.
    #[must_use]
    pub fn with_capacity(len: usize) -> Option<Self> {
        let layout = AlignedBytes::layout(len)?;
        // SAFETY: the layout's size is at least 1.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        Some(Self {
            bytes: AlignedBytes { ptr, len },
            filled: 0,
        })
    }

    /// Length of the finished buffer, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.len
    }

    /// The bytes written so far.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: `push` has initialised the first `filled` bytes.
        unsafe { std::slice::from_raw_parts(self.bytes.ptr.as_ptr(), self.filled) }
    }

    /// Appends as much of `source` as fits; returns the number of bytes appended.
    pub fn push(&mut self, source: &[u8]) -> usize {
        let len = source.len().min(self.capacity() - self.filled);
        // SAFETY: `len` bytes starting at `filled` lie within the buffer; `source` cannot overlap it,
        // since `&mut self` is the only reference to the buffer.
        unsafe {
            let end = self.bytes.ptr.as_ptr().add(self.filled);
            std::ptr::copy_nonoverlapping(source.as_ptr(), end, len);
        }
        self.filled += len;
        len
    }

    /// Returns the buffer; `None` if it is not full.
    #[must_use]
    pub fn finish(self) -> Option<AlignedBytes> {
        (self.filled == self.bytes.len).then_some(self.bytes)
    }
}

/// Makes one call of `AlignedBytes::zeroed` fail in the thread of a test.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::Cell;

    thread_local!(static REMAINING: Cell<Option<usize>> = const { Cell::new(None) });

    /// Lets `n` more allocations succeed, and makes the one after them fail.
    pub(crate) fn after(n: usize) {
        REMAINING.set(Some(n));
    }

    /// Counts one allocation; true if it must fail.
    pub(super) fn must_fail() -> bool {
        let remaining = REMAINING.get();
        REMAINING.set(remaining.and_then(|n| n.checked_sub(1)));
        remaining == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_every_length_are_aligned() {
        for len in [0, 1, 63, 64, 65, 1 << 20] {
            let bytes = AlignedBytes::zeroed(len).unwrap();
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes.as_ptr() as usize % ALIGN, 0);
        }
        for too_large in [1 << 60, isize::MAX as usize, usize::MAX] {
            assert!(AlignedBytes::zeroed(too_large).is_none());
        }
    }

    #[test]
    fn bytes_are_also_numbers() {
        let mut bytes = AlignedBytes::zeroed(23).unwrap();
        bytes.as_f64s_mut()[1] = 1.5;
        assert_eq!(bytes.as_f64s(), [0.0, 1.5]);
        assert_eq!(bytes[8..16], 1.5_f64.to_bits().to_le_bytes());
    }

    #[test]
    fn a_builder_appends_until_the_buffer_is_full() {
        let mut builder = AlignedBytesBuilder::with_capacity(5).unwrap();
        assert_eq!((builder.push(b"abc"), builder.filled()), (3, &b"abc"[..]));
        assert_eq!((builder.push(b"defg"), builder.push(b"h")), (2, 0));
        assert_eq!(&*builder.finish().unwrap(), b"abcde");
        assert!(
            AlignedBytesBuilder::with_capacity(1)
                .unwrap()
                .finish()
                .is_none()
        );
        assert!(
            AlignedBytesBuilder::with_capacity(0)
                .unwrap()
                .finish()
                .is_some()
        );
        assert!(AlignedBytesBuilder::with_capacity(usize::MAX).is_none());
    }
}
