//! Appends steps of all environments.

use std::ops::Range;

use super::super::appended_steps::AppendedSteps;
use super::super::column_input::{ColumnInput, check};
use super::{BatchedRecorder, STRING_BUDGET};
use crate::error::Result;

impl BatchedRecorder {
    /// Appends one step of every environment, creates the items that are due by the patterns, and
    /// returns their number. `episode_ends` is true for environments whose episode ends with this step.
    /// `check_priority(table, priority)` checks a priority that was computed from TD errors.
    ///
    /// # Errors
    /// Those of [`Self::append_steps`], after which the step is not written; and those of [`AppendedSteps::items`],
    /// after which the step is written and all other items are created.
    pub fn append_batch(
        &mut self,
        columns: &[ColumnInput<'_>],
        episode_ends: Option<&[bool]>,
        check_priority: impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        let appended = self.append_steps(columns, episode_ends, (1, 0..1), &check_priority)?;
        appended.items
    }

    /// Appends steps of every environment: one if there are strings, otherwise as many as the open chunks have room
    /// for. Creates the items that are due by the patterns, in the same order as [`Self::append_batch`] for each step.
    /// `columns` and `episode_ends` have `steps_per_env` steps per environment, environment after environment, of which
    /// those with the indices `steps` are appended.
    ///
    /// # Errors
    /// Nothing is written after [`Error::Signature`](crate::Error::Signature) for columns that do not match the schema,
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a step that is too large, `episode_ends` of the
    /// wrong length or a `chunk_length` that is too large for this many environments, or
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    ///
    /// [`AppendedSteps::items`] is [`Error::Signature`](crate::Error::Signature) for an item whose cells differ in
    /// shape, [`Error::Priority`](crate::Error::Priority) for TD errors of an unsupported type, or an error of
    /// `check_priority`.
    pub fn append_steps(
        &mut self,
        columns: &[ColumnInput<'_>],
        episode_ends: Option<&[bool]>,
        (steps_per_env, steps): (usize, Range<usize>),
        check_priority: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<AppendedSteps> {
        check(
            columns,
            episode_ends,
            &self.schema,
            (self.envs, steps_per_env),
        )?;
        let written = self.push_cells(columns, steps_per_env, steps.clone())?;
        let mut items = Ok(0);
        for step in steps.start..steps.start + written {
            self.advance_step();
            let ends =
                |env: usize| episode_ends.is_some_and(|ends| ends[env * steps_per_env + step]);
            let created = self.create_due_items(ends, check_priority);
            items = items.and_then(|items| Ok(items + created?));
            for env in (0..self.envs).filter(|env| ends(*env)) {
                if let Some(open) = &self.open {
                    let newest = open.index_of(self.complete_steps - 1);
                    let steps = self.complete_steps - self.episode_start[env];
                    self.lost_flags.check_last_step(open, (env, newest), steps);
                }
                self.start_episode(env);
            }
        }
        Ok(AppendedSteps {
            steps: written,
            items,
        })
    }

    /// Ensures that the open chunks have room for a step: opens the first ones, and seals full ones, as the next step
    /// would do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a `chunk_length` that is too large for this many
    /// environments, [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn make_room(&mut self) -> Result<()> {
        if self.open.as_ref().is_none_or(|o| o.is_full(STRING_BUDGET)) {
            self.begin_chunks()?;
        }
        Ok(())
    }

    /// Number of chunks of each environment that can be filled before their items are sent, if no table makes the writer
    /// wait.
    #[must_use]
    pub fn chunks_per_send(&self) -> usize {
        self.options.chunks_per_send(&self.schema, self.envs)
    }

    /// Writes one step of every environment, whose columns were checked. On failure nothing is written.
    pub(super) fn push_step(&mut self, columns: &[ColumnInput<'_>]) -> Result<()> {
        self.push_cells(columns, 1, 0..1)?;
        self.advance_step();
        Ok(())
    }

    /// Writes the cells of steps, whose columns were checked, as `OpenBatch::push_steps` does; returns their number.
    /// [`Self::advance_step`] must then be called for each. On failure nothing is written.
    fn push_cells(
        &mut self,
        columns: &[ColumnInput<'_>],
        steps_per_env: usize,
        steps: Range<usize>,
    ) -> Result<usize> {
        self.make_room()?;
        let Some(open) = &mut self.open else {
            unreachable!("`make_room` sets `open`")
        };
        open.push_steps(columns, steps_per_env, steps)
    }

    /// Makes the next step whose cells were written the newest step.
    fn advance_step(&mut self) {
        let Some(open) = &mut self.open else {
            unreachable!("`push_cells` sets `open`")
        };
        if open.lists_no_episodes() {
            self.envs_with_new_episode.clear();
            self.envs_with_new_episode.extend(0..self.envs);
        }
        for env in self.envs_with_new_episode.drain(..) {
            open.add_episode(env, self.episode[env]);
        }
        self.complete_steps += 1;
    }

    /// Begins a new episode with the environment's next step.
    pub(super) fn start_episode(&mut self, env: usize) {
        self.episode_start[env] = self.complete_steps;
        self.episode[env] = self.keys.next_key();
        self.envs_with_new_episode.push(env);
    }
}
