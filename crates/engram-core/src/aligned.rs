//! Buffers aligned to cache lines.

#![expect(
    unsafe_code,
    reason = "std has neither aligned nor uninitialised byte buffers, nor buffers in the memory of something else"
)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// Alignment of every buffer, in bytes: one cache line, enough for any vector load.
pub const ALIGN: usize = 64;

/// Rounds up to the next multiple of [`ALIGN`].
#[must_use]
pub const fn align_up(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Owns memory that an [`AlignedBytes`] can use, such as a part of a mapped file.
///
/// # Safety
/// `bytes` must return memory that is aligned to [`ALIGN`], is readable and writable until this value is dropped, even if
/// it is moved before, and is not accessed in any other way.
pub unsafe trait MemoryOwner: fmt::Debug + Send + Sync {
    /// The memory.
    fn bytes(&mut self) -> NonNull<[u8]>;
}

/// An owned byte buffer of fixed length, aligned to [`ALIGN`]: on the heap, or in the memory of a [`MemoryOwner`].
pub struct AlignedBytes {
    ptr: NonNull<u8>,
    len: usize,
    /// `None` for memory on the heap.
    owner: Option<Box<dyn MemoryOwner>>,
}

// SAFETY: the memory is owned by this value alone and contains plain bytes; an owner is `Send`.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads plain bytes, and does not use the owner.
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
        Some(Self {
            ptr,
            len,
            owner: None,
        })
    }

    /// A buffer in the memory of `owner`.
    #[must_use]
    pub fn from_owner(mut owner: Box<dyn MemoryOwner>) -> Self {
        let bytes = owner.bytes();
        Self {
            ptr: bytes.cast(),
            len: bytes.len(),
            owner: Some(owner),
        }
    }

    /// True if the memory is on the heap, and not that of a [`MemoryOwner`].
    #[must_use]
    pub fn is_on_heap(&self) -> bool {
        self.owner.is_none()
    }

    /// Stores a number at `index`, counted in numbers, with one instruction: if the process is killed, the memory has the
    /// old or the new number. In the order of instructions, this precedes all later writes and follows all earlier ones.
    ///
    /// # Panics
    /// If the buffer has no 8 bytes at this index.
    pub fn store_u64(&mut self, index: usize, value: u64) {
        assert!(
            index < self.len / size_of::<u64>(),
            "the index is too large"
        );
        #[expect(clippy::cast_ptr_alignment, reason = "the buffer is aligned")]
        let numbers = self.ptr.as_ptr().cast::<u64>();
        // SAFETY: the number lies within the buffer; `&mut self` is the only reference to it.
        let number = unsafe { AtomicU64::from_ptr(numbers.add(index)) };
        number.store(value.to_le(), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
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
        if self.owner.is_none()
            && let Some(layout) = Self::layout(self.len)
        {
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
            bytes: AlignedBytes {
                ptr,
                len,
                owner: None,
            },
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
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

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
        bytes.store_u64(0, 3);
        assert_eq!(bytes[..9], [3, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Sets the flag when it is dropped.
    #[derive(Debug)]
    struct Owner(AlignedBytes, Arc<AtomicBool>);

    // SAFETY: the memory is that of another buffer, which is not used otherwise.
    unsafe impl MemoryOwner for Owner {
        fn bytes(&mut self) -> NonNull<[u8]> {
            NonNull::from(&mut *self.0)
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_buffer_in_the_memory_of_an_owner_drops_it() {
        let is_dropped = Arc::<AtomicBool>::default();
        let mut memory = AlignedBytes::zeroed(3).unwrap();
        memory.copy_from_slice(b"abc");
        let mut bytes = AlignedBytes::from_owner(Box::new(Owner(memory, Arc::clone(&is_dropped))));
        bytes[1] = b'x';
        assert_eq!(&*bytes, b"axc");
        assert!(!is_dropped.load(Ordering::Relaxed));
        drop(bytes);
        assert!(is_dropped.load(Ordering::Relaxed));
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
