//! A growing array whose snapshots share its pages; the first write to a shared page copies it.

use std::ops::{Index, IndexMut};
use std::sync::Arc as Token;

use triomphe::Arc;

use crate::pages::StepwiseCopy;
use crate::prefetch::prefetch_line;

/// Entries per page.
///
/// Pages are small, because copying a page clones its entries and accesses the memory they refer
/// to, which is rarely in the cache: 256 draws from 5 M items right after a snapshot copy about 256
/// pages.
pub const ENTRIES_PER_COW_PAGE: usize = 16;

/// Pages that one call of [`CowPages::continue_snapshot`] adds to the snapshot.
const PAGES_PER_STEP: usize = 2048;

/// One allocation with its reference count: separate small counts, freed by the hundred thousand, were merged by the C
/// library's allocator in one long pause.
type Page<T> = Arc<[T; ENTRIES_PER_COW_PAGE]>;

/// A growing array of copy-on-write pages.
///
/// A snapshot is taken in steps, [`CowPages::begin_snapshot`] and then
/// [`CowPages::continue_snapshot`] until it returns the snapshot. It contains the entries as they
/// were when it began: the first write to a page that is not in it yet adds the page first.
#[derive(Debug)]
pub struct CowPages<T> {
    /// One 8-byte pointer per page, so that growing the array moves little memory.
    pages: Vec<Page<T>>,
    /// Value of new entries.
    fill: T,
    /// Every snapshot has a clone, so the reference count shows whether any exists.
    token: Token<()>,
    /// The snapshot that is not complete, and its clone of `token`.
    in_progress: Option<(StepwiseCopy<Page<T>>, Token<()>)>,
}

/// The page pointers of a snapshot, or memory for them. `None`: the page is not in the snapshot yet, or was released.
pub type PageBuffer<T> = Vec<Option<Page<T>>>;

/// A complete snapshot: the entries of an array at one moment.
#[derive(Clone, Debug)]
pub struct FrozenPages<T> {
    pages: PageBuffer<T>,
    _token: Token<()>,
}

impl<T> Default for FrozenPages<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            _token: Token::default(),
        }
    }
}

impl<T> FrozenPages<T> {
    /// Number of pages.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// The entry at `index`; `None` if its page was released.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&T> {
        let page = self.pages.get(index / ENTRIES_PER_COW_PAGE)?.as_ref()?;
        Some(&page[index % ENTRIES_PER_COW_PAGE])
    }

    /// Prefetches an entry.
    pub fn prefetch(&self, index: usize) {
        if let Some(entry) = self.get(index) {
            prefetch_line(entry);
        }
    }

    /// Releases a page whose entries are no longer needed. [`FrozenPages::iter`] skips them from then on.
    pub fn release(&mut self, page: usize) {
        self.pages[page] = None;
    }

    /// The entries of a page, to be changed. `None` if the page was released, or the array or another snapshot shares
    /// it: the array does until it writes to the page or is dropped.
    pub fn page_mut(&mut self, page: usize) -> Option<&mut [T; ENTRIES_PER_COW_PAGE]> {
        Arc::get_mut(self.pages.get_mut(page)?.as_mut()?)
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().flat_map(|page| page.iter())
    }
}

