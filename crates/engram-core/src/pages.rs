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
    pub fn ensure_index(&mut self, at: usize) {
        while self.pages.len() * PAGE <= at {
            self.pages.push(vec![self.fill; PAGE].into_boxed_slice());
        }
    }

    /// Sets an entry, growing as needed.
    pub fn set(&mut self, at: usize, value: T) {
        self.ensure_index(at);
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

/// Pages that one step of a copy makes.
const COPIES_PER_STEP: usize = 4;

/// As [`Pages`], and copied in steps: a copy shows the array as it was when begun. Until a page's
/// turn comes, the first write to it copies it beforehand. Nothing is left of it afterwards, so that
/// writes cost what they do in [`Pages`].
#[derive(Debug)]
pub struct CopyablePages<T> {
    live: Pages<T>,
    in_progress: Option<CopyInProgress<T>>,
}

/// Memory for the pages of a copy.
pub type CopyBuffer<T> = Vec<Option<Box<[T]>>>;

/// A copy under way: pages before `next`, and written ones, are in it.
#[derive(Debug)]
struct CopyInProgress<T> {
    pages: CopyBuffer<T>,
    next: usize,
}

/// The entries of one moment, up to the end of their last page.
#[derive(Clone, Debug, Default)]
pub struct PagesCopy<T>(CopyBuffer<T>);

impl<T: Copy> PagesCopy<T> {
    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.0
            .iter()
            .flatten()
            .flat_map(|page| page.iter().copied())
    }

    /// An entry, if there was one.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<T> {
        let (page, entry) = split(at);
        self.0.get(page)?.as_ref()?.get(entry).copied()
    }
}

impl<T: Copy> CopyablePages<T> {
    /// An empty array whose new entries hold `fill`.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            live: Pages::new(fill),
            in_progress: None,
        }
    }

    /// Sets an entry, growing as needed.
    pub fn set(&mut self, at: usize, value: T) {
        self.live.ensure_index(at);
        self[at] = value;
    }

    /// How many pages there are: the room that a copy needs.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.live.pages.len()
    }

    /// Begins a copy of what the array holds now. One that is under way is given up.
    ///
    /// `room` should have an unset entry for each page, so that nothing large is done here.
    pub fn begin_copy(&mut self, mut pages: CopyBuffer<T>) {
        pages.resize(self.pages(), None);
        self.in_progress = Some(CopyInProgress { pages, next: 0 });
    }

    /// Copies some more pages; the copy once it has all of them, and nothing where none was begun.
    pub fn continue_copy(&mut self) -> Option<PagesCopy<T>> {
        let CopyInProgress { pages, next } = self.in_progress.as_mut()?;
        let end = pages.len().min(*next + COPIES_PER_STEP);
        for (page, copy) in self.live.pages[*next..end]
            .iter()
            .zip(&mut pages[*next..end])
        {
            copy.get_or_insert_with(|| page.clone());
        }
        *next = end;
        if end < pages.len() {
            return None;
        }
        self.in_progress
            .take()
            .map(|in_progress| PagesCopy(in_progress.pages))
    }

    /// Puts a page that is about to be written into the copy under way.
    #[cold]
    fn copy_before_write(&mut self, page: usize) {
        if let Some(in_progress) = &mut self.in_progress
            && let Some(copy) = in_progress.pages.get_mut(page)
        {
            copy.get_or_insert_with(|| self.live.pages[page].clone());
        }
    }
}

impl<T> Index<usize> for CopyablePages<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.live[at]
    }
}

impl<T: Copy> IndexMut<usize> for CopyablePages<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        if self.in_progress.is_some() {
            self.copy_before_write(split(at).0);
        }
        &mut self.live[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_steps_shows_one_moment() {
        let mut pages = CopyablePages::new(0_u32);
        let last = (COPIES_PER_STEP + 1) * PAGE;
        pages.set(last, 1);
        pages.begin_copy(Vec::new());
        assert!(pages.continue_copy().is_none());
        // Before its turn, after its turn, and beyond the end.
        pages[last] = 2;
        pages[0] = 3;
        pages.set(last + PAGE, 4);
        let copy = pages.continue_copy().unwrap();
        assert_eq!([copy.get(0), copy.get(last)], [Some(0), Some(1)]);
        assert_eq!(
            (copy.get(last + PAGE), copy.iter().count()),
            (None, last + PAGE)
        );
        assert_eq!([pages[0], pages[last], pages[last + PAGE]], [3, 2, 4]);
        assert!(pages.continue_copy().is_none());
    }

    #[test]
    fn pages_grow_and_keep_what_they_hold() {
        let mut pages = Pages::new(7_u32);
        pages.set(3 * PAGE + 1, 9);
        assert_eq!((pages[0], pages[3 * PAGE + 1]), (7, 9));
        assert_eq!(pages.group(3 * PAGE, 4), [7, 9, 7, 7]);
    }
}
