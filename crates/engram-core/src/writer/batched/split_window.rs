//! Windows that begin before the open chunks: they lie in sealed chunks, and possibly also in the open ones.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::StepPosition;
use super::super::open_batch::OpenBatch;
use super::super::pattern::Pattern;
use super::super::pending_items::PendingTrajectory;
use super::BatchSegment;
use crate::error::{Error, Result};
use crate::schema::Shape;
use crate::text::column_of;
use crate::trajectory::{Slice, SpanColumn, Spans, Trajectory};

/// The chunks in which a window's steps lie. Neighbouring environments form a group, which shares a chunk (`Grouping`).
/// The windows of two environments differ only in the chunks of their groups and in the rows of their first steps.
pub(super) struct SplitWindow<'a> {
    pattern: &'a Pattern,
    /// Sealed segments, in the order in which an item lists their chunks. Its open chunk, if any, follows them.
    segments: SmallVec<[&'a BatchSegment; 2]>,
    /// The chunk number of a slice is an index of `segments`, or their number for the open chunk. Offsets are steps
    /// since the first step of the slice's chunk.
    slices: SmallVec<[Slice; 8]>,
    columns: Arc<[SpanColumn]>,
    /// Number of steps that the open chunks have room for; `None` if the window does not extend into them.
    open_capacity_steps: Option<usize>,
}

/// Where a step lies: the sealed segment or the open chunks, and the range of their steps.
#[derive(Clone, Copy)]
pub(super) struct StepLocation<'a> {
    /// `None` for the open chunks.
    pub(super) segment: Option<&'a BatchSegment>,
    pub(super) first: StepPosition,
    pub(super) end: StepPosition,
}

impl<'a> SplitWindow<'a> {
    /// Splits the window that starts at `first` by chunks. Returns `None` if some of its steps are
    /// no longer retained.
    ///
    /// # Errors
    /// [`Error::Signature`] if cells of one column differ in shape.
    pub(super) fn new(
        pattern: &'a Pattern,
        history: &'a VecDeque<BatchSegment>,
        open: &OpenBatch,
        first: StepPosition,
    ) -> Result<Option<Self>> {
        let mut window = Self {
            pattern,
            segments: SmallVec::new(),
            slices: SmallVec::new(),
            columns: Arc::default(),
            open_capacity_steps: None,
        };
        let mut columns = Vec::with_capacity(pattern.columns.len());
        for (number, column) in pattern.shape.columns.iter().enumerate() {
            columns.push(SpanColumn {
                first_slice: to_u32(window.slices.len() as u64),
                ..*column
            });
            let mut shape: Option<&Shape> = None;
            for slice in pattern.shape.column_slices(number) {
                let mut position = first + StepPosition::from(slice.offset);
                let end = position + StepPosition::from(slice.len);
                while position < end {
                    let Some(location) = locate_step(history, open, position) else {
                        return Ok(None);
                    };
                    let schema = location
                        .segment
                        .map_or(open.schema(), |s| s.chunks[0].schema());
                    let other = &schema.cells[slice.column as usize].shape;
                    let shape = *shape.get_or_insert(other);
                    if shape != other {
                        return Err(mixed_shapes(pattern, number, shape, other));
                    }
                    window.push(
                        location,
                        open,
                        slice.column,
                        position,
                        end.min(location.end),
                    );
                    position = end.min(location.end);
                }
            }
        }
        // The open chunk's index is known only now: it follows all sealed chunks.
        let open_index = to_u32(window.segments.len() as u64);
        for slice in window.slices.iter_mut().filter(|s| s.chunk == OPEN) {
            slice.chunk = open_index;
        }
        window.columns = columns.into();
        Ok(Some(window))
    }

    /// Adds the steps `position..end` of a column, which lie in one chunk.
    fn push(
        &mut self,
        location: StepLocation<'a>,
        open: &OpenBatch,
        column: u32,
        position: StepPosition,
        end: StepPosition,
    ) {
        let chunk = match location.segment {
            None => {
                self.open_capacity_steps = Some(open.grouping.capacity_steps);
                OPEN
            }
            Some(segment) => {
                let same = |other: &&BatchSegment| other.first == segment.first;
                let existing = self.segments.iter().position(same);
                to_u32(existing.unwrap_or_else(|| {
                    self.segments.push(segment);
                    self.segments.len() - 1
                }) as u64)
            }
        };
        self.slices.push(Slice {
            chunk,
            column,
            offset: to_u32(position - location.first),
            len: to_u32(end - position),
        });
    }

    /// Returns the trajectory of one environment's item.
    pub(super) fn trajectory(&self, env: usize) -> PendingTrajectory {
        let chunk =
            |segment: &&BatchSegment| Arc::clone(&segment.chunks[env / segment.envs_per_group]);
        if let ([segment], None) = (&self.segments[..], self.open_capacity_steps) {
            let first = self.slices.iter().map(|s| s.offset).min().unwrap_or(0);
            return PendingTrajectory::Sealed(Trajectory::Window {
                chunk: chunk(segment),
                offset: first + segment.first_row(env),
                shape: Arc::clone(&self.pattern.shape),
            });
        }
        let slices = self.slices.iter().map(|slice| {
            let first_row = match (
                self.segments.get(slice.chunk as usize),
                self.open_capacity_steps,
            ) {
                (Some(segment), _) => segment.first_row(env),
                // Until they are sealed, the open chunks of all groups count as one, in the order of environments:
                // `PendingItems::resolve` maps these rows to the sealed chunks.
                (None, capacity_steps) => to_u32((env * capacity_steps.unwrap_or(0)) as u64),
            };
            Slice {
                offset: slice.offset + first_row,
                ..*slice
            }
        });
        let spans = Spans {
            layout: Arc::clone(&self.pattern.shape.layout),
            chunks: self.segments.iter().map(chunk).collect(),
            columns: Arc::clone(&self.columns),
            slices: slices.collect(),
        };
        PendingTrajectory::of_spans(spans, self.open_capacity_steps.is_some())
    }
}

/// Placeholder for the open chunk's index among the item's chunks, which `SplitWindow::new` replaces.
pub(super) const OPEN: u32 = u32::MAX;

impl BatchSegment {
    /// Returns the first row of an environment in its group's chunk.
    pub(super) fn first_row(&self, env: usize) -> u32 {
        to_u32((env % self.envs_per_group * self.steps) as u64)
    }
}

/// Locates a step. Returns `None` if it is no longer retained.
pub(super) fn locate_step<'a>(
    history: &'a VecDeque<BatchSegment>,
    open: &OpenBatch,
    position: StepPosition,
) -> Option<StepLocation<'a>> {
    if position >= open.first {
        return Some(StepLocation {
            segment: None,
            first: open.first,
            end: open.first + open.steps as StepPosition,
        });
    }
    let index = history
        .partition_point(|s| s.first <= position)
        .checked_sub(1)?;
    let segment = &history[index];
    let end = segment.first + segment.steps as StepPosition;
    (position < end).then_some(StepLocation {
        segment: Some(segment),
        first: segment.first,
        end,
    })
}

fn mixed_shapes(pattern: &Pattern, column: usize, first: &Shape, other: &Shape) -> Error {
    Error::Signature(format!(
        "{} has cells of different shapes, {first:?} and {other:?}; within one item, a column's cells \
         must have the same shape",
        column_of("the trajectory", pattern.name(column))
    ))
}

/// Converts a number of rows, columns or slices. These fit 32 bits, which was checked before.
pub(super) fn to_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
