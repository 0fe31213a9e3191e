//! How a writer divides its steps into chunks, and how many steps it retains.

use super::key_source::ShardId;
use super::open_batch::Grouping;
use crate::codec::Compression;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::Schema;

/// Target size in bytes of a chunk if `chunk_length` is not set.
const CHUNK_BYTES: usize = 16 << 10;

/// Maximum number of steps of a chunk if `chunk_length` is not set. Longer chunks take less memory
/// and time per step, but items are sent only once their chunk is full. (A 28-byte step takes 44
/// bytes and 110 ns in chunks of 16 steps, 35 bytes and 97 ns in chunks of 32, 31 bytes and 90 ns
/// in chunks of 64.)
const MAX_CHUNK_STEPS: usize = 16;

/// Maximum number of chunks of an environment whose items are sent together: then sending takes a small part of the time,
/// and the items stay in the processor's cache.
const MAX_CHUNKS_PER_SEND: usize = 16;

/// Maximum bytes of these chunks, unless it is only one.
const MAX_BYTES_PER_SEND: usize = 64 << 10;

/// Assumed bytes of a string element when a chunk length is chosen. A chunk with longer strings is sealed early,
/// once their actual bytes exceed a limit.
const STRING_ELEMENT_BYTES: usize = 256;

/// Environments share chunks if one step of an environment has fewer bytes than this.
const MAX_SHARED_STEP_BYTES: usize = 1 << 10;

/// Target size in bytes of a chunk that environments share.
const SHARED_CHUNK_BYTES: usize = 128 << 10;

/// Approximate additional bytes of an item that lies in two chunks instead of one.
const SPLIT_ITEM_BYTES: usize = 320;

/// How a writer divides its steps into chunks, and how many steps it retains.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Number of newest steps that items may refer to. At least 1.
    pub history: u64,
    /// Maximum number of steps of a chunk. `None` chooses as many as have at most 16 KiB (of one environment), from 1
    /// to 16.
    pub chunk_length: Option<usize>,
    /// Compression of columns. Chunks that several environments share are not compressed.
    pub compression: Compression,
    /// The shard id in the keys of items.
    pub shard: ShardId,
}

impl WriterOptions {
    /// Checks `history` and `chunk_length`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one of them is out of range.
    pub fn check(&self) -> Result<()> {
        if self.history == 0 {
            return Err(Error::InvalidArgument(
                "`history` must be at least 1 step; got 0".into(),
            ));
        }
        match self.chunk_length {
            Some(0) => Err(Error::InvalidArgument(
                "`chunk_length` must be at least 1 step; got 0".into(),
            )),
            Some(length) if u32::try_from(length).is_err() => Err(Error::InvalidArgument(format!(
                "`chunk_length` must be at most {} steps; got {length}",
                u32::MAX
            ))),
            _ => Ok(()),
        }
    }

    /// Returns how many steps a chunk of this schema has room for.
    pub(super) fn chunk_steps(&self, schema: &Schema) -> usize {
        self.chunk_length
            .unwrap_or_else(|| (CHUNK_BYTES / step_bytes(schema).max(1)).clamp(1, MAX_CHUNK_STEPS))
    }

    /// Returns how many chunks of this schema, each for `envs` environments, can be filled before their items are sent, if
    /// no table makes the writer wait. Sending the items of several small chunks together takes less time.
    pub(super) fn chunks_per_send(&self, schema: &Schema, envs: usize) -> usize {
        let steps = self.chunk_steps(schema).saturating_mul(envs);
        let bytes = step_bytes(schema).saturating_mul(steps).max(1);
        (MAX_BYTES_PER_SEND / bytes).clamp(1, MAX_CHUNKS_PER_SEND)
    }

    /// Returns how `envs` environments share chunks of this schema.
    pub(super) fn grouping(&self, schema: &Schema, envs: usize) -> Grouping {
        let capacity_steps = self.chunk_steps(schema);
        let step_bytes = step_bytes(schema).max(1);
        let envs_per_group = if step_bytes < MAX_SHARED_STEP_BYTES {
            (SHARED_CHUNK_BYTES / step_bytes / capacity_steps).clamp(1, envs)
        } else {
            1
        };
        Grouping {
            envs,
            envs_per_group,
            capacity_steps,
        }
    }

    /// Returns how many steps to copy into the next chunk of `length` steps so that items of
    /// `lookback` steps lie inside it. Each copied step prevents one item from lying in two chunks.
    /// Returns 0 if `chunk_length` is set, if a copied step takes more memory than an item in two chunks adds
    /// ([`SPLIT_ITEM_BYTES`]), or if the copies would take more than a quarter of the chunk.
    pub(super) fn overlap_steps(&self, schema: &Schema, length: usize, lookback: u64) -> u32 {
        let overlap = lookback.saturating_sub(1);
        let worthwhile = self.chunk_length.is_none()
            && step_bytes(schema) <= SPLIT_ITEM_BYTES
            && overlap <= length as u64 / 4;
        if worthwhile {
            u32::try_from(overlap).unwrap_or(0)
        } else {
            0
        }
    }
}

/// Returns the bytes of one step, with an estimate for strings.
pub(super) fn step_bytes(schema: &Schema) -> usize {
    let bytes = schema.cells.iter().map(|cell| match cell.dtype {
        DType::Bytes | DType::Text => cell.elements().saturating_mul(STRING_ELEMENT_BYTES),
        _ => cell.bytes(),
    });
    bytes.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{CellSpec, Layout};
    use smallvec::smallvec;
    use std::sync::Arc;

    fn options() -> WriterOptions {
        WriterOptions {
            history: 8,
            chunk_length: None,
            compression: Compression::Auto,
            shard: ShardId::default(),
        }
    }

    fn schema(elements: usize) -> Schema {
        Schema {
            layout: Arc::new(Layout {
                names: Box::new(["x".into()]),
                structure: "".into(),
            }),
            cells: Box::new([CellSpec {
                dtype: DType::Float32,
                shape: smallvec![elements],
            }]),
        }
    }

    #[test]
    fn chunk_lengths_and_overlaps_depend_on_the_step_size() {
        let lengths = [1, 7, 512, 84 * 84, 1 << 20].map(|n| options().chunk_steps(&schema(n)));
        assert_eq!(lengths, [16, 16, 8, 1, 1]);
        let overlap = |elements, lookback| options().overlap_steps(&schema(elements), 16, lookback);
        assert_eq!(
            [1, 2, 5, 6].map(|lookback| overlap(7, lookback)),
            [0, 1, 4, 0]
        );
        assert_eq!(overlap(100, 2), 0);
        let chunks = |n, envs| options().chunks_per_send(&schema(n), envs);
        assert_eq!([chunks(7, 1), chunks(7, 100)], [16, 1]);
        assert_eq!([chunks(512, 1), chunks(84 * 84, 1)], [4, 2]);
        let fixed = WriterOptions {
            chunk_length: Some(3),
            ..options()
        };
        assert_eq!(fixed.chunk_steps(&schema(7)), 3);
        assert_eq!(fixed.overlap_steps(&schema(7), 3, 2), 0);
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        let text = |options: WriterOptions| options.check().unwrap_err().to_string();
        let no_history = WriterOptions {
            history: 0,
            ..options()
        };
        assert_eq!(text(no_history), "`history` must be at least 1 step; got 0");
        let empty = WriterOptions {
            chunk_length: Some(0),
            ..options()
        };
        assert_eq!(text(empty), "`chunk_length` must be at least 1 step; got 0");
        assert_eq!(options().check(), Ok(()));
    }
}
