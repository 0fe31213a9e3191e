//! The memory of a stream's waiting items, and of the rejections that are queued behind them.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::Chunk;

/// The server reads no further items while more than this many wait.
const MAX_PENDING_ITEMS: usize = 1 << 20;

/// The server reads no further items while waiting items and their chunks occupy more bytes than this.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// Bytes counted for a waiting item, without its chunks and slices.
const ITEM_BYTES: usize = 64;

/// Bytes counted for a waiting batch, without its items: its entries in the queues and its timers.
const BATCH_BYTES: usize = 512;

/// The items and bytes of all waiting batches of a stream. A chunk is counted once.
#[derive(Debug, Default)]
pub(super) struct PendingMemory {
    items: usize,
    bytes: usize,
    /// Number of references from waiting batches to a chunk, by the chunk's address.
    chunks: HashMap<usize, usize>,
}

/// The memory of one batch.
#[derive(Debug, Default)]
pub(super) struct BatchMemory {
    pub(super) items: usize,
    /// Bytes of the items' slices, or of the error that rejects them.
    pub(super) extra_bytes: usize,
    /// The items' chunks; may contain a chunk several times.
    pub(super) chunks: Vec<Arc<Chunk>>,
}

impl BatchMemory {
    /// Bytes without the chunks.
    fn bytes(&self) -> usize {
        BATCH_BYTES + self.items * ITEM_BYTES + self.extra_bytes
    }
}

impl PendingMemory {
    /// True if the server may read more items.
    pub(super) fn has_room(&self) -> bool {
        self.items <= MAX_PENDING_ITEMS && self.bytes <= MAX_PENDING_BYTES
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
