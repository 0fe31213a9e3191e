//! Checks that the cells of trajectories exist and that those of a column have one dtype and shape.

use std::ops::Range;
use std::sync::Arc;

use crate::chunk::{Chunk, Extent, MAX_CHUNK_BYTES, string_cells};
use crate::error::{Error, Result};
use crate::schema::CellSpec;
use crate::text::{count, describe_column};
use crate::trajectory::{Slice, SpanColumn, Trajectory};

/// Maximum bytes of an untrusted item once gathered. Slices may repeat cells, so without this limit
/// a short message could describe an item of any size.
pub const MAX_ITEM_BYTES: u64 = MAX_CHUNK_BYTES as u64;

impl Trajectory {
    /// Checks that all cells exist and that the cells of a column have one dtype and shape. Trusts the slices
    /// of a window: a local writer builds its shape once for many items.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first column that is wrong.
    pub fn check_slices(&self) -> Result<()> {
        let names = &self.layout().names;
        if self.column_count() != names.len() {
            return Err(Error::InvalidArgument(format!(
                "item has {} and {}; each column needs one",
                count(self.column_count(), "column"),
                count(names.len(), "name")
            )));
        }
        if self.is_valid_rows() {
            return Ok(());
        }
        (0..names.len()).try_for_each(|column| {
            self.check_column(column)
                .map_err(|problem| problem.in_column(&names[column]))
        })
    }

    /// Checks an untrusted item completely: also every slice of a window, and the size of the gathered
    /// item, which [`Self::check_slices`] does not check.
    ///
    /// If [`Chunk::from_parts`] accepted the chunks, gathering a checked item does not panic and
    /// reads only the cells that it refers to. Gathering relies on these conditions:
    ///
    /// * There is at least one column, and as many columns as names.
    /// * The slices of a column are those from its `first_slice` to the next column's. The first column
    ///   begins at 0, `first_slice` never decreases, and no column is empty.
    /// * Every slice has the index of an existing chunk of the item (in a window: 0), and of an existing column of that
    ///   chunk.
    /// * Every slice has at least one cell and ends within the rows of its chunk's column; offsets of a
    ///   window count from the window's offset.
    /// * The cells of all slices of a column have one dtype and shape.
    /// * `len` is the number of cells of all slices of a column; it is 1 without a time axis.
    /// * The gathered item has at most [`MAX_ITEM_BYTES`] bytes, so that batch sizes do not overflow.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first column that is wrong, [`Error::Payload`] if
    /// the offsets of strings are corrupt.
    pub fn check_parts(&self) -> Result<()> {
        let names = &self.layout().names;
        let first_slice = match self {
            Self::Rows { .. } => None,
            Self::Window { shape, .. } => shape.columns.first(),
            Self::Spans(spans) => spans.columns.first(),
        };
        let first_slice = first_slice.map_or(0, |column| column.first_slice);
        if names.is_empty() || first_slice != 0 {
            return Err(Error::InvalidArgument(format!(
                "item has {}, and the first begins at slice {first_slice}; an item needs at least one column, and the \
                 first must begin at slice 0",
                count(names.len(), "column"),
            )));
        }
        self.check_slices()?;
        if let Self::Window {
            chunk,
            offset,
            shape,
        } = self
        {
            let parts = TrajectoryParts {
                chunks: std::slice::from_ref(chunk),
                offset: *offset,
                columns: &shape.columns,
                slices: &shape.slices,
            };
            for (column, name) in names.iter().enumerate() {
                parts
                    .check_column(column)
                    .map_err(|problem| problem.in_column(name))?;
            }
        }
        let mut bytes = 0_u64;
        for column in 0..names.len() {
            self.for_each_slice(column, |chunk, column, first, len| {
                bytes = bytes.saturating_add(gathered_bytes(chunk, column, first, len)?);
                Ok(())
            })?;
        }
        if bytes > MAX_ITEM_BYTES {
            return Err(Error::InvalidArgument(format!(
                "item has {bytes} bytes in all its columns; at most {MAX_ITEM_BYTES} are allowed"
            )));
        }
        Ok(())
    }

    /// A fast check for [`Self::Rows`], which batched writers insert at high rates: true if every column of the chunk has
    /// these rows, and their number is allowed. If it is false, as for the other variants, each column must be checked.
    fn is_valid_rows(&self) -> bool {
        let Self::Rows {
            chunk,
            offset,
            len,
            squeeze,
        } = self
        else {
            return false;
        };
        let end = u64::from(*offset) + u64::from(*len);
        let has_len = *len == 1 || *len > 1 && !squeeze;
        let exist = |extent: &Extent| end <= u64::from(extent.rows);
        has_len && chunk.extents().iter().all(exist)
    }

    fn check_column(&self, column: usize) -> Result<(), TrajectoryError> {
        match self {
            Self::Window { .. } => Ok(()),
            Self::Rows {
                chunk,
                offset,
                len,
                squeeze,
            } => {
                TrajectoryError::check_slice(chunk, column, *offset, *len)?;
                TrajectoryError::check_length(u64::from(*len), *squeeze)
            }
            Self::Spans(spans) => {
                let parts = TrajectoryParts {
                    chunks: &spans.chunks,
                    offset: 0,
                    columns: &spans.columns,
                    slices: &spans.slices,
                };
                parts.check_column(column)
            }
        }
    }
}

