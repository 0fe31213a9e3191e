//! Chunks: immutable runs of consecutive steps, shared by all items that refer to them.

mod from_parts;
mod too_large;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::aligned::{AlignedBytes, align_up};
use crate::codec::{Codec, Compressor, decode_differences, decompress_lz4};
use crate::error::{Error, Result};
use crate::holders::Holders;
use crate::schema::Schema;
use crate::shared_bytes::SharedBytes;
use crate::text::{count, describe_column};
pub use too_large::MAX_CHUNK_BYTES;
use too_large::{advice, padded_bytes, too_large};

/// Position and encoding of one column in its chunk's payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Offset of the first byte; a multiple of 64.
    pub offset: u32,
    /// Number of stored bytes.
    pub stored: u32,
    /// Number of cells: one per step and environment, and possibly one more per environment for a step that is not
    /// complete. Fewer if some steps lack a value.
    pub rows: u32,
    /// Encoding of the stored bytes.
    pub codec: Codec,
}

/// Identity of a chunk and the steps it spans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// Random key of the chunk.
    pub key: u64,
    /// Ids of the episodes that its steps belong to; more than one only in a chunk of a `BatchedRecorder`. A chunk of
    /// side cells, or of the zeros that pad short sequences, lists one episode.
    pub episodes: SmallVec<[u64; 1]>,
    /// Index of its first step in the episode. In a chunk of a `BatchedRecorder`, whose environments are in different
    /// episodes: number of the step since the recorder was created.
    pub first_step: u64,
    /// Number of steps; in a chunk of side cells or of such zeros, the largest number of rows of a column.
    pub steps: u32,
}

/// A file that stores chunks.
pub trait ChunkFile: fmt::Debug + Send + Sync {
    /// Id of the store that the file belongs to.
    fn store(&self) -> u64;

    /// Number of the file.
    fn number(&self) -> u64;

    /// Called when `bytes` more bytes of the file are no longer in use.
    fn released(&self, bytes: u64);
}

/// Where a chunk is stored on disk. Dropping it calls [`ChunkFile::released`].
#[derive(Debug)]
pub struct ChunkLocation {
    /// Serial number of the chunk in its store.
    pub serial: u64,
    /// Bytes that the chunk takes in the file.
    pub bytes: u64,
    /// The file.
    pub file: Arc<dyn ChunkFile>,
}

impl Drop for ChunkLocation {
    fn drop(&mut self) {
        self.file.released(self.bytes);
    }
}

/// Consecutive steps of all columns, stored column after column in one payload.
#[derive(Debug)]
pub struct Chunk {
    origin: Origin,
    schema: Arc<Schema>,
    extents: SmallVec<[Extent; 4]>,
    payload: AlignedBytes,
    holders: Holders,
    location: Mutex<Option<ChunkLocation>>,
}

impl Chunk {
    /// Key, episodes and steps.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Names, dtypes and shapes of the columns.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Position and encoding of each column.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The stored bytes.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Serial number of the chunk and number of its file, if the store with this id has written it to disk.
    #[must_use]
    pub fn location(&self, store: u64) -> Option<(u64, u64)> {
        let location = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        let location = location
            .as_ref()
            .filter(|location| location.file.store() == store);
        location.map(|location| (location.serial, location.file.number()))
    }

