//! The chunks that a stream keeps, for items to come.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::{NewItem, TableOptions};
use tonic::Status;

use crate::chunk::{Chunks, weight};
use crate::item::{ByKey, Items};
use crate::pb;

/// Chunks that a stream keeps.
const MAX_CHUNKS: usize = 1 << 20;

/// Bytes of the chunks that a stream keeps and no table refers to, but for the last that came.
const MAX_UNHELD: usize = 1 << 30;

/// Chunks by their keys, and what makes them.
#[derive(Debug)]
pub(super) struct StreamChunkCache {
    max_chunks: usize,
    max_unheld: usize,
    chunks: Chunks,
    by_key: ByKey,
    /// Bytes of the chunks that no table referred to when they were counted last, and of those that came since. What
    /// tables took or let go meanwhile, and what was forgotten, is found when this seems too much.
    unheld: usize,
}

impl Default for StreamChunkCache {
    fn default() -> Self {
        Self {
            max_chunks: MAX_CHUNKS,
            max_unheld: MAX_UNHELD,
            chunks: Chunks::default(),
            by_key: ByKey::default(),
            unheld: 0,
        }
    }
}

impl StreamChunkCache {
    /// Keeps a chunk; one whose key is there already is passed over.
    ///
    /// # Errors
    /// As [`Chunks::make`]; `RESOURCE_EXHAUSTED` where there are too many.
    pub(super) fn take(&mut self, message: &pb::ChunkData) -> Result<(), Status> {
        if self.by_key.contains_key(&message.chunk_key) {
            return Ok(());
        }
        if self.by_key.len() >= self.max_chunks {
            return Err(Status::resource_exhausted(format!(
                "this stream keeps {} chunks; no more are allowed",
                self.max_chunks
            )));
        }
        if self.unheld > self.max_unheld {
            let kept = self.by_key.values();
            let unheld = kept.filter(|chunk| !chunk.holders().any());
            self.unheld = unheld.map(|chunk| weight(chunk)).sum();
        }
        if self.unheld > self.max_unheld {
            return Err(Status::resource_exhausted(format!(
                "this stream keeps {} bytes of chunks that no table refers to; at most {} are allowed",
                self.unheld, self.max_unheld
            )));
        }
        let chunk = self.chunks.make(message)?;
        self.unheld += weight(&chunk);
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
        if keys.len() <= self.by_key.len() {
            let wanted: HashSet<u64> = keys.iter().copied().collect();
            self.by_key.retain(|key, _| wanted.contains(key));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes_out::compress;
    use engram_core::{CellSpec, DType, RateLimits, SelectorKind};
    use futures_util::FutureExt as _;
    use tonic::Code;

    fn table() -> TableOptions {
        TableOptions {
            name: "table".into(),
            max_size: 10,
            max_bytes: None,
            max_times_sampled: 0,
            ttl: None,
            sampler: SelectorKind::Fifo,
            remover: SelectorKind::Fifo,
            limits: RateLimits::min_size(1),
            signature: None,
            note: None,
            seed: 1,
        }
    }

    /// A chunk of so many columns of one byte each.
    fn chunk(key: u64, columns: usize) -> pb::ChunkData {
        let cell = CellSpec {
            dtype: DType::Uint8,
            shape: smallvec::smallvec![1; 15],
        };
        let tensor = compress(&cell, 1, &[7]).unwrap();
        pb::ChunkData {
            chunk_key: key,
            data: Some(pb::chunk_data::Data {
                tensors: vec![tensor; columns],
            }),
            ..pb::ChunkData::default()
        }
    }

    #[test]
    fn what_describes_columns_counts() {
        let mut kept = StreamChunkCache::default();
        kept.take(&chunk(1, 1000)).unwrap();
        // Its place, its type, and 15 axes of 8 bytes.
        assert!(kept.unheld > 1000 * (64 + 16 + 15 * 8), "{}", kept.unheld);
    }

    /// Keeps few, so that little is enough to be too much.
    fn narrow(max_chunks: usize, max_unheld: usize) -> StreamChunkCache {
        StreamChunkCache {
            max_chunks,
            max_unheld,
            ..StreamChunkCache::default()
        }
    }

    #[test]
    fn chunks_are_counted() {
        let mut kept = narrow(2, MAX_UNHELD);
        for key in [1, 2, 2, 1] {
            kept.take(&chunk(key, 1)).unwrap();
        }
        let status = kept.take(&chunk(3, 1)).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(
            status.message(),
            "this stream keeps 2 chunks; no more are allowed"
        );
        kept.keep_only(&[2]).unwrap();
        kept.take(&chunk(3, 1)).unwrap();
    }

    #[test]
    fn bytes_that_no_table_has_are_bounded_but_for_the_last_chunk() {
        let each = weight(&Chunks::default().make(&chunk(1, 1)).unwrap());
        let mut kept = narrow(MAX_CHUNKS, 2 * each - 1);
        let refused = |kept: &mut StreamChunkCache, key| {
            let status = kept.take(&chunk(key, 1)).unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
            status.message().to_owned()
        };
        kept.take(&chunk(1, 1)).unwrap();
        kept.take(&chunk(2, 1)).unwrap();
        let text = format!(
            "this stream keeps {} bytes of chunks that no table refers to; at most {} are allowed",
            2 * each,
            2 * each - 1
        );
        assert_eq!(refused(&mut kept, 3), text);
        // One that a table has does not count while it is there.
        let engine = engram_engine::Engine::new(vec![table()], 1).unwrap();
        let table = engine.table("table").unwrap();
        let slice = pb::flat_trajectory::ChunkSlice {
            chunk_key: 1,
            length: 1,
            ..pb::flat_trajectory::ChunkSlice::default()
        };
        let column = pb::flat_trajectory::Column {
            chunk_slices: vec![slice],
            squeeze: false,
        };
        let message = pb::PrioritizedItem {
            flat_trajectory: Some(pb::FlatTrajectory {
                columns: vec![column],
            }),
            ..pb::PrioritizedItem::default()
        };
        let item = kept.item(table.options(), &message).unwrap();
        table
            .insert(vec![item])
            .unwrap()
            .now_or_never()
            .unwrap()
            .unwrap();
        kept.take(&chunk(3, 1)).unwrap();
        assert_eq!(refused(&mut kept, 4), text);
        kept.keep_only(&[1, 2]).unwrap();
        kept.take(&chunk(4, 1)).unwrap();
        kept.keep_only(&[1]).unwrap();
        table.reset().unwrap();
        kept.take(&chunk(5, 1)).unwrap();
        assert_eq!(refused(&mut kept, 6), text);
    }

    #[test]
    fn chunks_that_no_table_has_have_a_bound() {
        let mut kept = narrow(MAX_CHUNKS, 1 << 20);
        let full = (1..10).find_map(|key| kept.take(&chunk(key, 1000)).err());
        let status = full.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text = "bytes of chunks that no table refers to; at most 1048576 are allowed";
        assert!(status.message().ends_with(text), "{status}");
        assert!(kept.by_key.len() > 3);
        // What was let go counts no more.
        kept.keep_only(&[1]).unwrap();
        kept.take(&chunk(10, 1000)).unwrap();
    }

    #[test]
    fn keeping_more_than_there_are_changes_nothing() {
        let mut kept = StreamChunkCache::default();
        kept.take(&chunk(1, 1)).unwrap();
        let status = kept.keep_only(&[2, 3]).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(kept.by_key.contains_key(&1));
        kept.take(&chunk(2, 1)).unwrap();
        assert!(kept.keep_only(&[2, 3]).is_err());
        kept.keep_only(&[2]).unwrap();
        assert_eq!(kept.by_key.len(), 1);
    }
}
