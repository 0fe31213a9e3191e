//! Chunks: a few consecutive steps, immutable, shared by every item that refers to them.

mod from_parts;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::aligned::{AlignedBytes, aligned};
use crate::codec::{Codec, Compressor, decompress_lz4, delta};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::holders::Holders;
use crate::payload::{Payload, Pinned};
use crate::schema::Schema;

/// Offsets inside a chunk are 32 bits wide.
pub const MAX_CHUNK_BYTES: usize = u32::MAX as usize;

/// Where one column lies in its chunk's payload.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte; a multiple of 64.
    pub offset: u32,
    /// Bytes as stored.
    pub stored: u32,
    /// Cells; fewer than the chunk has steps where some steps had no value.
    pub rows: u32,
    /// How the bytes were written.
    pub codec: Codec,
}

/// Who wrote a chunk, and when.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Random key of the chunk.
    pub key: u64,
    /// The episodes its steps belong to: one, but for chunks of several environments.
    pub episodes: SmallVec<[u64; 1]>,
    /// Index of its first step in the episode.
    pub first_step: u64,
    /// How many steps it spans.
    pub steps: u32,
}

/// A file that holds chunks.
pub trait ChunkFile: fmt::Debug + Send + Sync {
    /// The store that the file belongs to.
    fn store(&self) -> u64;

    /// The file's number.
    fn number(&self) -> u64;

    /// So many of its bytes belong to nobody any more.
    fn released(&self, bytes: u64);
}

/// Where a chunk was written. Its file is told when the chunk is gone, or written elsewhere.
#[derive(Debug)]
pub struct ChunkLocation {
    /// The chunk's number among those of its store.
    pub serial: u64,
    /// Bytes that it takes there.
    pub bytes: u64,
    /// The file.
    pub file: Arc<dyn ChunkFile>,
}

impl Drop for ChunkLocation {
    fn drop(&mut self) {
        self.file.released(self.bytes);
    }
}

/// Consecutive steps of all columns, in one allocation, column after column.
#[derive(Debug)]
pub struct Chunk {
    origin: Origin,
    schema: Arc<Schema>,
    extents: SmallVec<[Extent; 4]>,
    payload: Payload,
    holders: Holders,
    location: Mutex<Option<ChunkLocation>>,
}

impl Chunk {
    /// Who wrote it, and when.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Its columns.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Where each column lies.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Where its bytes live.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Its number among the chunks that a store has written to disk, and the file that it is in, if it
    /// is there.
    #[must_use]
    pub fn location(&self, store: u64) -> Option<(u64, u64)> {
        let location = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        let location = location
            .as_ref()
            .filter(|location| location.file.store() == store);
        location.map(|location| (location.serial, location.file.number()))
    }

