//! Reads the items of a table once, without sampling them: no counter, lease or order changes.

use std::collections::HashSet;

use crate::cow::{ENTRIES_PER_COW_PAGE, FrozenPages};
use crate::item::{Item, Slot};
use crate::table::{Draw, Snapshot, TableState};

/// Maximum number of keys of one [`TableState::items_with_keys`], which bounds the time that the lock is held.
pub const MAX_KEYS_PER_LOOKUP: usize = 1024;

/// Distance, in items, from the item that is taken to the one whose memory is prefetched.
const PREFETCH_DISTANCE: usize = 16;

/// One page is searched for items to release each time this many items were taken. All pages are thus searched once
/// while a quarter of the items of a full table is taken.
const ITEMS_PER_SEARCHED_PAGE: usize = ENTRIES_PER_COW_PAGE / 4;

/// The order in which a scan returns items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanOrder {
    /// The item that was inserted first is first.
    #[default]
    OldestFirst,
    /// The item that was inserted last is first.
    NewestFirst,
}

/// The items of a snapshot that were not taken yet, in the order of a scan.
///
/// A snapshot also keeps in memory the items that the table has removed since. A page is released once all its items
/// were taken. If the slots of a table are not in the order of insertion, that is late for most pages. Each call
/// therefore also searches a few pages for taken items that the table may have removed, and releases these.
#[derive(Debug, Default)]
pub struct ScanItems {
    pages: FrozenPages<Item>,
    order: ScanOrder,
    /// The slots of the items that are not taken yet. The last one is taken next.
    slots: Vec<Slot>,
    /// Per page, number of items that are not taken yet.
    left_in_page: Vec<u8>,
    /// The page that is searched next for items to release.
    next_searched: usize,
    /// Number of items in the table when the snapshot began.
    table_size: u64,
}

const _: () = assert!(ENTRIES_PER_COW_PAGE <= u8::MAX as usize);

impl ScanItems {
    /// The items of a snapshot; with `keys`, only those with one of these keys.
    #[must_use]
    pub fn new(snapshot: Snapshot, order: ScanOrder, keys: Option<&HashSet<u64>>) -> Self {
        let mut pages = snapshot.into_pages();
        let mut left_in_page = vec![0; pages.page_count()];
        let mut table_size = 0;
        let mut found: Vec<(u64, Slot)> = Vec::new();
        for (slot, item) in (0..).zip(pages.iter()) {
            if item.trajectory.is_none() {
                continue;
            }
            table_size += 1;
            if keys.is_none_or(|keys| keys.contains(&item.key)) {
                found.push((item.seq, slot));
                left_in_page[slot as usize / ENTRIES_PER_COW_PAGE] += 1;
            }
        }
        for (page, _) in left_in_page
            .iter()
            .enumerate()
            .filter(|(_, left)| **left == 0)
        {
            pages.release(page);
        }
        // In most tables, slots are in a few runs of ascending insertion numbers, which a stable sort only merges.
        match order {
            ScanOrder::OldestFirst => found.sort_by_key(|(seq, _)| std::cmp::Reverse(*seq)),
            ScanOrder::NewestFirst => found.sort_by_key(|(seq, _)| *seq),
        }
        Self {
            pages,
            order,
            slots: found.into_iter().map(|(_, slot)| slot).collect(),
            left_in_page,
            next_searched: 0,
            table_size,
        }
    }

    /// Number of items that are not taken yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if all items were taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes the next `n` items, or all that are left, and appends them to `draws`.
    pub fn take(&mut self, n: usize, draws: &mut Vec<Draw>) {
        let first = self.slots.len().saturating_sub(n);
        draws.reserve(self.slots.len() - first);
        for index in (first..self.slots.len()).rev() {
            if let Some(later) = index.checked_sub(PREFETCH_DISTANCE) {
                self.pages.prefetch(self.slots[later] as usize);
            }
            let slot = self.slots[index];
            let item = self.pages.get(slot as usize);
            draws.extend(item.and_then(|item| Draw::of_item(item, slot, self.table_size)));
            let page = slot as usize / ENTRIES_PER_COW_PAGE;
            self.left_in_page[page] -= 1;
            if self.left_in_page[page] == 0 {
                self.pages.release(page);
            }
        }
        let taken = self.slots.len() - first;
        self.slots.truncate(first);
        if let Some(last_seq) = draws.last().map(Draw::seq) {
            self.release_taken(last_seq, taken.div_ceil(ITEMS_PER_SEARCHED_PAGE));
        }
    }

    /// Releases the taken items in the next `pages` pages. `last_seq` is the insertion number of the item taken last.
    /// Skips a page that the table still shares, because the table has removed none of its items.
    fn release_taken(&mut self, last_seq: u64, pages: usize) {
        let page_count = self.left_in_page.len();
        for _ in 0..pages.min(page_count) {
            let page = self.next_searched;
            self.next_searched = (page + 1) % page_count;
            for item in self.pages.page_mut(page).into_iter().flatten() {
                let is_taken = match self.order {
                    ScanOrder::OldestFirst => item.seq <= last_seq,
                    ScanOrder::NewestFirst => item.seq >= last_seq,
                };
                if is_taken {
                    item.trajectory = None;
                }
            }
        }
    }
}

impl TableState {
    /// The items with these keys, at most [`MAX_KEYS_PER_LOOKUP`], in the order of a scan and each once. Unknown keys
    /// are ignored.
    #[must_use]
    pub fn items_with_keys(&self, keys: &[u64], order: ScanOrder) -> Vec<Draw> {
        let contents = &self.contents;
        let keys = keys.iter().take(MAX_KEYS_PER_LOOKUP);
        let slots = keys.filter_map(|key| contents.keys.get(*key));
        let draws = slots
            .filter_map(|slot| Draw::of_item(&contents.items[slot as usize], slot, contents.size));
        let mut draws: Vec<Draw> = draws.collect();
        draws.sort_by_key(Draw::seq);
        draws.dedup_by_key(|draw| draw.seq());
        if order == ScanOrder::NewestFirst {
            draws.reverse();
        }
        draws
    }
}
