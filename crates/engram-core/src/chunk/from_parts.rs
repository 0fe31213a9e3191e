//! Builds chunks from untrusted parts, after checking them.

use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::aligned::{ALIGN, AlignedBytes};
use crate::chunk::{Chunk, Extent, MAX_CHUNK_BYTES, Origin};
use crate::codec::{Codec, MAX_LZ4_BYTES, check_lz4};
use crate::error::{Error, Result};
use crate::holders::Holders;
use crate::schema::{CellSpec, Schema};
use crate::text::{count, describe_column};

/// Maximum raw bytes of an LZ4 block of `stored` bytes: each length byte adds at most 255.
const fn max_raw_bytes(stored: u64) -> u64 {
    255 * stored + 64
}

impl Chunk {
    /// A chunk of untrusted parts, read from a file or received from a remote writer.
    ///
    /// Reading an accepted chunk does not panic and allocates at most the raw sizes of its columns,
    /// [`MAX_CHUNK_BYTES`] in total. Compressed bytes are not checked here: see
    /// [`Chunk::check_compressed_columns`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if parts contradict each other or are too large,
    /// [`Error::Payload`] if the offsets or lengths of a string column are inconsistent.
    pub fn from_parts(
        origin: Origin,
        schema: Arc<Schema>,
        extents: SmallVec<[Extent; 4]>,
        payload: AlignedBytes,
    ) -> Result<Self> {
        check_extents(&schema, &extents, payload.len())?;
        check_origin(&origin, &extents)?;
        let chunk = Self {
            origin,
            schema,
            extents,
            payload,
            holders: Holders::default(),
            location: Mutex::default(),
        };
        chunk.check_strings()?;
        Ok(chunk)
    }

    /// A chunk of untrusted parts without its payload, which has `payload_bytes` bytes: for programs that only need to
    /// know which chunks items refer to. Reading one of its columns panics. Its strings are not checked.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] as for [`Chunk::from_parts`], [`Error::OutOfMemory`].
    pub fn without_payload(
        origin: Origin,
        schema: Arc<Schema>,
        extents: SmallVec<[Extent; 4]>,
        payload_bytes: usize,
    ) -> Result<Self> {
        check_extents(&schema, &extents, payload_bytes)?;
        check_origin(&origin, &extents)?;
        let payload = AlignedBytes::zeroed(0);
        Ok(Self {
            origin,
            schema,
            extents,
            payload: payload.ok_or_else(|| Error::out_of_memory("a chunk", Some(0)))?,
            holders: Holders::default(),
            location: Mutex::default(),
        })
    }

    /// Checks that every compressed column can be decompressed to its raw size. This costs less than decompressing, and
    /// the cost does not grow with the raw size.
    ///
    /// # Errors
    /// [`Error::Payload`] naming the first column that is corrupt.
    pub fn check_compressed_columns(&self) -> Result<()> {
        let extents = self.extents.iter().enumerate();
        let mut compressed = extents.filter(|(_, extent)| extent.codec != Codec::Raw);
        compressed.try_for_each(|(column, extent)| {
            let raw = extent.rows as usize * self.schema.cells[column].bytes();
            check_lz4(self.stored(column), raw).map_err(|error| self.corrupt_column(column, &error))
        })
    }

    fn check_strings(&self) -> Result<()> {
        let cells = self.schema.cells.iter().enumerate();
        let mut strings = cells.filter(|(_, cell)| cell.dtype.is_string());
        strings.try_for_each(|(column, cell)| {
            let rows = self.extents[column].rows as usize;
            check_string_column(self.stored(column), rows, cell).map_err(|problem| {
                let column = describe_column(&self.schema.layout.names[column]);
                let rows = count(rows, "row");
                Error::Payload(format!("{column} ({rows} of strings) {problem}"))
            })
        })
    }
}

fn check_extents(schema: &Schema, extents: &[Extent], payload_bytes: usize) -> Result<()> {
    let Schema { layout, cells } = schema;
    let invalid = |text: String| Err(Error::InvalidArgument(text));
    if cells.len() != layout.names.len() || cells.len() != extents.len() {
        return invalid(format!(
            "a chunk of {} has {} and {}; each column needs one of each",
            count(cells.len(), "column"),
            count(layout.names.len(), "name"),
            count(extents.len(), "extent")
        ));
    }
    if payload_bytes > MAX_CHUNK_BYTES {
        return invalid(format!(
            "the payload of a chunk has {payload_bytes} bytes; at most {MAX_CHUNK_BYTES} are allowed"
        ));
    }
    let mut raw_bytes = 0_u64;
    for ((cell, extent), name) in cells.iter().zip(extents).zip(&layout.names) {
        let column = check_extent(cell, extent, payload_bytes as u64).map_err(|problem| {
            Error::InvalidArgument(format!("{} {problem}", describe_column(name)))
        })?;
        raw_bytes = raw_bytes.saturating_add(column);
    }
    if raw_bytes > MAX_CHUNK_BYTES as u64 {
        return invalid(format!(
            "the columns of a chunk have {raw_bytes} bytes once decompressed; at most {MAX_CHUNK_BYTES} are allowed"
        ));
    }
    Ok(())
}

