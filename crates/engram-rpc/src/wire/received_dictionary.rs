//! Decodes the messages of an insert stream: stores its schemas, window shapes and chunks, and
//! decodes the items that refer to them.

mod chunk_assembler;
mod columns;
mod insert_stream_error;
mod items;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engram_core::text::count;
use engram_core::{CellSpec, Chunk, Layout, Schema, WindowShape};

use super::options::check_column_count;
use super::{decode_cell_spec, decode_layout};
use crate::pb;
use chunk_assembler::ChunkAssembler;
use columns::decode_columns;
pub use insert_stream_error::InsertStreamError;
use insert_stream_error::invalid;
pub(super) use items::MAX_SLICES;

/// Maximum number of chunks of a stream that are not released.
const MAX_CHUNKS: usize = 65_536;

/// Maximum total bytes of a stream's chunks that no table refers to, without the newest chunk.
const MAX_UNREFERENCED_BYTES: u64 = 1 << 30;

/// Maximum number of schemas of a stream, and of window shapes. Older ones are dropped.
const MAX_DEFINITIONS: usize = 65_536;

/// Maximum memory of the stored schemas, and of the stored window shapes, in bytes. Older ones are dropped.
pub(super) const MAX_DEFINITION_BYTES: usize = 64 << 20;

/// Bytes of a definition besides its columns, names and slices.
const DEFINITION_OVERHEAD: usize = 512;

/// The schemas, window shapes and chunks that a stream has sent, by the ids that the sender chose.
#[derive(Debug, Default)]
pub struct ReceivedDictionary {
    schemas: Definitions<Schema>,
    window_shapes: Definitions<WindowShape>,
    chunks: HashMap<u32, Arc<Chunk>>,
    /// Estimated bytes of the chunks that no table refers to: those of the last count, and all chunks received since.
    /// Counted again when the estimate exceeds the limit. The estimate lacks chunks that a table referred to at the
    /// last count, but no table refers to now.
    unreferenced_bytes: u64,
    /// The chunk of which not all bytes have been received.
    incomplete_chunk: Option<ChunkAssembler>,
    /// The last layout received: consecutive schemas, window shapes and items mostly share one.
    last_layout: Option<Arc<Layout>>,
}

impl ReceivedDictionary {
    /// Stores a schema.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_schema(&mut self, schema: &pb::Schema) -> Result<(), InsertStreamError> {
        check_column_count("a schema", schema.cells.len())?;
        let cells = schema.cells.iter().map(decode_cell_spec);
        let cells: Box<[CellSpec]> = cells.collect::<Result<_, _>>()?;
        let layout = self.decode_layout(schema.layout.as_ref())?;
        self.schemas.insert(schema.id, Schema { layout, cells });
        Ok(())
    }

    /// Stores a window shape.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_window_shape(&mut self, shape: &pb::WindowShape) -> Result<(), InsertStreamError> {
        let id = shape.id;
        let (columns, slices) = decode_columns(&shape.columns, &shape.slices)?;
        let layout = self.decode_layout(shape.layout.as_ref())?;
        let shape = WindowShape {
            layout,
            columns,
            slices,
        };
        self.window_shapes.insert(id, shape);
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
                "`chunk_part` has {}, but no chunk is incomplete",
                count(part.len(), "byte")
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

    /// Checks the number of chunks, and the bytes of the chunks that no table refers to. These bytes do not include
    /// the newest chunk.
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

    /// True if not all bytes of the last chunk have been received.
    #[must_use]
    pub fn has_incomplete_chunk(&self) -> bool {
        self.incomplete_chunk.is_some()
    }

    /// Decodes and checks a layout. Returns the last one again if it is the same.
    fn decode_layout(
        &mut self,
        message: Option<&pb::Layout>,
    ) -> Result<Arc<Layout>, InsertStreamError> {
        let is_same = |last: &Layout| {
            message.is_some_and(|message| {
                *last.structure == *message.structure
                    && (last.names.iter().map(|name| &**name)).eq(&message.names)
            })
        };
        if let Some(last) = self.last_layout.as_ref().filter(|last| is_same(last)) {
            return Ok(Arc::clone(last));
        }
        let layout = Arc::new(decode_layout(message.cloned())?);
        layout.check()?;
        self.last_layout = Some(Arc::clone(&layout));
        Ok(layout)
    }

    fn find_chunk(&self, id: u32) -> Result<&Arc<Chunk>, InsertStreamError> {
        self.chunks.get(&id).ok_or_else(|| unknown("chunk", id))
    }
}