    /// Sets or clears the location on disk; returns the previous one.
    pub fn set_location(&self, location: Option<ChunkLocation>) -> Option<ChunkLocation> {
        let mut current = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, location)
    }

    /// Per-table reference counts.
    #[must_use]
    pub fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Approximate bytes of memory: the payload, this struct and its list of episodes. Does not count other memory of
    /// the struct's fields, such as the extents of more than four columns.
    #[must_use]
    pub fn footprint(&self) -> usize {
        let episodes = &self.origin.episodes;
        let spilled = usize::from(episodes.spilled()) * size_of_val(&**episodes);
        size_of::<Self>() + spilled + self.payload.len()
    }

    /// The bytes of a column that is stored raw; `None` if it is compressed.
    #[must_use]
    pub fn raw(&self, column: usize) -> Option<&[u8]> {
        let extent = &self.extents[column];
        (extent.codec == Codec::Raw).then(|| self.stored(column))
    }

    /// Decodes a column of fixed-size cells.
    ///
    /// # Errors
    /// [`Error::Payload`] if the stored bytes are corrupt, [`Error::OutOfMemory`].
    pub fn unpack(&self, column: usize) -> Result<AlignedBytes> {
        let extent = &self.extents[column];
        let bytes = extent.rows as usize * self.schema.cells[column].bytes();
        let mut out = AlignedBytes::zeroed(bytes).ok_or_else(|| {
            let column = describe_column(&self.schema.layout.names[column]);
            Error::out_of_memory(format_args!("{column} of a chunk"), Some(bytes))
        })?;
        if extent.codec == Codec::Raw {
            out.copy_from_slice(self.stored(column));
            return Ok(out);
        }
        decompress_lz4(self.stored(column), &mut out)
            .map_err(|error| self.corrupt_column(column, &error))?;
        if extent.codec == Codec::Delta {
            decode_differences(&mut out, &self.schema.cells[column]);
        }
        Ok(out)
    }

    fn corrupt_column(&self, column: usize, problem: &Error) -> Error {
        let column = describe_column(&self.schema.layout.names[column]);
        Error::Payload(format!("{column} is corrupt: {problem}"))
    }

    /// The stored bytes of a column.
    #[must_use]
    pub fn stored(&self, column: usize) -> &[u8] {
        let extent = &self.extents[column];
        let offset = extent.offset as usize;
        &self.payload[offset..offset + extent.stored as usize]
    }
}

