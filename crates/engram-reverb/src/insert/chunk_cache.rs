//! The chunks that an insert stream stores for later items.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::{NewItem, TableOptions};
use tonic::Status;

use crate::chunk::{ChunkDecoder, memory_bytes};
use crate::item::{ChunksByKey, decode_item};
use crate::pb;

/// Maximum number of chunks that a stream keeps.
const MAX_CHUNKS: usize = 1 << 20;

/// Maximum number of bytes of the chunks that a stream keeps and no table refers to. The last chunk
/// may exceed it.
const MAX_UNREFERENCED_BYTES: usize = 1 << 30;

/// The chunks of a stream by key, and their decoder.
#[derive(Debug)]
pub(super) struct StreamChunkCache {
    max_chunks: usize,
    max_unreferenced_bytes: usize,
    decoder: ChunkDecoder,
    by_key: ChunksByKey,
    /// Estimated bytes of the chunks that no table refers to: those of the last count, and all chunks received since.
    /// Counted again when the estimate exceeds the limit. The estimate lacks chunks that a table referred to at the
    /// last count, but no table refers to now.
    unreferenced_bytes: usize,
}

/// How to make a writer of dm-reverb keep fewer steps.
const LOWER_HISTORY: &str = "lower its `num_keep_alive_refs` (`Writer`: `max_sequence_length`; `StructuredWriter`: use \
                             shorter patterns)";

impl Default for StreamChunkCache {
    fn default() -> Self {
        Self {
            max_chunks: MAX_CHUNKS,
            max_unreferenced_bytes: MAX_UNREFERENCED_BYTES,
            decoder: ChunkDecoder::default(),
            by_key: ChunksByKey::default(),
            unreferenced_bytes: 0,
        }
    }
}

impl StreamChunkCache {
    /// Adds a chunk. Ignores a chunk with a known key.
    ///
    /// # Errors
    /// See [`ChunkDecoder::decode`]; `RESOURCE_EXHAUSTED` if there are too many chunks.
    pub(super) fn add(&mut self, message: &pb::ChunkData) -> Result<(), Status> {
        if self.by_key.contains_key(&message.chunk_key) {
            return Ok(());
        }
        if self.by_key.len() >= self.max_chunks {
            return Err(Status::resource_exhausted(format!(
                "a writer keeps {} chunks on the server, which is the maximum; {LOWER_HISTORY}",
                self.max_chunks
            )));
        }
        if self.unreferenced_bytes > self.max_unreferenced_bytes {
            let chunks = self.by_key.values();
            let unreferenced = chunks.filter(|chunk| !chunk.holders().any());
            self.unreferenced_bytes = unreferenced.map(|chunk| memory_bytes(chunk)).sum();
        }
        if self.unreferenced_bytes > self.max_unreferenced_bytes {
            return Err(Status::resource_exhausted(format!(
                "a writer keeps {} bytes of chunks on the server that no table refers to, but at most {} are \
                 allowed; create items earlier, or {LOWER_HISTORY}",
                self.unreferenced_bytes, self.max_unreferenced_bytes
            )));
        }
        let chunk = self.decoder.decode(message)?;
        self.unreferenced_bytes += memory_bytes(&chunk);
        self.by_key.insert(message.chunk_key, Arc::new(chunk));
        Ok(())
    }

    /// Decodes an item for a table.
    ///
    /// # Errors
    /// See [`decode_item`].
    pub(super) fn decode_item(
        &mut self,
        table: &TableOptions,
        message: &pb::PrioritizedItem,
    ) -> Result<NewItem, Status> {
        decode_item(&mut self.decoder, &self.by_key, table, message)
    }