/// What a stream defines once and then refers to by id: a schema or a window shape.
pub(super) trait Define {
    /// Memory of the definition in bytes, as senders and receivers count it.
    fn bytes(&self) -> usize;
}

impl Define for Schema {
    fn bytes(&self) -> usize {
        let axes: usize = self.cells.iter().map(|cell| cell.shape.len()).sum();
        let cells = size_of_val(&*self.cells) + axes * size_of::<usize>();
        cells + layout_bytes(&self.layout) + DEFINITION_OVERHEAD
    }
}

impl Define for WindowShape {
    fn bytes(&self) -> usize {
        let slices = size_of_val(&*self.columns) + size_of_val(&*self.slices);
        slices + layout_bytes(&self.layout) + DEFINITION_OVERHEAD
    }
}

/// The newest schemas or window shapes, by the ids that the sender chose. The oldest are dropped when a limit is
/// reached, because senders do not release them.
#[derive(Debug)]
struct Definitions<T> {
    by_id: HashMap<u32, Definition<T>>,
    /// Ids by `sequence`: oldest definition first.
    order: BTreeMap<u64, u32>,
    /// Memory of all definitions, in bytes.
    bytes: usize,
    /// Number of definitions ever added.
    added: u64,
}

#[derive(Debug)]
struct Definition<T> {
    value: Arc<T>,
    /// Memory of the definition, in bytes.
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

impl<T: Define> Definitions<T> {
    /// Stores a definition, replacing one with the same id; drops the oldest ones beyond the
    /// limits.
    fn insert(&mut self, id: u32, value: T) {
        self.remove(id);
        let bytes = value.bytes();
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

/// Memory of a layout, in bytes. The allocation of a name is a multiple of 16 bytes.
fn layout_bytes(layout: &Layout) -> usize {
    let names = layout.names.iter();
    let names = names.map(|name| size_of::<Box<str>>() + name.len().next_multiple_of(16));
    names.sum::<usize>() + layout.structure.len()
}

fn unknown(what: &str, id: u32) -> InsertStreamError {
    invalid(format!(
        "unknown {what} {id}: it was not sent on this stream, or was released or dropped; send it first"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A definition that consists of a value and its memory in bytes.
    impl Define for (u32, usize) {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn only_the_newest_definitions_are_stored() {
        let mut definitions = Definitions::default();
        for id in 0..70_000 {
            definitions.insert(id, (id, 10));
            definitions.insert(7, (id, 10));
        }
        assert_eq!(
            definitions.get("window shape", 7).map(|value| value.0),
            Ok(69_999)
        );
        assert_eq!(
            definitions.get("window shape", 69_999).map(|value| value.0),
            Ok(69_999)
        );
        assert!(definitions.get("window shape", 1_000).is_err());
        assert_eq!(
            (definitions.by_id.len(), definitions.order.len()),
            (65_536, 65_536)
        );
        definitions.insert(1, (1, MAX_DEFINITION_BYTES));
        assert_eq!(
            (definitions.by_id.len(), definitions.bytes),
            (1, MAX_DEFINITION_BYTES)
        );
    }

    #[test]
    fn the_memory_of_definitions_is_limited() {
        let structure = format!("{{\"l\":[0{}]}}", ",0".repeat(9_999));
        let schema = |id| pb::Schema {
            id,
            layout: Some(pb::Layout {
                names: vec!["x".into(); 10_000],
                structure: structure.clone(),
            }),
            cells: vec![
                pb::Cell {
                    dtype: "uint8".into(),
                    shape: vec![1; 20],
                };
                10_000
            ],
        };
        let mut dictionary = ReceivedDictionary::default();
        for id in 0..40 {
            dictionary.add_schema(&schema(id)).unwrap();
        }
        let each = 10_000 * (16 + 16 + size_of::<CellSpec>() + 20 * 8)
            + DEFINITION_OVERHEAD
            + structure.len();
        let stored = &dictionary.schemas;
        assert_eq!(stored.by_id.len(), MAX_DEFINITION_BYTES / each);
        assert_eq!(stored.bytes, stored.by_id.len() * each);
    }
}
