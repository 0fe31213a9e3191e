//! Borrowed bytes that their owner may overwrite while they are copied.

#![expect(
    unsafe_code,
    reason = "a slice would assert that the bytes do not change"
)]

use std::marker::PhantomData;

/// Bytes to copy from, read through a raw pointer. If their owner writes to them during a copy, the
/// copy may contain old bytes, new ones, or both.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    ptr: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: `new` requires that the bytes are readable for the whole lifetime.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above; nothing writes through the pointer.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay readable for the lifetime `'a`.
    #[must_use]
    #[inline]
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self {
            ptr,
            len,
            lifetime: PhantomData,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies all bytes into `out`.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "`out` must be as long as the bytes");
        // SAFETY: both are `len` bytes long, and `out` is borrowed mutably.
        unsafe {
            out.as_mut_ptr()
                .copy_from_nonoverlapping(self.ptr, self.len);
        };
    }

    /// Piece `index` of consecutive pieces of `size` bytes.
    ///
    /// # Panics
    /// If the bytes end before the end of the piece.
    #[must_use]
    #[inline]
    pub fn piece(self, index: usize, size: usize) -> Self {
        let end = index.checked_add(1).and_then(|end| end.checked_mul(size));
        assert!(
            end.is_some_and(|end| end <= self.len),
            "the piece must lie within the bytes"
        );
        self.part(index * size, size)
    }

    /// `len` bytes, starting at `offset`.
    ///
    /// # Panics
    /// If they do not lie within these bytes.
    #[must_use]
    #[inline]
    pub fn slice(self, offset: usize, len: usize) -> Self {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "the slice must lie within the bytes"
        );
        self.part(offset, len)
    }

    /// Splits into the first `offset` bytes and the rest.
    pub(crate) fn split_at(self, offset: usize) -> (Self, Self) {
        assert!(offset <= self.len, "`offset` must not exceed the length");
        (self.part(0, offset), self.part(offset, self.len - offset))
    }

    /// Consecutive pieces of `size` bytes; a shorter remainder is left out.
    pub(crate) fn pieces(self, size: usize) -> impl Iterator<Item = Self> {
        let count = self.len.checked_div(size).unwrap_or(0);
        (0..count).map(move |n| self.part(n * size, size))
    }

    /// Copies of consecutive arrays of `N` bytes; a shorter remainder is left out.
    pub fn arrays<const N: usize>(self) -> impl Iterator<Item = [u8; N]> + use<'a, N> {
        (0..self.len / N).map(move |n| {
            // SAFETY: array `n` lies within the bytes; byte arrays need no alignment.
            unsafe { self.ptr.add(n * N).cast::<[u8; N]>().read() }
        })
    }

    /// The `len` bytes starting at `offset`. The caller has checked that they lie within these bytes.
    fn part(self, offset: usize, len: usize) -> Self {
        Self {
            // SAFETY: the caller checked that `offset` does not exceed the length.
            ptr: unsafe { self.ptr.add(offset) },
            len,
            lifetime: PhantomData,
        }
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice is borrowed for the same lifetime.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_pieces_and_arrays_keep_the_order() {
        let bytes = SharedBytes::from(&b"abcdefg"[..]);
        let copy = |part: SharedBytes<'_>| {
            let mut out = vec![0; part.len()];
            part.copy_to(&mut out);
            out
        };
        let (head, tail) = bytes.split_at(2);
        assert_eq!(
            (copy(head), copy(tail)),
            (b"ab".to_vec(), b"cdefg".to_vec())
        );
        assert!(bytes.pieces(3).map(copy).eq([b"abc", b"def"]));
        assert!(bytes.arrays::<2>().eq([*b"ab", *b"cd", *b"ef"]));
        assert_eq!(bytes.pieces(0).count(), 0);
        assert_eq!(copy(bytes.slice(1, 3)), b"bcd");
        assert_eq!(copy(bytes.slice(7, 0)), b"");
    }
}