/// Checks the position and encoding of a column; returns the number of its raw bytes.
fn check_extent(cell: &CellSpec, extent: &Extent, payload_bytes: u64) -> Result<u64, String> {
    let Extent {
        offset,
        stored,
        rows,
        codec,
    } = *extent;
    let end = u64::from(offset) + u64::from(stored);
    if end > payload_bytes || !(offset as usize).is_multiple_of(ALIGN) {
        return Err(format!(
            "occupies bytes {offset}..{end} of its chunk; the start must be a multiple of {ALIGN} and the \
             end at most {payload_bytes}"
        ));
    }
    let Some((_, bytes)) = cell.checked_size() else {
        return Err(format!("has cells of {cell}, which are too large"));
    };
    let stored = u64::from(stored);
    if cell.dtype.is_string() {
        let offsets = 4 * (u64::from(rows) + 1);
        return match codec {
            Codec::Lz4 | Codec::Delta => {
                Err("has compressed strings; strings must be stored raw".into())
            }
            Codec::Raw if stored < offsets => Err(format!(
                "has {} for {} of strings; their offsets alone take {offsets}",
                count(stored, "byte"),
                count(rows, "row")
            )),
            Codec::Raw => Ok(stored),
        };
    }
    let raw = u64::from(rows).saturating_mul(bytes as u64);
    if codec == Codec::Delta && !cell.dtype.is_integer() {
        return Err(format!(
            "has delta-encoded cells of {cell}; only integers can be delta-encoded"
        ));
    }
    match codec {
        Codec::Raw if stored != raw => Err(format!(
            "has {} for {} of {cell}, which take {raw}",
            count(stored, "byte"),
            count(rows, "row")
        )),
        Codec::Lz4 | Codec::Delta if raw > MAX_LZ4_BYTES as u64 => Err(format!(
            "has {raw} raw bytes in an LZ4 block; at most {MAX_LZ4_BYTES} are allowed, larger columns must \
             be stored raw"
        )),
        Codec::Lz4 | Codec::Delta if raw > max_raw_bytes(stored) => Err(format!(
            "has {} for {}; they can hold at most {}",
            count(stored, "compressed byte"),
            count(raw, "raw byte"),
            max_raw_bytes(stored)
        )),
        Codec::Raw | Codec::Lz4 | Codec::Delta => Ok(raw),
    }
}

/// Checks the numbers of rows, steps and episodes.
///
/// A chunk has one row per step and environment, plus at most one row per environment for a step that
/// is not complete. Each environment has at least one episode, and each row begins at most one.
fn check_origin(origin: &Origin, extents: &[Extent]) -> Result<()> {
    let Origin {
        episodes,
        first_step,
        steps,
        ..
    } = origin;
    let rows = u64::from(extents.iter().map(|extent| extent.rows).max().unwrap_or(0));
    let max_rows = (u64::from(*steps) + 1).saturating_mul(episodes.len() as u64);
    if episodes.is_empty() || episodes.len() as u64 > rows.max(1) || rows > max_rows {
        return Err(Error::InvalidArgument(format!(
            "a chunk of {} has {} and {}; it needs at least 1 episode, at most one per row, and at most \
             {}",
            count(u64::from(*steps), "step"),
            count(rows, "row"),
            count(episodes.len(), "episode"),
            count(max_rows, "row")
        )));
    }
    if first_step.checked_add(u64::from(*steps)).is_none() {
        return Err(Error::InvalidArgument(format!(
            "a chunk has {} from step {first_step} on; step numbers must be below 2^64",
            count(*steps, "step")
        )));
    }
    Ok(())
}

/// Checks a string column: `rows + 1` offsets that begin at 0 and never decrease, followed by the
/// cells end to end. A cell consists of its elements, each a `u32` length and the bytes.
fn check_string_column(column: &[u8], rows: usize, cell: &CellSpec) -> Result<(), String> {
    let offsets = &column.as_chunks::<4>().0[..=rows];
    let mut cells = &column[size_of_val(offsets)..];
    let mut previous = 0;
    for (row, offset) in offsets.iter().enumerate() {
        let next = u32::from_le_bytes(*offset);
        let size = next.checked_sub(previous).map(|size| size as usize);
        let cell_and_rest = match size {
            // The first offset is 0; offset `row` ends the cell of row `row - 1`.
            Some(size) if row > 0 || size == 0 => cells.split_at_checked(size),
            _ => None,
        };
        let Some((bytes, remaining)) = cell_and_rest else {
            return Err(format!(
                "is corrupt: string offset {next} follows {previous}, with {} left after {previous}; offsets must \
                 begin at 0, never decrease and end with the column",
                count(cells.len(), "byte")
            ));
        };
        if row > 0 && !has_elements(bytes, cell.elements()) {
            return Err(format!(
                "has {} in row {}, which must be {}; an element is a length and that many bytes",
                count(bytes.len(), "byte"),
                row - 1,
                count(cell.elements(), "element")
            ));
        }
        (previous, cells) = (next, remaining);
    }
    if cells.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "has {} after its last cell; it must end there",
            count(cells.len(), "byte")
        ))
    }
}

/// True if the bytes are `count` elements, each a `u32` length and that many bytes.
fn has_elements(mut bytes: &[u8], count: usize) -> bool {
    for _ in 0..count {
        let Some((len, remaining)) = bytes.split_first_chunk::<4>() else {
            return false;
        };
        let Some((_, remaining)) = remaining.split_at_checked(u32::from_le_bytes(*len) as usize)
        else {
            return false;
        };
        bytes = remaining;
    }
    bytes.is_empty()
}
