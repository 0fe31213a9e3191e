//! Encoding of record bodies: layouts, schemas, window shapes, chunks and items.
//!
//! Layouts, schemas and window shapes are *definitions*. A file defines each one once, in a record
//! of its own, before the first record that refers to it by number.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::chunk::{Chunk, Extent, Origin};
use engram_core::codec::Codec;
use engram_core::{
    AlignedBytes, CellSpec, DType, Layout, NewItem, Schema, SessionNumber, Slice, SpanColumn,
    Spans, Trajectory, WindowShape,
};

use super::byte_codec::{BodyReader, BodyWriter, UnusableData};
use super::kind;
use super::recovery_error::RecoveryError;

/// Maximum number of axes of a cell.
const MAX_AXES: usize = 64;

/// Numbers of the definitions that were written to a file, by address. The references keep the
/// definitions alive, so that no address is reused.
#[derive(Debug, Default)]
pub(crate) struct WrittenDictionary {
    layouts: HashMap<usize, (u32, Arc<Layout>)>,
    schemas: HashMap<usize, (u32, Arc<Schema>)>,
    shapes: HashMap<usize, (u32, Arc<WindowShape>)>,
}

/// Writes a file's definitions, each before the first record that refers to it.
pub(crate) trait DictionaryWriter {
    fn dictionary(&mut self) -> &mut WrittenDictionary;

    /// Appends a definition's record, or any other one, to the file.
    fn write_record(&mut self, kind: u32, body: &[u8]);

    /// Returns the number of a layout; writes its definition first if the file does not have it.
    /// `schema_number` and `shape_number` do this for schemas and window shapes.
    fn layout_number(&mut self, layout: &Arc<Layout>) -> u32 {
        let address = Arc::as_ptr(layout).addr();
        if let Some((number, _)) = self.dictionary().layouts.get(&address) {
            return *number;
        }
        let number = to_u32(self.dictionary().layouts.len());
        let mut body = Vec::new();
        body.put_u32(number);
        body.put_len(layout.names.len());
        for name in &layout.names {
            body.put_text(name);
        }
        body.put_text(&layout.structure);
        self.write_record(kind::LAYOUT, &body);
        let entry = (number, Arc::clone(layout));
        self.dictionary().layouts.insert(address, entry);
        number
    }

    fn schema_number(&mut self, schema: &Arc<Schema>) -> u32 {
        let address = Arc::as_ptr(schema).addr();
        if let Some((number, _)) = self.dictionary().schemas.get(&address) {
            return *number;
        }
        let layout = self.layout_number(&schema.layout);
        let number = to_u32(self.dictionary().schemas.len());
        let mut body = Vec::new();
        body.put_u32(number);
        body.put_u32(layout);
        body.put_len(schema.cells.len());
        for cell in &schema.cells {
            body.put_u8(cell.dtype as u8);
            body.put_len(cell.shape.len());
            for axis in &cell.shape {
                body.put_u64(*axis as u64);
            }
        }
        self.write_record(kind::SCHEMA, &body);
        let entry = (number, Arc::clone(schema));
        self.dictionary().schemas.insert(address, entry);
        number
    }

    fn shape_number(&mut self, shape: &Arc<WindowShape>) -> u32 {
        let address = Arc::as_ptr(shape).addr();
        if let Some((number, _)) = self.dictionary().shapes.get(&address) {
            return *number;
        }
        let layout = self.layout_number(&shape.layout);
        let number = to_u32(self.dictionary().shapes.len());
        let mut body = Vec::new();
        body.put_u32(number);
        body.put_u32(layout);
        put_columns(&mut body, &shape.columns);
        put_slices(&mut body, &shape.slices);
        self.write_record(kind::WINDOW_SHAPE, &body);
        let entry = (number, Arc::clone(shape));
        self.dictionary().shapes.insert(address, entry);
        number
    }

