//! Appends many steps at once.

use engram_core::writer::{AppendedSteps, ColumnInput};
use pyo3::prelude::*;

use super::{BatchedState, warn_of_lost_flags};
use crate::errors;
use crate::stacked_leaves::{Axis, StackedLeaves, with_stored_steps};
use crate::structure::with_array_hint;

impl BatchedState {
    /// Appends the steps of a nest of arrays `[N, T, ...]`. `ends` has a flag for each step of each environment, and
    /// `T`. Copies columns a chunk at a time, and waits for tables as often as [`BatchedState::append`] would, unless no
    /// table can make it wait.
    pub(super) fn append_steps(
        &mut self,
        steps: &Bound<'_, PyAny>,
        ends: Option<&(Vec<bool>, usize)>,
    ) -> PyResult<()> {
        let py = steps.py();
        self.sender.wait_for_capacity(py)?;
        let stacked = self.read(steps, ends.map(|(_, total)| *total));
        let stacked = stacked.map_err(|error| with_array_hint(error, steps))?;
        let total = stacked.sizes.get(1).copied().unwrap_or(0);
        // Before any address or length is read, because preventing a resize may run Python code.
        let _resize_guards = stacked.prevent_resize()?;
        let columns = stacked.columns()?;
        let ends = ends.map(|(ends, _)| ends.as_slice());
        let mut appended = 0;
        // The first error about items: the other steps are appended nevertheless.
        let mut items = Ok(());
        let outcome = self.append_columns(py, &columns, (ends, total), &mut appended, &mut items);
        let outcome = errors::all_of(py, [outcome, items]);
        outcome.map_err(|error| with_stored_steps(py, error, appended, total))
    }

    /// Reads and checks steps, of which there must be `total` if it is given, and prepares the recorder.
    fn read<'py>(
        &mut self,
        steps: &Bound<'py, PyAny>,
        total: Option<usize>,
    ) -> PyResult<StackedLeaves<'py>> {
        let py = steps.py();
        let (values, new_structure) = self.flatten(steps)?;
        let names = self.names(new_structure.as_ref());
        let time = total.map_or(Axis::any("T", "step"), |total| Axis::of(total, "step"));
        let axes = [Axis::of(self.num_envs, "environment"), time];
        let stacked = StackedLeaves::read(py, &values, names, &axes, false)?;
        if stacked.sizes.get(1).is_some_and(|total| *total > 0) {
            let cells = stacked
                .leaves
                .iter()
                .flatten()
                .map(|leaf| leaf.cell.clone());
            self.prepare(py, new_structure, cells.collect())?;
        }
        Ok(stacked)
    }

    /// Appends `total` steps of each environment. Sets `appended` to the number of those that are stored, also after an
    /// error, and `items` to the first error about items.
    fn append_columns(
        &mut self,
        py: Python<'_>,
        columns: &[ColumnInput<'_>],
        (ends, total): (Option<&[bool]>, usize),
        appended: &mut usize,
        items: &mut PyResult<()>,
    ) -> PyResult<()> {
        let to_py = |error| errors::to_py(py, &error);
        while *appended < total {
            py.check_signals()?;
            self.sender.wait_for_capacity(py)?;
            let Some((_, recorder)) = &mut self.recording else {
                break;
            };
            // The items of full chunks are sent with the next step, as `append` does.
            recorder.make_room().map_err(to_py)?;
            self.sender.send(py, recorder)?;
            let steps = *appended..self.sender.run_end(py, *appended, total);
            let tables = &self.tables;
            let accepts = |table, priority| tables.check_priority(table, priority);
            let chunks = if self.sender.never_waits(py, tables) {
                recorder.chunks_per_send()
            } else {
                1
            };
            let run = py.detach(|| {
                AppendedSteps::collect(steps, chunks, |steps| {
                    recorder.append_steps(columns, ends, (total, steps), &accepts)
                })
            });
            let run = run.map_err(to_py)?;
            *appended += run.steps;
            if let (Ok(()), Err(error)) = (&items, run.items) {
                *items = Err(to_py(error));
            }
            self.sender.send(py, recorder)?;
            warn_of_lost_flags(py, recorder)?;
        }
        Ok(())
    }
}
