//! A growing array in pages that a snapshot may share: one page is copied at the first write to it.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Entries per page. Copying one clones what its entries refer to, cold memory as a rule, so it
/// is small: a draw of 256 from 5 M items right after a snapshot copies some 256 pages.
pub const COW_PAGE: usize = 64;

/// Pages that one step of a snapshot shares.
const PAGES_PER_STEP: usize = 1024;

/// A growing array whose snapshots share pages: a write after a snapshot copies one page.
///
/// A snapshot is taken in steps. It shows the array as it was when begun: until a page's turn
/// comes, the first write to it shares it with the snapshot beforehand.
#[derive(Debug)]
pub struct CowPages<T> {
    pages: Vec<Page<T>>,
    fill: T,
    /// Pages that the next write to them has to copy, or to take back.
    shared: usize,
    taking: Option<Taking<T>>,
}

/// Pages that no snapshot holds are written without touching a reference count.
#[derive(Debug)]
enum Page<T> {
    Own(Box<[T]>),
    Shared(Arc<Box<[T]>>),
}

/// The pages of a snapshot; those beyond the end stay unset.
pub type Taken<T> = Vec<Option<Arc<Box<[T]>>>>;

/// A snapshot under way: pages before `next`, and written ones, are in it.
#[derive(Debug)]
struct Taking<T> {
    taken: Taken<T>,
    next: usize,
}

impl<T: Clone> CowPages<T> {
    /// An empty array whose new entries hold `fill`.
    #[must_use]
    pub fn new(fill: T) -> Self {
        Self {
            pages: Vec::new(),
            fill,
            shared: 0,
            taking: None,
        }
    }

    /// Makes `at` a valid index.
    pub fn reach(&mut self, at: usize) {
        while self.pages.len() * COW_PAGE <= at {
            let page = vec![self.fill.clone(); COW_PAGE];
            self.pages.push(Page::Own(page.into_boxed_slice()));
        }
    }

    /// True while writes may copy pages.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared > 0 || self.taking.is_some()
    }

    /// How many pages there are: the room that a snapshot needs.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Begins a snapshot of what the array holds now. One that is under way is given up.
    ///
    /// `room` should have an unset entry for each page, so that nothing large is done here.
    pub fn begin_snapshot(&mut self, mut room: Taken<T>) {
        room.resize(self.pages.len(), None);
        self.taking = Some(Taking {
            taken: room,
            next: 0,
        });
    }

    /// Shares some more pages; the snapshot once it has all of them.
    pub fn continue_snapshot(&mut self) -> Option<Taken<T>> {
        let taking = self.taking.as_mut()?;
        let end = taking.taken.len().min(taking.next + PAGES_PER_STEP);
        for (page, taken) in self.pages[taking.next..end]
            .iter_mut()
            .zip(&mut taking.taken[taking.next..end])
        {
            if taken.is_none() {
                self.shared += usize::from(matches!(page, Page::Own(_)));
                *taken = Some(page.share());
            }
        }
        taking.next = end;
        if end < taking.taken.len() {
            return None;
        }
        self.taking.take().map(|taking| taking.taken)
    }

    /// True while a snapshot is under way.
    #[must_use]
    pub fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    /// Puts a page that is about to be written into the snapshot under way.
    #[cold]
    fn share_before_write(&mut self, page: usize) {
        let taken = self
            .taking
            .as_mut()
            .and_then(|taking| taking.taken.get_mut(page));
        if let Some(taken) = taken.filter(|taken| taken.is_none()) {
            let page = &mut self.pages[page];
            self.shared += usize::from(matches!(page, Page::Own(_)));
            *taken = Some(page.share());
        }
    }
}

impl<T: Clone> Page<T> {
    fn share(&mut self) -> Arc<Box<[T]>> {
        if let Self::Own(entries) = self {
            *self = Self::Shared(Arc::new(std::mem::take(entries)));
        }
        match self {
            Self::Shared(entries) => Arc::clone(entries),
            Self::Own(_) => unreachable!("it was just shared"),
        }
    }

    /// The page as our own again: taken back where the snapshots are gone, else copied.
    #[cold]
    fn own(&mut self) -> &mut [T] {
        if let Self::Shared(entries) = self {
            let entries = std::mem::take(entries);
            *self = Self::Own(Arc::unwrap_or_clone(entries));
        }
        match self {
            Self::Own(entries) => entries,
            Self::Shared(_) => unreachable!("it was just made our own"),
        }
    }
}

impl<T> Index<usize> for CowPages<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        let (page, entry) = (at / COW_PAGE, at % COW_PAGE);
        match &self.pages[page] {
            Page::Own(entries) => &entries[entry],
            Page::Shared(entries) => &entries[entry],
        }
    }
}

impl<T: Clone> IndexMut<usize> for CowPages<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        let (page, entry) = (at / COW_PAGE, at % COW_PAGE);
        if self.taking.is_some() {
            self.share_before_write(page);
        }
        match &mut self.pages[page] {
            Page::Own(entries) => &mut entries[entry],
            shared @ Page::Shared(_) => {
                self.shared -= 1;
                &mut shared.own()[entry]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(live: &mut CowPages<u32>) -> Vec<Arc<Box<[u32]>>> {
        live.begin_snapshot(Vec::new());
        loop {
            if let Some(taken) = live.continue_snapshot() {
                return taken.into_iter().flatten().collect();
            }
        }
    }

    #[test]
    fn a_snapshot_keeps_what_it_saw() {
        let mut live = CowPages::new(0_u32);
        live.reach(2 * COW_PAGE);
        live[5] = 1;
        let seen = snapshot(&mut live);
        live[5] = 2;
        live[2 * COW_PAGE] = 3;
        assert_eq!((seen[0][5], seen[2][0]), (1, 0));
        assert_eq!((live[5], live[2 * COW_PAGE]), (2, 3));
        let address = seen[1].as_ptr();
        drop(seen);
        live[COW_PAGE] = 4;
        // One was taken back, one copied and one is new to its snapshot.
        assert!(!live.is_shared());
        let again = snapshot(&mut live);
        assert!(live.is_shared());
        assert_eq!(
            (again[1].as_ptr(), again[1][0], again[0][5]),
            (address, 4, 2)
        );
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
        let seen = live.continue_snapshot().unwrap();
        let value = |at: usize| seen[at / COW_PAGE].as_ref().unwrap()[at % COW_PAGE];
        assert_eq!(
            (value(0), value(last), seen.len()),
            (0, 1, PAGES_PER_STEP + 2)
        );
        assert_eq!((live[0], live[last], live[last + COW_PAGE]), (3, 2, 4));
        assert!(!live.is_taking());
    }
}
