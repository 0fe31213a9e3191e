//! Trajectories: the cells that an item refers to.

mod check;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::error::Result;
use crate::schema::{ActualColumn, CellSpec, Layout, Signature};
pub use check::MAX_ITEM_BYTES;

/// The cells of an item, as references into chunks.
#[derive(Clone, Debug)]
pub enum Trajectory {
    /// The same rows of all columns of one chunk.
    Rows {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// First row.
        offset: u32,
        /// Number of rows.
        len: u32,
        /// True for one row without a time axis.
        squeeze: bool,
    },
    /// Slices of one chunk, given by a shape that many items share and a row per item.
    Window {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// Row that the offsets of the shape count from.
        offset: u32,
        /// The shared slices.
        shape: Arc<WindowShape>,
    },
    /// Any slices of any chunks.
    Spans(Arc<Spans>),
}

// An item fits into one cache line together with its counters.
const _: () = assert!(size_of::<Option<Trajectory>>() == 24);

/// What windows of the same form share, such as all items of a pattern: everything except chunk and row. Similar items
/// of a `TrajectoryWriter` share a shape, too.
#[derive(Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// Names and nesting of the columns.
    pub layout: Arc<Layout>,
    /// The columns; each refers to a range of `slices`.
    pub columns: Box<[SpanColumn]>,
    /// The slices, column after column. Offsets count from the item's row; the index `chunk` is 0.
    pub slices: Box<[Slice]>,
}

/// The chunks of [`Spans`]: usually two.
pub type SpanChunks = SmallVec<[Arc<Chunk>; 2]>;

/// Slices of any number of chunks.
#[derive(Debug)]
pub struct Spans {
    /// Names and nesting of the columns.
    pub layout: Arc<Layout>,
    /// The distinct chunks that the slices refer to.
    pub chunks: SpanChunks,
    /// The columns; each refers to a range of `slices`. Similar items can share them.
    pub columns: Arc<[SpanColumn]>,
    /// The slices, column after column.
    pub slices: Box<[Slice]>,
}

/// One column of a [`Spans`] or a [`WindowShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanColumn {
    /// Index of its first slice. Its slices end where the next column's begin.
    pub first_slice: u32,
    /// Number of cells of all its slices.
    pub len: u32,
    /// True for one cell without a time axis.
    pub squeeze: bool,
}

/// Consecutive cells of one column of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the chunk in the item's list of chunks.
    pub chunk: u32,
    /// Column of the chunk.
    pub column: u32,
    /// First cell.
    pub offset: u32,
    /// Number of cells.
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

/// Properties of one column of an item.
#[derive(Clone, Copy, Debug)]
pub struct ColumnRef<'a> {
    /// Dtype and shape of its cells.
    pub cell: &'a CellSpec,
    /// Number of cells.
    pub len: usize,
    /// True for one cell without a time axis.
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

    /// Number of columns.
    #[must_use]
    pub fn column_count(&self) -> usize {
        match self {
            Self::Rows { chunk, .. } => chunk.schema().cells.len(),
            Self::Window { shape, .. } => shape.columns.len(),
            Self::Spans(spans) => spans.columns.len(),
        }
    }

    /// The properties of one column.
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

    /// Calls `visit(chunk, column of the chunk, first cell, number of cells)` for each slice of a
    /// column.
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

    /// The distinct chunks that it refers to.
    #[must_use]
    pub fn chunks(&self) -> &[Arc<Chunk>] {
        match self {
            Self::Rows { chunk, .. } | Self::Window { chunk, .. } => std::slice::from_ref(chunk),
            Self::Spans(spans) => &spans.chunks,
        }
    }

    /// Bytes of memory in addition to the item and the chunks. A [`WindowShape`] is not counted, because many items
    /// share it.
    #[must_use]
    pub fn footprint(&self) -> usize {
        match self {
            Self::Rows { .. } | Self::Window { .. } => 0,
            Self::Spans(spans) => {
                let spilled = usize::from(spans.chunks.spilled());
                size_of::<Spans>()
                    + spilled * size_of_val(&*spans.chunks)
                    + size_of_val(&*spans.columns)
                    + size_of_val(&*spans.slices)
            }
        }
    }

    /// Checks the columns against a table's signature.
    ///
    /// # Errors
    /// Those of [`Signature::check`].
    pub fn check(&self, table: &str, signature: &Signature) -> Result<()> {
        let names = &self.layout().names;
        let actual = (0..self.column_count()).map(|i| {
            let column = self.column(i);
            let len = (!column.squeeze).then_some(column.len);
            ActualColumn {
                name: &names[i],
                cell: column.cell,
                len,
            }
        });
        signature.check(table, actual)
    }
}