    /// Appends an item to `body`. `serial_of` returns the serial of a chunk; the item's chunks must be
    /// written before this body's record.
    fn put_item(
        &mut self,
        body: &mut Vec<u8>,
        key: u64,
        priority: f64,
        trajectory: &Trajectory,
        serial_of: &impl Fn(&Arc<Chunk>) -> u64,
    ) {
        body.put_u64(key);
        body.put_f64(priority);
        match trajectory {
            Trajectory::Rows {
                chunk,
                offset,
                len,
                squeeze,
            } => {
                // Kind 0 with a time axis, 1 without.
                body.put_u8(u8::from(*squeeze));
                body.put_u64(serial_of(chunk));
                body.put_u32(*offset);
                body.put_u32(*len);
            }
            Trajectory::Window {
                chunk,
                offset,
                shape,
            } => {
                let shape = self.shape_number(shape);
                body.put_u8(2);
                body.put_u64(serial_of(chunk));
                body.put_u32(*offset);
                body.put_u32(shape);
            }
            Trajectory::Spans(spans) => {
                let layout = self.layout_number(&spans.layout);
                body.put_u8(3);
                body.put_u32(layout);
                body.put_len(spans.chunks.len());
                for chunk in &spans.chunks {
                    body.put_u64(serial_of(chunk));
                }
                put_columns(body, &spans.columns);
                put_slices(body, &spans.slices);
            }
        }
    }
}

/// Appends the body of a chunk's record, except for the payload, which must follow.
pub(crate) fn put_chunk(body: &mut Vec<u8>, chunk: &Chunk, serial: u64, schema: u32) {
    let Origin {
        key,
        episodes,
        first_step,
        steps,
    } = chunk.origin();
    body.put_u64(serial);
    body.put_u64(*key);
    body.put_u32(schema);
    body.put_u64(*first_step);
    body.put_u32(*steps);
    body.put_u64s(episodes);
    body.put_len(chunk.extents().len());
    for extent in chunk.extents() {
        body.put_u32(extent.offset);
        body.put_u32(extent.stored);
        body.put_u32(extent.rows);
        body.put_u8(extent.codec as u8);
    }
}

/// Definitions read from a file so far, by number.
#[derive(Debug, Default)]
pub(crate) struct ReadDictionary {
    layouts: Vec<Arc<Layout>>,
    schemas: Vec<Arc<Schema>>,
    shapes: Vec<Arc<WindowShape>>,
    /// True if chunks are read without their payloads.
    skip_payloads: bool,
}

/// Reads a definition's number, and checks that it is the next number of its kind.
fn check_number(reader: &mut BodyReader<'_>, next: usize, kind: &str) -> Result<(), UnusableData> {
    let number = reader.u32()?;
    if number as usize == next {
        return Ok(());
    }
    UnusableData::err(format!("{kind} has number {number}, expected {next}"))
}

/// Returns the definition with this number.
fn look_up<T: Clone>(definitions: &[T], number: u32, kind: &str) -> Result<T, UnusableData> {
    definitions.get(number as usize).cloned().ok_or_else(|| {
        let count = definitions.len();
        UnusableData(format!(
            "{kind} {number} is not defined; the file defines {count} before this record"
        ))
    })
}

/// Allocates memory for the payload of chunk `serial`.
pub(crate) fn allocate_payload(serial: u64, bytes: usize) -> engram_core::Result<AlignedBytes> {
    let memory = AlignedBytes::zeroed(bytes);
    memory.ok_or_else(|| {
        engram_core::Error::out_of_memory(format_args!("chunk {serial}"), Some(bytes))
    })
}

/// The content of a chunk's record between the serial and the payload.
#[derive(Debug)]
pub(crate) struct ChunkHeader {
    origin: Origin,
    schema: Arc<Schema>,
    extents: Vec<Extent>,
}

impl ChunkHeader {
    pub(crate) fn into_chunk(self, payload: AlignedBytes) -> Result<Chunk, UnusableData> {
        Ok(Chunk::from_parts(
            self.origin,
            self.schema,
            self.extents.into(),
            payload,
        )?)
    }

    fn into_chunk_without_payload(self, payload_bytes: usize) -> Result<Chunk, UnusableData> {
        Ok(Chunk::without_payload(
            self.origin,
            self.schema,
            self.extents.into(),
            payload_bytes,
        )?)
    }
}

