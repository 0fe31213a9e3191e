//! Assembles a chunk whose bytes arrive in parts.

use std::sync::Arc;

use engram_core::aligned::{AlignedBytesBuilder, align_up};
use engram_core::chunk::MAX_CHUNK_BYTES;
use engram_core::codec::Codec;
use engram_core::{Chunk, Error, Extent, Origin, Result, Schema};
use smallvec::SmallVec;

use super::insert_stream_error::{InsertStreamError, invalid};
use crate::pb;
use crate::wire::decode_u64s;

/// Chunks up to this size get memory for all of their bytes at once.
const SMALL_CHUNK_BYTES: usize = 1 << 20;

/// A chunk of which not all bytes have been received. Its memory grows with the bytes received: the announced size may
/// be wrong.
#[derive(Debug)]
pub(super) struct ChunkAssembler {
    id: u32,
    schema: Arc<Schema>,
    origin: Origin,
    extents: SmallVec<[Extent; 4]>,
    /// `None` until the first bytes are received.
    bytes: Option<AlignedBytesBuilder>,
    /// Announced size of the payload.
    payload_bytes: usize,
}

impl ChunkAssembler {
    /// Starts with the first bytes, which are in the same message as the header.
    pub(super) fn new(chunk: &pb::Chunk, schema: Arc<Schema>) -> Result<Self, InsertStreamError> {
        let payload_bytes = usize::try_from(chunk.payload_bytes).unwrap_or(usize::MAX);
        if payload_bytes > MAX_CHUNK_BYTES {
            return Err(invalid(format!(
                "chunk {} has {} bytes; at most {MAX_CHUNK_BYTES} are allowed",
                chunk.id, chunk.payload_bytes
            )));
        }
        let origin = Origin {
            key: chunk.key,
            episodes: decode_u64s("episodes_le", &chunk.episodes_le)?.into(),
            first_step: chunk.first_step,
            steps: chunk.steps,
        };
        let mut assembler = Self {
            id: chunk.id,
            schema,
            origin,
            extents: compute_extents(chunk)?,
            bytes: None,
            payload_bytes,
        };
        assembler.push(&chunk.payload)?;
        Ok(assembler)
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, part: &[u8]) -> Result<(), InsertStreamError> {
        let end = self.filled() + part.len();
        if end > self.payload_bytes {
            return Err(invalid(format!(
                "received {end} bytes for chunk {}, which has {}",
                self.id, self.payload_bytes
            )));
        }
        let bytes = match &mut self.bytes {
            Some(bytes) if bytes.capacity() >= end => bytes,
            slot => {
                // At most twice the bytes received so far, or `SMALL_CHUNK_BYTES` if that is more.
                let capacity = self.payload_bytes.min(SMALL_CHUNK_BYTES.max(2 * end));
                let mut bytes = AlignedBytesBuilder::with_capacity(capacity).ok_or_else(|| {
                    let error = Error::out_of_memory(format!("chunk {}", self.id), Some(capacity));
                    InsertStreamError::LimitExceeded(error.to_string())
                })?;
                if let Some(smaller) = slot {
                    bytes.push(smaller.filled());
                }
                slot.insert(bytes)
            }
        };
        bytes.push(part);
        Ok(())
    }

    /// Number of bytes received.
    fn filled(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.filled().len())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.filled() == self.payload_bytes
    }

    /// Returns the complete chunk.
    pub(super) fn finish(self) -> Result<Chunk> {
        // `new` calls `push` even for an empty payload, so `bytes` is set.
        let payload = self
            .bytes
            .and_then(AlignedBytesBuilder::finish)
            .ok_or_else(|| Error::InvalidArgument(format!("chunk {} is incomplete", self.id)))?;
        let chunk = Chunk::from_parts(self.origin, self.schema, self.extents, payload)?;
        chunk.check_compressed_columns()?;
        Ok(chunk)
    }
}

/// Computes the columns' positions: each column starts at the next multiple of 64 bytes. Checks
/// only that codecs are known and offsets fit 32 bits; [`Chunk::from_parts`] checks the rest.
fn compute_extents(chunk: &pb::Chunk) -> Result<SmallVec<[Extent; 4]>, InsertStreamError> {
    let mut offset = 0_usize;
    let extents = chunk.extents.iter().map(|extent| {
        let offset_u32 = u32::try_from(offset).map_err(|_| {
            invalid(format!(
                "a column of chunk {} starts at byte {offset}; at most {MAX_CHUNK_BYTES} is allowed",
                chunk.id
            ))
        })?;
        // Sizes have 32 bits, so the sum over the extents of one message cannot overflow 64 bits.
        offset += align_up(extent.stored_bytes as usize);
        Ok(Extent {
            offset: offset_u32,
            stored: extent.stored_bytes,
            rows: extent.rows,
            codec: Codec::from_number(extent.codec).ok_or_else(|| {
                invalid(format!(
                    "chunk {} has a column with unknown codec {}; expected 0 to 2",
                    chunk.id, extent.codec
                ))
            })?,
        })
    });
    extents.collect()
}
