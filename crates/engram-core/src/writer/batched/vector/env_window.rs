//! Items of one environment that are not a full window of rows: they refer to a first observation or returns among the
//! side cells, or to padding, or the end of the episode has cut them short.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::super::StepPosition;
use super::super::super::open_batch::OpenBatch;
use super::super::super::pending_items::PendingTrajectory;
use super::super::BatchSegment;
use super::super::split_window::{OPEN, to_u32};
use super::rule::{BoundRule, Part, RuleColumn};
use crate::chunk::Chunk;
use crate::trajectory::{Slice, SpanColumn, Spans};

/// A row of the side cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct SideRow {
    /// `OpenBatch::ordinal` of the chunks that it belongs to.
    pub(super) ordinal: u64,
    pub(super) row: u32,
}

/// The retained rows of a recorder.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetainedRows<'a> {
    pub(super) history: &'a VecDeque<BatchSegment>,
    pub(super) open: Option<&'a OpenBatch>,
    /// Position after the newest row.
    pub(super) end: StepPosition,
}

/// The last transitions of an environment.
#[derive(Clone, Copy, Debug)]
pub(super) struct EnvWindow<'a> {
    pub(super) env: usize,
    /// Number of transitions. The last one is in the newest row.
    pub(super) transitions: u64,
    /// Where the first observation is, unless it is in the row before the first transition.
    pub(super) first_observation: Option<SideRow>,
    /// Where the return and the discount are, unless they are in the newest row.
    pub(super) return_cells: Option<SideRow>,
    /// Number of transitions to add as padding, and the chunk of zeros.
    pub(super) padding: Option<(u64, &'a Arc<Chunk>)>,
}

impl<'a> EnvWindow<'a> {
    /// Returns the trajectory of the rule's item of this window.
    pub(super) fn trajectory(self, rows: RetainedRows<'a>, rule: &BoundRule) -> PendingTrajectory {
        let mut spans = SpansBuilder {
            env: self.env,
            rows,
            chunks: SmallVec::new(),
            // One slice per column, unless rows are in several chunks.
            slices: Vec::with_capacity(rule.columns.len()),
        };
        if let Some(columns) = &rule.single_cells {
            for column in &rule.columns {
                self.push(&mut spans, column, rows.end);
            }
            debug_assert_eq!(spans.slices.len(), columns.len(), "one slice per column");
            return spans.finish(rule, Arc::clone(columns));
        }
        let mut columns = Vec::with_capacity(rule.columns.len());
        for column in &rule.columns {
            let first_slice = to_u32(spans.slices.len() as u64);
            self.push(&mut spans, column, rows.end);
            let slices = &spans.slices[first_slice as usize..];
            columns.push(SpanColumn {
                first_slice,
                len: slices.iter().map(|slice| slice.len).sum(),
                squeeze: column.part != Part::All,
            });
        }
        spans.finish(rule, columns.into())
    }

    /// Adds the cells of a column. `end` is the position after the newest row.
    fn push(self, spans: &mut SpansBuilder<'a>, column: &RuleColumn, end: StepPosition) {
        let number = to_u32(column.row_column as u64);
        if let (true, Some(side_row)) = (column.is_return, self.return_cells) {
            spans.push_side(number, side_row);
            return;
        }
        let first_transition = end - self.transitions;
        let is_observation = column.is_observation;
        match column.part {
            Part::Last => spans.push_rows(number, end - 1, end),
            Part::First if !is_observation => {
                spans.push_rows(number, first_transition, first_transition + 1);
            }
            Part::First => self.push_first_observation(spans, number, first_transition),
            Part::All => {
                if is_observation {
                    self.push_first_observation(spans, number, first_transition);
                }
                spans.push_rows(number, first_transition, end);
                if let Some((transitions, zeros)) = self.padding {
                    spans.push_zeros(number, zeros, transitions);
                }
            }
        }
    }

