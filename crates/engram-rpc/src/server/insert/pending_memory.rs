//! How much of a stream waits for tables.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::Chunk;

/// Items that may wait before no more are read.
const MAX_ITEMS: usize = 1 << 20;

/// Bytes that may: the items' own and those of the chunks they keep alive.
const MAX_BYTES: usize = 64 << 20;

/// Bytes of an item that waits, beside its chunks; slices come on top.
const ITEM_BYTES: usize = 64;

/// Bytes of a batch that waits, beside its items: its places in the queues, and what wakes it.
const BATCH_BYTES: usize = 512;

/// What waits, and what it keeps in memory.
#[derive(Debug, Default)]
pub(super) struct PendingMemory {
    items: usize,
    bytes: usize,
    /// How many waiting batches refer to a chunk, by its address.
    chunks: HashMap<usize, usize>,
}

/// Some items that wait together.
#[derive(Debug, Default)]
pub(super) struct BatchMemory {
    pub(super) items: usize,
    /// Bytes of the items' own slices, or of why they are refused.
    pub(super) own: usize,
    pub(super) chunks: Vec<Arc<Chunk>>,
}

impl BatchMemory {
    /// Bytes beside the chunks'.
    fn bytes(&self) -> usize {
        BATCH_BYTES + self.items * ITEM_BYTES + self.own
    }
}

impl PendingMemory {
    pub(super) fn has_room(&self) -> bool {
        self.items <= MAX_ITEMS && self.bytes <= MAX_BYTES
    }

    pub(super) fn add(&mut self, memory: &BatchMemory) {
        self.items += memory.items;
        self.bytes += memory.bytes();
        for chunk in &memory.chunks {
            let count = self.chunks.entry(Arc::as_ptr(chunk).addr()).or_default();
            *count += 1;
            if *count == 1 {
                self.bytes += chunk.footprint();
            }
        }
    }

    pub(super) fn remove(&mut self, memory: &BatchMemory) {
        self.items -= memory.items;
        self.bytes -= memory.bytes();
        for chunk in &memory.chunks {
            let key = Arc::as_ptr(chunk).addr();
            let Some(count) = self.chunks.get_mut(&key) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.chunks.remove(&key);
                self.bytes -= chunk.footprint();
            }
        }
    }
}
