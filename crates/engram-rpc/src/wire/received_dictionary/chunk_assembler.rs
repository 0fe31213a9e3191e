//! A chunk whose bytes come in parts.

use std::sync::Arc;

use engram_core::aligned::{AlignedBytesBuilder, aligned};
use engram_core::chunk::MAX_CHUNK_BYTES;
use engram_core::codec::Codec;
use engram_core::{Chunk, Error, Extent, Origin, Payload, Result, Schema};
use smallvec::SmallVec;

use super::{InsertStreamError, invalid};
use crate::pb;
use crate::wire::decode_u64s;

/// A chunk of so many bytes has room for all of them from the beginning.
const SMALL: usize = 1 << 20;

/// A chunk on its way. What it claims to be costs nothing: memory follows the bytes that come.
#[derive(Debug)]
pub(super) struct ChunkAssembler {
    id: u32,
    schema: Arc<Schema>,
    origin: Origin,
    extents: SmallVec<[Extent; 4]>,
    /// None until the first come.
    bytes: Option<AlignedBytesBuilder>,
    /// Bytes in all.
    due: usize,
}

impl ChunkAssembler {
    pub(super) fn new(chunk: &pb::Chunk, schema: Arc<Schema>) -> Result<Self, InsertStreamError> {
        let due = usize::try_from(chunk.payload_bytes).unwrap_or(usize::MAX);
        if due > MAX_CHUNK_BYTES {
            return Err(invalid(format!(
                "chunk {} has {} bytes; a chunk has at most {MAX_CHUNK_BYTES}",
                chunk.id, chunk.payload_bytes
            )));
        }
        let origin = Origin {
            key: chunk.key,
            episodes: decode_u64s("episodes_le", &chunk.episodes_le)?.into(),
            first_step: chunk.first_step,
            steps: chunk.steps,
        };
        let mut arriving = Self {
            id: chunk.id,
            schema,
            origin,
            extents: extents(chunk)?,
            bytes: None,
            due,
        };
        arriving.push(&chunk.payload)?;
        Ok(arriving)
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn push(&mut self, part: &[u8]) -> Result<(), InsertStreamError> {
        let end = self.filled() + part.len();
        if end > self.due {
            return Err(invalid(format!(
                "{end} bytes came for chunk {}, which has {}",
                self.id, self.due
            )));
        }
        let bytes = match &mut self.bytes {
            Some(bytes) if bytes.capacity() >= end => bytes,
            before => {
                // As much again as has come, at most, but for small ones.
                let room = self.due.min(SMALL.max(2 * end));
                let mut bytes = AlignedBytesBuilder::with_capacity(room).ok_or_else(|| {
                    let error = Error::out_of_memory(format!("chunk {}", self.id), Some(room));
                    InsertStreamError::LimitExceeded(error.to_string())
                })?;
                if let Some(before) = before {
                    bytes.push(before.filled());
                }
                before.insert(bytes)
            }
        };
        bytes.push(part);
        Ok(())
    }

    fn filled(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.filled().len())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.filled() == self.due
    }

    /// The chunk, once it is complete.
    pub(super) fn finish(self) -> Result<Chunk> {
        // `new` has pushed what came with it, be it nothing.
        let bytes = self
            .bytes
            .and_then(AlignedBytesBuilder::finish)
            .ok_or_else(|| Error::InvalidArgument(format!("chunk {} has no bytes yet", self.id)))?;
        let payload = Payload::Heap(bytes);
        Chunk::from_parts(self.origin, self.schema, self.extents, payload)
    }
}

/// Columns lie one after the other, each from a multiple of 64 bytes.
fn extents(chunk: &pb::Chunk) -> Result<SmallVec<[Extent; 4]>, InsertStreamError> {
    let mut offset = 0_usize;
    let extents = chunk.extents.iter().map(|extent| {
        let first = u32::try_from(offset).map_err(|_| {
            invalid(format!(
                "the columns of chunk {} have more than {MAX_CHUNK_BYTES} bytes",
                chunk.id
            ))
        })?;
        // 32 bits each: no sum of a message's worth of them overflows.
        offset += aligned(extent.stored_bytes as usize);
        Ok(Extent {
            offset: first,
            stored: extent.stored_bytes,
            rows: extent.rows,
            codec: match extent.codec {
                0 => Codec::Raw,
                1 => Codec::Lz4,
                2 => Codec::Delta,
                other => {
                    return Err(invalid(format!(
                        "chunk {} has a column of codec {other}; this protocol has 0 to 2",
                        chunk.id
                    )));
                }
            },
        })
    });
    extents.collect()
}
