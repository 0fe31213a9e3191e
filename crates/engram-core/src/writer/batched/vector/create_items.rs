//! Creates the items of a vector recorder's rules.

use super::super::BatchedRecorder;
use super::super::create_items::OpenWindow;
use super::super::split_window::SplitWindow;
use super::env_window::{EnvWindow, RetainedRows, SideRow};
use super::rule::{AtEnd, BoundRule};
use super::{Episodes, VectorRecorder};

impl VectorRecorder {
    /// Creates the items of full length that end with the newest row.
    pub(super) fn create_full_items(&mut self) {
        let (rows, episodes) = (&mut self.rows, &self.episodes);
        let Some(open) = &rows.open else {
            return;
        };
        let retained = RetainedRows {
            history: &rows.history,
            open: Some(open),
            end: rows.complete_steps,
        };
        for rule in &self.rules {
            // All environments are at the same row, so windows of rows are located once.
            let first = rows.complete_steps.checked_sub(rule.full.lookback);
            let open_window = first
                .filter(|first| *first >= open.first)
                .map(|first| OpenWindow::new(&rule.full, open, &rows.schema, first));
            let split_window = first
                .filter(|_| open_window.is_none())
                .and_then(|first| SplitWindow::new(&rule.full, &rows.history, open, first).ok()?);
            for env in 0..rows.envs {
                if !rule.is_due(episodes.transitions[env]) {
                    continue;
                }
                let first_observation = episodes.first_observation_within(env, rule.length);
                let trajectory = match (first_observation, &open_window, &split_window) {
                    (None, Some(window), _) => window.trajectory(env),
                    (None, _, Some(window)) => window.trajectory(env),
                    _ => {
                        let window = EnvWindow {
                            env,
                            transitions: rule.length,
                            first_observation,
                            return_cells: None,
                            padding: None,
                        };
                        window.trajectory(retained, rule)
                    }
                };
                let key = rows.keys.next_key();
                rows.pending
                    .push(rule.table(), key, rule.priority, trajectory);
            }
        }
    }

    /// Ends an environment's episode with the newest row: creates the items that are shorter, or padded, because the
    /// episode ends.
    pub(super) fn end_episode(&mut self, env: usize) {
        let count = self.episodes.transitions[env];
        for rule in &self.rules {
            let lengths = match rule.at_end {
                None => 1..=count.min(rule.length - 1),
                Some(AtEnd::Drop) => continue,
                Some(AtEnd::Cut | AtEnd::Pad) => match rule.cut_transitions(count) {
                    0 => continue,
                    cut => cut..=cut,
                },
            };
            let padding = (self.zeros.as_ref()).filter(|_| rule.at_end == Some(AtEnd::Pad));
            for transitions in lengths.rev() {
                let window = EnvWindow {
                    env,
                    transitions,
                    first_observation: self.episodes.first_observation_within(env, transitions),
                    return_cells: push_return_cells(
                        &mut self.rows,
                        rule,
                        env,
                        transitions,
                        self.episodes.terminated[env],
                    ),
                    padding: padding.map(|zeros| (rule.length - transitions, zeros)),
                };
                push_item(&mut self.rows, rule, window);
            }
        }
        self.episodes.running[env] = false;
        self.episodes.transitions[env] = 0;
    }
}

/// Creates the rule's item of a window.
fn push_item(rows: &mut BatchedRecorder, rule: &BoundRule, window: EnvWindow<'_>) {
    let retained = RetainedRows {
        history: &rows.history,
        open: rows.open.as_ref(),
        end: rows.complete_steps,
    };
    let trajectory = window.trajectory(retained, rule);
    let key = rows.keys.next_key();
    rows.pending
        .push(rule.table(), key, rule.priority, trajectory);
}

/// Adds to the side cells the return of an environment's last `transitions`, fewer than a full window has, and its
/// discount. `None` if the rule's items have no returns.
fn push_return_cells(
    rows: &mut BatchedRecorder,
    rule: &BoundRule,
    env: usize,
    transitions: u64,
    terminated: bool,
) -> Option<SideRow> {
    let episode = rows.episode[env];
    let (open, (sums, columns)) = (rows.open.as_mut()?, rule.returns.as_ref()?);
    let mut row = 0;
    let cells = sums.of_last(usize::try_from(transitions).ok()?, env, terminated);
    for (column, cell) in columns.iter().zip(cells) {
        row = open.side.push(*column, &cell, episode);
    }
    Some(SideRow {
        ordinal: open.ordinal,
        row,
    })
}

impl Episodes {
    /// Returns where the first observation is, if it is a side cell and the last `transitions` begin with it.
    fn first_observation_within(&self, env: usize, transitions: u64) -> Option<SideRow> {
        self.first_observation[env].filter(|_| self.transitions[env] == transitions)
    }
}
