//! Whether a trajectory's cells are there: for items that anybody sends, before anybody reads them.

use std::sync::Arc;

use crate::chunk::{Chunk, MAX_CHUNK_BYTES, string_cells};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::CellSpec;
use crate::trajectory::{Slice, SpanColumn, Trajectory};

/// Bytes that an item from outside may have when gathered: slices may name the same cells again and
/// again, so that a short message could otherwise ask for any amount of memory.
pub const MAX_ITEM_BYTES: u64 = MAX_CHUNK_BYTES as u64;

impl Trajectory {
    /// Checks that all its cells are there and that those of a column are alike.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first column where that is not so.
    pub fn check_slices(&self) -> Result<()> {
        let names = &self.layout().names;
        if self.columns() != names.len() {
            return Err(Error::InvalidArgument(format!(
                "item has {} columns and {} names; each column has one",
                self.columns(),
                names.len()
            )));
        }
        (0..names.len()).try_for_each(|at| {
            self.check_column(at)
                .map_err(|problem| problem.in_column(&names[at]))
        })
    }

    /// Checks everything that readers rely on, for an item whose parts came from outside. Beyond
    /// [`Self::check_slices`], which trusts shapes that a writer of our own made once for many items,
    /// it looks at every slice of a window as well.
    ///
    /// With chunks that [`Chunk::from_parts`] accepted, gathering such an item neither panics nor
    /// reads what is not its own. That rests on these, which gathering does not look at again:
    ///
    /// * There is a column, and as many columns as names.
    /// * The slices of a column are those from its `first_slice` to the next column's: the first
    ///   column begins at 0, none begins before the one in front of it, none is empty.
    /// * Every slice's chunk is among the item's (a window's is its only one, 0), every slice's
    ///   column among that chunk's.
    /// * Every run has a cell or more and ends within the rows of that column; a window's offsets
    ///   count from the item's own.
    /// * All slices of a column have one dtype and one shape of cells.
    /// * `len` is the sum of a column's runs; it is 1 where there is no time axis.
    /// * Gathered, the item has at most [`MAX_ITEM_BYTES`] bytes, so that sizes of batches neither
    ///   overflow nor exceed what the items' sender has paid for in bytes by more than that.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first column where that is not so; [`Error::Payload`]
    /// when strings cannot be read.
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
                "item has {} columns, the first from its slice {first_slice} on; it needs at least \
                 one column, from slice 0 on",
                names.len(),
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
            for (at, name) in names.iter().enumerate() {
                parts
                    .check_column(at)
                    .map_err(|problem| problem.in_column(name))?;
            }
        }
        let mut bytes = 0_u64;
        for at in 0..names.len() {
            self.for_each_slice(at, |chunk, column, first, len| {
                bytes = bytes.saturating_add(bytes_of_run(chunk, column, first, len)?);
                Ok(())
            })?;
        }
        if bytes > MAX_ITEM_BYTES {
            return Err(Error::InvalidArgument(format!(
                "item has {bytes} bytes in all its columns; an item from outside has at most \
                 {MAX_ITEM_BYTES}"
            )));
        }
        Ok(())
    }

    fn check_column(&self, at: usize) -> Result<(), TrajectoryError> {
        match self {
            Self::Window { .. } => Ok(()),
            Self::Rows {
                chunk,
                offset,
                len,
                squeeze,
            } => {
                TrajectoryError::of_run(chunk, at, *offset, *len)?;
                TrajectoryError::of_length(u64::from(*len), *squeeze)
            }
            Self::Spans(spans) => {
                let parts = TrajectoryParts {
                    chunks: &spans.chunks,
                    offset: 0,
                    columns: &spans.columns,
                    slices: &spans.slices,
                };
                parts.check_column(at)
            }
        }
    }
}

/// What windows and spans have in common.
struct TrajectoryParts<'a> {
    chunks: &'a [Arc<Chunk>],
    /// What the slices' offsets count from.
    offset: u32,
    columns: &'a [SpanColumn],
    slices: &'a [Slice],
}

