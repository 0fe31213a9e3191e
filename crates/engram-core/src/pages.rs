//! Growing arrays in pages: no growth, copy or free ever touches more than one page.

use std::ops::{Index, IndexMut};

/// Entries per page.
pub const PAGE: usize = 4096;

const fn split(at: usize) -> (usize, usize) {
    (at / PAGE, at % PAGE)
}

/// A growing array of plain values; unset entries hold the fill value.
#[derive(Debug)]
pub struct Pages<T> {
    pages: Vec<Box<[T]>>,
    fill: T,
}

impl<T: Copy> Pages<T> {
    /// An empty array whose new entries hold `fill`.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            pages: Vec::new(),
            fill,
        }
    }

    /// Makes `at` a valid index.
    pub fn reach(&mut self, at: usize) {
        while self.pages.len() * PAGE <= at {
            self.pages.push(vec![self.fill; PAGE].into_boxed_slice());
        }
    }

    /// Sets an entry, growing as needed.
    pub fn put(&mut self, at: usize, value: T) {
        self.reach(at);
        self[at] = value;
    }

    /// `len` entries from `at`, which must not cross a page: `at` a multiple of a `len` that divides [`PAGE`].
    #[must_use]
    pub fn group(&self, at: usize, len: usize) -> &[T] {
        let (page, entry) = split(at);
        &self.pages[page][entry..entry + len]
    }
}

impl<T> Index<usize> for Pages<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        let (page, entry) = split(at);
        &self.pages[page][entry]
    }
}

impl<T> IndexMut<usize> for Pages<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        let (page, entry) = split(at);
        &mut self.pages[page][entry]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_and_keep_what_they_hold() {
        let mut pages = Pages::new(7_u32);
        pages.put(3 * PAGE + 1, 9);
        assert_eq!((pages[0], pages[3 * PAGE + 1]), (7, 9));
        assert_eq!(pages.group(3 * PAGE, 4), [7, 9, 7, 7]);
    }
}
