//! Reads cells back from the recorder's available steps.

use std::ops::Range;

use super::super::StepPosition;
use super::super::condition::read_integer;
use super::super::priority_rule::TdErrorStats;
use super::super::selection::OPEN;
use super::Recorder;
use crate::chunk::string_cells;
use crate::error::Result;
use crate::schema::CellSpec;
use crate::trajectory::Slice;

impl Recorder {
    /// Returns dtype and shape of a column's cell at a step. `None` if the column has no value there, or if items
    /// cannot refer to the step.
    #[must_use]
    pub fn cell_spec(&self, column: usize, position: StepPosition) -> Option<&CellSpec> {
        let view = self.view();
        let slice = view.locate_run(column, position, 1).ok()?;
        view.cell(slice)
    }

    /// Returns the value of a column at the newest of the available `steps`, if it is a single integer or bool.
    pub(in super::super) fn newest_integer(
        &self,
        column: usize,
        steps: &Range<StepPosition>,
    ) -> Option<i128> {
        let newest = steps.end.checked_sub(1)?;
        let view = self.view_of(steps.clone());
        let slice = view.locate_run(column, newest, 1).ok()?;
        let spec = view.cell(slice)?;
        if spec.elements() != 1 {
            return None;
        }
        if let (OPEN, Some(open)) = (slice.chunk, &self.open) {
            return read_integer(spec, open.cell(slice.column as usize, slice.offset));
        }
        let mut cell = Vec::new();
        self.read_slice(slice, &mut cell).ok()?;
        read_integer(spec, &cell)
    }

    /// Appends the bytes of one cell to `out`. Strings are encoded.
    ///
    /// # Errors
    /// [`crate::Error::ExpiredStep`] if the step is no longer retained or was cleared;
    /// [`crate::Error::InvalidArgument`] if it was not appended yet or has no value in this column;
    /// those of [`Chunk::unpack`](crate::Chunk::unpack) for a sealed chunk.
    pub fn read_cell(
        &self,
        column: usize,
        position: StepPosition,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let slice = self
            .view()
            .locate_run(column, position, 1)
            .map_err(|error| self.selection_error(error, None))?;
        self.read_slice(slice, out)
    }

    /// Appends the bytes of a located cell to `out`.
    fn read_slice(&self, slice: Slice, out: &mut Vec<u8>) -> Result<()> {
        let (chunk_column, row) = (slice.column as usize, slice.offset as usize);
        if slice.chunk == OPEN {
            if let Some(open) = &self.open {
                out.extend_from_slice(open.cell(chunk_column, slice.offset));
            }
        } else {
            let chunk = &self.history.get(slice.chunk as usize).chunk;
            let cell = &chunk.schema().cells[chunk_column];
            let from = row * cell.bytes();
            match chunk.raw(chunk_column) {
                Some(raw) if cell.dtype.is_string() => {
                    let rows = chunk.extents()[chunk_column].rows as usize;
                    out.extend_from_slice(string_cells(raw, rows, row, 1)?);
                }
                Some(raw) => out.extend_from_slice(&raw[from..from + cell.bytes()]),
                None => {
                    let raw = chunk.unpack(chunk_column)?;
                    out.extend_from_slice(&raw[from..from + cell.bytes()]);
                }
            }
        }
        Ok(())
    }

    /// Adds the cells of a located slice to the statistics of TD errors. `name` is the name of the item's column.
    pub(super) fn add_td_errors(
        &self,
        slice: Slice,
        name: &str,
        stats: &mut TdErrorStats,
    ) -> Result<()> {
        let chunk_column = slice.column as usize;
        if slice.chunk != OPEN {
            let chunk = &self.history.get(slice.chunk as usize).chunk;
            let (first, len) = (slice.offset as usize, slice.len as usize);
            return stats.add_rows(name, chunk, chunk_column, first, len);
        }
        let spec = &self.schema.cells[chunk_column];
        for row in slice.offset..slice.offset + slice.len {
            if let Some(open) = &self.open {
                stats.add(name, spec, open.cell(chunk_column, row))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{append, recorder};
    use crate::error::Error;

    #[test]
    fn errors_of_reads_do_not_mention_a_trajectory() {
        let mut recorder = recorder(2, None);
        append(&mut recorder, 3);
        let read = |recorder: &super::Recorder, position| {
            let outcome = recorder.read_cell(0, position, &mut Vec::new());
            outcome.unwrap_err()
        };
        assert_eq!(
            read(&recorder, 0),
            Error::ExpiredStep(
                "cannot read column `a` at step 0 of this writer (counted from 0 over all episodes), which has \
                 expired: the writer retains only the newest 2 steps (`history`); steps 1 to 2 are available; read it \
                 earlier or raise `history`"
                    .into()
            )
        );
        recorder.end_episode(true).unwrap();
        assert_eq!(
            read(&recorder, 2),
            Error::ExpiredStep(
                "cannot read column `a` at step 2 of this writer (counted from 0 over all episodes), which was cleared \
                 at the end of its episode; no steps are available; read it before the episode ends, or end it \
                 with `clear=False`"
                    .into()
            )
        );
    }
}
