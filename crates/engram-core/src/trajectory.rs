//! Which cells of which chunks make up an item.

mod check;

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::error::Result;
use crate::schema::{CellSpec, FoundColumn, Layout, Signature};
pub use check::MAX_ITEM_BYTES;

/// What an item is made of: references into chunks, no data.
#[derive(Clone, Debug)]
pub enum Trajectory {
    /// All columns of a chunk, the same rows of each.
    Rows {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// First row.
        offset: u32,
        /// How many rows.
        len: u32,
        /// One row, without a time axis.
        squeeze: bool,
    },
    /// Slices of one chunk that many items take alike, each from a row of its own.
    Window {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// Row that the shape's offsets count from.
        offset: u32,
        /// The slices; shared, so an item costs nothing beside itself.
        shape: Arc<WindowShape>,
    },
    /// Anything else.
    Spans(Arc<Spans>),
}

// Items keep a trajectory in one cache line with their counters.
const _: () = assert!(size_of::<Option<Trajectory>>() == 24);

/// What the items of one pattern have in common: everything but chunk and row.
#[derive(Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// Names and nesting of the columns.
    pub layout: Arc<Layout>,
    /// One per column; their slices follow each other in `slices`.
    pub columns: Box<[SpanColumn]>,
    /// Runs of consecutive cells, column after column; offsets count from the item's row, and
    /// `chunk` is 0.
    pub slices: Box<[Slice]>,
}

/// Per-column slices over any number of chunks.
#[derive(Debug)]
pub struct Spans {
    /// Names and nesting of the columns.
    pub layout: Arc<Layout>,
    /// Distinct chunks that the slices refer to.
    pub chunks: Box<[Arc<Chunk>]>,
    /// One per column; their slices follow each other in `slices`.
    pub columns: Box<[SpanColumn]>,
    /// Runs of consecutive cells, column after column.
    pub slices: Box<[Slice]>,
}

/// One column of a [`Spans`] or a [`WindowShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanColumn {
    /// Index of its first slice; its last is the one before the next column's first.
    pub first_slice: u32,
    /// Its cells in all, over its slices.
    pub len: u32,
    /// One cell, without a time axis.
    pub squeeze: bool,
}

/// A run of consecutive cells of one chunk's column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index into the item's chunks.
    pub chunk: u32,
    /// Column of that chunk.
    pub column: u32,
    /// First cell.
    pub offset: u32,
    /// How many cells.
    pub len: u32,
}

impl Spans {
    /// The slices of one column.
    #[must_use]
    pub fn column_slices(&self, column: usize) -> &[Slice] {
        slices_of(&self.columns, &self.slices, column)
    }
}

impl WindowShape {
    /// The slices of one column.
    #[must_use]
    pub fn column_slices(&self, column: usize) -> &[Slice] {
        slices_of(&self.columns, &self.slices, column)
    }
}

fn slices_of<'a>(columns: &[SpanColumn], slices: &'a [Slice], column: usize) -> &'a [Slice] {
    let from = columns[column].first_slice as usize;
    let to = columns
        .get(column + 1)
        .map_or(slices.len(), |c| c.first_slice as usize);
    &slices[from..to]
}

/// One column of an item, ready to be gathered.
#[derive(Clone, Copy, Debug)]
pub struct ColumnRef<'a> {
    /// What its cells are.
    pub cell: &'a CellSpec,
    /// Cells in all.
    pub len: usize,
    /// One cell, without a time axis.
    pub squeeze: bool,
}

impl<'a> ColumnRef<'a> {
    fn new(chunk: &'a Chunk, slice: Slice, column: SpanColumn) -> Self {
        Self {
            cell: &chunk.schema().cells[slice.column as usize],
            len: column.len as usize,
            squeeze: column.squeeze,
        }
    }
}

impl Trajectory {
    /// Names and nesting of the columns.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        match self {
            Self::Rows { chunk, .. } => &chunk.schema().layout,
            Self::Window { shape, .. } => &shape.layout,
            Self::Spans(spans) => &spans.layout,
        }
    }

    /// How many columns it has.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self {
            Self::Rows { chunk, .. } => chunk.schema().cells.len(),
            Self::Window { shape, .. } => shape.columns.len(),
            Self::Spans(spans) => spans.columns.len(),
        }
    }

    /// One column.
    #[must_use]
    pub fn column(&self, column: usize) -> ColumnRef<'_> {
        match self {
            Self::Rows {
                chunk,
                len,
                squeeze,
                ..
            } => ColumnRef {
                cell: &chunk.schema().cells[column],
                len: *len as usize,
                squeeze: *squeeze,
            },
            Self::Window { chunk, shape, .. } => {
                ColumnRef::new(chunk, shape.column_slices(column)[0], shape.columns[column])
            }
            Self::Spans(spans) => {
                let slice = spans.column_slices(column)[0];
                let chunk = &spans.chunks[slice.chunk as usize];
                ColumnRef::new(chunk, slice, spans.columns[column])
            }
        }
    }

    /// Calls `visit(chunk, chunk's column, first cell, cells)` for each run of a column.
    ///
    /// # Errors
    /// The first error that `visit` returns.
    pub fn for_each_slice<'a>(
        &'a self,
        column: usize,
        mut visit: impl FnMut(&'a Arc<Chunk>, usize, usize, usize) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Rows {
                chunk, offset, len, ..
            } => visit(chunk, column, *offset as usize, *len as usize),
            Self::Window {
                chunk,
                offset,
                shape,
            } => shape.column_slices(column).iter().try_for_each(|slice| {
                let first = *offset as usize + slice.offset as usize;
                visit(chunk, slice.column as usize, first, slice.len as usize)
            }),
            Self::Spans(spans) => spans.column_slices(column).iter().try_for_each(|slice| {
                let chunk = &spans.chunks[slice.chunk as usize];
                visit(
                    chunk,
                    slice.column as usize,
                    slice.offset as usize,
                    slice.len as usize,
                )
            }),
        }
    }

    /// The distinct chunks it refers to.
    #[must_use]
    pub fn chunks(&self) -> &[Arc<Chunk>] {
        match self {
            Self::Rows { chunk, .. } | Self::Window { chunk, .. } => std::slice::from_ref(chunk),
            Self::Spans(spans) => &spans.chunks,
        }
    }

    /// Bytes of its own, beside the item and the chunks.
    #[must_use]
    pub fn footprint(&self) -> usize {
        match self {
            Self::Rows { .. } | Self::Window { .. } => 0,
            Self::Spans(spans) => {
                size_of::<Spans>()
                    + size_of_val(&*spans.chunks)
                    + size_of_val(&*spans.columns)
                    + size_of_val(&*spans.slices)
            }
        }
    }

    /// Checks the columns against a table's signature.
    ///
    /// # Errors
    /// [`Error::Signature`] naming what does not fit.
    pub fn check(&self, table: &str, signature: &Signature) -> Result<()> {
        let names = &self.layout().names;
        let found = (0..self.columns()).map(|i| {
            let column = self.column(i);
            let len = (!column.squeeze).then_some(column.len);
            FoundColumn {
                name: &names[i],
                cell: column.cell,
                len,
            }
        });
        signature.check(table, found)
    }
}