    /// Says where it was written, or that it was not; returns where it was before.
    pub fn set_location(&self, location: Option<ChunkLocation>) -> Option<ChunkLocation> {
        let mut known = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut known, location)
    }

    /// Which tables refer to it.
    #[must_use]
    pub fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Bytes this chunk keeps alive: payload and bookkeeping.
    #[must_use]
    pub fn footprint(&self) -> usize {
        let episodes = &self.origin.episodes;
        let spilled = usize::from(episodes.spilled()) * size_of_val(&**episodes);
        size_of::<Self>() + spilled + self.payload.len()
    }

    /// The raw bytes of a column, given the pinned payload; `None` where it is compressed.
    #[must_use]
    pub fn raw<'a>(&self, pinned: &'a Pinned<'_>, column: usize) -> Option<&'a [u8]> {
        let extent = &self.extents[column];
        (extent.codec == Codec::Raw).then(|| self.stored(pinned, column))
    }

    /// Unpacks a compressed column of fixed-size cells.
    ///
    /// # Errors
    /// [`Error::Payload`] when the stored bytes are damaged, [`Error::OutOfMemory`].
    pub fn unpack(&self, pinned: &Pinned<'_>, column: usize) -> Result<AlignedBytes> {
        let extent = &self.extents[column];
        let bytes = extent.rows as usize * self.schema.cells[column].bytes();
        let mut out = AlignedBytes::zeroed(bytes).ok_or_else(|| {
            let name = &self.schema.layout.names[column];
            Error::out_of_memory(format_args!("column `{name}` of a chunk"), Some(bytes))
        })?;
        match extent.codec {
            Codec::Raw => out.copy_from_slice(self.stored(pinned, column)),
            Codec::Lz4 => decompress_lz4(self.stored(pinned, column), &mut out)?,
            Codec::Delta => {
                decompress_lz4(self.stored(pinned, column), &mut out)?;
                delta::undo_differences(&mut out, &self.schema.cells[column]);
            }
        }
        Ok(out)
    }

    /// The bytes of a column as they are stored, given the pinned payload.
    #[must_use]
    pub fn stored<'a>(&self, pinned: &'a Pinned<'_>, column: usize) -> &'a [u8] {
        let extent = &self.extents[column];
        let offset = extent.offset as usize;
        &pinned[offset..offset + extent.stored as usize]
    }

    /// The payload, if that is in memory.
    pub(crate) fn heap(&self) -> Option<&[u8]> {
        match &self.payload {
            Payload::Heap(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Splits a stored string column into its encoded cells `first..first + len`.
///
/// The column is `rows + 1` little-endian `u32` offsets, then the cells end to end.
///
/// # Errors
/// [`Error::Payload`] when the offsets do not lie inside the column.
pub fn string_cells(column: &[u8], rows: usize, first: usize, len: usize) -> Result<&[u8]> {
    let head = (rows + 1) * 4;
    let at = |row: usize| -> Option<usize> {
        let bytes = column.get(row * 4..row * 4 + 4)?;
        Some(head + u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    at(first)
        .zip(at(first + len))
        .and_then(|(from, to)| column.get(from..to))
        .ok_or_else(|| Error::Payload("string column has offsets outside its bytes".into()))
}

/// Collects the rows of a chunk in place: full chunks are sealed without another copy.
#[derive(Debug)]
pub struct ChunkBuilder {
    schema: Arc<Schema>,
    capacity: usize,
    buffer: AlignedBytes,
    /// First byte of each fixed-size column; strings grow in `strings` instead.
    offsets: SmallVec<[usize; 4]>,
    rows: SmallVec<[u32; 4]>,
    /// One per column; empty where no column holds strings.
    strings: Box<[StringColumn]>,
    /// Bytes of all their cells, staged ones included.
    string_bytes: usize,
}

/// A column's bytes that are not as they came.
type Stored = (Codec, Vec<u8>);

/// A chunk's bytes.
#[derive(Debug)]
pub(crate) struct PackedColumns {
    extents: SmallVec<[Extent; 4]>,
    /// `None` where the builder's buffer is the payload as it is.
    payload: Option<AlignedBytes>,
}

#[derive(Clone, Debug, Default)]
struct StringColumn {
    ends: Vec<u32>,
    /// The committed cells end to end; after them perhaps one that is staged.
    bytes: Vec<u8>,
}

impl ChunkBuilder {
    /// Room for `capacity` rows of every column.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when they would exceed [`MAX_CHUNK_BYTES`],
    /// [`Error::OutOfMemory`].
    pub fn new(schema: Arc<Schema>, capacity: usize) -> Result<Self> {
        let mut offsets = SmallVec::new();
        let mut bytes = 0_usize;
        for cell in &schema.cells {
            offsets.push(bytes);
            bytes = cell
                .bytes()
                .checked_mul(capacity)
                .filter(|column| *column <= MAX_CHUNK_BYTES)
                .map(|column| bytes + aligned(column))
                .filter(|total| *total <= MAX_CHUNK_BYTES)
                .ok_or_else(|| too_large(&schema, capacity))?;
        }
        let columns = schema.cells.len();
        let any_strings = schema.cells.iter().any(|c| c.dtype == DType::String);
        let mut buffer = allocate(bytes, capacity)?;
        for (cell, offset) in schema.cells.iter().zip(&offsets) {
            // What lies between columns is stored, too.
            let column = cell.bytes() * capacity;
            buffer[offset + column..offset + aligned(column)].fill(0);
        }
        Ok(Self {
            buffer,
            capacity,
            offsets,
            rows: SmallVec::from_elem(0, columns),
            strings: vec![StringColumn::default(); if any_strings { columns } else { 0 }].into(),
            string_bytes: 0,
            schema,
        })
    }

    /// Its columns.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Rows each column has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Cells committed to a column so far.
    #[must_use]
    pub fn rows(&self, column: usize) -> u32 {
        self.rows[column]
    }

    /// Destination of cell `row` of a fixed-size column; writing it does not commit it.
    pub fn cell_mut(&mut self, column: usize, row: usize) -> &mut [u8] {
        let size = self.schema.cells[column].bytes();
        let from = self.offsets[column] + row * size;
        &mut self.buffer[from..from + size]
    }

    /// Room for all cells of a fixed-size column, written and not: for filling out of order.
    pub fn column_mut(&mut self, column: usize) -> &mut [u8] {
        let bytes = self.capacity * self.schema.cells[column].bytes();
        &mut self.buffer[self.offsets[column]..][..bytes]
    }

    /// Bytes of a committed cell of a fixed-size column.
    #[must_use]
    pub fn cell(&self, column: usize, row: usize) -> &[u8] {
        let size = self.schema.cells[column].bytes();
        let from = self.offsets[column] + row * size;
        &self.buffer[from..from + size]
    }

    /// Bytes of a committed cell of a string column, encoded.
    #[must_use]
    pub fn string_cell(&self, column: usize, row: usize) -> &[u8] {
        let strings = &self.strings[column];
        let from = row
            .checked_sub(1)
            .map_or(0, |before| strings.ends[before] as usize);
        &strings.bytes[from..strings.ends[row] as usize]
    }

    /// Stages one encoded cell of a string column, in place of what was staged before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the chunk would exceed [`MAX_CHUNK_BYTES`].
    pub fn stage_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.unstage_string(column);
        // Offsets before the cells, and padding after them, count too.
        let heads = (self.capacity + 1) * 4 + aligned(1);
        let others = self.string_bytes + self.strings.len() * heads;
        if self.buffer.len() + others + encoded.len() > MAX_CHUNK_BYTES {
            return Err(Error::InvalidArgument(format!(
                "a string cell of {} bytes does not fit into column `{}`; a chunk holds at most \
                 {MAX_CHUNK_BYTES} bytes and has {} already: lower chunk_length",
                encoded.len(),
                self.schema.layout.names[column],
                self.buffer.len() + others,
            )));
        }
        self.strings[column].bytes.extend_from_slice(encoded);
        self.string_bytes += encoded.len();
        Ok(())
    }

    /// Drops what is staged in a string column.
    pub fn unstage_string(&mut self, column: usize) {
        if let Some(strings) = self.strings.get_mut(column) {
            let committed = strings.ends.last().map_or(0, |end| *end as usize);
            self.string_bytes -= strings.bytes.len() - committed;
            strings.bytes.truncate(committed);
        }
    }

    /// Bytes of the cell staged in a string column.
    #[must_use]
    pub fn staged_string(&self, column: usize) -> &[u8] {
        let strings = &self.strings[column];
        &strings.bytes[strings.ends.last().map_or(0, |end| *end as usize)..]
    }

    /// Bytes of all string cells so far.
    #[must_use]
    pub fn string_bytes(&self) -> usize {
        self.string_bytes
    }

    /// Commits the cell written or staged at the column's next row.
    pub fn commit(&mut self, column: usize) {
        if self.schema.cells[column].dtype == DType::String {
            self.strings[column].commit();
        }
        self.rows[column] += 1;
    }

    /// Says that `rows` cells of the column are written: for builders that fill out of order.
    pub fn set_rows(&mut self, column: usize, rows: u32) {
        self.rows[column] = rows;
    }

    /// Appends and commits one encoded cell of a string column.
    ///
    /// # Errors
    /// As [`Self::stage_string`].
    pub fn push_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.stage_string(column, encoded)?;
        self.commit(column);
        Ok(())
    }

    /// Takes back what [`commit`](Self::commit) did last to a column: its cell is staged again.
    pub(crate) fn uncommit(&mut self, column: usize) {
        if let Some(strings) = self.strings.get_mut(column) {
            strings.ends.pop();
        }
        self.rows[column] -= 1;
    }

    /// Forgets the cells of a string column.
    pub(crate) fn clear_strings(&mut self, column: usize) {
        self.string_bytes -= self.strings[column].bytes.len();
        self.strings[column] = StringColumn::default();
        self.rows[column] = 0;
    }

    /// Turns the committed rows into a chunk.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the stored bytes would exceed [`MAX_CHUNK_BYTES`],
    /// [`Error::OutOfMemory`].
    pub fn seal(self, origin: Origin, compressor: &mut Compressor) -> Result<Chunk> {
        let packed = self.pack(compressor)?;
        Ok(self.finish(packed, origin))
    }

    /// Does all of sealing that may fail, and leaves the builder as it is.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub(crate) fn pack(&self, compressor: &mut Compressor) -> Result<PackedColumns> {
        let packed: SmallVec<[Option<Stored>; 4]> = (self.schema.cells.iter().enumerate())
            .map(|(column, cell)| {
                if cell.dtype == DType::String {
                    return Some((Codec::Raw, self.strings[column].stored()));
                }
                compressor.compress(column, self.column(column), cell)
            })
            .collect();
        let as_is = packed.iter().all(Option::is_none)
            && self.rows.iter().all(|rows| *rows as usize == self.capacity);
        let mut extents = SmallVec::new();
        let mut offset = 0_usize;
        for (column, packed) in packed.iter().enumerate() {
            let stored =
                (packed.as_ref()).map_or(self.column(column).len(), |(_, packed)| packed.len());
            let narrow =
                |n: usize| u32::try_from(n).map_err(|_| too_large(&self.schema, self.capacity));
            extents.push(Extent {
                offset: narrow(offset)?,
                stored: narrow(stored)?,
                rows: self.rows[column],
                codec: packed.as_ref().map_or(Codec::Raw, |(codec, _)| *codec),
            });
            offset += aligned(stored);
        }
        let payload = if as_is {
            None
        } else {
            let mut buffer = allocate(offset, self.capacity)?;
            for (column, packed) in packed.iter().enumerate() {
                let packed = packed.as_ref().map(|(_, packed)| &**packed);
                let bytes = packed.unwrap_or_else(|| self.column(column));
                let extent: &Extent = &extents[column];
                let (column, rest) = buffer[extent.offset as usize..].split_at_mut(bytes.len());
                column.copy_from_slice(bytes);
                rest[..aligned(bytes.len()) - bytes.len()].fill(0);
            }
            Some(buffer)
        };
        Ok(PackedColumns { extents, payload })
    }

    /// The chunk of what was packed; nothing was written since.
    pub(crate) fn finish(self, packed: PackedColumns, origin: Origin) -> Chunk {
        Chunk {
            origin,
            schema: self.schema,
            extents: packed.extents,
            payload: Payload::Heap(packed.payload.unwrap_or(self.buffer)),
            holders: Holders::default(),
            location: Mutex::default(),
        }
    }

    /// The committed bytes of a fixed-size column.
    fn column(&self, column: usize) -> &[u8] {
        let bytes = self.rows[column] as usize * self.schema.cells[column].bytes();
        &self.buffer[self.offsets[column]..self.offsets[column] + bytes]
    }
}

impl StringColumn {
    /// Makes the bytes after the last end a cell; they are known to end below `MAX_CHUNK_BYTES`.
    fn commit(&mut self) {
        self.ends
            .push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    fn stored(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity((self.ends.len() + 1) * 4 + self.bytes.len());
        out.extend_from_slice(&0_u32.to_le_bytes());
        for end in &self.ends {
            out.extend_from_slice(&end.to_le_bytes());
        }
        let committed = self.ends.last().map_or(0, |end| *end as usize);
        out.extend_from_slice(&self.bytes[..committed]);
        out
    }
}

fn allocate(bytes: usize, rows: usize) -> Result<AlignedBytes> {
    AlignedBytes::zeroed(bytes)
        .ok_or_else(|| Error::out_of_memory(format_args!("a chunk of {rows} rows"), Some(bytes)))
}

fn too_large(schema: &Schema, rows: usize) -> Error {
    let step: usize = schema
        .cells
        .iter()
        .map(crate::schema::CellSpec::bytes)
        .sum();
    Error::InvalidArgument(format!(
        "a chunk of {rows} steps of {step} bytes does not fit; a chunk holds at most \
         {MAX_CHUNK_BYTES} bytes: lower chunk_length"
    ))
}
