//! The chunks that a stream keeps, for items to come.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::{NewItem, TableOptions};
use tonic::Status;

use crate::chunk::Chunks;
use crate::item::{ByKey, Items};
use crate::pb;

/// Chunks that a stream keeps.
const MAX_CHUNKS: usize = 1 << 20;

/// Bytes of the chunks that a stream keeps and no table refers to, but for the last that came.
const MAX_UNHELD: usize = 1 << 30;

/// Chunks by their keys, and what makes them.
#[derive(Debug, Default)]
pub(super) struct Kept {
    chunks: Chunks,
    by_key: ByKey,
    /// At least as many bytes as the kept chunks have that no table refers to.
    unheld: usize,
}

impl Kept {
    /// Keeps a chunk; one whose key is there already is passed over.
    ///
    /// # Errors
    /// As [`Chunks::make`]; `RESOURCE_EXHAUSTED` where there are too many.
    pub(super) fn take(&mut self, message: &pb::ChunkData) -> Result<(), Status> {
        if self.by_key.contains_key(&message.chunk_key) {
            return Ok(());
        }
        if self.by_key.len() >= MAX_CHUNKS {
            return Err(Status::resource_exhausted(format!(
                "this stream keeps {MAX_CHUNKS} chunks; no more are allowed"
            )));
        }
        let chunk = self.chunks.make(message)?;
        self.unheld += chunk.footprint();
        if self.unheld > MAX_UNHELD {
            let kept = self.by_key.values();
            let unheld = kept.filter(|chunk| !chunk.holders().any());
            self.unheld = unheld.map(|chunk| chunk.footprint()).sum();
        }
        if self.unheld > MAX_UNHELD {
            return Err(Status::resource_exhausted(format!(
                "this stream keeps {} bytes of chunks that no table refers to; at most {MAX_UNHELD} \
                 are allowed",
                self.unheld
            )));
        }
        self.by_key.insert(message.chunk_key, Arc::new(chunk));
        Ok(())
    }

    /// The item for a table that a message describes.
    ///
    /// # Errors
    /// As [`Items::make`].
    pub(super) fn item(
        &mut self,
        table: &TableOptions,
        message: &pb::PrioritizedItem,
    ) -> Result<NewItem, Status> {
        Items::make(&mut self.chunks, &self.by_key, table, message)
    }

    /// Forgets all chunks but these.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` where some of these are not there.
    pub(super) fn keep_only(&mut self, keys: &[u64]) -> Result<(), Status> {
        let wanted: HashSet<u64> = keys.iter().copied().collect();
        self.by_key.retain(|key, _| wanted.contains(key));
        if self.by_key.len() == keys.len() {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "Kept less chunks than expected: {} of {}.",
            self.by_key.len(),
            keys.len()
        )))
    }
}