impl TrajectoryParts<'_> {
    fn check_column(&self, at: usize) -> Result<(), TrajectoryError> {
        let column = self.columns[at];
        let end = self.columns.get(at + 1).map(|next| next.first_slice);
        let end = end.map_or(self.slices.len(), |end| end as usize);
        let slices = self.slices.get(column.first_slice as usize..end);
        let mut cell: Option<&CellSpec> = None;
        let mut len = 0;
        for slice in slices.unwrap_or_default() {
            let chunk = self.chunks.get(slice.chunk as usize);
            let found = chunk.and_then(|c| c.schema().cells.get(slice.column as usize));
            let (Some(chunk), Some(found)) = (chunk, found) else {
                return Err(TrajectoryError::Absent(*slice));
            };
            let offset = self.offset.saturating_add(slice.offset);
            TrajectoryError::of_run(chunk, slice.column as usize, offset, slice.len)?;
            if let Some(cell) = cell.filter(|cell| *cell != found) {
                return Err(TrajectoryError::Mixed(cell.clone(), found.clone()));
            }
            cell = Some(found);
            len += u64::from(slice.len);
        }
        TrajectoryError::of_length(len, column.squeeze)?;
        if len == u64::from(column.len) {
            Ok(())
        } else {
            Err(TrajectoryError::Length(column.len, len))
        }
    }
}

/// Bytes of a run of cells when gathered.
fn bytes_of_run(chunk: &Chunk, column: usize, first: usize, len: usize) -> Result<u64> {
    let cell = &chunk.schema().cells[column];
    if cell.dtype != DType::String {
        return Ok((len as u64).saturating_mul(cell.bytes() as u64));
    }
    let extent = &chunk.extents()[column];
    if chunk.heap().is_none() {
        // Not worth fetching for: no more than all of them.
        return Ok(u64::from(extent.stored));
    }
    let pinned = chunk.payload().pin()?;
    let stored = chunk.stored(&pinned, column);
    Ok(string_cells(stored, extent.rows as usize, first, len)?.len() as u64)
}

/// What is wrong with the slices of a column.
enum TrajectoryError {
    Absent(Slice),
    Bounds { offset: u32, len: u32, rows: u32 },
    Empty,
    Length(u32, u64),
    Mixed(CellSpec, CellSpec),
    Squeezed(u64),
}

impl TrajectoryError {
    fn of_run(chunk: &Chunk, column: usize, offset: u32, len: u32) -> Result<(), Self> {
        let rows = chunk.extents()[column].rows;
        if len == 0 {
            return Err(Self::Empty);
        }
        match offset.checked_add(len) {
            Some(end) if end <= rows => Ok(()),
            _ => Err(Self::Bounds { offset, len, rows }),
        }
    }

    fn of_length(len: u64, squeeze: bool) -> Result<(), Self> {
        match len {
            0 => Err(Self::Empty),
            2.. if squeeze => Err(Self::Squeezed(len)),
            _ => Ok(()),
        }
    }

    fn in_column(self, name: &str) -> Error {
        Error::InvalidArgument(match self {
            Self::Absent(Slice { chunk, column, .. }) => format!(
                "item refers to column {column} of its chunk {chunk} in column `{name}`, which is not there"
            ),
            Self::Bounds { offset, len, rows } => format!(
                "item refers to cells {offset}..{} of column `{name}`, whose chunk has {rows}",
                u64::from(offset) + u64::from(len)
            ),
            Self::Empty => {
                format!("item has no cells of column `{name}`; each column needs at least one")
            }
            Self::Length(said, found) => format!(
                "item says it has {said} cells in column `{name}`, but its slices have {found}"
            ),
            Self::Mixed(first, other) => format!(
                "item joins cells of {first} and of {other} in column `{name}`; the cells of a column are alike"
            ),
            Self::Squeezed(len) => format!(
                "item has {len} cells in column `{name}` without a time axis; such a column has one"
            ),
        })
    }
}
