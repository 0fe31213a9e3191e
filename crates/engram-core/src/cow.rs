//! A growing array in pages that a snapshot may share: one page is copied at the first write to it.

use std::ops::{Index, IndexMut};
use std::sync::Arc as Token;

use triomphe::Arc;

use crate::prefetch::prefetch;

/// Entries per page. Copying one clones what its entries refer to, cold memory as a rule, so it
/// is small: a draw of 256 from 5 M items right after a snapshot copies some 256 pages.
pub const COW_PAGE: usize = 16;

/// Pages that one step of a snapshot shares.
const PAGES_PER_STEP: usize = 2048;

type Page<T> = Arc<[T; COW_PAGE]>;

/// A growing array whose snapshots share pages: a write after a snapshot copies one page.
///
/// A snapshot is taken in steps. It shows the array as it was when begun: until a page's turn
/// comes, the first write to it shares it with the snapshot beforehand.
#[derive(Debug)]
pub struct CowPages<T> {
    /// Grows by doubling: 8 bytes per page, which large allocations move without copying.
    pages: Vec<Page<T>>,
    fill: T,
    /// Held by every snapshot, too.
    token: Token<()>,
    taking: Option<Taking<T>>,
}

/// Memory for the pages of a snapshot.
pub type Room<T> = Vec<Option<Page<T>>>;

/// A snapshot under way: pages before `next`, and written ones, are in it.
#[derive(Debug)]
struct Taking<T> {
    frozen: Frozen<T>,
    next: usize,
}

/// The entries of one moment.
#[derive(Clone, Debug)]
pub struct Frozen<T> {
    pages: Room<T>,
    _token: Token<()>,
}

impl<T> Default for Frozen<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            _token: Token::default(),
        }
    }
}

impl<T> Frozen<T> {
    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().flat_map(|page| page.iter())
    }
}

impl<T: Clone> CowPages<T> {
    /// An empty array whose new entries hold `fill`.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            pages: Vec::new(),
            fill,
            token: Token::default(),
            taking: None,
        }
    }

    /// Makes `at` a valid index.
    pub fn reach(&mut self, at: usize) {
        while self.pages.len() * COW_PAGE <= at {
            let page = std::array::from_fn(|_| self.fill.clone());
            self.pages.push(Arc::new(page));
        }
    }

    /// Asks for an entry that is written later, and for what says whether its page is shared.
    pub fn prefetch(&self, at: usize) {
        let page = &self.pages[at / COW_PAGE];
        prefetch(&raw const page[at % COW_PAGE]);
        prefetch(Arc::heap_ptr(page));
    }

    /// True while a snapshot is under way or alive: writes may copy pages.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Token::strong_count(&self.token) > 1
    }

    /// How many pages there are: the room that a snapshot needs.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Begins a snapshot of what the array holds now. One that is under way is given up.
    ///
    /// `room` should have an unset entry for each page, so that nothing large is done here.
    pub fn begin_snapshot(&mut self, mut room: Room<T>) {
        room.resize(self.pages.len(), None);
        let frozen = Frozen {
            pages: room,
            _token: Token::clone(&self.token),
        };
        self.taking = Some(Taking { frozen, next: 0 });
    }

    /// Shares some more pages; the snapshot once it has all of them.
    pub fn continue_snapshot(&mut self) -> Option<Frozen<T>> {
        let taking = self.taking.as_mut()?;
        let taken = &mut taking.frozen.pages;
        let end = taken.len().min(taking.next + PAGES_PER_STEP);
        for (page, taken) in self.pages[taking.next..end]
            .iter()
            .zip(&mut taken[taking.next..end])
        {
            taken.get_or_insert_with(|| Arc::clone(page));
        }
        taking.next = end;
        if end < taken.len() {
            return None;
        }
        self.taking.take().map(|taking| taking.frozen)
    }

    /// True while a snapshot is under way.
    #[must_use]
    pub fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    /// Puts a page that is about to be written into the snapshot under way.
    #[cold]
    fn share_before_write(&mut self, page: usize) {
        if let Some(taking) = &mut self.taking
            && let Some(taken) = taking.frozen.pages.get_mut(page)
        {
            taken.get_or_insert_with(|| Arc::clone(&self.pages[page]));
        }
    }
}

impl<T> Index<usize> for CowPages<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.pages[at / COW_PAGE][at % COW_PAGE]
    }
}

impl<T: Clone> IndexMut<usize> for CowPages<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        let (page, entry) = (at / COW_PAGE, at % COW_PAGE);
        if self.taking.is_some() {
            self.share_before_write(page);
        }
        &mut Arc::make_mut(&mut self.pages[page])[entry]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(live: &mut CowPages<u32>) -> Frozen<u32> {
        live.begin_snapshot(Vec::new());
        loop {
            if let Some(frozen) = live.continue_snapshot() {
                return frozen;
            }
        }
    }

    #[test]
    fn a_snapshot_keeps_what_it_saw() {
        let mut live = CowPages::new(0_u32);
        live.reach(2 * COW_PAGE);
        live[5] = 1;
        assert!(!live.is_shared());
        let seen = snapshot(&mut live);
        live[5] = 2;
        live[2 * COW_PAGE] = 3;
        let entries: Vec<u32> = seen.iter().copied().collect();
        assert_eq!((entries[5], entries[2 * COW_PAGE]), (1, 0));
        assert_eq!((live[5], live[2 * COW_PAGE]), (2, 3));
        // Once it is gone, its pages are the array's own again, wherever they were written.
        assert!(live.is_shared());
        let address = &raw const live[COW_PAGE];
        drop((seen, entries));
        assert!(!live.is_shared());
        live[COW_PAGE] = 4;
        assert_eq!(&raw const live[COW_PAGE], address);
    }

    #[test]
    fn a_snapshot_in_steps_shows_one_moment() {
        let mut live = CowPages::new(0_u32);
        let last = (PAGES_PER_STEP + 1) * COW_PAGE;
        live.reach(last);
        live[last] = 1;
        live.begin_snapshot(Vec::new());
        assert!(live.continue_snapshot().is_none() && live.is_taking());
        // Before its turn, after its turn, and beyond the end.
        live[last] = 2;
        live[0] = 3;
        live.reach(last + COW_PAGE);
        live[last + COW_PAGE] = 4;
        let seen: Vec<u32> = live.continue_snapshot().unwrap().iter().copied().collect();
        assert_eq!((seen[0], seen[last], seen.len()), (0, 1, last + COW_PAGE));
        assert_eq!((live[0], live[last], live[last + COW_PAGE]), (3, 2, 4));
        assert!(!live.is_taking());
    }
}
