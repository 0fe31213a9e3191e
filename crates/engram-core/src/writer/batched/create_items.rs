//! Creates the items of patterns at the newest step of all environments.

use std::sync::Arc;

use super::super::StepPosition;
use super::super::condition::{Condition, ConditionInput, StepContext, read_integer};
use super::super::open_batch::OpenBatch;
use super::super::pattern::Pattern;
use super::super::pending_items::PendingTrajectory;
use super::super::priority_rule::PriorityRule;
use super::split_window::SplitWindow;
use super::td_errors::td_error_stats;
use super::{BatchedPattern, BatchedRecorder};
use crate::error::Result;
use crate::schema::Schema;

impl BatchedRecorder {
    /// Applies every pattern to the newest step of every environment; returns the number of items created.
    /// `ends_episode` is true for environments whose episode ends with this step. If an item cannot be created, creates
    /// the others nevertheless, and then returns the first error.
    pub(super) fn create_due_items(
        &mut self,
        ends_episode: impl Fn(usize) -> bool,
        check_priority: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        let Some(open) = &self.open else {
            return Ok(0);
        };
        let newest = open.index_of(self.complete_steps - 1);
        let mut outcome = Ok(());
        let old_len = self.pending.len();
        let longest_lookback = self.longest_lookback;
        for BatchedPattern {
            pattern,
            applied_at,
        } in &mut self.patterns
        {
            let Some(first) = self.complete_steps.checked_sub(pattern.lookback) else {
                continue;
            };
            // All environments are at the same step, so the window is located once. `None`: it lies in the open chunks.
            let split_window = if first >= open.first {
                None
            } else {
                let window = SplitWindow::new(pattern, &self.history, open, first);
                match window.transpose() {
                    // No item: some of its steps are no longer retained.
                    None => continue,
                    window => window,
                }
            };
            // Used only if `split_window` is `None`.
            let open_window = OpenWindow::new(pattern, open, &self.schema, first);
            let uses_applied_at = pattern
                .conditions
                .iter()
                .any(|c| c.input == ConditionInput::StepsSinceApplied);
            for (env, applied_at) in applied_at.iter_mut().enumerate() {
                if first < self.episode_start[env] {
                    continue;
                }
                if !pattern.conditions.is_empty() {
                    // At the last step of an episode the conditions are evaluated twice: without `end_of_episode`,
                    // as at any step, and with it. Callers of `PatternSet::apply` do the same.
                    let is_due = |end_of_episode| {
                        let context = StepContext {
                            step_index: self.complete_steps - 1 - self.episode_start[env],
                            since_applied: self.complete_steps - *applied_at,
                            history_length: (self.complete_steps - self.episode_start[env])
                                .min(longest_lookback),
                            end_of_episode,
                        };
                        all_met(
                            &pattern.conditions,
                            context,
                            open,
                            &self.schema,
                            (env, newest),
                        )
                    };
                    if !(is_due(false) || ends_episode(env) && is_due(true)) {
                        continue;
                    }
                }
                let trajectory = match &split_window {
                    None => open_window.trajectory(env),
                    Some(Ok(window)) => window.trajectory(env),
                    // The same error for every environment.
                    Some(Err(error)) => {
                        outcome = outcome.and(Err(error.clone()));
                        break;
                    }
                };
                let priority = match pattern.priority {
                    PriorityRule::Constant(priority) => Ok(priority),
                    PriorityRule::TdError { column, max_weight } => {
                        td_error_stats(pattern, column, &self.history, open, env, first).and_then(
                            |stats| {
                                stats.checked_priority(
                                    max_weight,
                                    pattern.name(column),
                                    |priority| check_priority(pattern.table, priority),
                                )
                            },
                        )
                    }
                };
                let priority = match priority {
                    Ok(priority) => priority,
                    Err(error) => {
                        outcome = outcome.and(Err(error));
                        continue;
                    }
                };
                if uses_applied_at {
                    *applied_at = self.complete_steps;
                }
                let key = self.keys.next_key();
                self.pending.push(pattern.table, key, priority, trajectory);
            }
        }
        outcome.map(|()| self.pending.len() - old_len)
    }
}

/// A pattern's window that lies entirely in the open chunks.
pub(super) struct OpenWindow<'a> {
    pattern: &'a Pattern,
    /// `Some(squeeze)` if the items are rows of all columns.
    as_rows: Option<bool>,
    /// Number of steps that an open chunk has room for.
    capacity_steps: usize,
    /// Index in the open chunks of the window's first step.
    first_index: StepPosition,
}

impl<'a> OpenWindow<'a> {
    pub(super) fn new(
        pattern: &'a Pattern,
        open: &OpenBatch,
        schema: &Schema,
        first: StepPosition,
    ) -> Self {
        Self {
            pattern,
            as_rows: pattern.as_rows(schema),
            capacity_steps: open.grouping.capacity_steps,
            first_index: first.saturating_sub(open.first),
        }
    }

    /// Returns the trajectory of one environment's item.
    pub(super) fn trajectory(&self, env: usize) -> PendingTrajectory {
        // `begin_chunks` checked that the rows of all environments fit 32 bits.
        let row = (env * self.capacity_steps) as StepPosition + self.first_index;
        let offset = u32::try_from(row).unwrap_or(u32::MAX);
        match self.as_rows {
            Some(squeeze) => PendingTrajectory::Rows {
                offset,
                len: u32::try_from(self.pattern.lookback - self.pattern.end_offset)
                    .unwrap_or(u32::MAX),
                squeeze,
            },
            None => PendingTrajectory::Window {
                offset,
                shape: Arc::clone(&self.pattern.shape),
            },
        }
    }
}

/// True if an environment's step meets all conditions. `step` is its index in the open chunks.
fn all_met(
    conditions: &[Condition],
    context: StepContext,
    open: &OpenBatch,
    schema: &Schema,
    (env, step): (usize, usize),
) -> bool {
    let value = |column: usize| read_integer(&schema.cells[column], open.cell(column, env, step));
    conditions.iter().all(|c| c.is_met(context, value))
}
