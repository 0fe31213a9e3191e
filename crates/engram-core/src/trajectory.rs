//! Which cells of which chunks make up an item.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::error::Result;
use crate::schema::{CellSpec, FoundColumn, Layout, Signature};

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
    /// Anything else.
    Spans(Arc<Spans>),
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

/// One column of a [`Spans`].
#[derive(Clone, Copy, Debug)]
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
        let from = self.columns[column].first_slice as usize;
        let to = self
            .columns
            .get(column + 1)
            .map_or(self.slices.len(), |c| c.first_slice as usize);
        &self.slices[from..to]
    }
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

impl Trajectory {
    /// Names and nesting of the columns.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        match self {
            Self::Rows { chunk, .. } => &chunk.schema().layout,
            Self::Spans(spans) => &spans.layout,
        }
    }

    /// How many columns it has.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self {
            Self::Rows { chunk, .. } => chunk.schema().cells.len(),
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
            Self::Spans(spans) => {
                let slice = spans.column_slices(column)[0];
                let chunk = &spans.chunks[slice.chunk as usize];
                let SpanColumn { len, squeeze, .. } = spans.columns[column];
                let cell = &chunk.schema().cells[slice.column as usize];
                ColumnRef {
                    cell,
                    len: len as usize,
                    squeeze,
                }
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
            Self::Rows { chunk, .. } => std::slice::from_ref(chunk),
            Self::Spans(spans) => &spans.chunks,
        }
    }

    /// Bytes of its own, beside the item and the chunks.
    #[must_use]
    pub fn footprint(&self) -> usize {
        match self {
            Self::Rows { .. } => 0,
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
    /// [`crate::Error::Signature`] naming what does not fit.
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