impl ReadDictionary {
    /// An empty dictionary. With `skip_payloads`, it reads chunks without their payloads, except those with strings.
    pub(crate) fn new(skip_payloads: bool) -> Self {
        Self {
            skip_payloads,
            ..Self::default()
        }
    }

    /// The schema with this number.
    pub(crate) fn schema(&self, number: u32) -> Result<Arc<Schema>, UnusableData> {
        look_up(&self.schemas, number, "schema")
    }

    /// Adds a definition from its record; returns false if the record is not a definition.
    pub(crate) fn add_record(&mut self, kind: u32, body: &[u8]) -> Result<bool, UnusableData> {
        let mut reader = BodyReader(body);
        match kind {
            kind::LAYOUT => {
                check_number(&mut reader, self.layouts.len(), "layout")?;
                let names = reader
                    .list(4, |reader| Ok(Box::from(reader.text()?)))?
                    .into();
                let structure = reader.text()?.into();
                let layout = Layout { names, structure };
                layout.check()?;
                self.layouts.push(Arc::new(layout));
            }
            kind::SCHEMA => {
                check_number(&mut reader, self.schemas.len(), "schema")?;
                let layout = look_up(&self.layouts, reader.u32()?, "layout")?;
                let cells = reader.list(5, read_cell)?.into();
                self.schemas.push(Arc::new(Schema { layout, cells }));
            }
            kind::WINDOW_SHAPE => {
                check_number(&mut reader, self.shapes.len(), "window shape")?;
                let layout = look_up(&self.layouts, reader.u32()?, "layout")?;
                let columns = read_columns(&mut reader)?;
                let slices = read_slices(&mut reader)?;
                self.shapes.push(Arc::new(WindowShape {
                    layout,
                    columns,
                    slices,
                }));
            }
            _ => return Ok(false),
        }
        reader.check_end().map(|()| true)
    }

    /// Reads a chunk's record; returns the chunk's serial, and the chunk if `is_needed` returns true for the serial.
    pub(crate) fn read_chunk(
        &self,
        body: &[u8],
        is_needed: impl FnOnce(u64) -> bool,
    ) -> Result<(u64, Option<Chunk>), RecoveryError> {
        let mut reader = BodyReader(body);
        let serial = reader.u64()?;
        if !is_needed(serial) {
            return Ok((serial, None));
        }
        let header = self.read_chunk_header(&mut reader)?;
        // The sizes of strings, which items are checked for, are in the payload.
        let has_strings = header
            .schema
            .cells
            .iter()
            .any(|cell| cell.dtype.is_string());
        if self.skip_payloads && !has_strings {
            let chunk = header.into_chunk_without_payload(reader.0.len())?;
            return Ok((serial, Some(chunk)));
        }
        let mut payload = allocate_payload(serial, reader.0.len())?;
        payload.copy_from_slice(reader.0);
        Ok((serial, Some(header.into_chunk(payload)?)))
    }

