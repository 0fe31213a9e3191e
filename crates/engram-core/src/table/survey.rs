//! Surveys: read the numbers of a table's items in short steps, without a snapshot. Nothing changes.

use std::cmp::Ordering;
use std::ops::Range;

use crate::cow::ENTRIES_PER_COW_PAGE;
use crate::item::{Item, Slot};
use crate::selector::Selector;
use crate::table::{Draw, TableState};

/// Maximum number of pages that [`TableState::survey`] reads per call, which bounds the time that the lock is held.
pub const MAX_PAGES_PER_SURVEY_STEP: usize = 128;

/// Maximum number of items that a step of a survey reads.
pub const MAX_ITEMS_PER_SURVEY_STEP: usize = MAX_PAGES_PER_SURVEY_STEP * ENTRIES_PER_COW_PAGE;

/// Which items of a table are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekOrder {
    /// The item that was inserted first.
    Oldest,
    /// The item that was inserted last.
    Newest,
    /// The item with the highest priority.
    HighestPriority,
    /// The item with the lowest priority.
    LowestPriority,
    /// The item that was sampled most often.
    MostSampled,
}

/// The numbers of an item that surveys read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ItemNumbers {
    /// Its key.
    pub key: u64,
    /// Insertion number.
    pub seq: u64,
    /// Its priority.
    pub priority: f64,
    /// Samples taken, leased ones included.
    pub times_sampled: u32,
}

/// The size of a table, for a survey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SurveySize {
    /// Number of pages of items.
    pub pages: usize,
    /// Number of items.
    pub items: u64,
    /// Insertion number of the next item.
    pub next_seq: u64,
}

impl PeekOrder {
    /// Compares two items; the lesser one is first. Of equal items, the older one is first.
    #[must_use]
    pub fn compare(self, left: &ItemNumbers, right: &ItemNumbers) -> Ordering {
        let by_order = match self {
            Self::Oldest => Ordering::Equal,
            Self::Newest => right.seq.cmp(&left.seq),
            Self::HighestPriority => right.priority.total_cmp(&left.priority),
            Self::LowestPriority => left.priority.total_cmp(&right.priority),
            Self::MostSampled => right.times_sampled.cmp(&left.times_sampled),
        };
        by_order.then(left.seq.cmp(&right.seq))
    }
}

impl ItemNumbers {
    /// The numbers of an item; `None` for a vacant slot.
    fn of_item(item: &Item) -> Option<Self> {
        item.trajectory.as_ref().map(|_| Self {
            key: item.key,
            seq: item.seq,
            priority: item.priority,
            times_sampled: item.times_sampled,
        })
    }

    /// The numbers of a drawn item.
    #[must_use]
    pub fn of_draw(draw: &Draw) -> Self {
        Self {
            key: draw.key,
            seq: draw.seq(),
            priority: draw.priority,
            times_sampled: draw.times_sampled,
        }
    }
}

impl TableState {
    /// The size of the table.
    #[must_use]
    pub fn survey_size(&self) -> SurveySize {
        SurveySize {
            pages: self.contents.items.page_count(),
            items: self.contents.size,
            next_seq: self.counters.next_seq,
        }
    }

    /// Appends the numbers of the items in these pages, at most [`MAX_PAGES_PER_SURVEY_STEP`], to `numbers`. Pages that
    /// do not exist are skipped.
    pub fn survey(&self, pages: &[usize], numbers: &mut Vec<ItemNumbers>) {
        let items = &self.contents.items;
        let pages = &pages[..pages.len().min(MAX_PAGES_PER_SURVEY_STEP)];
        for (index, page) in pages.iter().enumerate() {
            if let Some(next) = pages
                .get(index + 1)
                .filter(|next| **next < items.page_count())
            {
                items.prefetch(next * ENTRIES_PER_COW_PAGE);
            }
            if *page < items.page_count() {
                let slots: Range<usize> =
                    page * ENTRIES_PER_COW_PAGE..(page + 1) * ENTRIES_PER_COW_PAGE;
                numbers.extend(slots.filter_map(|slot| ItemNumbers::of_item(&items[slot])));
            }
        }
    }

    /// The first `n` items in this order, as a scan returns them, if a selector of the table has this order for all its
    /// items.
    #[must_use]
    pub fn first_items(&self, n: usize, order: PeekOrder) -> Option<Vec<Draw>> {
        let newest_first = match order {
            PeekOrder::Oldest => false,
            PeekOrder::Newest => true,
            PeekOrder::HighestPriority | PeekOrder::LowestPriority | PeekOrder::MostSampled => {
                return None;
            }
        };
        let contents = &self.contents;
        let slots: Vec<Slot> = [&contents.sampler, &contents.remover]
            .into_iter()
            .find_map(|selector| match selector {
                Selector::Order(order) if order.len() as u64 == contents.size => {
                    Some(order.ends(n, newest_first))
                }
                _ => None,
            })?;
        let draws = slots
            .into_iter()
            .filter_map(|slot| Draw::of_item(&contents.items[slot as usize], slot, contents.size));
        Some(draws.collect())
    }
}
