//! The chunk that a recorder is filling.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::StepPosition;
use super::column_input::ColumnInput;
use super::row_map::RowMap;
use crate::chunk::{Chunk, ChunkBuilder, Origin, PackedColumns};
use crate::codec::Compressor;
use crate::error::Result;
use crate::schema::Schema;

/// A chunk with more than this many bytes of strings is full, even if it has room for more steps, unless all its steps
/// are copies from the previous chunk.
const STRING_BUDGET: usize = 16 << 10;

/// State of one column's cell in the open step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellState {
    /// No value.
    Unset,
    /// A value of the current append, which is discarded if that append is aborted.
    SetByThisAppend,
    /// A value of an earlier partial append.
    SetByEarlierAppend,
}

/// Complete steps, and possibly one open step, of one schema and one episode.
#[derive(Debug)]
pub(super) struct OpenChunk {
    builder: ChunkBuilder,
    /// First step of the chunk.
    pub(super) first: StepPosition,
    /// Number of complete steps.
    pub(super) steps: u32,
    /// Number of leading steps that were copied from the previous chunk.
    pub(super) overlap: u32,
    /// The rows of the complete steps.
    rows: RowMap,
    /// Per column, the state of its cell in the open step.
    cell_states: SmallVec<[CellState; 8]>,
}

impl OpenChunk {
    pub(super) fn new(schema: Arc<Schema>, capacity: usize, first: StepPosition) -> Result<Self> {
        let columns = schema.cells.len();
        Ok(Self {
            builder: ChunkBuilder::new(schema, capacity)?,
            first,
            steps: 0,
            overlap: 0,
            rows: RowMap::default(),
            cell_states: SmallVec::from_elem(CellState::Unset, columns),
        })
    }

    pub(super) fn schema(&self) -> &Arc<Schema> {
        self.builder.schema()
    }

    /// True if no value of a complete step is missing.
    pub(super) fn is_dense(&self) -> bool {
        self.rows.is_dense()
    }

    /// True if no other step may be added: the chunk has as many steps as it can have, or too many bytes of strings
    /// (see [`STRING_BUDGET`]).
    pub(super) fn is_full(&self) -> bool {
        self.steps as usize == self.builder.capacity()
            || self.steps > self.overlap && self.builder.string_bytes() > STRING_BUDGET
    }

    pub(super) fn cell_state(&self, column: usize) -> CellState {
        self.cell_states[column]
    }

    /// True if the open step has a value in any column.
    pub(super) fn has_open_step_values(&self) -> bool {
        self.cell_states
            .iter()
            .any(|state| *state != CellState::Unset)
    }

    /// Returns the memory of the open step's cell in a column of fixed-size cells, and marks the cell as
    /// set.
    pub(super) fn cell_mut(&mut self, column: usize) -> &mut [u8] {
        self.cell_states[column] = CellState::SetByThisAppend;
        let row = self.builder.rows(column) as usize;
        self.builder.cell_mut(column, row)
    }

