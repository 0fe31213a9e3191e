//! Decodes the messages of an insert stream: stores its schemas, window shapes and chunks, and
//! decodes the items that refer to them.

mod chunk_assembler;
mod items;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engram_core::{Chunk, Error, Schema, WindowShape};
use prost::Message;

use super::options::check_column_count;
use super::{decode_cell_spec, decode_layout};
use crate::pb;
use chunk_assembler::ChunkAssembler;
pub(super) use items::MAX_SLICES;

/// Maximum number of chunks that a stream may have.
const MAX_CHUNKS: usize = 65_536;

/// Maximum total size of a stream's chunks that no table refers to, without the newest chunk.
const MAX_UNREFERENCED_BYTES: u64 = 1 << 30;

/// Maximum number of schemas of a stream, and of window shapes. Older ones are dropped.
const MAX_DEFINITIONS: usize = 65_536;

/// Maximum total encoded size of the stored schemas, and of the stored window shapes.
const MAX_DEFINITION_BYTES: usize = 64 << 20;

/// Why a stream must be closed.
#[derive(Clone, Debug, PartialEq)]
pub enum InsertStreamError {
    /// A message is invalid.
    Invalid(Error),
    /// The sender exceeded a limit.
    LimitExceeded(String),
}

impl From<Error> for InsertStreamError {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}

/// The schemas, window shapes and chunks that a stream has sent, by the numbers chosen by the sender.
#[derive(Debug, Default)]
pub struct ReceivedDictionary {
    schemas: Definitions<Schema>,
    window_shapes: Definitions<WindowShape>,
    chunks: HashMap<u32, Arc<Chunk>>,
    /// Upper bound of the bytes of the chunks that no table refers to; exact only when a check
    /// computes it.
    unreferenced_bytes: u64,
    /// The chunk of which not all bytes have been received.
    incomplete_chunk: Option<ChunkAssembler>,
}

impl ReceivedDictionary {
    /// Stores a schema.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_schema(&mut self, schema: pb::Schema) -> Result<(), InsertStreamError> {
        let (id, bytes) = (schema.id, schema.encoded_len());
        check_column_count("a schema", schema.cells.len())?;
        let cells = schema.cells.iter().map(decode_cell_spec);
        let cells = cells.collect::<Result<_, _>>()?;
        let layout = Arc::new(decode_layout(schema.layout)?);
        self.schemas.insert(id, bytes, Schema { layout, cells });
        Ok(())
    }

    /// Stores a window shape.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_window_shape(&mut self, shape: pb::WindowShape) -> Result<(), InsertStreamError> {
        let (id, bytes) = (shape.id, shape.encoded_len());
        let (columns, slices) = items::decode_columns(&shape.columns, &shape.slices)?;
        let layout = Arc::new(decode_layout(shape.layout)?);
        let shape = WindowShape {
            layout,
            columns,
            slices,
        };
        self.window_shapes.insert(id, bytes, shape);
        Ok(())
    }

    /// Stores a chunk, or begins to assemble it if more parts will follow. Drops an earlier
    /// incomplete chunk.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_chunk(&mut self, chunk: &pb::Chunk) -> Result<(), InsertStreamError> {
        let schema = self.schemas.get("schema", chunk.schema)?;
        self.incomplete_chunk = Some(ChunkAssembler::new(chunk, Arc::clone(schema))?);
        self.store_if_complete()
    }

    /// Adds bytes to the incomplete chunk.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_chunk_part(&mut self, part: &[u8]) -> Result<(), InsertStreamError> {
        let Some(chunk) = &mut self.incomplete_chunk else {
            return Err(invalid(format!(
                "`chunk_part` has {} bytes, but no chunk is incomplete",
                part.len()
            )));
        };
        chunk.push(part)?;
        self.store_if_complete()
    }

    /// Stores the incomplete chunk if all of its bytes have been received.
    fn store_if_complete(&mut self) -> Result<(), InsertStreamError> {
        let complete = self.incomplete_chunk.take_if(|chunk| chunk.is_complete());
        let Some(complete) = complete else {
            return Ok(());
        };
        let id = complete.id();
        let chunk = Arc::new(complete.finish()?);
        self.unreferenced_bytes += chunk.payload().len() as u64;
        self.chunks.insert(id, chunk);
        self.check_limits(id)
    }

    /// Checks the number of chunks, and the bytes of chunks that no table refers to except the
    /// newest.
    fn check_limits(&mut self, newest_id: u32) -> Result<(), InsertStreamError> {
        if self.chunks.len() > MAX_CHUNKS {
            return Err(InsertStreamError::LimitExceeded(format!(
                "the stream has {} chunks; at most {MAX_CHUNKS} are allowed; release chunks that no \
                 later item refers to",
                self.chunks.len()
            )));
        }
        if self.unreferenced_bytes <= MAX_UNREFERENCED_BYTES {
            return Ok(());
        }
        let sizes = (self.chunks.iter())
            .filter(|(id, chunk)| **id != newest_id && !chunk.holders().any())
            .map(|(_, chunk)| chunk.payload().len() as u64);
        self.unreferenced_bytes = sizes.sum();
        if self.unreferenced_bytes <= MAX_UNREFERENCED_BYTES {
            return Ok(());
        }
        Err(InsertStreamError::LimitExceeded(format!(
            "the stream has {} bytes of chunks that no table refers to; at most \
             {MAX_UNREFERENCED_BYTES} are allowed; release chunks that no later item refers to",
            self.unreferenced_bytes
        )))
    }

    /// Removes a chunk. Items that refer to it keep it alive.
    pub fn release_chunk(&mut self, chunk: u32) {
        self.chunks.remove(&chunk);
    }

    fn find_chunk(&self, id: u32) -> Result<&Arc<Chunk>, InsertStreamError> {
        self.chunks.get(&id).ok_or_else(|| unknown("chunk", id))
    }
}

