//! Where a chunk's bytes live, and how a reader gets at them.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::Result;

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

#[expect(unsafe_code, reason = "plain bytes, owned by one value")]
mod unsafe_parts {
    use super::*;

    // SAFETY: the buffer is owned by this value alone and holds plain bytes.
    unsafe impl Send for AlignedBytes {}
    // SAFETY: shared access only reads plain bytes.
    unsafe impl Sync for AlignedBytes {}

    impl AlignedBytes {
        fn layout(len: usize) -> Layout {
            #[expect(clippy::expect_used, reason = "only lengths near isize::MAX fail")]
            Layout::from_size_align(len.max(1), ALIGN).expect("buffer length fits an isize")
        }

        /// A buffer of `len` zero bytes.
        #[must_use]
        pub fn zeroed(len: usize) -> Self {
            let layout = Self::layout(len);
            // SAFETY: the layout's size is at least 1.
            let ptr = unsafe { alloc_zeroed(layout) };
            let Some(ptr) = NonNull::new(ptr) else {
                handle_alloc_error(layout)
            };
            Self { ptr, len }
        }

        /// A copy of `bytes`.
        #[must_use]
        pub fn copy_of(bytes: &[u8]) -> Self {
            let layout = Self::layout(bytes.len());
            // SAFETY: the layout's size is at least 1.
            let ptr = unsafe { alloc(layout) };
            let Some(ptr) = NonNull::new(ptr) else {
                handle_alloc_error(layout)
            };
            // SAFETY: both sides are `bytes.len()` long, and the new one is unshared.
            unsafe {
                ptr.as_ptr()
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
            Self {
                ptr,
                len: bytes.len(),
            }
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
            // SAFETY: allocated in this module with this very layout.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) };
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// Memory that something else owns: a mapped file, a shared segment.
pub trait Region: fmt::Debug + Send + Sync {
    /// The whole region.
    fn bytes(&self) -> &[u8];
}

/// Bytes that must be fetched before they can be read: a spilled chunk.
pub trait ColdBytes: fmt::Debug + Send + Sync {
    /// Reads them.
    ///
    /// # Errors
    /// [`crate::Error::Payload`] when they cannot be read or do not check out.
    fn fetch(&self) -> Result<Arc<AlignedBytes>>;

    /// How many bytes a fetch returns.
    fn len(&self) -> usize;

    /// True when a fetch returns nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a chunk's bytes live.
#[derive(Debug)]
pub enum Payload {
    /// In memory of our own.
    Heap(AlignedBytes),
    /// Inside a region owned by something else.
    Mapped {
        /// The owner.
        region: Arc<dyn Region>,
        /// Where the chunk's bytes begin.
        offset: usize,
        /// How many there are.
        len: usize,
    },
    /// Elsewhere; fetched when asked for.
    Cold(Arc<dyn ColdBytes>),
}

/// Readable bytes of a payload, held for as long as this value lives.
#[derive(Debug)]
pub enum Pinned<'a> {
    /// They were in memory.
    Borrowed(&'a [u8]),
    /// They were fetched.
    Fetched(Arc<AlignedBytes>),
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Fetched(bytes) => bytes,
        }
    }
}

impl Payload {
    /// Stored bytes, wherever they are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Mapped { len, .. } => *len,
            Self::Cold(cold) => cold.len(),
        }
    }

    /// True when nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the bytes readable. Never called under a table's lock.
    ///
    /// # Errors
    /// [`crate::Error::Payload`] when cold bytes cannot be fetched.
    pub fn pin(&self) -> Result<Pinned<'_>> {
        Ok(match self {
            Self::Heap(bytes) => Pinned::Borrowed(bytes),
            Self::Mapped {
                region,
                offset,
                len,
            } => Pinned::Borrowed(&region.bytes()[*offset..*offset + *len]),
            Self::Cold(cold) => Pinned::Fetched(cold.fetch()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[derive(Debug)]
    struct Segment(Vec<u8>);

    impl Region for Segment {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    #[derive(Debug)]
    struct Lost;

    impl ColdBytes for Lost {
        fn fetch(&self) -> Result<Arc<AlignedBytes>> {
            Err(Error::Payload("chunk 7 is gone".into()))
        }

        fn len(&self) -> usize {
            3
        }
    }

    #[test]
    fn buffers_are_aligned_and_empty_ones_are_fine() {
        for len in [0, 1, 63, 64, 65, 1 << 20] {
            let bytes = AlignedBytes::zeroed(len);
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes.as_ptr() as usize % ALIGN, 0);
        }
        assert_eq!(&*AlignedBytes::copy_of(b"abc"), b"abc");
    }

    #[test]
    fn every_kind_of_payload_pins_or_says_why_not() {
        let heap = Payload::Heap(AlignedBytes::copy_of(b"abc"));
        assert_eq!(&*heap.pin().unwrap(), b"abc");
        let region = Arc::new(Segment(b"xxabcxx".to_vec()));
        let mapped = Payload::Mapped {
            region,
            offset: 2,
            len: 3,
        };
        assert_eq!((&*mapped.pin().unwrap(), mapped.len()), (&b"abc"[..], 3));
        let cold = Payload::Cold(Arc::new(Lost));
        assert_eq!(cold.len(), 3);
        assert_eq!(
            cold.pin().unwrap_err(),
            Error::Payload("chunk 7 is gone".into())
        );
    }
}
