//! Appends many steps at once.

use std::ops::Range;

use super::super::StepPosition;
use super::super::column_input::ColumnInput;
use super::Recorder;
use crate::error::Result;

impl Recorder {
    /// Ensures that the open chunk has room for a step: opens the first one, and seals a full one, as the next step
    /// would do.
    ///
    /// # Errors
    /// Those of [`Self::finish_step`].
    pub fn make_room(&mut self) -> Result<()> {
        self.writable_chunk().map(drop)
    }

    /// Number of chunks that can be filled before their items are sent, if no table makes the writer wait.
    #[must_use]
    pub fn chunks_per_send(&self) -> usize {
        self.options.chunks_per_send(&self.schema, 1)
    }

    /// Appends complete steps until the open chunk is full or the next step cannot be written, at least one; returns
    /// their number. If that step caused the end, a call that begins with it returns its error. `columns` are the cells
    /// of each column, step after step; a column that is `None` has no value in these steps. The appended steps are the
    /// first ones of those with the indices `steps`. No step may be open.
    ///
    /// The caller must have checked the number and the sizes of the cells against [`Self::schema`].
    ///
    /// # Errors
    /// Those of [`Self::cell_mut`], for the first of the steps; nothing is then appended.
    pub fn append_steps(
        &mut self,
        columns: &[Option<ColumnInput<'_>>],
        steps: Range<usize>,
    ) -> Result<usize> {
        debug_assert!(!self.step_open, "no step may be open");
        let appended = self.writable_chunk()?.append_steps(columns, steps)?;
        self.complete_steps += appended as StepPosition;
        Ok(appended)
    }
}
