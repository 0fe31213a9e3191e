//! What an item may be made of, and how it is found among the chunks.

use std::sync::Arc;

use smallvec::SmallVec;

use super::StepPosition;
use super::history::History;
use super::open::OpenChunk;
use super::refusal::Refusal;
use crate::schema::{CellSpec, Layout, Schema};
use crate::trajectory::{Slice, SpanColumn};

/// The steps that an item is made of.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All columns of the newest so many steps.
    Last(u64),
    /// All columns of consecutive steps.
    Steps {
        /// The first.
        first: StepPosition,
        /// How many.
        len: u64,
        /// One step, without a time axis.
        squeeze: bool,
    },
    /// Cells column by column.
    Columns {
        /// Names and nesting of the item's columns.
        layout: &'a Arc<Layout>,
        /// One per name.
        columns: &'a [ColumnSelection<'a>],
    },
}

/// Cells of one column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSelection<'a> {
    /// The writer's column they come from.
    pub source: usize,
    /// Which.
    pub cells: CellPositions<'a>,
    /// One cell, without a time axis.
    pub squeeze: bool,
}

/// Cells of one column, by the positions of their steps.
#[derive(Clone, Copy, Debug)]
pub enum CellPositions<'a> {
    /// Evenly spaced, oldest first.
    Range {
        /// The first.
        first: StepPosition,
        /// From one to the next; at least 1.
        stride: u64,
        /// How many.
        len: u64,
    },
    /// In any order, repeated or not.
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

/// In place of a chunk's number: the open chunk.
pub(super) const OPEN: u32 = u32::MAX;

/// Everything that may be referred to.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) history: &'a History,
    pub(super) open: Option<&'a OpenChunk>,
    /// Positions from here...
    pub(super) floor: StepPosition,
    /// ...to before here.
    pub(super) end: StepPosition,
}

/// A selection that was found: slices whose chunks are numbers of segments, or [`OPEN`].
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) columns: SmallVec<[SpanColumn; 8]>,
    pub(super) slices: SmallVec<[Slice; 8]>,
    /// Oldest step referred to.
    pub(super) oldest: StepPosition,
}

