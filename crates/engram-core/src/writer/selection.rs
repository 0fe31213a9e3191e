//! Selects the cells of an item, and locates them in the writer's chunks.

use std::sync::Arc;

use smallvec::SmallVec;

use super::StepPosition;
use super::history::History;
use super::open_chunk::OpenChunk;
use super::selection_error::SelectionError;
use crate::schema::{CellSpec, Layout, Schema};
use crate::trajectory::{Slice, SpanColumn};

/// The cells of an item.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All columns of this many newest steps.
    Last(u64),
    /// All columns of consecutive steps.
    Steps {
        /// First step.
        first: StepPosition,
        /// Number of steps.
        len: u64,
        /// True for a single step without a time axis.
        squeeze: bool,
    },
    /// A separate selection for each column of the item.
    Columns {
        /// Names and nesting of the item's columns.
        layout: &'a Arc<Layout>,
        /// One selection per name.
        columns: &'a [ColumnSelection<'a>],
    },
}

/// The cells of one column of an item.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSelection<'a> {
    /// Number of the writer's column.
    pub source: usize,
    /// Steps of the cells.
    pub cells: CellPositions<'a>,
    /// True for a single cell without a time axis.
    pub squeeze: bool,
}

/// The steps of selected cells.
#[derive(Clone, Copy, Debug)]
pub enum CellPositions<'a> {
    /// Evenly spaced steps, oldest first.
    Range {
        /// First step.
        first: StepPosition,
        /// Distance from one step to the next. At least 1.
        stride: u64,
        /// Number of steps.
        len: u64,
    },
    /// Steps in any order. Repetitions are allowed.
    List(&'a [StepPosition]),
}

impl CellPositions<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Range { len, .. } => *len,
            Self::List(positions) => positions.len() as u64,
        }
    }
}

/// Stands for the open chunk where an index of a segment of the history is expected.
pub(super) const OPEN: u32 = u32::MAX;

/// The available steps and their chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryView<'a> {
    pub(super) history: &'a History,
    pub(super) open: Option<&'a OpenChunk>,
    /// First available step.
    pub(super) first_available: StepPosition,
    /// End of the available steps, exclusive.
    pub(super) end: StepPosition,
}

/// The located cells of an item. `Slice::chunk` is the index of a segment in the history, or
/// [`OPEN`].
#[derive(Debug)]
pub(super) struct LocatedItem {
    pub(super) columns: SmallVec<[SpanColumn; 8]>,
    pub(super) slices: SmallVec<[Slice; 8]>,
    /// Oldest step of the item.
    pub(super) oldest: StepPosition,
}

