//! Inserts items for which nothing has to be decided.

use std::collections::VecDeque;

use crate::item::NewItem;
use crate::op::TableOp;
use crate::table::{DeferredDrops, TableState};

impl TableState {
    /// Number of items that [`TableState::admit`] would admit now, one after the other, and whose inserts would evict
    /// nothing. 0 if that is not known without looking at the items.
    fn unconditional_inserts(&self) -> u64 {
        if self.options.max_bytes.is_some() {
            return 0;
        }
        let space = self.options.max_size.saturating_sub(self.contents.size);
        let hidden = self.hidden_items();
        space.min(self.counters.limiter.inserts_allowed_if_undone(0, hidden))
    }

    /// Removes items from the front of `items`, at most `max`, and inserts them as [`TableState::insert`] would, as long as
    /// the table needs no eviction and the rate limiter allows them. Returns how many were removed, and how many of these
    /// were inserted, because their key was new.
    pub fn insert_run(
        &mut self,
        items: &mut VecDeque<NewItem>,
        max: usize,
        now: u64,
        deferred: &mut DeferredDrops,
    ) -> (usize, usize) {
        let allowed = usize::try_from(self.unconditional_inserts()).unwrap_or(usize::MAX);
        let run = allowed.min(max).min(items.len());
        let mut inserted = 0;
        for item in items.drain(..run) {
            if self.contents.keys.get(item.key).is_some() {
                deferred.add(item);
                continue;
            }
            let op = TableOp::Insert {
                item: &item,
                now,
                number: None,
            };
            self.record(&op);
            self.add_item(item, now);
            inserted += 1;
        }
        (run, inserted)
    }
}