impl View<'_> {
    pub(super) fn schema(&self, source: u32) -> Option<&Arc<Schema>> {
        match source {
            OPEN => self.open.map(OpenChunk::schema),
            index => Some(self.history.get(index as usize).chunk.schema()),
        }
    }

    pub(super) fn cell(&self, slice: Slice) -> Option<&CellSpec> {
        let schema = self.schema(slice.chunk)?;
        schema.cells.get(slice.column as usize)
    }

    /// The cells from `at` on that lie next to each other, up to `want` of them.
    pub(super) fn run(&self, column: usize, at: StepPosition, want: u64) -> Result<Slice, Refusal> {
        if at < self.floor {
            return Err(Refusal::Expired { at });
        }
        if at >= self.end {
            return Err(Refusal::Future { at });
        }
        let missing = Refusal::Missing { column, at };
        let slice = |chunk: usize, own: usize, offset, left: StepPosition| {
            // Columns, rows and segments were counted in 32 bits when they were made.
            Ok(Slice {
                chunk: u32::try_from(chunk).unwrap_or(OPEN),
                column: u32::try_from(own).unwrap_or(u32::MAX),
                offset,
                len: u32::try_from(left.min(want)).unwrap_or(u32::MAX),
            })
        };
        if let Some(open) = self.open.filter(|open| at >= open.first) {
            let Some(row) = offset(at, open.first).and_then(|step| open.row(column, step)) else {
                return Err(missing);
            };
            let end = open.first + StepPosition::from(open.steps);
            let dense = open.is_dense() && at < end;
            return slice(OPEN as usize, column, row, if dense { end - at } else { 1 });
        }
        let Some(index) = self.history.find(at) else {
            return Err(missing);
        };
        let segment = self.history.get(index);
        if at >= segment.end() {
            // A step that a partial append opened without giving it a value.
            return Err(missing);
        }
        let found = segment.column(column).and_then(|own| {
            let row = segment.rows.row(own, offset(at, segment.first)?)?;
            Some((own, row))
        });
        let Some((own, row)) = found else {
            return Err(missing);
        };
        let left = if segment.rows.is_dense() {
            segment.end() - at
        } else {
            1
        };
        slice(index, own, row, left)
    }

    /// Finds the cells of every column.
    pub(super) fn find<'s>(
        &self,
        columns: impl Iterator<Item = ColumnSelection<'s>>,
    ) -> Result<Draft, Refusal> {
        let mut draft = Draft {
            columns: SmallVec::new(),
            slices: SmallVec::new(),
            oldest: StepPosition::MAX,
        };
        for (number, picked) in columns.enumerate() {
            let len = picked.cells.len();
            if len == 0 {
                return Err(Refusal::Empty { column: number });
            }
            if picked.squeeze && len != 1 {
                return Err(Refusal::Squeeze {
                    column: number,
                    len,
                });
            }
            draft.columns.push(SpanColumn {
                first_slice: u32::try_from(draft.slices.len()).unwrap_or(u32::MAX),
                len: u32::try_from(len).map_err(|_| Refusal::TooLong { len })?,
                squeeze: picked.squeeze,
            });
            match picked.cells {
                CellPositions::Range {
                    mut first,
                    stride: 1,
                    mut len,
                } => {
                    while len > 0 {
                        let taken = self.take(&mut draft, number, picked.source, first, len)?;
                        first += taken;
                        len -= taken;
                    }
                }
                CellPositions::Range { first, stride, len } => {
                    for n in 0..len {
                        let at = first.saturating_add(n.saturating_mul(stride));
                        self.take(&mut draft, number, picked.source, at, 1)?;
                    }
                }
                CellPositions::List(positions) => {
                    for at in positions {
                        self.take(&mut draft, number, picked.source, *at, 1)?;
                    }
                }
            }
        }
        if draft.columns.is_empty() {
            return Err(Refusal::NoColumns);
        }
        Ok(draft)
    }

    /// True when every cell has a value, of whatever shape.
    pub(super) fn has_all<'s>(
        &self,
        mut columns: impl Iterator<Item = ColumnSelection<'s>>,
    ) -> bool {
        columns.all(|picked| match picked.cells {
            CellPositions::Range { first, stride, len } => (0..len).all(|n| {
                self.run(picked.source, first.saturating_add(n * stride), 1)
                    .is_ok()
            }),
            CellPositions::List(at) => at.iter().all(|at| self.run(picked.source, *at, 1).is_ok()),
        })
    }

    /// Adds a run to the draft's last column and says how many cells it has.
    fn take(
        &self,
        draft: &mut Draft,
        number: usize,
        source: usize,
        at: StepPosition,
        want: u64,
    ) -> Result<u64, Refusal> {
        let run = self.run(source, at, want)?;
        draft.oldest = draft.oldest.min(at);
        let from = draft.columns[number].first_slice as usize;
        let Some(before) = draft.slices[from..].last_mut() else {
            draft.slices.push(run);
            return Ok(run.len.into());
        };
        let joins = before.chunk == run.chunk
            && before.column == run.column
            && before.offset + before.len == run.offset;
        if joins {
            before.len += run.len;
            return Ok(run.len.into());
        }
        let (first, other) = (self.cell(draft.slices[from]), self.cell(run));
        if let (Some(first), Some(other)) = (first, other)
            && first != other
        {
            return Err(Refusal::Mixed {
                column: number,
                at,
                first: first.shape.clone(),
                other: other.shape.clone(),
            });
        }
        draft.slices.push(run);
        Ok(run.len.into())
    }
}

fn offset(at: StepPosition, first: StepPosition) -> Option<u32> {
    u32::try_from(at - first).ok()
}
