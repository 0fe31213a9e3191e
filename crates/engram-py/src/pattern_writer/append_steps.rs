//! Appends many steps at once.

use engram_core::writer::{AppendedSteps, ColumnInput};
use pyo3::prelude::*;

use super::PatternState;
use crate::errors;
use crate::sender::PatternTables;
use crate::stacked_leaves::{StackedLeaves, with_stored_steps};
use crate::step_flattener::StepEffects;

impl PatternState {
    /// Appends the steps of a nest of arrays `[T, ...]`. Copies columns a chunk at a time, and waits for tables as
    /// often as [`PatternState::append`] would, unless no table can make it wait.
    pub(super) fn append_steps(&mut self, steps: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = steps.py();
        self.sender.wait_for_capacity(py)?;
        if self.recorder.step_is_open() {
            let text =
                "the last step is not complete; complete it with `append` before `append_steps`";
            return Err(errors::invalid(py, text.into()));
        }
        let mut effects = StepEffects::default();
        let prepared = self.steps.prepare(&mut self.recorder, steps, &mut effects);
        let total = prepared.as_ref().map_or(1, StackedLeaves::steps);
        if total == 0 {
            self.steps.settle(&mut self.recorder, &effects, Ok(()))?;
            // Without steps, nothing determines the structure.
            return if self.appends == 0 {
                self.restart(py)
            } else {
                Ok(())
            };
        }
        let ready = self.update_patterns(py, prepared, true, &effects);
        let settled = self.steps.settle(&mut self.recorder, &effects, ready);
        let stacked = settled.or_else(|error| self.reject(error, steps))?;
        // Before any address or length is read, because preventing a resize may run Python code.
        let _resize_guards = stacked.prevent_resize()?;
        let mut columns: Vec<Option<ColumnInput<'_>>> =
            vec![None; self.recorder.schema().cells.len()];
        for (index, leaf) in stacked.leaves.iter().enumerate() {
            if let (Some(leaf), Some(column)) = (leaf, self.steps.column(index)) {
                columns[column] = Some(leaf.column()?);
            }
        }
        let mut appended = 0;
        // The first error about items: the other steps are appended nevertheless.
        let mut items = Ok(());
        let outcome = self.append_columns(py, &columns, total, &mut appended, &mut items);
        let outcome = errors::all_of(py, [outcome, items]);
        outcome.map_err(|error| with_stored_steps(py, error, appended, total))
    }

    /// Appends `total` steps. Sets `appended` to the number of those that are stored, also after an error, and `items` to the
    /// first error about items.
    fn append_columns(
        &mut self,
        py: Python<'_>,
        columns: &[Option<ColumnInput<'_>>],
        total: usize,
        appended: &mut usize,
        items: &mut PyResult<()>,
    ) -> PyResult<()> {
        let to_py = |error| errors::to_py(py, &error);
        let patterns = (0..self.num_patterns).filter_map(|number| self.patterns.get(number));
        let tables = PatternTables::new(&self.sender, patterns);
        let check_priority = |table, priority| tables.check_priority(table, priority);
        while *appended < total {
            py.check_signals()?;
            self.sender.wait_for_capacity(py)?;
            // The items of a full chunk are sent with the next step, as `append` does.
            self.recorder.make_room().map_err(to_py)?;
            self.sender.send(py, &mut self.recorder)?;
            let steps = *appended..self.sender.run_end(py, *appended, total);
            let chunks = if self.sender.never_waits(py, &tables) {
                self.recorder.chunks_per_send()
            } else {
                1
            };
            let (recorder, patterns) = (&mut self.recorder, &mut self.patterns);
            let run = py.detach(|| {
                AppendedSteps::collect(steps, chunks, |steps| {
                    let steps = recorder.append_steps(columns, steps)?;
                    let items = patterns.apply_to_last(recorder, steps, check_priority);
                    Ok(AppendedSteps { steps, items })
                })
            });
            let run = run.map_err(to_py)?;
            *appended += run.steps;
            self.appends += run.steps as u64;
            if let (Ok(()), Err(error)) = (&items, run.items) {
                *items = Err(to_py(error));
            }
            self.sender.send(py, &mut self.recorder)?;
        }
        Ok(())
    }
}
