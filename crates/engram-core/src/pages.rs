//! Growing arrays in pages: no growth, copy or free ever touches more than one page.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

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

/// A growing array whose clone shares pages: a write after a clone copies one page.
#[derive(Clone, Debug)]
pub struct CowPages<T> {
    pages: Vec<Arc<[T]>>,
    fill: T,
}

impl<T: Clone> CowPages<T> {
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
            self.pages.push(vec![self.fill.clone(); PAGE].into());
        }
    }

    /// Entries there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE
    }
}

impl<T> Index<usize> for CowPages<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        let (page, entry) = split(at);
        &self.pages[page][entry]
    }
}

impl<T: Clone> IndexMut<usize> for CowPages<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        let (page, entry) = split(at);
        &mut Arc::make_mut(&mut self.pages[page])[entry]
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

    #[test]
    fn a_clone_keeps_what_it_saw() {
        let mut live = CowPages::new(0_u32);
        live.reach(2 * PAGE);
        live[5] = 1;
        let seen = live.clone();
        live[5] = 2;
        live[2 * PAGE] = 3;
        assert_eq!((seen[5], seen[2 * PAGE]), (1, 0));
        assert_eq!((live[5], live[2 * PAGE]), (2, 3));
        assert!(Arc::ptr_eq(&live.pages[1], &seen.pages[1]));
    }
}
