//! Surveys of a table: the numbers of its items, or of a random part of a large table. Nothing changes.

use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::table::{
    ItemNumbers, MAX_ITEMS_PER_SURVEY_STEP, MAX_PAGES_PER_SURVEY_STEP, PeekOrder, SurveySize,
};
use engram_core::{Draw, Result};

use super::Table;
use crate::engine::derive_number;

/// Number of items up to which a survey reads all items of a table. Of a larger table, it reads about as many, in pages
/// chosen at random.
pub const MAX_SURVEYED_ITEMS: u64 = 100_000;

/// The numbers of a table's items.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) items: Vec<ItemNumbers>,
    /// The size of the table when the survey began.
    pub(crate) size: SurveySize,
}

impl Table {
    /// Reads the numbers of the items. Other calls can use the table meanwhile, so what they change may be in the result
    /// or not.
    ///
    /// # Errors
    /// [`Error::Closed`](engram_core::Error::Closed).
    pub(crate) fn survey(&self) -> Result<Survey> {
        self.expire()?;
        let size = self.state.lock().state.survey_size();
        let pages = chosen_pages(size);
        let mut items = Vec::new();
        for pages in pages.chunks(MAX_PAGES_PER_SURVEY_STEP) {
            // Allocated before the table is locked.
            items.reserve(MAX_ITEMS_PER_SURVEY_STEP);
            let locked = self.state.lock();
            locked.check_open()?;
            locked.state.survey(pages, &mut items);
        }
        Ok(Survey { items, size })
    }

    /// The first `n` items in this order, and the size of the table, if a selector of the table has this order.
    ///
    /// # Errors
    /// [`Error::Closed`](engram_core::Error::Closed).
    pub(crate) fn first_items(
        &self,
        n: usize,
        order: PeekOrder,
    ) -> Result<Option<(Vec<Draw>, SurveySize)>> {
        self.change(|locked, _, _| {
            locked.check_open()?;
            let first = locked.state.first_items(n, order);
            Ok(first.map(|items| (items, locked.state.survey_size())))
        })
    }

    /// The size of the table.
    pub(crate) fn survey_size(&self) -> SurveySize {
        self.state.lock().state.survey_size()
    }
}

/// The pages to read: all, or for a large table one at random out of each of as many equal parts of all pages as have
/// [`MAX_SURVEYED_ITEMS`] items on average.
fn chosen_pages(size: SurveySize) -> Vec<usize> {
    /// Makes surveys choose different pages. Not the generator of a table: a survey changes no later sample.
    static SURVEYS: AtomicU64 = AtomicU64::new(0);
    let pages = size.pages as u128;
    if size.items <= MAX_SURVEYED_ITEMS {
        return (0..size.pages).collect();
    }
    let survey = SURVEYS.fetch_add(1, Ordering::Relaxed);
    let parts = (pages * u128::from(MAX_SURVEYED_ITEMS)).div_ceil(u128::from(size.items));
    let parts = parts.min(pages);
    let chosen = (0..parts).map(|part| {
        let (begin, end) = (part * pages / parts, (part + 1) * pages / parts);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most `parts`, a number of pages"
        )]
        let number = derive_number(survey << 32, part as u64);
        usize::try_from(begin + u128::from(number) % (end - begin)).unwrap_or(usize::MAX)
    });
    chosen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_a_large_table_is_chosen_equally_often() {
        let size = |pages, items| SurveySize {
            pages,
            items,
            next_seq: 0,
        };
        assert_eq!(chosen_pages(size(7, 100_000)), (0..7).collect::<Vec<_>>());
        // Half of the slots are vacant.
        let pages = 20_000;
        let mut counts = vec![0_u32; pages];
        for _ in 0..200 {
            let chosen = chosen_pages(size(pages, 160_000));
            assert_eq!(chosen.len(), 12_500);
            assert!(chosen.is_sorted_by(|page, next| page < next));
            for page in chosen {
                counts[page] += 1;
            }
        }
        // 125 on average.
        assert!(counts.iter().all(|count| (70..=200).contains(count)));
    }
}