    /// Removes all chunks except those with these keys.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, with dm-reverb's text, if a key is unknown or repeated.
    pub(super) fn keep_only(&mut self, keys: &[u64]) -> Result<(), Status> {
        if keys.len() <= self.by_key.len() {
            let keys: HashSet<u64> = keys.iter().copied().collect();
            self.by_key.retain(|key, _| keys.contains(key));
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
    use crate::tensor_encoder::encode_tensor;
    use engram_core::{CellSpec, DType};
    use engram_testkit::table_options;
    use futures_util::FutureExt as _;
    use tonic::Code;

    /// A chunk with this number of columns of one byte each.
    fn chunk(key: u64, columns: usize) -> pb::ChunkData {
        let cell = CellSpec {
            dtype: DType::Uint8,
            shape: smallvec::smallvec![1; 15],
        };
        let tensor = encode_tensor(&cell, 1, &[7]).unwrap();
        pb::ChunkData {
            chunk_key: key,
            data: Some(pb::chunk_data::Data {
                tensors: vec![tensor; columns],
            }),
            ..pb::ChunkData::default()
        }
    }

    #[test]
    fn column_descriptions_are_included_in_the_bytes() {
        let mut cache = StreamChunkCache::default();
        cache.add(&chunk(1, 1000)).unwrap();
        // Per column at least: 64 bytes of the aligned payload, 16 of its `Extent`, and 15 axes of 8 bytes.
        assert!(
            cache.unreferenced_bytes > 1000 * (64 + 16 + 15 * 8),
            "{}",
            cache.unreferenced_bytes
        );
    }

    /// A cache with small limits.
    fn with_limits(max_chunks: usize, max_unreferenced_bytes: usize) -> StreamChunkCache {
        StreamChunkCache {
            max_chunks,
            max_unreferenced_bytes,
            ..StreamChunkCache::default()
        }
    }

    #[test]
    fn the_number_of_chunks_is_limited() {
        let mut cache = with_limits(2, MAX_UNREFERENCED_BYTES);
        for key in [1, 2, 2, 1] {
            cache.add(&chunk(key, 1)).unwrap();
        }
        let status = cache.add(&chunk(3, 1)).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(
            status.message(),
            "a writer keeps 2 chunks on the server, which is the maximum; lower its `num_keep_alive_refs` (`Writer`: \
             `max_sequence_length`; `StructuredWriter`: use shorter patterns)"
        );
        cache.keep_only(&[2]).unwrap();
        cache.add(&chunk(3, 1)).unwrap();
    }

    #[test]
    fn unreferenced_bytes_are_limited_except_for_the_last_chunk() {
        let each = memory_bytes(&ChunkDecoder::default().decode(&chunk(1, 1)).unwrap());
        let mut cache = with_limits(MAX_CHUNKS, 2 * each - 1);
        let rejected = |cache: &mut StreamChunkCache, key| {
            let status = cache.add(&chunk(key, 1)).unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
            status.message().to_owned()
        };
        cache.add(&chunk(1, 1)).unwrap();
        cache.add(&chunk(2, 1)).unwrap();
        let text = format!(
            "a writer keeps {} bytes of chunks on the server that no table refers to, but at most {} are \
             allowed; create items earlier, or {LOWER_HISTORY}",
            2 * each,
            2 * each - 1
        );
        assert_eq!(rejected(&mut cache, 3), text);
        // A chunk does not count while a table refers to it.
        let engine = engram_engine::Engine::new(vec![table_options("table")], 1).unwrap();
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
        let item = cache.decode_item(table.options(), &message).unwrap();
        table
            .insert(vec![item])
            .unwrap()
            .now_or_never()
            .unwrap()
            .unwrap();
        cache.add(&chunk(3, 1)).unwrap();
        assert_eq!(rejected(&mut cache, 4), text);
        cache.keep_only(&[1, 2]).unwrap();
        cache.add(&chunk(4, 1)).unwrap();
        cache.keep_only(&[1]).unwrap();
        table.reset().unwrap();
        cache.add(&chunk(5, 1)).unwrap();
        assert_eq!(rejected(&mut cache, 6), text);
    }

    #[test]
    fn chunks_that_no_table_refers_to_are_limited() {
        let mut cache = with_limits(MAX_CHUNKS, 1 << 20);
        let full = (1..10).find_map(|key| cache.add(&chunk(key, 1000)).err());
        let status = full.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text = "that no table refers to, but at most 1048576 are allowed; create items earlier";
        assert!(status.message().contains(text), "{status}");
        assert!(cache.by_key.len() > 3);
        // Removed chunks no longer count.
        cache.keep_only(&[1]).unwrap();
        cache.add(&chunk(10, 1000)).unwrap();
    }

    #[test]
    fn keeping_unknown_chunks_is_an_error() {
        let mut cache = StreamChunkCache::default();
        cache.add(&chunk(1, 1)).unwrap();
        let status = cache.keep_only(&[2, 3]).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(cache.by_key.contains_key(&1));
        cache.add(&chunk(2, 1)).unwrap();
        assert!(cache.keep_only(&[2, 3]).is_err());
        cache.keep_only(&[2]).unwrap();
        assert_eq!(cache.by_key.len(), 1);
    }
}