impl<T: Clone> CowPages<T> {
    /// An empty array whose new entries are clones of `fill`.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            pages: Vec::new(),
            fill,
            token: Token::default(),
            in_progress: None,
        }
    }

    /// Grows the array until `index` is a valid index.
    pub fn ensure_index(&mut self, index: usize) {
        while self.pages.len() * ENTRIES_PER_COW_PAGE <= index {
            let page = std::array::from_fn(|_| self.fill.clone());
            self.pages.push(Arc::new(page));
        }
    }

    /// Prefetches an entry that is about to be written, and the reference count of its page.
    pub fn prefetch(&self, index: usize) {
        let page = &self.pages[index / ENTRIES_PER_COW_PAGE];
        prefetch_line(&raw const page[index % ENTRIES_PER_COW_PAGE]);
        prefetch_line(Arc::heap_ptr(page));
    }

    /// True while a snapshot is in progress or exists. Writes may then copy pages.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Token::strong_count(&self.token) > 1
    }

    /// Number of pages.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Begins a snapshot of the current entries. Drops a snapshot that is in progress.
    ///
    /// `buffer` must contain only `None`. With at least one per page of the array, this call
    /// allocates no memory.
    pub fn begin_snapshot(&mut self, buffer: PageBuffer<T>) {
        let copy = StepwiseCopy::new(buffer, self.pages.len());
        self.in_progress = Some((copy, Token::clone(&self.token)));
    }

    /// Adds a bounded number of pages to the snapshot. Returns the snapshot once it is complete; `None`
    /// before that, and if none was begun.
    pub fn continue_snapshot(&mut self) -> Option<FrozenPages<T>> {
        let (copy, _) = self.in_progress.as_mut()?;
        if !copy.advance(&self.pages, PAGES_PER_STEP) {
            return None;
        }
        let (copy, token) = self.in_progress.take()?;
        Some(FrozenPages {
            pages: copy.pages,
            _token: token,
        })
    }
}

impl<T> Index<usize> for CowPages<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.pages[index / ENTRIES_PER_COW_PAGE][index % ENTRIES_PER_COW_PAGE]
    }
}

impl<T: Clone> IndexMut<usize> for CowPages<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        let (page, entry) = (index / ENTRIES_PER_COW_PAGE, index % ENTRIES_PER_COW_PAGE);
        if let Some((copy, _)) = &mut self.in_progress {
            copy.add(&self.pages, page);
        }
        &mut Arc::make_mut(&mut self.pages[page])[entry]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(live: &mut CowPages<u32>) -> FrozenPages<u32> {
        live.begin_snapshot(Vec::new());
        loop {
            if let Some(frozen) = live.continue_snapshot() {
                return frozen;
            }
        }
    }

    #[test]
    fn writes_after_a_snapshot_do_not_change_it() {
        let mut live = CowPages::new(0_u32);
        live.ensure_index(2 * ENTRIES_PER_COW_PAGE);
        live[5] = 1;
        assert!(!live.is_shared());
        let snapshot = snapshot(&mut live);
        live[5] = 2;
        live[2 * ENTRIES_PER_COW_PAGE] = 3;
        let entries: Vec<u32> = snapshot.iter().copied().collect();
        assert_eq!((entries[5], entries[2 * ENTRIES_PER_COW_PAGE]), (1, 0));
        assert_eq!((live[5], live[2 * ENTRIES_PER_COW_PAGE]), (2, 3));
        // Once the snapshot is dropped, writes no longer copy pages.
        assert!(live.is_shared());
        let address = &raw const live[ENTRIES_PER_COW_PAGE];
        drop((snapshot, entries));
        assert!(!live.is_shared());
        live[ENTRIES_PER_COW_PAGE] = 4;
        assert_eq!(&raw const live[ENTRIES_PER_COW_PAGE], address);
    }

    #[test]
    fn a_snapshot_in_steps_contains_the_entries_from_when_it_began() {
        let mut live = CowPages::new(0_u32);
        let last = (PAGES_PER_STEP + 1) * ENTRIES_PER_COW_PAGE;
        live.ensure_index(last);
        live[last] = 1;
        live.begin_snapshot(Vec::new());
        assert!(live.continue_snapshot().is_none());
        // Writes to a page not in the snapshot yet, to one in it, and beyond its end.
        live[last] = 2;
        live[0] = 3;
        live.ensure_index(last + ENTRIES_PER_COW_PAGE);
        live[last + ENTRIES_PER_COW_PAGE] = 4;
        let entries: Vec<u32> = live.continue_snapshot().unwrap().iter().copied().collect();
        assert_eq!(
            (entries[0], entries[last], entries.len()),
            (0, 1, last + ENTRIES_PER_COW_PAGE)
        );
        assert_eq!(
            (live[0], live[last], live[last + ENTRIES_PER_COW_PAGE]),
            (3, 2, 4)
        );
        assert!(live.continue_snapshot().is_none());
    }
}