/// The common parts of windows and spans.
struct TrajectoryParts<'a> {
    chunks: &'a [Arc<Chunk>],
    /// Row that the offsets of the slices count from.
    offset: u32,
    columns: &'a [SpanColumn],
    slices: &'a [Slice],
}

impl TrajectoryParts<'_> {
    fn check_column(&self, index: usize) -> Result<(), TrajectoryError> {
        let column = self.columns[index];
        let end = self.columns.get(index + 1).map(|next| next.first_slice);
        let end = end.map_or(self.slices.len(), |end| end as usize);
        let range = column.first_slice as usize..end;
        let Some(slices) = self.slices.get(range.clone()) else {
            return Err(TrajectoryError::Slices {
                range,
                available: self.slices.len(),
            });
        };
        let mut cell: Option<&CellSpec> = None;
        let mut len = 0;
        for slice in slices {
            let chunk = self.chunks.get(slice.chunk as usize);
            let slice_cell = chunk.and_then(|c| c.schema().cells.get(slice.column as usize));
            let (Some(chunk), Some(slice_cell)) = (chunk, slice_cell) else {
                return Err(TrajectoryError::Missing(*slice));
            };
            let offset = self.offset.saturating_add(slice.offset);
            TrajectoryError::check_slice(chunk, slice.column as usize, offset, slice.len)?;
            if let Some(cell) = cell.filter(|cell| *cell != slice_cell) {
                return Err(TrajectoryError::Mixed(cell.clone(), slice_cell.clone()));
            }
            cell = Some(slice_cell);
            len += u64::from(slice.len);
        }
        TrajectoryError::check_length(len, column.squeeze)?;
        if len == u64::from(column.len) {
            Ok(())
        } else {
            Err(TrajectoryError::LengthMismatch(column.len, len))
        }
    }
}

/// Bytes of gathered cells.
fn gathered_bytes(chunk: &Chunk, column: usize, first: usize, len: usize) -> Result<u64> {
    let cell = &chunk.schema().cells[column];
    if !cell.dtype.is_string() {
        return Ok((len as u64).saturating_mul(cell.bytes() as u64));
    }
    let rows = chunk.extents()[column].rows as usize;
    Ok(string_cells(chunk.stored(column), rows, first, len)?.len() as u64)
}

/// Why the slices of a column are wrong.
enum TrajectoryError {
    /// The column's range of slices does not exist. `available` is the number of slices of all columns.
    Slices {
        range: Range<usize>,
        available: usize,
    },
    /// The slice's chunk or column does not exist.
    Missing(Slice),
    /// A slice extends beyond the rows of its chunk's column.
    Bounds { offset: u32, len: u32, rows: u32 },
    /// A slice or column has no cells.
    Empty,
    /// The column's length, and the number of cells of its slices, which differs.
    LengthMismatch(u32, u64),
    /// Two different cell types.
    Mixed(CellSpec, CellSpec),
    /// Number of cells of a column without a time axis.
    Squeezed(u64),
}

impl TrajectoryError {
    /// Checks that the cells exist.
    fn check_slice(chunk: &Chunk, column: usize, offset: u32, len: u32) -> Result<(), Self> {
        let rows = chunk.extents()[column].rows;
        if len == 0 {
            return Err(Self::Empty);
        }
        match offset.checked_add(len) {
            Some(end) if end <= rows => Ok(()),
            _ => Err(Self::Bounds { offset, len, rows }),
        }
    }

    /// Checks the number of cells of a column.
    fn check_length(len: u64, squeeze: bool) -> Result<(), Self> {
        match len {
            0 => Err(Self::Empty),
            2.. if squeeze => Err(Self::Squeezed(len)),
            _ => Ok(()),
        }
    }

    /// Returns the error with its text. `name` is the name of the item's column.
    fn in_column(self, name: &str) -> Error {
        let item_column = format!("{} of the item", describe_column(name));
        Error::InvalidArgument(match self {
            Self::Slices { range, available } => format!(
                "{item_column} consists of slices {}..{}, which do not exist; the item has {available}, and they must \
                 be in the order of the columns",
                range.start, range.end
            ),
            Self::Missing(Slice { chunk, column, .. }) => format!(
                "{item_column} refers to column {column} of chunk {chunk}, which does not exist"
            ),
            Self::Bounds { offset, len, rows } => format!(
                "{item_column} refers to cells {offset}..{} of a chunk that has {rows}",
                u64::from(offset) + u64::from(len)
            ),
            Self::Empty => {
                format!("{item_column} is empty; each column needs at least one cell")
            }
            Self::LengthMismatch(len, cells) => format!(
                "{item_column} has length {len}, but its slices have {}",
                count(cells, "cell")
            ),
            Self::Mixed(first, other) => format!(
                "{item_column} joins cells of {first} and {other}; all cells of a column must have \
                 one dtype and shape"
            ),
            Self::Squeezed(len) => format!(
                "{item_column} has no time axis, but {len} cells; without a time axis it must have 1"
            ),
        })
    }
}
