//! Sealed chunks whose steps may still be referred to.

use std::collections::VecDeque;
use std::sync::Arc;

use super::StepPosition;
use super::rows::RowMap;
use crate::chunk::Chunk;

/// Stands for "this chunk has no such column".
const NONE: u32 = u32::MAX;

/// A sealed chunk and the steps it holds.
#[derive(Debug)]
pub(super) struct Segment {
    /// Position of its first step.
    pub(super) first: StepPosition,
    /// Steps that may be found in it.
    pub(super) steps: u32,
    pub(super) chunk: Arc<Chunk>,
    pub(super) rows: RowMap,
    /// The chunk's column for each column of now; `None` while they are the same.
    columns: Option<Box<[u32]>>,
}

impl Segment {
    pub(super) fn new(first: StepPosition, steps: u32, chunk: Arc<Chunk>, rows: RowMap) -> Self {
        Self {
            first,
            steps,
            chunk,
            rows,
            columns: None,
        }
    }

    /// The chunk's own number of a column of now.
    pub(super) fn column(&self, column: usize) -> Option<usize> {
        match &self.columns {
            None => Some(column),
            Some(columns) => Some(columns[column])
                .filter(|own| *own != NONE)
                .map(|own| own as usize),
        }
    }

    pub(super) fn end(&self) -> StepPosition {
        self.first + StepPosition::from(self.steps)
    }

    /// Follows a change of structure: old column `i` is now `map[i]` of `count`.
    fn remap(&mut self, map: &[usize], count: usize) {
        let mut columns = vec![NONE; count];
        for (old, new) in map.iter().enumerate() {
            if let Some(own) = self.column(old).and_then(|own| u32::try_from(own).ok()) {
                columns[*new] = own;
            }
        }
        self.columns = Some(columns.into());
    }
}

/// The sealed chunks of the newest steps, oldest first. Neighbours may overlap where rows were
/// carried over; a step is looked up in the newest that has it.
#[derive(Debug, Default)]
pub(super) struct History {
    segments: VecDeque<Segment>,
}

impl History {
    pub(super) fn push(&mut self, segment: Segment) {
        self.segments.push_back(segment);
    }

    pub(super) fn clear(&mut self) {
        self.segments.clear();
    }

    /// Lets go of chunks that end before `floor`.
    pub(super) fn expire(&mut self, floor: StepPosition) {
        while self.segments.front().is_some_and(|s| s.end() <= floor) {
            self.segments.pop_front();
        }
    }

    pub(super) fn remap(&mut self, map: &[usize], count: usize) {
        for segment in &mut self.segments {
            segment.remap(map, count);
        }
    }

    /// Index of the newest segment that begins at or before `at`.
    pub(super) fn find(&self, at: StepPosition) -> Option<usize> {
        self.segments
            .partition_point(|s| s.first <= at)
            .checked_sub(1)
    }

    pub(super) fn get(&self, index: usize) -> &Segment {
        &self.segments[index]
    }
}
