//! Windows that begin before the open chunks.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::StepPosition;
use super::super::batch_chunk::OpenBatch;
use super::super::pattern::Pattern;
use super::super::pending::{Body, OpenSpans};
use super::BatchSegment;
use crate::error::{Error, Result};
use crate::schema::Shape;
use crate::trajectory::{Slice, SpanColumn, Trajectory};

/// Where the steps of a window lie: the same for every environment but for the rows.
pub(super) struct Plan<'a> {
    pattern: &'a Pattern,
    /// The sealed chunks in the order of the item's; the open one comes after them.
    segments: SmallVec<[&'a BatchSegment; 2]>,
    /// Offsets count steps from the beginning of the slice's chunk.
    slices: SmallVec<[Slice; 8]>,
    columns: Box<[SpanColumn]>,
    /// Steps that the open chunks have room for, if the window reaches into them.
    open: Option<usize>,
}

/// A stretch of steps in one place: the sealed segment or the open chunks.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) segment: Option<&'a BatchSegment>,
    pub(super) first: StepPosition,
    pub(super) end: StepPosition,
}

impl<'a> Plan<'a> {
    /// Splits the window from `first` on by chunks; `None` where steps are gone.
    ///
    /// # Errors
    /// [`Error::Signature`] when its cells have several shapes.
    pub(super) fn new(
        pattern: &'a Pattern,
        history: &'a VecDeque<BatchSegment>,
        open: &OpenBatch,
        first: StepPosition,
    ) -> Result<Option<Self>> {
        let mut plan = Self {
            pattern,
            segments: SmallVec::new(),
            slices: SmallVec::new(),
            columns: Box::default(),
            open: None,
        };
        let mut columns = Vec::with_capacity(pattern.columns.len());
        for (number, shaped) in pattern.shape.columns.iter().enumerate() {
            columns.push(SpanColumn {
                first_slice: narrow(plan.slices.len() as u64),
                ..*shaped
            });
            let mut shape: Option<&Shape> = None;
            for slice in pattern.shape.column_slices(number) {
                let mut at = first + StepPosition::from(slice.offset);
                let end = at + StepPosition::from(slice.len);
                while at < end {
                    let Some(place) = place(history, open, at) else {
                        return Ok(None);
                    };
                    let schema = place
                        .segment
                        .map_or(open.schema(), |s| s.chunks[0].schema());
                    let other = &schema.cells[slice.column as usize].shape;
                    let shape = *shape.get_or_insert(other);
                    if shape != other {
                        return Err(mixed(pattern, number, shape, other));
                    }
                    plan.push(place, open, slice.column, at, end.min(place.end));
                    at = end.min(place.end);
                }
            }
        }
        // Only now is it known how many sealed chunks come before the open one.
        let last = narrow(plan.segments.len() as u64);
        for slice in plan.slices.iter_mut().filter(|s| s.chunk == OPEN) {
            slice.chunk = last;
        }
        plan.columns = columns.into();
        Ok(Some(plan))
    }

    fn push(
        &mut self,
        place: Place<'a>,
        open: &OpenBatch,
        column: u32,
        at: StepPosition,
        end: StepPosition,
    ) {
        let chunk = match place.segment {
            None => {
                self.open = Some(open.grouping.length);
                OPEN
            }
            Some(segment) => {
                let same = |other: &&BatchSegment| other.first == segment.first;
                let known = self.segments.iter().position(same);
                narrow(known.unwrap_or_else(|| {
                    self.segments.push(segment);
                    self.segments.len() - 1
                }) as u64)
            }
        };
        self.slices.push(Slice {
            chunk,
            column,
            offset: narrow(at - place.first),
            len: narrow(end - at),
        });
    }

    /// The item of one environment.
    pub(super) fn body(&self, env: usize) -> Body {
        let chunk = |segment: &&BatchSegment| Arc::clone(&segment.chunks[env / segment.group]);
        if let ([segment], None) = (&self.segments[..], self.open) {
            let first = self.slices.iter().map(|s| s.offset).min().unwrap_or(0);
            return Body::Sealed(Trajectory::Window {
                chunk: chunk(segment),
                offset: first + segment.row(env),
                shape: Arc::clone(&self.pattern.shape),
            });
        }
        let slices = self.slices.iter().map(|slice| {
            let row = match (self.segments.get(slice.chunk as usize), self.open) {
                (Some(segment), _) => segment.row(env),
                (None, length) => narrow((env * length.unwrap_or(0)) as u64),
            };
            Slice {
                offset: slice.offset + row,
                ..*slice
            }
        });
        let spans = OpenSpans {
            layout: Arc::clone(&self.pattern.shape.layout),
            sealed: self.segments.iter().map(chunk).collect(),
            open: self.open.is_some(),
            columns: self.columns.clone(),
            slices: slices.collect(),
        };
        if spans.open {
            Body::Spans(Box::new(spans))
        } else {
            Body::Sealed(spans.close(None))
        }
    }
}

/// In place of a chunk's number: the open one.
const OPEN: u32 = u32::MAX;

impl BatchSegment {
    /// First row of an environment in its group's chunk.
    pub(super) fn row(&self, env: usize) -> u32 {
        narrow((env % self.group * self.steps) as u64)
    }
}

/// Where a step lies; `None` if it is gone.
pub(super) fn place<'a>(
    history: &'a VecDeque<BatchSegment>,
    open: &OpenBatch,
    at: StepPosition,
) -> Option<Place<'a>> {
    if at >= open.first {
        return Some(Place {
            segment: None,
            first: open.first,
            end: open.first + open.steps as StepPosition,
        });
    }
    let index = history.partition_point(|s| s.first <= at).checked_sub(1)?;
    let segment = &history[index];
    let end = segment.first + segment.steps as StepPosition;
    (at < end).then_some(Place {
        segment: Some(segment),
        first: segment.first,
        end,
    })
}

fn mixed(pattern: &Pattern, column: usize, first: &Shape, other: &Shape) -> Error {
    Error::Signature(format!(
        "column `{}` of the trajectory mixes cells of shape {first:?} and of shape {other:?}; one \
         item's cells have one shape",
        pattern.shape.layout.names[column]
    ))
}

/// Rows and columns were counted in 32 bits when the chunks were begun.
fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
