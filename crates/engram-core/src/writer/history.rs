//! The sealed chunks of the retained steps.

use std::collections::VecDeque;
use std::sync::Arc;

use super::StepPosition;
use super::row_map::RowMap;
use crate::chunk::Chunk;

/// Marks a column that the chunk does not have.
const NO_COLUMN: u32 = u32::MAX;

/// A sealed chunk and its steps.
#[derive(Debug)]
pub(super) struct Segment {
    /// First step of the chunk.
    pub(super) first: StepPosition,
    /// Number of its complete steps.
    pub(super) steps: u32,
    pub(super) chunk: Arc<Chunk>,
    /// The rows of its steps.
    pub(super) rows: RowMap,
    /// The chunk's column for each current column of the writer; `None` while they are the same.
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

    /// Returns the chunk's column for one of the writer's current columns; `None` if the chunk does not
    /// have it.
    pub(super) fn column(&self, column: usize) -> Option<usize> {
        match &self.columns {
            None => Some(column),
            Some(columns) => Some(columns[column])
                .filter(|chunk_column| *chunk_column != NO_COLUMN)
                .map(|chunk_column| chunk_column as usize),
        }
    }

    /// End of its steps, exclusive.
    pub(super) fn end(&self) -> StepPosition {
        self.first + StepPosition::from(self.steps)
    }

    /// Renumbers the columns after a change of structure: old column `i` is now column `map[i]` of
    /// `count`.
    fn remap(&mut self, map: &[usize], count: usize) {
        let mut columns = vec![NO_COLUMN; count];
        for (old, new) in map.iter().enumerate() {
            if let Some(chunk_column) = self
                .column(old)
                .and_then(|chunk_column| u32::try_from(chunk_column).ok())
            {
                columns[*new] = chunk_column;
            }
        }
        self.columns = Some(columns.into());
    }
}

/// The sealed chunks of the newest steps, oldest first. A chunk may begin with copies of the
/// previous chunk's last steps; such a step is looked up in the newer chunk.
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

    /// Removes the chunks whose steps all precede `first_available`.
    pub(super) fn expire(&mut self, first_available: StepPosition) {
        while self
            .segments
            .front()
            .is_some_and(|s| s.end() <= first_available)
        {
            self.segments.pop_front();
        }
    }

    /// Renumbers the columns of all segments after a change of structure.
    pub(super) fn remap(&mut self, map: &[usize], count: usize) {
        for segment in &mut self.segments {
            segment.remap(map, count);
        }
    }

    /// Returns the index of the newest segment that begins at or before `position`. The segment may also end before
    /// `position`.
    pub(super) fn find(&self, position: StepPosition) -> Option<usize> {
        self.segments
            .partition_point(|s| s.first <= position)
            .checked_sub(1)
    }

    pub(super) fn get(&self, index: usize) -> &Segment {
        &self.segments[index]
    }
}