/// The encoded cells `first..first + len` of a stored string column.
///
/// The column consists of `rows + 1` little-endian `u32` offsets, followed by the cells end to end. Cell `i` begins at
/// offset `i` and ends at offset `i + 1`, counted from the beginning of cell 0.
///
/// # Errors
/// [`Error::Payload`] if an offset lies outside the column.
pub fn string_cells(column: &[u8], rows: usize, first: usize, len: usize) -> Result<&[u8]> {
    let offsets_bytes = (rows + 1) * 4;
    let byte_offset = |row: usize| -> Option<usize> {
        let bytes = column.get(row * 4..row * 4 + 4)?;
        Some(offsets_bytes + u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    byte_offset(first)
        .zip(byte_offset(first + len))
        .and_then(|(from, to)| column.get(from..to))
        .ok_or_else(|| {
            Error::Payload("a string column is corrupt: an offset lies outside its bytes".into())
        })
}

/// Collects the rows of a chunk. A cell is first written ([`ChunkBuilder::cell_mut`]) or, for strings, staged
/// ([`ChunkBuilder::stage_string`]); it belongs to the chunk once it is committed. Sealing a full chunk does not
/// copy its bytes, unless columns are compressed or contain strings.
#[derive(Debug)]
pub struct ChunkBuilder {
    schema: Arc<Schema>,
    /// Maximum number of rows of a column.
    capacity: usize,
    buffer: AlignedBytes,
    /// Offset of each fixed-size column in `buffer`; strings are in `strings`.
    offsets: SmallVec<[usize; 4]>,
    /// Number of committed cells of each column.
    rows: SmallVec<[u32; 4]>,
    /// One per column, unused for columns of fixed-size cells; empty if no column has strings.
    strings: Box<[StringColumn]>,
    /// Bytes of all string cells, including staged ones.
    string_bytes: usize,
}

/// Encoding and encoded bytes of a column.
type EncodedColumn = (Codec, Vec<u8>);

/// What [`ChunkBuilder::pack`] computes of a chunk.
#[derive(Debug)]
pub(crate) struct PackedColumns {
    extents: SmallVec<[Extent; 4]>,
    /// `None` if the builder's buffer is the payload, unchanged.
    payload: Option<AlignedBytes>,
}

#[derive(Clone, Debug, Default)]
struct StringColumn {
    /// End of each committed cell in `bytes`.
    ends: Vec<u32>,
    /// The committed cells end to end, followed by the staged cell, if any.
    bytes: Vec<u8>,
}

impl ChunkBuilder {
    /// A builder for `capacity` rows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the rows would exceed [`MAX_CHUNK_BYTES`], [`Error::OutOfMemory`].
    pub fn new(schema: Arc<Schema>, capacity: usize) -> Result<Self> {
        let mut offsets = SmallVec::new();
        let mut bytes = 0_usize;
        for cell in &schema.cells {
            offsets.push(bytes);
            bytes = cell
                .bytes()
                .checked_mul(capacity)
                .filter(|column| *column <= MAX_CHUNK_BYTES)
                .map(|column| bytes + align_up(column))
                .filter(|total| *total <= MAX_CHUNK_BYTES)
                .ok_or_else(|| too_large(&schema, capacity))?;
        }
        let columns = schema.cells.len();
        let any_strings = schema.cells.iter().any(|c| c.dtype.is_string());
        Ok(Self {
            buffer: allocate(bytes, capacity)?,
            capacity,
            offsets,
            rows: SmallVec::from_elem(0, columns),
            strings: vec![StringColumn::default(); if any_strings { columns } else { 0 }].into(),
            string_bytes: 0,
            schema,
        })
    }

    /// Names, dtypes and shapes of the columns.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Maximum number of rows of a column.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of committed cells of a column.
    #[must_use]
    pub fn rows(&self, column: usize) -> u32 {
        self.rows[column]
    }

    /// The bytes of cell `row` of a fixed-size column, to be written. Does not commit the cell.
    pub fn cell_mut(&mut self, column: usize, row: usize) -> &mut [u8] {
        let size = self.schema.cells[column].bytes();
        let from = self.offsets[column] + row * size;
        &mut self.buffer[from..from + size]
    }

    /// The bytes of all cells of a fixed-size column, to be written in any order.
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
            .map_or(0, |previous| strings.ends[previous] as usize);
        &strings.bytes[from..strings.ends[row] as usize]
    }

    /// Stages an encoded cell of a string column, in place of the one that is staged, if any.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the chunk would exceed [`MAX_CHUNK_BYTES`].
    pub fn stage_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.unstage_string(column);
        // The offsets before the cells and the padding after them also count.
        let overhead = (self.capacity + 1) * 4 + align_up(1);
        let string_columns = self.string_bytes + self.strings.len() * overhead;
        if self.buffer.len() + string_columns + encoded.len() > MAX_CHUNK_BYTES {
            return Err(Error::InvalidArgument(format!(
                "{}: a string cell of {} bytes does not fit into its chunk: a chunk has at most \
                 {MAX_CHUNK_BYTES} bytes, and this one has {} already; {}",
                describe_column(&self.schema.layout.names[column]),
                encoded.len(),
                self.buffer.len() + string_columns,
                advice(self.capacity, self.row_bytes() + encoded.len()),
            )));
        }
        self.strings[column].bytes.extend_from_slice(encoded);
        self.string_bytes += encoded.len();
        Ok(())
    }

    /// Bytes of a chunk with a single row: the one whose strings are staged.
    fn row_bytes(&self) -> usize {
        let staged = (0..self.strings.len()).map(|column| self.staged_string(column).len());
        let overhead = 2 * 4 + align_up(1);
        padded_bytes(&self.schema) + staged.sum::<usize>() + self.strings.len() * overhead
    }

    /// Drops the staged cell of a string column.
    pub fn unstage_string(&mut self, column: usize) {
        if let Some(strings) = self.strings.get_mut(column) {
            let committed = strings.ends.last().map_or(0, |end| *end as usize);
            self.string_bytes -= strings.bytes.len() - committed;
            strings.bytes.truncate(committed);
        }
    }

    /// Bytes of the staged cell of a string column.
    #[must_use]
    pub fn staged_string(&self, column: usize) -> &[u8] {
        let strings = &self.strings[column];
        &strings.bytes[strings.ends.last().map_or(0, |end| *end as usize)..]
    }

    /// Bytes of all string cells.
    #[must_use]
    pub fn string_bytes(&self) -> usize {
        self.string_bytes
    }

    /// Commits the cell written or staged at the next row of a column.
    pub fn commit(&mut self, column: usize) {
        if self.schema.cells[column].dtype.is_string() {
            self.strings[column].commit();
        }
        self.rows[column] += 1;
    }

    /// Sets the number of committed cells, for columns that are written in any order.
    pub fn set_rows(&mut self, column: usize, rows: u32) {
        self.rows[column] = rows;
    }

    /// Appends and commits cells of a fixed-size column: those at `indices` in `cells`, which has its cells end to end.
    pub fn push_cells(&mut self, column: usize, cells: SharedBytes<'_>, indices: Range<usize>) {
        let size = self.schema.cells[column].bytes();
        let target = self.offsets[column] + self.rows[column] as usize * size;
        let len = indices.len() * size;
        cells
            .slice(indices.start * size, len)
            .copy_to(&mut self.buffer[target..target + len]);
        self.rows[column] += u32::try_from(indices.len()).unwrap_or(u32::MAX);
    }

    /// Appends and commits one encoded cell of a string column.
    ///
    /// # Errors
    /// Those of [`Self::stage_string`].
    pub fn push_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.stage_string(column, encoded)?;
        self.commit(column);
        Ok(())
    }

    /// Undoes the last [`commit`](Self::commit) of a column: its cell is staged again.
    pub(crate) fn uncommit(&mut self, column: usize) {
        if let Some(strings) = self.strings.get_mut(column) {
            strings.ends.pop();
        }
        self.rows[column] -= 1;
    }

    /// Removes all cells of a string column.
    pub(crate) fn clear_strings(&mut self, column: usize) {
        self.string_bytes -= self.strings[column].bytes.len();
        self.strings[column] = StringColumn::default();
        self.rows[column] = 0;
    }

    /// Builds a chunk of the committed rows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the stored bytes would exceed [`MAX_CHUNK_BYTES`],
    /// [`Error::OutOfMemory`].
    pub fn seal(self, origin: Origin, compressor: &mut Compressor) -> Result<Chunk> {
        let packed = self.pack(compressor)?;
        Ok(self.finish(packed, origin))
    }

    /// Encodes the committed rows without changing the builder. This is the part of sealing that can fail.
    ///
    /// # Errors
    /// Those of [`Self::seal`].
    pub(crate) fn pack(&self, compressor: &mut Compressor) -> Result<PackedColumns> {
        // `None`: the column is stored as it is in the buffer.
        let encoded: SmallVec<[Option<EncodedColumn>; 4]> = (self.schema.cells.iter().enumerate())
            .map(|(column, cell)| {
                if cell.dtype.is_string() {
                    return Some((Codec::Raw, self.strings[column].encode()));
                }
                compressor.compress(column, self.column(column), cell)
            })
            .collect();
        let buffer_is_payload = encoded.iter().all(Option::is_none)
            && self.rows.iter().all(|rows| *rows as usize == self.capacity);
        let mut extents = SmallVec::new();
        let mut offset = 0_usize;
        for (column, encoded) in encoded.iter().enumerate() {
            let stored =
                (encoded.as_ref()).map_or(self.column(column).len(), |(_, bytes)| bytes.len());
            let to_u32 =
                |n: usize| u32::try_from(n).map_err(|_| too_large(&self.schema, self.capacity));
            extents.push(Extent {
                offset: to_u32(offset)?,
                stored: to_u32(stored)?,
                rows: self.rows[column],
                codec: encoded.as_ref().map_or(Codec::Raw, |(codec, _)| *codec),
            });
            offset += align_up(stored);
        }
        let payload = if buffer_is_payload {
            None
        } else {
            let mut buffer = allocate(offset, self.capacity)?;
            for (column, encoded) in encoded.iter().enumerate() {
                let encoded = encoded.as_ref().map(|(_, bytes)| &**bytes);
                let bytes = encoded.unwrap_or_else(|| self.column(column));
                let extent: &Extent = &extents[column];
                buffer[extent.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Some(buffer)
        };
        Ok(PackedColumns { extents, payload })
    }

    /// Returns the chunk of the packed columns. The builder must not have changed since
    /// [`Self::pack`].
    pub(crate) fn finish(self, packed: PackedColumns, origin: Origin) -> Chunk {
        Chunk {
            origin,
            schema: self.schema,
            extents: packed.extents,
            payload: packed.payload.unwrap_or(self.buffer),
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
    /// Commits the staged bytes as a cell. `stage_string` has checked that they end below `MAX_CHUNK_BYTES`.
    fn commit(&mut self) {
        self.ends
            .push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// The committed cells as stored in a chunk; see [`string_cells`].
    fn encode(&self) -> Vec<u8> {
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

/// Allocates bytes that are all zero, because the padding between columns is part of the payload.
fn allocate(bytes: usize, rows: usize) -> Result<AlignedBytes> {
    AlignedBytes::zeroed(bytes).ok_or_else(|| {
        Error::out_of_memory(
            format_args!("a chunk of {}", count(rows, "row")),
            Some(bytes),
        )
    })
}