    /// The payload in the body of a chunk's record.
    pub(crate) fn payload<'a>(&self, body: &'a [u8]) -> Result<&'a [u8], UnusableData> {
        let mut reader = BodyReader(body);
        reader.u64()?;
        self.read_chunk_header(&mut reader)?;
        Ok(reader.0)
    }

    /// Reads the part of a chunk's record between the serial and the payload.
    pub(crate) fn read_chunk_header(
        &self,
        reader: &mut BodyReader<'_>,
    ) -> Result<ChunkHeader, UnusableData> {
        let key = reader.u64()?;
        let schema = self.schema(reader.u32()?)?;
        let origin = Origin {
            key,
            first_step: reader.u64()?,
            steps: reader.u32()?,
            episodes: reader.u64s()?.into(),
        };
        let extents = reader.list(13, |reader| {
            let (offset, stored, rows) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let number = reader.u8()?;
            let codec = Codec::from_number(number.into())
                .ok_or_else(|| UnusableData(format!("unknown codec {number}, expected 0 to 2")))?;
            Ok(Extent {
                offset,
                stored,
                rows,
                codec,
            })
        })?;
        Ok(ChunkHeader {
            origin,
            schema,
            extents,
        })
    }

    /// Reads an item; `get_chunk` returns a chunk by its serial. The caller must check the trajectory with
    /// `check_parts` before it uses the item.
    pub(crate) fn read_item(
        &self,
        reader: &mut BodyReader<'_>,
        get_chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, UnusableData>,
    ) -> Result<NewItem, UnusableData> {
        let (key, priority) = (reader.u64()?, reader.f64()?);
        let trajectory = match reader.u8()? {
            squeeze @ (0 | 1) => Trajectory::Rows {
                chunk: get_chunk(reader.u64()?)?,
                offset: reader.u32()?,
                len: reader.u32()?,
                squeeze: squeeze == 1,
            },
            2 => Trajectory::Window {
                chunk: get_chunk(reader.u64()?)?,
                offset: reader.u32()?,
                shape: look_up(&self.shapes, reader.u32()?, "window shape")?,
            },
            3 => {
                let layout = look_up(&self.layouts, reader.u32()?, "layout")?;
                let chunks = reader.list(8, |reader| get_chunk(reader.u64()?))?.into();
                Trajectory::Spans(Arc::new(Spans {
                    layout,
                    chunks,
                    columns: read_columns(reader)?.into(),
                    slices: read_slices(reader)?,
                }))
            }
            other => {
                return UnusableData::err(format!(
                    "unknown trajectory kind {other}, expected 0 to 3"
                ));
            }
        };
        Ok(NewItem {
            key,
            trajectory,
            priority,
        })
    }
}

fn read_cell(reader: &mut BodyReader<'_>) -> Result<CellSpec, UnusableData> {
    let dtype = dtype_from_code(reader.u8()?)?;
    let axes = reader.list(8, |reader| {
        Ok(usize::try_from(reader.u64()?).unwrap_or(usize::MAX))
    })?;
    let cell = CellSpec {
        dtype,
        shape: axes.into(),
    };
    if cell.shape.len() > MAX_AXES || cell.checked_size().is_none() {
        return UnusableData::err(format!(
            "cells of {cell} are too large, or have more than {MAX_AXES} axes"
        ));
    }
    Ok(cell)
}

fn put_columns(body: &mut Vec<u8>, columns: &[SpanColumn]) {
    body.put_len(columns.len());
    for column in columns {
        body.put_u32(column.first_slice);
        body.put_u32(column.len);
        body.put_u8(u8::from(column.squeeze));
    }
}

fn read_columns(reader: &mut BodyReader<'_>) -> Result<Box<[SpanColumn]>, UnusableData> {
    let columns = reader.list(9, |reader| {
        Ok(SpanColumn {
            first_slice: reader.u32()?,
            len: reader.u32()?,
            squeeze: reader.bool()?,
        })
    });
    columns.map(Into::into)
}

fn put_slices(body: &mut Vec<u8>, slices: &[Slice]) {
    body.put_len(slices.len());
    for slice in slices {
        for number in [slice.chunk, slice.column, slice.offset, slice.len] {
            body.put_u32(number);
        }
    }
}

fn read_slices(reader: &mut BodyReader<'_>) -> Result<Box<[Slice]>, UnusableData> {
    let slices = reader.list(16, |reader| {
        Ok(Slice {
            chunk: reader.u32()?,
            column: reader.u32()?,
            offset: reader.u32()?,
            len: reader.u32()?,
        })
    });
    slices.map(Into::into)
}

pub(crate) fn put_session_number(body: &mut Vec<u8>, number: SessionNumber) {
    body.put_u64(number.session);
    body.put_u64(number.number);
}

pub(crate) fn read_session_number(
    reader: &mut BodyReader<'_>,
) -> Result<SessionNumber, UnusableData> {
    Ok(SessionNumber {
        session: reader.u64()?,
        number: reader.u64()?,
    })
}

pub(super) fn dtype_from_code(code: u8) -> Result<DType, UnusableData> {
    let dtype = DType::ALL.get(usize::from(code)).copied();
    dtype.ok_or_else(|| UnusableData(format!("unknown dtype code {code}")))
}

fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
