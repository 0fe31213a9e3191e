//! From an insert stream's messages to chunks and items.

mod chunk_assembler;
mod items;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engram_core::{Chunk, Error, Schema, WindowShape};
use prost::Message;

use super::options::check_columns;
use super::{decode_cell, decode_layout};
use crate::pb;
use chunk_assembler::ChunkAssembler;
pub(super) use items::MAX_SLICES;

/// Chunks that a stream keeps.
const MAX_CHUNKS: usize = 65_536;

/// Bytes of the chunks that a stream keeps and no table refers to, but for the last that came.
const MAX_UNREFERENCED_BYTES: u64 = 1 << 30;

/// Schemas, and shapes, that a stream keeps: the newest.
const MAX_DEFINITIONS: usize = 65_536;

/// Bytes of messages that schemas and shapes came in.
const MAX_DEFINITION_BYTES: usize = 64 << 20;

/// Why a stream cannot go on.
#[derive(Clone, Debug, PartialEq)]
pub enum InsertStreamError {
    /// A message makes no sense.
    Invalid(Error),
    /// Its sender has gone beyond a bound.
    LimitExceeded(String),
}

impl From<Error> for InsertStreamError {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}

/// What the items of one insert stream may be made of.
#[derive(Debug, Default)]
pub struct ReceivedDictionary {
    schemas: Definitions<Schema>,
    shapes: Definitions<WindowShape>,
    chunks: HashMap<u32, Arc<Chunk>>,
    /// At least as many bytes as the kept chunks have that no table refers to.
    unreferenced: u64,
    arriving: Option<ChunkAssembler>,
}

impl ReceivedDictionary {
    /// Takes note of a schema.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_schema(&mut self, schema: pb::Schema) -> Result<(), InsertStreamError> {
        let (id, bytes) = (schema.id, schema.encoded_len());
        check_columns("a schema", schema.cells.len())?;
        let cells = schema.cells.iter().map(decode_cell);
        let cells = cells.collect::<Result<_, _>>()?;
        let layout = Arc::new(decode_layout(schema.layout)?);
        self.schemas.add(id, bytes, Schema { layout, cells });
        Ok(())
    }

    /// Takes note of a shape.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_window_shape(&mut self, shape: pb::WindowShape) -> Result<(), InsertStreamError> {
        let (id, bytes) = (shape.id, shape.encoded_len());
        let (columns, slices) = items::columns(&shape.columns, &shape.slices)?;
        let layout = Arc::new(decode_layout(shape.layout)?);
        let shape = WindowShape {
            layout,
            columns,
            slices,
        };
        self.shapes.add(id, bytes, shape);
        Ok(())
    }

    /// Takes note of a chunk; `part`s follow unless all its bytes are there. One that is still
    /// incomplete is given up.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_chunk(&mut self, chunk: &pb::Chunk) -> Result<(), InsertStreamError> {
        let schema = self.schemas.get("schema", chunk.schema)?;
        self.arriving = Some(ChunkAssembler::new(chunk, Arc::clone(schema))?);
        self.arrive()
    }

    /// Takes more bytes of the chunk that is incomplete.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn add_chunk_part(&mut self, part: &[u8]) -> Result<(), InsertStreamError> {
        let Some(arriving) = &mut self.arriving else {
            return Err(invalid(format!(
                "{} bytes came for a chunk, but none is incomplete",
                part.len()
            )));
        };
        arriving.push(part)?;
        self.arrive()
    }

    fn arrive(&mut self) -> Result<(), InsertStreamError> {
        let Some(arrived) = self.arriving.take_if(|chunk| chunk.is_complete()) else {
            return Ok(());
        };
        let id = arrived.id();
        let chunk = Arc::new(arrived.finish()?);
        self.unreferenced += chunk.payload().len() as u64;
        self.chunks.insert(id, chunk);
        self.check_room(id)
    }

    fn check_room(&mut self, newest: u32) -> Result<(), InsertStreamError> {
        if self.chunks.len() > MAX_CHUNKS {
            return Err(InsertStreamError::LimitExceeded(format!(
                "this stream keeps {} chunks; at most {MAX_CHUNKS} are allowed: release those that \
                 no more items will refer to",
                self.chunks.len()
            )));
        }
        if self.unreferenced <= MAX_UNREFERENCED_BYTES {
            return Ok(());
        }
        let unreferenced = (self.chunks.iter())
            .filter(|(id, chunk)| **id != newest && !chunk.holders().any())
            .map(|(_, chunk)| chunk.payload().len() as u64);
        self.unreferenced = unreferenced.sum();
        if self.unreferenced <= MAX_UNREFERENCED_BYTES {
            return Ok(());
        }
        Err(InsertStreamError::LimitExceeded(format!(
            "this stream keeps {} bytes of chunks that no table refers to; at most {MAX_UNREFERENCED_BYTES} \
             are allowed: release those that no more items will refer to",
            self.unreferenced
        )))
    }

    /// Forgets a chunk; items that refer to it keep it.
    pub fn release_chunk(&mut self, chunk: u32) {
        self.chunks.remove(&chunk);
    }

    fn find_chunk(&self, id: u32) -> Result<&Arc<Chunk>, InsertStreamError> {
        self.chunks.get(&id).ok_or_else(|| unknown("chunk", id))
    }
}

