//! Chunks out of parts that came from outside: nothing is believed.

use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::aligned::ALIGN;
use crate::chunk::{Chunk, Extent, MAX_CHUNK_BYTES, Origin};
use crate::codec::{Codec, MAX_LZ4_BYTES};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::holders::Holders;
use crate::payload::Payload;
use crate::schema::{CellSpec, Schema};

/// Raw bytes that an LZ4 block of so many bytes can hold: each byte of a length adds at most 255.
const fn max_raw_bytes(stored: u64) -> u64 {
    255 * stored + 64
}

impl Chunk {
    /// A chunk of parts that came from outside: read from a file, sent by a writer elsewhere.
    ///
    /// What it accepts can be read without a panic and without allocating more than the raw sizes
    /// of its columns, [`MAX_CHUNK_BYTES`] in all. Compressed bytes are not unpacked here: damage
    /// to them is found by whoever reads them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for parts that contradict each other or are too large,
    /// [`Error::Payload`] for strings that do not fill their column.
    pub fn from_parts(
        origin: Origin,
        schema: Arc<Schema>,
        extents: SmallVec<[Extent; 4]>,
        payload: Payload,
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

    fn check_strings(&self) -> Result<()> {
        let cells = self.schema.cells.iter();
        let mut strings = cells
            .enumerate()
            .filter(|(_, cell)| cell.dtype == DType::String)
            .peekable();
        if strings.peek().is_none() {
            return Ok(());
        }
        let pinned = self.payload.pin()?;
        if pinned.len() != self.payload.len() {
            return Err(Error::Payload(format!(
                "chunk's payload says it has {} bytes, but {} can be read",
                self.payload.len(),
                pinned.len()
            )));
        }
        strings.try_for_each(|(at, cell)| {
            let rows = self.extents[at].rows as usize;
            check_string_column(self.stored(&pinned, at), rows, cell).map_err(|problem| {
                let name = &self.schema.layout.names[at];
                Error::Payload(format!("string column `{name}` of {rows} rows {problem}"))
            })
        })
    }
}

fn check_extents(schema: &Schema, extents: &[Extent], payload: usize) -> Result<()> {
    let Schema { layout, cells } = schema;
    let invalid = |text: String| Err(Error::InvalidArgument(text));
    if cells.len() != layout.names.len() || cells.len() != extents.len() {
        return invalid(format!(
            "chunk of {} columns comes with {} names and {} extents; each column has one of each",
            cells.len(),
            layout.names.len(),
            extents.len()
        ));
    }
    if payload > MAX_CHUNK_BYTES {
        return invalid(format!(
            "chunk's payload has {payload} bytes; a chunk has at most {MAX_CHUNK_BYTES}"
        ));
    }
    let mut raw = 0_u64;
    for ((cell, extent), name) in cells.iter().zip(extents).zip(&layout.names) {
        let column = column_bytes(cell, extent, payload as u64)
            .map_err(|problem| Error::InvalidArgument(format!("column `{name}` {problem}")))?;
        raw = raw.saturating_add(column);
    }
    if raw > MAX_CHUNK_BYTES as u64 {
        return invalid(format!(
            "chunk's columns have {raw} bytes when unpacked; a chunk has at most {MAX_CHUNK_BYTES}"
        ));
    }
    Ok(())
}

/// Raw bytes of a column that fits its payload.
fn column_bytes(cell: &CellSpec, extent: &Extent, payload: u64) -> Result<u64, String> {
    let Extent {
        offset,
        stored,
        rows,
        codec,
    } = *extent;
    let end = u64::from(offset) + u64::from(stored);
    if end > payload || !(offset as usize).is_multiple_of(ALIGN) {
        return Err(format!(
            "lies at bytes {offset}..{end} of its chunk; its first is a multiple of {ALIGN}, its \
             last is within the {payload} of the payload"
        ));
    }
    let Some((_, bytes)) = cell.checked_size() else {
        return Err(format!("has cells of {cell}; such cells are too large"));
    };
    let stored = u64::from(stored);
    if cell.dtype == DType::String {
        let least = 4 * (u64::from(rows) + 1);
        return match codec {
            Codec::Lz4 | Codec::Delta => {
                Err("is of compressed strings; strings are stored raw".into())
            }
            Codec::Raw if stored < least => Err(format!(
                "has {stored} bytes for {rows} rows of strings; their offsets alone take {least}"
            )),
            Codec::Raw => Ok(stored),
        };
    }
    let raw = u64::from(rows).saturating_mul(bytes as u64);
    if codec == Codec::Delta && !cell.dtype.is_integer() {
        return Err(format!(
            "is of differences of {cell}; only integers have them"
        ));
    }
    match codec {
        Codec::Raw if stored != raw => Err(format!(
            "has {stored} bytes for {rows} rows of {cell}; they take {raw}"
        )),
        Codec::Lz4 | Codec::Delta if raw > MAX_LZ4_BYTES as u64 => Err(format!(
            "has {raw} raw bytes in one LZ4 block; a block holds at most {MAX_LZ4_BYTES}, larger columns \
             are stored raw"
        )),
        Codec::Lz4 | Codec::Delta if raw > max_raw_bytes(stored) => Err(format!(
            "has {stored} compressed bytes for {raw} raw ones; so many hold at most {}",
            max_raw_bytes(stored)
        )),
        Codec::Raw | Codec::Lz4 | Codec::Delta => Ok(raw),
    }
}

/// A chunk has a row per step, or per step and environment, and where a step is still open one
/// more. Of its environments each has an episode at least, and each row begins at most one.
fn check_origin(origin: &Origin, extents: &[Extent]) -> Result<()> {
    let Origin {
        episodes,
        first_step,
        steps,
        ..
    } = origin;
    let rows = u64::from(extents.iter().map(|extent| extent.rows).max().unwrap_or(0));
    let most = (u64::from(*steps) + 1).saturating_mul(episodes.len() as u64);
    if episodes.is_empty() || episodes.len() as u64 > rows.max(1) || rows > most {
        return Err(Error::InvalidArgument(format!(
            "chunk of {steps} steps has {rows} rows of {} episodes; it has 1 episode or more, at \
             most one per row, and at most a row per episode and step and one per episode more",
            episodes.len()
        )));
    }
    if first_step.checked_add(u64::from(*steps)).is_none() {
        return Err(Error::InvalidArgument(format!(
            "chunk has {steps} steps from step {first_step} on; steps are numbered below 2^64"
        )));
    }
    Ok(())
}

/// `rows + 1` offsets that begin at 0 and never decrease, then the cells end to end; in each the
/// elements, `u32 length, bytes`.
fn check_string_column(column: &[u8], rows: usize, cell: &CellSpec) -> Result<(), String> {
    let heads = &column.as_chunks::<4>().0[..=rows];
    let mut cells = &column[size_of_val(heads)..];
    let mut at = 0;
    for (row, head) in heads.iter().enumerate() {
        let next = u32::from_le_bytes(*head);
        let size = next.checked_sub(at).map(|size| size as usize);
        let found = match size {
            Some(size) if row > 0 || size == 0 => cells.split_at_checked(size),
            _ => None,
        };
        let Some((found, later)) = found else {
            return Err(format!(
                "has offset {next} after {at} with {} bytes left; offsets begin at 0, never \
                 decrease and end with the column",
                cells.len()
            ));
        };
        if row > 0 && !is_elements(found, cell.elements()) {
            return Err(format!(
                "has {} bytes in row {} that are not {} elements, a length and that many bytes each",
                found.len(),
                row - 1,
                cell.elements()
            ));
        }
        (at, cells) = (next, later);
    }
    if cells.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "has {} bytes after its last cell; it ends there",
            cells.len()
        ))
    }
}

fn is_elements(mut bytes: &[u8], count: usize) -> bool {
    for _ in 0..count {
        let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
            return false;
        };
        let Some((_, rest)) = rest.split_at_checked(u32::from_le_bytes(*head) as usize) else {
            return false;
        };
        bytes = rest;
    }
    bytes.is_empty()
}