    /// Adds the observation before the first transition.
    fn push_first_observation(
        self,
        spans: &mut SpansBuilder<'a>,
        column: u32,
        first_transition: StepPosition,
    ) {
        match self.first_observation {
            Some(side_row) => spans.push_side(column, side_row),
            None => spans.push_rows(column, first_transition - 1, first_transition),
        }
    }
}

/// Collects the slices of an item of one environment.
struct SpansBuilder<'a> {
    env: usize,
    rows: RetainedRows<'a>,
    /// The sealed chunks that the slices refer to.
    chunks: SmallVec<[&'a Arc<Chunk>; 3]>,
    /// The slices of all columns so far. The chunk number of those in the open chunks is `OPEN`.
    slices: Vec<Slice>,
}

impl<'a> SpansBuilder<'a> {
    /// Adds the rows `position..end` of a column, which are all retained.
    fn push_rows(&mut self, column: u32, mut position: StepPosition, end: StepPosition) {
        while position < end {
            let (chunk, first_row, first, until) = match self.rows.open {
                Some(open) if position >= open.first => {
                    let row = self.env * open.grouping.capacity_steps;
                    (OPEN, to_u32(row as u64), open.first, end)
                }
                _ => {
                    let index = self.rows.history.partition_point(|s| s.first <= position);
                    let Some(segment) = index.checked_sub(1).map(|index| &self.rows.history[index])
                    else {
                        return;
                    };
                    let chunk = &segment.chunks[self.env / segment.envs_per_group];
                    let segment_end = segment.first + segment.steps as StepPosition;
                    let chunk = self.chunk_number(chunk);
                    (
                        chunk,
                        segment.first_row(self.env),
                        segment.first,
                        segment_end,
                    )
                }
            };
            let until = until.min(end);
            self.slices.push(Slice {
                chunk,
                column,
                offset: first_row + to_u32(position - first),
                len: to_u32(until.saturating_sub(position)),
            });
            position = until.max(position + 1);
        }
    }

    /// Adds a side cell of a column.
    fn push_side(&mut self, column: u32, SideRow { ordinal, row }: SideRow) {
        let (chunk, offset) = match self.rows.open {
            Some(open) if open.ordinal == ordinal => {
                (OPEN, to_u32(open.grouping.rows() as u64) + row)
            }
            _ => {
                let index = self.rows.history.partition_point(|s| s.ordinal < ordinal);
                let side = self.rows.history.get(index).and_then(|s| s.side.as_ref());
                let Some(side) = side else {
                    return;
                };
                (self.chunk_number(side), row)
            }
        };
        self.slices.push(Slice {
            chunk,
            column,
            offset,
            len: 1,
        });
    }

    /// Adds cells of zeros.
    fn push_zeros(&mut self, column: u32, zeros: &'a Arc<Chunk>, len: u64) {
        if len > 0 {
            let slice = Slice {
                chunk: self.chunk_number(zeros),
                column,
                offset: 0,
                len: to_u32(len),
            };
            self.slices.push(slice);
        }
    }

    /// Returns the number of a sealed chunk among those of the item, and adds it if it is new.
    fn chunk_number(&mut self, chunk: &'a Arc<Chunk>) -> u32 {
        let known = self
            .chunks
            .iter()
            .position(|other| Arc::ptr_eq(other, chunk));
        let number = known.unwrap_or(self.chunks.len());
        if known.is_none() {
            self.chunks.push(chunk);
        }
        to_u32(number as u64)
    }

    fn finish(mut self, rule: &BoundRule, columns: Arc<[SpanColumn]>) -> PendingTrajectory {
        let mut uses_open_chunk = false;
        for slice in self.slices.iter_mut().filter(|slice| slice.chunk == OPEN) {
            slice.chunk = to_u32(self.chunks.len() as u64);
            uses_open_chunk = true;
        }
        let spans = Spans {
            layout: Arc::clone(&rule.full.shape.layout),
            chunks: self.chunks.into_iter().cloned().collect(),
            columns,
            slices: self.slices.into(),
        };
        PendingTrajectory::of_spans(spans, uses_open_chunk)
    }
}