impl<'a> HistoryView<'a> {
    /// Returns the schema of a segment, or of the open chunk.
    pub(super) fn schema(&self, chunk: u32) -> Option<&'a Arc<Schema>> {
        match chunk {
            OPEN => self.open.map(OpenChunk::schema),
            index => Some(self.history.get(index as usize).chunk.schema()),
        }
    }

    /// Returns the dtype and shape of a located slice's cells.
    pub(super) fn cell(&self, slice: Slice) -> Option<&'a CellSpec> {
        let schema = self.schema(slice.chunk)?;
        schema.cells.get(slice.column as usize)
    }

    /// Returns a slice of 1 to `max_len` contiguous cells of the writer's column `column`, starting at step
    /// `position`. Fails if the step is not available or has no value in this column.
    pub(super) fn locate_run(
        &self,
        column: usize,
        position: StepPosition,
        max_len: u64,
    ) -> Result<Slice, SelectionError> {
        if position < self.first_available {
            return Err(SelectionError::Expired { column, position });
        }
        if position >= self.end {
            return Err(SelectionError::Future { column, position });
        }
        let missing = SelectionError::Missing { column, position };
        let slice = |chunk: usize, chunk_column: usize, offset, steps_left: StepPosition| {
            // Columns, rows and segments fit 32 bits, which was checked when they were created.
            Ok(Slice {
                chunk: u32::try_from(chunk).unwrap_or(OPEN),
                column: u32::try_from(chunk_column).unwrap_or(u32::MAX),
                offset,
                len: u32::try_from(steps_left.min(max_len)).unwrap_or(u32::MAX),
            })
        };
        if let Some(open) = self.open.filter(|open| position >= open.first) {
            let Some(row) =
                steps_between(open.first, position).and_then(|step| open.row(column, step))
            else {
                return Err(missing);
            };
            let end = open.first + StepPosition::from(open.steps);
            let contiguous = open.is_dense() && position < end;
            return slice(
                OPEN as usize,
                column,
                row,
                if contiguous { end - position } else { 1 },
            );
        }
        let Some(index) = self.history.find(position) else {
            return Err(missing);
        };
        let segment = self.history.get(index);
        if position >= segment.end() {
            // This is the open step, and no partial append has set a value in it: there is no open chunk.
            return Err(missing);
        }
        let cell = segment.column(column).and_then(|chunk_column| {
            let row = segment
                .rows
                .row(chunk_column, steps_between(segment.first, position)?)?;
            Some((chunk_column, row))
        });
        let Some((chunk_column, row)) = cell else {
            return Err(missing);
        };
        let steps_left = if segment.rows.is_dense() {
            segment.end() - position
        } else {
            1
        };
        slice(index, chunk_column, row, steps_left)
    }

    /// Locates the cells of every column of an item. Stops at the first error.
    pub(super) fn locate<'s>(
        &self,
        columns: impl Iterator<Item = ColumnSelection<'s>>,
    ) -> Result<LocatedItem, SelectionError> {
        let mut located = LocatedItem {
            columns: SmallVec::new(),
            slices: SmallVec::new(),
            oldest: StepPosition::MAX,
        };
        for (item_column, selection) in columns.enumerate() {
            let len = selection.cells.len();
            if len == 0 {
                return Err(SelectionError::Empty {
                    column: item_column,
                });
            }
            if selection.squeeze && len != 1 {
                return Err(SelectionError::Squeeze {
                    column: item_column,
                    len,
                });
            }
            located.columns.push(SpanColumn {
                first_slice: u32::try_from(located.slices.len()).unwrap_or(u32::MAX),
                len: u32::try_from(len).map_err(|_| SelectionError::TooLong {
                    column: item_column,
                    len,
                })?,
                squeeze: selection.squeeze,
            });
            match selection.cells {
                CellPositions::Range {
                    mut first,
                    stride: 1,
                    mut len,
                } => {
                    while len > 0 {
                        let added =
                            self.add_run(&mut located, item_column, selection.source, first, len)?;
                        first += added;
                        len -= added;
                    }
                }
                CellPositions::Range { first, stride, len } => {
                    for n in 0..len {
                        let position = first.saturating_add(n.saturating_mul(stride));
                        self.add_run(&mut located, item_column, selection.source, position, 1)?;
                    }
                }
                CellPositions::List(positions) => {
                    for position in positions {
                        self.add_run(&mut located, item_column, selection.source, *position, 1)?;
                    }
                }
            }
        }
        if located.columns.is_empty() {
            return Err(SelectionError::NoColumns);
        }
        Ok(located)
    }

    /// True if every selected cell is available and has a value. Shapes are not checked.
    pub(super) fn has_all<'s>(
        &self,
        mut columns: impl Iterator<Item = ColumnSelection<'s>>,
    ) -> bool {
        columns.all(|selection| match selection.cells {
            CellPositions::Range { first, stride, len } => (0..len).all(|n| {
                self.locate_run(selection.source, first.saturating_add(n * stride), 1)
                    .is_ok()
            }),
            CellPositions::List(positions) => positions
                .iter()
                .all(|position| self.locate_run(selection.source, *position, 1).is_ok()),
        })
    }

    /// Adds up to `max_len` contiguous cells of the writer's column `source`, starting at step `position`, to
    /// `item_column`, the item's last column so far. Returns their number.
    fn add_run(
        &self,
        located: &mut LocatedItem,
        item_column: usize,
        source: usize,
        position: StepPosition,
        max_len: u64,
    ) -> Result<u64, SelectionError> {
        let run = self.locate_run(source, position, max_len)?;
        located.oldest = located.oldest.min(position);
        let from = located.columns[item_column].first_slice as usize;
        let Some(last) = located.slices[from..].last_mut() else {
            located.slices.push(run);
            return Ok(run.len.into());
        };
        let contiguous = last.chunk == run.chunk
            && last.column == run.column
            && last.offset + last.len == run.offset;
        if contiguous {
            last.len += run.len;
            return Ok(run.len.into());
        }
        let (first, other) = (self.cell(located.slices[from]), self.cell(run));
        if let (Some(first), Some(other)) = (first, other)
            && first != other
        {
            return Err(SelectionError::Mixed {
                column: item_column,
                position,
                first: first.shape.clone(),
                other: other.shape.clone(),
            });
        }
        located.slices.push(run);
        Ok(run.len.into())
    }
}

/// Number of steps from `first` to `position`; `None` if it exceeds 32 bits.
fn steps_between(first: StepPosition, position: StepPosition) -> Option<u32> {
    u32::try_from(position - first).ok()
}
