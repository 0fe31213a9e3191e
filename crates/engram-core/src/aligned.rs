//! Buffers aligned to cache lines.

#![expect(
    unsafe_code,
    reason = "std has no aligned buffer, nor one that need not be cleared; these are plain bytes with one owner"
)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer: one cache line, enough for any vector load.
pub const ALIGN: usize = 64;

/// Rounds up to the next multiple of [`ALIGN`].
#[must_use]
pub const fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// An owned, 64-byte-aligned allocation of fixed length.
pub struct AlignedBytes {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is owned by this value alone and holds plain bytes.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads plain bytes.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` when no buffer can be so long.
    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.max(1), ALIGN).ok()
    }

    /// A buffer of `len` zero bytes; `None` when the system does not give so many.
    #[must_use]
    pub fn zeroed(len: usize) -> Option<Self> {
        #[cfg(test)]
        if failing::strikes() {
            return None;
        }
        let layout = Self::layout(len)?;
        // SAFETY: the layout's size is at least 1.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, len })
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
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: allocated in this module with this very layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// A buffer that is filled from front to back: it is not cleared beforehand.
#[derive(Debug)]
pub struct AlignedBytesBuilder {
    /// Only the first `filled` bytes mean anything.
    bytes: AlignedBytes,
    filled: usize,
}

impl AlignedBytesBuilder {
    /// Room for `len` bytes; `None` when the system does not give so many.
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

    /// Bytes that it has room for in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.len
    }

    /// What it was filled with so far.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: `push` has written that many.
        unsafe { std::slice::from_raw_parts(self.bytes.ptr.as_ptr(), self.filled) }
    }

    /// Adds what there is room for; returns how much that was.
    pub fn push(&mut self, more: &[u8]) -> usize {
        let len = more.len().min(self.capacity() - self.filled);
        // SAFETY: `len` bytes from `filled` on are within the buffer, which `more` cannot be part of:
        // we have the only reference to it.
        unsafe {
            let end = self.bytes.ptr.as_ptr().add(self.filled);
            std::ptr::copy_nonoverlapping(more.as_ptr(), end, len);
        }
        self.filled += len;
        len
    }

    /// The buffer, once it is full.
    #[must_use]
    pub fn finish(self) -> Option<AlignedBytes> {
        (self.filled == self.bytes.len).then_some(self.bytes)
    }
}

/// Lets an allocation of this thread fail.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::Cell;

    thread_local!(static IN: Cell<Option<usize>> = const { Cell::new(None) });

    /// The allocation after the next `n` fails.
    pub(crate) fn after(n: usize) {
        IN.set(Some(n));
    }

    pub(super) fn strikes() -> bool {
        let left = IN.get();
        IN.set(left.and_then(|n| n.checked_sub(1)));
        left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_empty_ones_are_fine() {
        for len in [0, 1, 63, 64, 65, 1 << 20] {
            let bytes = AlignedBytes::zeroed(len).unwrap();
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes.as_ptr() as usize % ALIGN, 0);
        }
        for absurd in [1 << 60, isize::MAX as usize, usize::MAX] {
            assert!(AlignedBytes::zeroed(absurd).is_none());
        }
    }

    #[test]
    fn a_buffer_is_what_it_was_filled_with() {
        let mut filling = AlignedBytesBuilder::with_capacity(5).unwrap();
        assert_eq!((filling.push(b"abc"), filling.filled()), (3, &b"abc"[..]));
        assert_eq!((filling.push(b"defg"), filling.push(b"h")), (2, 0));
        assert_eq!(&*filling.finish().unwrap(), b"abcde");
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
