//! The items that patterns make of a batch's newest step.

use std::sync::Arc;

use super::super::StepPosition;
use super::super::batch_chunk::OpenBatch;
use super::super::condition::{Condition, ConditionInput, Moment, number};
use super::super::pattern::Pattern;
use super::super::pending::Body;
use super::super::priority::PriorityRule;
use super::plan::Plan;
use super::priority::sizes;
use super::{BatchedRecorder, Entry};
use crate::error::Result;
use crate::schema::Schema;

impl BatchedRecorder {
    /// Tries every pattern on the newest step of every environment.
    pub(super) fn make_items(
        &mut self,
        ends: Option<&[bool]>,
        accepts: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        let Some(open) = &self.open else {
            return Ok(0);
        };
        let mut problem = Ok(());
        let before = self.pending.len();
        let furthest = self.patterns.iter().map(|e| e.pattern.reach).max();
        for Entry { pattern, applied } in &mut self.patterns {
            let Some(first) = self.head.checked_sub(pattern.reach) else {
                continue;
            };
            // All environments are at the same step: where its window lies is found out once.
            let plan = if first >= open.first {
                Ok(None)
            } else {
                match Plan::new(pattern, &self.history, open, first) {
                    Ok(None) => continue,
                    plan => plan,
                }
            };
            let inside = Inside::new(pattern, open, &self.schema, first);
            let counts = pattern
                .conditions
                .iter()
                .any(|c| c.subject == ConditionInput::StepsSinceApplied);
            for env in 0..self.envs {
                if first < self.episode_first[env] {
                    continue;
                }
                if !pattern.conditions.is_empty() {
                    // Tried as any step first and then as the last, as one stream's steps are.
                    let holds = |end_of_episode| {
                        let moment = Moment {
                            step_index: self.head - 1 - self.episode_first[env],
                            since_applied: self.head - applied[env],
                            history_length: (self.head - self.episode_first[env])
                                .min(furthest.unwrap_or(0)),
                            end_of_episode,
                        };
                        due(&pattern.conditions, moment, open, &self.schema, env)
                    };
                    if !(holds(false) || ends.is_some_and(|ends| ends[env]) && holds(true)) {
                        continue;
                    }
                }
                let body = match &plan {
                    Ok(None) => inside.body(env),
                    Ok(Some(plan)) => plan.body(env),
                    Err(error) => {
                        problem = problem.and(Err(error.clone()));
                        break;
                    }
                };
                let priority = match pattern.priority {
                    PriorityRule::Constant(priority) => Ok(priority),
                    PriorityRule::TdError { column, max_weight } => {
                        sizes(pattern, column, &self.history, open, env, first)
                            .map(|sizes| sizes.priority(max_weight))
                            .and_then(|found| accepts(pattern.table, found).map(|()| found))
                    }
                };
                let priority = match priority {
                    Ok(priority) => priority,
                    Err(error) => {
                        problem = problem.and(Err(error));
                        continue;
                    }
                };
                if counts {
                    applied[env] = self.head;
                }
                let key = self.keys.next_key();
                self.pending.push(pattern.table, key, priority, body);
            }
        }
        problem.map(|()| self.pending.len() - before)
    }
}

/// A window inside the open chunks.
struct Inside<'a> {
    pattern: &'a Pattern,
    /// Whether its items are rows of all columns, and then squeezed or not.
    as_rows: Option<bool>,
    length: usize,
    /// Steps of the open chunks before the window.
    step: StepPosition,
}

impl<'a> Inside<'a> {
    fn new(pattern: &'a Pattern, open: &OpenBatch, schema: &Schema, first: StepPosition) -> Self {
        Self {
            pattern,
            as_rows: pattern.as_rows(schema),
            length: open.grouping.length,
            step: first.saturating_sub(open.first),
        }
    }

    fn body(&self, env: usize) -> Body {
        // The rows of all environments were counted in 32 bits when the chunks were begun.
        let row = (env * self.length) as StepPosition + self.step;
        let offset = u32::try_from(row).unwrap_or(u32::MAX);
        match self.as_rows {
            Some(squeeze) => Body::Rows {
                offset,
                len: u32::try_from(self.pattern.reach - self.pattern.tail).unwrap_or(u32::MAX),
                squeeze,
            },
            None => Body::Window {
                offset,
                shape: Arc::clone(&self.pattern.shape),
            },
        }
    }
}

fn due(
    conditions: &[Condition],
    moment: Moment,
    open: &OpenBatch,
    schema: &Schema,
    env: usize,
) -> bool {
    let value = |column: usize| number(&schema.cells[column], open.newest(column, env));
    conditions.iter().all(|c| c.holds(moment, value))
}
