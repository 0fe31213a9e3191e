//! Loads the memory that inserts are about to use, so that its cache misses overlap.

use crate::item::NewItem;
use crate::table::TableState;

impl TableState {
    /// Prefetches what the inserts of these items use: the parts of the key map where the items will be, and the items
    /// that a full table evicts for them, with their parts of the key map. A single item has nothing to overlap with.
    pub fn prefetch_inserts<'a>(&self, items: impl ExactSizeIterator<Item = &'a NewItem>) {
        let inserts = items.len();
        if inserts < 2 {
            return;
        }
        let contents = &self.contents;
        let excess = (contents.size + inserts as u64).saturating_sub(self.options.max_size);
        let evictions = usize::try_from(excess).map_or(inserts, |excess| excess.min(inserts));
        contents.keys.prefetch(items.map(|item| item.key));
        let evicted = || contents.remover.next_choices().take(evictions);
        evicted().for_each(|slot| contents.items.prefetch(slot as usize));
        contents
            .keys
            .prefetch(evicted().map(|slot| contents.items[slot as usize].key));
    }
}
