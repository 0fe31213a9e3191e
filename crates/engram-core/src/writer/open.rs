//! The chunk being filled.

use std::sync::Arc;

use smallvec::SmallVec;

use super::StepPosition;
use super::rows::RowMap;
use crate::chunk::{Chunk, ChunkBuilder, Origin, PackedColumns};
use crate::codec::Compressor;
use crate::dtype::DType;
use crate::error::Result;
use crate::schema::Schema;

/// Strings are counted after the fact: a chunk that reached this many bytes of them is full.
const STRING_BUDGET: usize = 16 << 10;

/// What the step in progress has of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// No value.
    Unset,
    /// Written by the append under way; gone if that fails.
    Written,
    /// Given by an earlier partial append.
    Set,
}

/// Complete steps, and perhaps one in progress, of one schema and one episode.
#[derive(Debug)]
pub(super) struct OpenChunk {
    builder: ChunkBuilder,
    /// Position of its first step.
    pub(super) first: StepPosition,
    /// Complete steps.
    pub(super) steps: u32,
    /// Of these, the first so many are copies of the chunk before.
    pub(super) carried: u32,
    rows: RowMap,
    marks: SmallVec<[Mark; 8]>,
}

impl OpenChunk {
    pub(super) fn new(schema: Arc<Schema>, capacity: usize, first: StepPosition) -> Result<Self> {
        let columns = schema.cells.len();
        Ok(Self {
            builder: ChunkBuilder::new(schema, capacity)?,
            first,
            steps: 0,
            carried: 0,
            rows: RowMap::default(),
            marks: SmallVec::from_elem(Mark::Unset, columns),
        })
    }

    pub(super) fn schema(&self) -> &Arc<Schema> {
        self.builder.schema()
    }

    pub(super) fn is_dense(&self) -> bool {
        self.rows.is_dense()
    }

    /// True when the next step needs a chunk of its own.
    pub(super) fn is_full(&self) -> bool {
        self.steps as usize == self.builder.capacity()
            || self.steps > self.carried && self.builder.string_bytes() > STRING_BUDGET
    }

    pub(super) fn mark(&self, column: usize) -> Mark {
        self.marks[column]
    }

    /// True when the step in progress has a value already.
    pub(super) fn has_marks(&self) -> bool {
        self.marks.iter().any(|mark| *mark != Mark::Unset)
    }

    /// Destination of the step in progress.
    pub(super) fn cell_mut(&mut self, column: usize) -> &mut [u8] {
        self.marks[column] = Mark::Written;
        let row = self.builder.rows(column) as usize;
        self.builder.cell_mut(column, row)
    }

    pub(super) fn set_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.builder.stage_string(column, encoded)?;
        self.marks[column] = Mark::Written;
        Ok(())
    }

    /// Forgets what the append under way has written.
    pub(super) fn abort(&mut self) {
        for (column, mark) in self.marks.iter_mut().enumerate() {
            if *mark == Mark::Written {
                *mark = Mark::Unset;
                self.builder.unstage_string(column);
            }
        }
    }

    /// Forgets what the append under way has written of one column.
    pub(super) fn forget(&mut self, column: usize) {
        self.marks[column] = Mark::Unset;
        self.builder.unstage_string(column);
    }

    /// Keeps what the append under way has written, and leaves the step open.
    pub(super) fn keep_partial(&mut self) {
        for mark in &mut self.marks {
            if *mark == Mark::Written {
                *mark = Mark::Set;
            }
        }
    }

    /// Makes the step in progress a complete one.
    pub(super) fn complete(&mut self) {
        let mut dense = self.rows.is_dense();
        for (column, mark) in self.marks.iter().enumerate() {
            if *mark == Mark::Unset {
                dense = false;
            } else {
                self.builder.commit(column);
            }
        }
        if !dense {
            let (builder, marks) = (&self.builder, &self.marks);
            let rows = marks
                .iter()
                .enumerate()
                .map(|(column, mark)| (*mark != Mark::Unset).then(|| builder.rows(column) - 1));
            self.rows.push(self.steps, rows);
        }
        self.marks.fill(Mark::Unset);
        self.steps += 1;
    }

    /// Row of `column` at the chunk's `step`; the one after the complete steps is in progress.
    pub(super) fn row(&self, column: usize, step: u32) -> Option<u32> {
        if step < self.steps {
            self.rows.row(column, step)
        } else {
            (self.marks[column] == Mark::Set).then(|| self.builder.rows(column))
        }
    }

    /// Bytes of one cell; strings come encoded.
    pub(super) fn cell(&self, column: usize, row: u32) -> &[u8] {
        if self.schema().cells[column].dtype != DType::String {
            self.builder.cell(column, row as usize)
        } else if row < self.builder.rows(column) {
            self.builder.string_cell(column, row as usize)
        } else {
            self.builder.staged_string(column)
        }
    }

    /// Copies the last `steps` complete steps of `old`, and what its step in progress has.
    /// `columns` gives the place here of each of its columns.
    pub(super) fn carry(
        &mut self,
        old: &Self,
        steps: u32,
        columns: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let count = old.marks.len();
        for step in old.steps - steps..old.steps {
            for from in 0..count {
                if let Some(row) = old.row(from, step) {
                    self.write(columns(from), old.cell(from, row))?;
                }
            }
            self.complete();
        }
        self.carried = self.steps;
        for from in (0..count).filter(|from| old.marks[*from] != Mark::Unset) {
            let to = columns(from);
            self.write(to, old.cell(from, old.builder.rows(from)))?;
            self.marks[to] = old.marks[from];
        }
        Ok(())
    }

    fn write(&mut self, column: usize, cell: &[u8]) -> Result<()> {
        if self.schema().cells[column].dtype == DType::String {
            return self.set_string(column, cell);
        }
        self.cell_mut(column).copy_from_slice(cell);
        Ok(())
    }

    /// Prepares to seal it. Items may refer to the step in progress, so what earlier partial
    /// appends gave goes along; no step of the chunk's own refers to it.
    ///
    /// # Errors
    /// As [`ChunkBuilder::seal`]; nothing has changed then.
    pub(super) fn pack(&mut self, compressor: &mut Compressor) -> Result<PackedColumns> {
        let (marks, builder) = (&self.marks, &mut self.builder);
        let set = || (0..marks.len()).filter(|column| marks[*column] == Mark::Set);
        for column in set() {
            builder.commit(column);
        }
        let packed = builder.pack(compressor);
        if packed.is_err() {
            for column in set() {
                builder.uncommit(column);
            }
        }
        packed
    }

    /// Makes what was packed immutable.
    pub(super) fn seal(self, packed: PackedColumns, origin: Origin) -> (Chunk, RowMap) {
        (self.builder.finish(packed, origin), self.rows)
    }
}
