//! Bytes that somebody else owns, and may write to while they are copied.

#![expect(
    unsafe_code,
    reason = "a slice would promise that nobody writes to the bytes"
)]

use std::marker::PhantomData;

/// Bytes to copy from. They are only read through their address: whoever owns them may write to
/// them meanwhile, and then it is open which bytes are copied.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: whoever made it promised that the bytes can be read for as long as it lives.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above; it is never written through.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// The `len` bytes from `ptr` on.
    ///
    /// # Safety
    /// They must stay readable for as long as the result lives.
    #[must_use]
    #[inline]
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self {
            ptr,
            len,
            life: PhantomData,
        }
    }

    /// How many they are.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies them into `out`.
    ///
    /// # Panics
    /// If `out` is not as long.
    #[inline]
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "a copy is as long as what it is of");
        // SAFETY: both are `len` bytes, and `out` is borrowed by this call alone.
        unsafe {
            out.as_mut_ptr()
                .copy_from_nonoverlapping(self.ptr, self.len);
        };
    }

    /// The first `at` bytes, and the others.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "bytes are cut inside");
        (self.part(0, at), self.part(at, self.len - at))
    }

    /// Pieces of `size` bytes, as many as there are whole ones.
    pub(crate) fn pieces(self, size: usize) -> impl Iterator<Item = Self> {
        let count = self.len.checked_div(size).unwrap_or(0);
        (0..count).map(move |n| self.part(n * size, size))
    }

    /// Copies of the whole pieces of `N` bytes.
    pub(crate) fn arrays<const N: usize>(self) -> impl Iterator<Item = [u8; N]> + use<'a, N> {
        (0..self.len / N).map(move |n| {
            // SAFETY: `n` counts whole pieces, and bytes need no alignment.
            unsafe { self.ptr.add(n * N).cast::<[u8; N]>().read() }
        })
    }

    /// The caller checks that it lies inside.
    fn part(self, from: usize, len: usize) -> Self {
        Self {
            // SAFETY: `from` is at most `len`.
            ptr: unsafe { self.ptr.add(from) },
            len,
            life: PhantomData,
        }
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice is borrowed for as long.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_copied_in_order() {
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
    }
}