/// The newest schemas or window shapes, by the numbers chosen by the sender. The oldest are dropped
/// when a limit is reached, because senders do not release them.
#[derive(Debug)]
struct Definitions<T> {
    by_id: HashMap<u32, Definition<T>>,
    /// The sender's numbers, oldest definition first.
    order: BTreeMap<u64, u32>,
    /// Encoded size of all definitions.
    bytes: usize,
    /// Number of definitions ever added.
    added: u64,
}

#[derive(Debug)]
struct Definition<T> {
    value: Arc<T>,
    /// Encoded size of its message.
    bytes: usize,
    /// Key in `Definitions::order`.
    sequence: u64,
}

impl<T> Default for Definitions<T> {
    fn default() -> Self {
        Self {
            by_id: HashMap::new(),
            order: BTreeMap::new(),
            bytes: 0,
            added: 0,
        }
    }
}

impl<T> Definitions<T> {
    /// Stores a definition, replacing one of the same number; drops the oldest ones beyond the
    /// limits.
    fn insert(&mut self, id: u32, bytes: usize, value: T) {
        self.remove(id);
        let sequence = self.added;
        self.added += 1;
        self.bytes += bytes;
        self.order.insert(sequence, id);
        let definition = Definition {
            value: Arc::new(value),
            bytes,
            sequence,
        };
        self.by_id.insert(id, definition);
        while self.by_id.len() > MAX_DEFINITIONS || self.bytes > MAX_DEFINITION_BYTES {
            let Some((_, id)) = self.order.first_key_value() else {
                break;
            };
            self.remove(*id);
        }
    }

    fn remove(&mut self, id: u32) {
        if let Some(definition) = self.by_id.remove(&id) {
            self.order.remove(&definition.sequence);
            self.bytes -= definition.bytes;
        }
    }

    fn get(&self, what: &str, id: u32) -> Result<&Arc<T>, InsertStreamError> {
        let value = self.by_id.get(&id).map(|definition| &definition.value);
        value.ok_or_else(|| unknown(what, id))
    }
}

fn unknown(what: &str, id: u32) -> InsertStreamError {
    invalid(format!(
        "unknown {what} {id}: it was not sent on this stream, or was already released; send it first"
    ))
}

fn invalid(text: String) -> InsertStreamError {
    InsertStreamError::Invalid(Error::InvalidArgument(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_definitions_are_stored() {
        let mut definitions = Definitions::default();
        for id in 0..70_000 {
            definitions.insert(id, 10, id);
            definitions.insert(7, 10, id);
        }
        assert_eq!(
            definitions.get("window shape", 7).map(|value| **value),
            Ok(69_999)
        );
        assert_eq!(
            definitions.get("window shape", 69_999).map(|value| **value),
            Ok(69_999)
        );
        assert!(definitions.get("window shape", 1_000).is_err());
        assert_eq!(
            (definitions.by_id.len(), definitions.order.len()),
            (65_536, 65_536)
        );
        definitions.insert(1, MAX_DEFINITION_BYTES, 1);
        assert_eq!(
            (definitions.by_id.len(), definitions.bytes),
            (1, MAX_DEFINITION_BYTES)
        );
    }
}
