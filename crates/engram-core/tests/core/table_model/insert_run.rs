//! Inserts several items in one call, and compares the result with single inserts into the model.

use std::collections::VecDeque;

use engram_core::{Admission, DeferredDrops, NewItem, Removal};

use crate::table_model::TableAndModel;
use crate::table_model::record::trajectory;

impl TableAndModel {
    /// Inserts `count` items with new keys, the second one with a key that the table may have, but at most `max` of them.
    pub(crate) fn insert_run(&mut self, count: usize, max: usize, priority: u8) {
        let existing = self.model.entries.first().map(|entry| entry.key);
        let items = (0..count).map(|number| {
            self.next_key += 7;
            NewItem {
                key: existing.filter(|_| number == 1).unwrap_or(self.next_key),
                trajectory: trajectory(&self.chunks, number % 7, priority.into()),
                priority: f64::from(priority),
            }
        });
        let mut items: VecDeque<NewItem> = items.collect();
        let all = items.clone();
        let before = self.sink.len();
        let deferred = &mut DeferredDrops::default();
        let (taken, inserted) = self.table.insert_run(&mut items, max, self.now, deferred);
        assert_eq!(items.len(), count - taken);
        let mut new = 0;
        for item in all.iter().take(taken) {
            let bytes = self.model.options.item_bytes(item);
            assert_eq!(self.model.admission(bytes), Admission::Ready);
            if self.model.find(item.key).is_none() {
                let trajectory = item.trajectory.clone();
                (self.model).insert(item.key, item.priority, trajectory, self.now);
                new += 1;
            }
            assert!(!self.model.must_evict());
        }
        assert_eq!(inserted, new);
        assert!(self.sink.removed(before, Removal::Evicted).is_empty());
        if let Some(next) = items.front()
            && taken < max
            && taken == inserted
            && self.model.options.max_bytes.is_none()
        {
            let is_ready = self.table.admit(next) == Admission::Ready;
            assert!(!is_ready || self.model.entries.len() == 6);
        }
    }
}
