//! Arrays that grow page by page: growing, copying and freeing them never moves or copies the whole array at once.

use std::ops::{Index, IndexMut};

/// Entries per page.
pub const ENTRIES_PER_PAGE: usize = 4096;

/// The number of an entry's page, and the entry's index in the page.
const fn split(index: usize) -> (usize, usize) {
    (index / ENTRIES_PER_PAGE, index % ENTRIES_PER_PAGE)
}

/// A growing array of `Copy` values. Entries that were never set have the fill value.
#[derive(Debug)]
pub struct Pages<T> {
    pages: Vec<Box<[T]>>,
    fill: T,
}

impl<T: Copy> Pages<T> {
    /// An empty array with this fill value.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            pages: Vec::new(),
            fill,
        }
    }

    /// Grows the array until `index` is a valid index.
    pub fn ensure_index(&mut self, index: usize) {
        while self.pages.len() * ENTRIES_PER_PAGE <= index {
            self.pages
                .push(vec![self.fill; ENTRIES_PER_PAGE].into_boxed_slice());
        }
    }

    /// Sets an entry; grows the array as needed.
    pub fn set(&mut self, index: usize, value: T) {
        self.ensure_index(index);
        self[index] = value;
    }

    /// The `len` entries starting at `index`. They must lie in one page: `len` divides
    /// [`ENTRIES_PER_PAGE`], and `index` is a multiple of `len`.
    #[must_use]
    pub fn group(&self, index: usize, len: usize) -> &[T] {
        let (page, entry) = split(index);
        &self.pages[page][entry..entry + len]
    }
}

impl<T> Index<usize> for Pages<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        let (page, entry) = split(index);
        &self.pages[page][entry]
    }
}

impl<T> IndexMut<usize> for Pages<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        let (page, entry) = split(index);
        &mut self.pages[page][entry]
    }
}

/// Pages that one call of [`CopyablePages::continue_copy`] copies.
const PAGES_PER_STEP: usize = 4;

/// Like [`Pages`], and can be copied in steps, [`CopyablePages::begin_copy`] and then
/// [`CopyablePages::continue_copy`] until it returns the copy.
///
/// The copy contains the entries as they were when it began: the first write to a page not copied yet
/// copies the page first. Once the copy is complete, writes cost the same as in [`Pages`] again.
#[derive(Debug)]
pub struct CopyablePages<T> {
    live: Pages<T>,
    in_progress: Option<StepwiseCopy<Box<[T]>>>,
}

/// A copy of an array's pages that is not complete. It contains the pages before `next`, and later ones that were
/// written since the copy began.
#[derive(Debug)]
pub(crate) struct StepwiseCopy<P> {
    /// `None`: the page is not in the copy yet.
    pub(crate) pages: Vec<Option<P>>,
    next: usize,
}

impl<P: Clone> StepwiseCopy<P> {
    /// Begins a copy of `page_count` pages in the memory of `pages`, which must contain only `None`.
    pub(crate) fn new(mut pages: Vec<Option<P>>, page_count: usize) -> Self {
        pages.resize(page_count, None);
        Self { pages, next: 0 }
    }

    /// Copies up to `max` more of the array's pages. Returns true once the copy is complete.
    pub(crate) fn advance(&mut self, live: &[P], max: usize) -> bool {
        let end = self.pages.len().min(self.next + max);
        let copies = &mut self.pages[self.next..end];
        for (page, copy) in live[self.next..end].iter().zip(copies) {
            copy.get_or_insert_with(|| page.clone());
        }
        self.next = end;
        end == self.pages.len()
    }

    /// Copies a page that is about to be written, unless it is in the copy already or beyond its end.
    #[cold]
    pub(crate) fn add(&mut self, live: &[P], page: usize) {
        if let Some(copy) = self.pages.get_mut(page) {
            copy.get_or_insert_with(|| live[page].clone());
        }
    }
}

/// The pages of a copy, or memory for their pointers. `None`: the page is not copied yet.
pub type CopyBuffer<T> = Vec<Option<Box<[T]>>>;

/// The entries of an array at one moment, up to the end of the last page.
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

    /// The entry at `index`, if the array had it.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<T> {
        let (page, entry) = split(index);
        self.0.get(page)?.as_ref()?.get(entry).copied()
    }
}

impl<T: Copy> CopyablePages<T> {
    /// An empty array with this fill value.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            live: Pages::new(fill),
            in_progress: None,
        }
    }

    /// Sets an entry; grows the array as needed.
    pub fn set(&mut self, index: usize, value: T) {
        self.live.ensure_index(index);
        self[index] = value;
    }

    /// Number of pages.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.live.pages.len()
    }

    /// Begins a copy of the current entries. Drops a copy that is in progress.
    ///
    /// `pages` must contain only `None`. With at least one per page of the array, this call
    /// allocates no memory.
    pub fn begin_copy(&mut self, pages: CopyBuffer<T>) {
        self.in_progress = Some(StepwiseCopy::new(pages, self.page_count()));
    }

    /// Copies a bounded number of pages. Returns the copy once it is complete; `None` before that, and
    /// if none was begun.
    pub fn continue_copy(&mut self) -> Option<PagesCopy<T>> {
        let copy = self.in_progress.as_mut()?;
        if !copy.advance(&self.live.pages, PAGES_PER_STEP) {
            return None;
        }
        let copy = self.in_progress.take()?;
        Some(PagesCopy(copy.pages))
    }
}

impl<T> Index<usize> for CopyablePages<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.live[index]
    }
}

impl<T: Copy> IndexMut<usize> for CopyablePages<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        if let Some(copy) = &mut self.in_progress {
            copy.add(&self.live.pages, split(index).0);
        }
        &mut self.live[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_steps_contains_the_entries_from_when_it_began() {
        let mut pages = CopyablePages::new(0_u32);
        let last = (PAGES_PER_STEP + 1) * ENTRIES_PER_PAGE;
        pages.set(last, 1);
        pages.begin_copy(Vec::new());
        assert!(pages.continue_copy().is_none());
        // Writes to a page not copied yet, to a copied one, and beyond the end of the copy.
        pages[last] = 2;
        pages[0] = 3;
        pages.set(last + ENTRIES_PER_PAGE, 4);
        let copy = pages.continue_copy().unwrap();
        assert_eq!([copy.get(0), copy.get(last)], [Some(0), Some(1)]);
        assert_eq!(
            (copy.get(last + ENTRIES_PER_PAGE), copy.iter().count()),
            (None, last + ENTRIES_PER_PAGE)
        );
        assert_eq!(
            [pages[0], pages[last], pages[last + ENTRIES_PER_PAGE]],
            [3, 2, 4]
        );
        assert!(pages.continue_copy().is_none());
    }

    #[test]
    fn growing_preserves_entries() {
        let mut pages = Pages::new(7_u32);
        pages.set(3 * ENTRIES_PER_PAGE + 1, 9);
        assert_eq!((pages[0], pages[3 * ENTRIES_PER_PAGE + 1]), (7, 9));
        assert_eq!(pages.group(3 * ENTRIES_PER_PAGE, 4), [7, 9, 7, 7]);
    }
}