    /// Writes the open step's cell in a string column.
    pub(super) fn set_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.builder.stage_string(column, encoded)?;
        self.cell_states[column] = CellState::SetByThisAppend;
        Ok(())
    }

    /// Discards the values of the current append.
    pub(super) fn abort(&mut self) {
        for (column, state) in self.cell_states.iter_mut().enumerate() {
            if *state == CellState::SetByThisAppend {
                *state = CellState::Unset;
                self.builder.unstage_string(column);
            }
        }
    }

    /// Discards the cell that the current append has written in one column, if any.
    pub(super) fn discard_cell(&mut self, column: usize) {
        self.cell_states[column] = CellState::Unset;
        self.builder.unstage_string(column);
    }

    /// Ends a partial append: its values stay, and the step stays open.
    pub(super) fn finish_partial_append(&mut self) {
        for state in &mut self.cell_states {
            if *state == CellState::SetByThisAppend {
                *state = CellState::SetByEarlierAppend;
            }
        }
    }

    /// Completes the open step.
    pub(super) fn complete_step(&mut self) {
        let mut dense = self.rows.is_dense();
        for (column, state) in self.cell_states.iter().enumerate() {
            if *state == CellState::Unset {
                dense = false;
            } else {
                self.builder.commit(column);
            }
        }
        if !dense {
            let (builder, cell_states) = (&self.builder, &self.cell_states);
            let rows = cell_states.iter().enumerate().map(|(column, state)| {
                (*state != CellState::Unset).then(|| builder.rows(column) - 1)
            });
            self.rows.push(self.steps, rows);
        }
        self.cell_states.fill(CellState::Unset);
        self.steps += 1;
    }

    /// Adds complete steps until the chunk is full or the next one cannot be written, at least one; returns their
    /// number. See [`Recorder::append_steps`](super::Recorder::append_steps).
    pub(super) fn append_steps(
        &mut self,
        columns: &[Option<ColumnInput<'_>>],
        steps: Range<usize>,
    ) -> Result<usize> {
        let room = self.builder.capacity() - self.steps as usize;
        let steps = steps.start..steps.end.min(steps.start + room);
        let only_cells = columns
            .iter()
            .all(|column| matches!(column, Some(ColumnInput::Cells(_))));
        if only_cells && self.is_dense() {
            for (column, data) in columns.iter().enumerate() {
                if let Some(ColumnInput::Cells(bytes)) = data {
                    self.builder.push_cells(column, *bytes, steps.clone());
                }
            }
            self.steps += u32::try_from(steps.len()).unwrap_or(u32::MAX);
            return Ok(steps.len());
        }
        for step in steps.clone() {
            if let Err(error) = self.write_step(columns, step) {
                self.abort();
                let appended = step - steps.start;
                // A call that begins with this step returns the error.
                return if appended == 0 {
                    Err(error)
                } else {
                    Ok(appended)
                };
            }
            self.complete_step();
            if self.is_full() {
                return Ok(step + 1 - steps.start);
            }
        }
        Ok(steps.len())
    }

    /// Writes the cells of the open step.
    fn write_step(&mut self, columns: &[Option<ColumnInput<'_>>], step: usize) -> Result<()> {
        for (column, data) in columns.iter().enumerate() {
            match data {
                Some(ColumnInput::Cells(bytes)) => {
                    let cell = self.cell_mut(column);
                    bytes.piece(step, cell.len()).copy_to(cell);
                }
                Some(ColumnInput::Strings(cells)) => self.set_string(column, &cells[step])?,
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the row of `column` at `step`, counted from the chunk's first step; `None` if it has no value there.
    /// Step `self.steps` is the open step, of which only values of earlier appends count.
    pub(super) fn row(&self, column: usize, step: u32) -> Option<u32> {
        if step < self.steps {
            self.rows.row(column, step)
        } else {
            (self.cell_states[column] == CellState::SetByEarlierAppend)
                .then(|| self.builder.rows(column))
        }
    }

    /// Returns the bytes of one cell. Strings are encoded.
    pub(super) fn cell(&self, column: usize, row: u32) -> &[u8] {
        if !self.schema().cells[column].dtype.is_string() {
            self.builder.cell(column, row as usize)
        } else if row < self.builder.rows(column) {
            self.builder.string_cell(column, row as usize)
        } else {
            self.builder.staged_string(column)
        }
    }

    /// Copies the last `steps` complete steps of `old`, and the cells of its open step.
    /// `columns` maps each column of `old` to a column of this chunk.
    pub(super) fn copy_last_steps(
        &mut self,
        old: &Self,
        steps: u32,
        columns: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let count = old.cell_states.len();
        for step in old.steps - steps..old.steps {
            for from in 0..count {
                if let Some(row) = old.row(from, step) {
                    self.write(columns(from), old.cell(from, row))?;
                }
            }
            self.complete_step();
        }
        self.overlap = self.steps;
        for from in (0..count).filter(|from| old.cell_states[*from] != CellState::Unset) {
            let to = columns(from);
            self.write(to, old.cell(from, old.builder.rows(from)))?;
            self.cell_states[to] = old.cell_states[from];
        }
        Ok(())
    }

    /// Writes the open step's cell in a column of any type.
    fn write(&mut self, column: usize, cell: &[u8]) -> Result<()> {
        if self.schema().cells[column].dtype.is_string() {
            return self.set_string(column, cell);
        }
        self.cell_mut(column).copy_from_slice(cell);
        Ok(())
    }

    /// Encodes the columns. This is the part of sealing that can fail. Items may refer to cells of the open
    /// step that earlier partial appends set, so those cells are included as extra rows that belong
    /// to none of the chunk's steps.
    ///
    /// # Errors
    /// Those of [`ChunkBuilder::pack`]; the chunk is then unchanged.
    pub(super) fn pack(&mut self, compressor: &mut Compressor) -> Result<PackedColumns> {
        let (cell_states, builder) = (&self.cell_states, &mut self.builder);
        let set_columns = || {
            (0..cell_states.len())
                .filter(|column| cell_states[*column] == CellState::SetByEarlierAppend)
        };
        for column in set_columns() {
            builder.commit(column);
        }
        let packed = builder.pack(compressor);
        if packed.is_err() {
            for column in set_columns() {
                builder.uncommit(column);
            }
        }
        packed
    }

    /// Returns the packed chunk as an immutable chunk, and the rows of its steps.
    pub(super) fn seal(self, packed: PackedColumns, origin: Origin) -> (Chunk, RowMap) {
        (self.builder.finish(packed, origin), self.rows)
    }
}