/// Schemas or shapes, by the numbers that their sender gave them: the newest, for nobody releases
/// them.
#[derive(Debug)]
struct Definitions<T> {
    by_id: HashMap<u32, Definition<T>>,
    /// Their numbers, oldest first.
    order: BTreeMap<u64, u32>,
    bytes: usize,
    added: u64,
}

#[derive(Debug)]
struct Definition<T> {
    shared: Arc<T>,
    /// Of the message it came in.
    bytes: usize,
    /// Its place in the order.
    place: u64,
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
    fn add(&mut self, id: u32, bytes: usize, form: T) {
        self.forget(id);
        let place = self.added;
        self.added += 1;
        self.bytes += bytes;
        self.order.insert(place, id);
        let form = Definition {
            shared: Arc::new(form),
            bytes,
            place,
        };
        self.by_id.insert(id, form);
        while self.by_id.len() > MAX_DEFINITIONS || self.bytes > MAX_DEFINITION_BYTES {
            let Some((_, id)) = self.order.first_key_value() else {
                break;
            };
            self.forget(*id);
        }
    }

    fn forget(&mut self, id: u32) {
        if let Some(form) = self.by_id.remove(&id) {
            self.order.remove(&form.place);
            self.bytes -= form.bytes;
        }
    }

    fn get(&self, what: &str, id: u32) -> Result<&Arc<T>, InsertStreamError> {
        let found = self.by_id.get(&id).map(|form| &form.shared);
        found.ok_or_else(|| unknown(what, id))
    }
}

fn unknown(what: &str, id: u32) -> InsertStreamError {
    invalid(format!(
        "{what} {id} is not known on this stream; it is sent before what refers to it, and not \
         released yet"
    ))
}

fn invalid(text: String) -> InsertStreamError {
    InsertStreamError::Invalid(Error::InvalidArgument(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_forms_are_kept() {
        let mut forms = Definitions::default();
        for id in 0..70_000 {
            forms.add(id, 10, id);
            forms.add(7, 10, id);
        }
        assert_eq!(forms.get("shape", 7).map(|form| **form), Ok(69_999));
        assert_eq!(forms.get("shape", 69_999).map(|form| **form), Ok(69_999));
        assert!(forms.get("shape", 1_000).is_err());
        assert_eq!((forms.by_id.len(), forms.order.len()), (65_536, 65_536));
        forms.add(1, MAX_DEFINITION_BYTES, 1);
        assert_eq!((forms.by_id.len(), forms.bytes), (1, MAX_DEFINITION_BYTES));
    }
}
