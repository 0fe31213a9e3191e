//! Records the transitions of many environments that step together, and creates items that never cross the end of an
//! episode.
//!
//! ```text
//!   call of `step`:        1      2      3      4      5         (SAME_STEP; the episode ends in call 3)
//!                      +------+------+------+------+------+
//!   rows of one        | a0   | a1   | a2   | b0   | b1   |      actions a, rewards, ...
//!   environment        | o1   | o2   | o3   | p1   | p2   |      observations o, then those of the next episode, p
//!                      +------+------+------+------+------+
//!   side cells      o0                 p0                        first observations
//! ```
//!
//! * The **row** of a transition has its action, its reward and the observation that follows. One call of `step` writes
//!   one row for each environment, so the rows of all environments stay aligned, as in the [`BatchedRecorder`] that
//!   writes them.
//! * A **first observation** belongs to no transition. With [`AutoresetMode::NextStep`] the row of the step that resets
//!   the environment has it. Otherwise it is a side cell, as is one given to `reset`.
//! * Each row has the return of the full n-step window that ends with it. The returns of the shorter windows at the end
//!   of an episode are side cells.

mod create_items;
mod env_window;
mod returns;
mod row_columns;
mod rule;

use std::sync::Arc;
use std::vec::Drain;

use super::super::column_input::ColumnInput;
use super::super::item_recorder::ItemRecorder;
use super::super::options::WriterOptions;
use super::super::side_cells::zero_chunk;
use super::BatchedRecorder;
use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::item::NewItem;
use crate::schema::{ActualColumn, CellSpec, Schema};
use crate::shared_bytes::SharedBytes;
use crate::text::count;
use env_window::SideRow;
use returns::{encode, encode_all};
use row_columns::RowColumns;
use rule::BoundRule;
pub use rule::{AtEnd, ItemColumn, ItemKind, ItemRule, ItemSource, Part};

/// When an environment whose episode has ended is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoresetMode {
    /// The next step resets it: that step ignores its action, and returns the first observation.
    NextStep,
    /// The same step resets it: it returns the first observation of the next episode.
    SameStep,
    /// The caller resets it before the next step.
    Disabled,
}

/// What one step of all environments returned. `rewards`, `terminated` and `truncated` have an entry per environment.
#[derive(Clone, Copy, Debug)]
pub struct VectorStep<'a> {
    /// The columns of the observations, then those of the transition, such as the action.
    pub columns: &'a [ColumnInput<'a>],
    /// The rewards.
    pub rewards: &'a [f64],
    /// True if the episode ended in a terminal state.
    pub terminated: &'a [bool],
    /// True if the episode ended in another way.
    pub truncated: &'a [bool],
    /// With [`AutoresetMode::SameStep`], if episodes ended: per column of the observations, the last observations of
    /// these episodes, in the order of environments.
    pub last_observations: &'a [SharedBytes<'a>],
}

/// Records transitions, and creates items by rules. See the module's documentation.
#[derive(Debug)]
pub struct VectorRecorder {
    /// Records the rows.
    rows: BatchedRecorder,
    mode: AutoresetMode,
    /// Number of columns of the observations. They are the first columns of the rows.
    num_observations: usize,
    /// Number of columns that the caller gives: the observations, and those of a transition.
    num_given: usize,
    /// The columns of the rows after the given ones, without returns and their discounts: the reward and flags, such as
    /// `terminated`.
    extra_columns: Vec<ItemSource>,
    rules: Vec<BoundRule>,
    episodes: Episodes,
    /// Zeros that pad items; `None` if no rule needs them.
    zeros: Option<Arc<Chunk>>,
    /// The bytes of the columns after the given ones; reused.
    buffers: Vec<Vec<u8>>,
}

/// The current episodes, one entry per environment.
#[derive(Debug)]
struct Episodes {
    /// False before the first observation of the first episode, and after the end of an episode until the next one
    /// begins.
    running: Vec<bool>,
    /// Number of transitions.
    transitions: Vec<u64>,
    /// The first observation, unless it is in the row before the first transition.
    first_observation: Vec<Option<SideRow>>,
    /// True if the episode ended in a terminal state. Set only before `VectorRecorder::end_episode`, which uses it.
    terminated: Vec<bool>,
}

impl VectorRecorder {
    /// Returns a recorder of `envs` environments. The first `num_observations` columns of `schema` are those of the
    /// observations, the others are given for each transition. The keys of items, chunks and episodes are derived from
    /// `base`, which should be random.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for strings, and those of [`BatchedRecorder::new`] and of invalid rules.
    pub fn new(
        options: WriterOptions,
        base: u64,
        envs: usize,
        mode: AutoresetMode,
        schema: &Schema,
        num_observations: usize,
        rules: &[ItemRule],
    ) -> Result<Self> {
        let num_given = schema.cells.len();
        let RowColumns {
            schema,
            extra_columns,
            return_columns,
        } = RowColumns::new(schema, rules)?;
        let bind = |(rule, return_columns): (&ItemRule, [usize; 2])| {
            let column = |source| match source {
                ItemSource::Observation(column) => column,
                ItemSource::Step(column) => num_observations + column,
                ItemSource::Return => return_columns[0],
                ItemSource::Discount => return_columns[1],
                extra => {
                    let number = extra_columns.iter().position(|other| *other == extra);
                    num_given + number.unwrap_or(0)
                }
            };
            BoundRule::new(rule, envs, &schema, column, return_columns)
        };
        let rules = rules.iter().zip(return_columns).map(bind);
        let rules = rules.collect::<Result<Vec<_>>>()?;
        let mut rows = BatchedRecorder::new(options, base, envs, Arc::clone(&schema), Vec::new())?;
        rows.longest_lookback = rules
            .iter()
            .map(|rule| rule.full.lookback)
            .max()
            .unwrap_or(1);
        let padded = rules.iter().filter(|rule| rule.at_end == Some(AtEnd::Pad));
        let zeros = match padded.map(|rule| rule.length).max() {
            Some(length) => {
                let (key, length) = (
                    rows.keys.next_key(),
                    u32::try_from(length).unwrap_or(u32::MAX),
                );
                Some(zero_chunk(&schema, length, key, rows.episode[0])?)
            }
            None => None,
        };
        Ok(Self {
            buffers: vec![Vec::new(); schema.cells.len() - num_given],
            rows,
            mode,
            num_observations,
            num_given,
            extra_columns,
            rules,
            zeros,
            episodes: Episodes {
                running: vec![false; envs],
                transitions: vec![0; envs],
                first_observation: vec![None; envs],
                terminated: vec![false; envs],
            },
        })
    }

    /// Dtypes and shapes of the columns that the caller gives.
    #[must_use]
    pub fn given_cells(&self) -> &[CellSpec] {
        &self.rows.schema.cells[..self.num_given]
    }

    /// Returns the columns of the items of each rule, with the caller's number of its table, to be checked against the
    /// table's signature: those of items of full length and, with [`AtEnd::Cut`], also those of the shortest items.
    pub fn item_columns(
        &self,
    ) -> impl Iterator<Item = (u32, impl Iterator<Item = ActualColumn<'_>> + Clone + '_)> + '_ {
        let lengths = |rule| [(rule, false), (rule, true)];
        let items = self.rules.iter().flat_map(lengths);
        items
            .filter(|(rule, cut): &(&BoundRule, bool)| !cut || rule.at_end == Some(AtEnd::Cut))
            .map(|(rule, cut)| (rule.table(), rule.item_columns(&self.rows.schema, cut)))
    }

    /// Begins a new episode in each environment for which `started` is true. If its current episode has not ended, it
    /// ends as if it had been truncated by the newest step. `observations` are the columns of the first observations of
    /// all environments.
    ///
    /// # Errors
    /// [`Error::Signature`] for columns that do not match the schema, [`Error::InvalidArgument`] unless `started` has
    /// one entry per environment; those of [`BatchedRecorder::make_room`]. Nothing changes then.
    pub fn reset(&mut self, observations: &[SharedBytes<'_>], started: &[bool]) -> Result<()> {
        self.check_observations(observations, &vec![true; self.rows.envs])?;
        self.check_length("mask", started.len())?;
        if self.rows.open.is_none() {
            self.rows.begin_chunks()?; // it changes nothing if it fails
        }
        let mut cell = Vec::new();
        for env in (0..self.rows.envs).filter(|env| started[*env]) {
            if self.episodes.running[env] {
                self.episodes.terminated[env] = false;
                let has_rows = self.episodes.transitions[env] > 0
                    || self.episodes.first_observation[env].is_none();
                self.end_episode(env);
                if has_rows {
                    self.rows.start_episode(env);
                }
            }
            let (Some(open), episode) = (&mut self.rows.open, self.rows.episode[env]) else {
                unreachable!("begin_chunks sets `open`")
            };
            let mut row = 0;
            for (column, bytes) in observations.iter().enumerate() {
                cell.resize(self.rows.schema.cells[column].bytes(), 0);
                let (_, rest) = bytes.split_at(env * cell.len());
                rest.split_at(cell.len()).0.copy_to(&mut cell);
                row = open.side.push(column, &cell, episode);
            }
            let ordinal = open.ordinal;
            self.episodes.begin(env, Some(SideRow { ordinal, row }));
        }
        Ok(())
    }

    /// Records one step of all environments, and creates the items that are due.
    ///
    /// # Errors
    /// [`Error::Signature`] for columns that do not match the schema, [`Error::InvalidArgument`] for lists of the wrong
    /// length, for an environment that has to be reset first, or for one whose episode ends while it is reset; those of
    /// [`BatchedRecorder::append_batch`] for a step that cannot be written. Nothing changes then.
    pub fn step(&mut self, step: &VectorStep<'_>) -> Result<()> {
        self.check_step(step)?;
        self.encode_columns(step);
        let buffers = self.buffers.iter().map(|buffer| ColumnInput::cells(buffer));
        let columns: Vec<_> = step.columns.iter().copied().chain(buffers).collect();
        self.rows.push_step(&columns)?;
        // Nothing fails from here on.
        let ended: Vec<usize> = (0..self.rows.envs)
            .filter(|env| step.terminated[*env] || step.truncated[*env])
            .collect();
        let next_episodes = self.write_last_observations(step, &ended);
        for env in 0..self.rows.envs {
            if self.episodes.running[env] {
                self.episodes.transitions[env] += 1;
            } else {
                self.rows.episode_start[env] = self.rows.complete_steps - 1;
                self.episodes.begin(env, None);
            }
        }
        for (returns, _) in self
            .rules
            .iter_mut()
            .filter_map(|rule| rule.returns.as_mut())
        {
            returns.push(step.rewards);
        }
        self.create_full_items();
        for (index, env) in ended.into_iter().enumerate() {
            self.episodes.terminated[env] = step.terminated[env];
            self.end_episode(env);
            self.rows.start_episode(env);
            if let Some(first) = next_episodes.get(index) {
                self.episodes.begin(env, Some(*first));
            }
        }
        Ok(())
    }

    /// Checks everything that a step gives.
    fn check_step(&self, step: &VectorStep<'_>) -> Result<()> {
        let envs = self.rows.envs;
        for (name, len) in [
            ("rewards", step.rewards.len()),
            ("terminated", step.terminated.len()),
            ("truncated", step.truncated.len()),
        ] {
            self.check_length(name, len)?;
        }
        let cells = self.given_cells();
        let names = &self.rows.schema.layout.names;
        let sizes = step.columns.iter().map(|column| match column {
            ColumnInput::Cells(bytes) => Some(bytes.len()),
            ColumnInput::Strings(_) => None,
        });
        let expected = cells.iter().map(|cell| Some(cell.bytes() * envs));
        if !sizes.eq(expected) {
            return Err(Error::Signature(format!(
                "the step must have the columns {:?} of {}, as the first one had",
                &names[..self.num_given],
                count(envs, "environment")
            )));
        }
        if self.mode == AutoresetMode::SameStep {
            let ended = step.terminated.iter().zip(step.truncated);
            let ended: Vec<_> = ended.map(|(a, b)| *a || *b).collect();
            if ended.contains(&true) {
                self.check_observations(step.last_observations, &ended)?;
            }
        }
        let flags = step.terminated.iter().zip(step.truncated);
        for (env, ((terminated, truncated), running)) in
            flags.zip(&self.episodes.running).enumerate()
        {
            if *running {
                continue;
            }
            if self.mode != AutoresetMode::NextStep || self.rows.steps() == 0 {
                return Err(Error::InvalidArgument(format!(
                    "environment {env} must be reset before this step: call `reset` of the environments, and then of this \
                     writer, with a mask of the environments that were reset (default: all)"
                )));
            }
            if *terminated || *truncated {
                return Err(Error::InvalidArgument(format!(
                    "environment {env} ended an episode in the step before, so with `autoreset_mode` NEXT_STEP this step \
                     resets it and cannot end an episode; check the `autoreset_mode` of the environments"
                )));
            }
        }
        Ok(())
    }

    fn check_length(&self, name: &str, len: usize) -> Result<()> {
        let envs = self.rows.envs;
        if len == envs {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "`{name}` must have shape [{envs}], one entry per environment; got shape [{len}]"
        )))
    }

    /// Checks columns that have the observations of the environments for which `given` is true.
    fn check_observations(&self, observations: &[SharedBytes<'_>], given: &[bool]) -> Result<()> {
        let envs = given.iter().filter(|given| **given).count();
        let cells = &self.rows.schema.cells[..self.num_observations];
        let sizes = observations.iter().map(|bytes| bytes.len());
        if sizes.eq(cells.iter().map(|cell| cell.bytes() * envs)) {
            return Ok(());
        }
        Err(Error::Signature(format!(
            "the observations must have the columns {:?} of {}",
            &self.rows.schema.layout.names[..self.num_observations],
            count(envs, "environment")
        )))
    }

    /// Encodes the columns after the given ones into `buffers`.
    fn encode_columns(&mut self, step: &VectorStep<'_>) {
        for buffer in &mut self.buffers {
            buffer.clear();
        }
        let (extra, returns) = self.buffers.split_at_mut(self.extra_columns.len());
        for (source, buffer) in self.extra_columns.iter().zip(extra) {
            match source {
                ItemSource::Reward => {
                    encode_all(buffer, step.rewards.iter().map(|reward| encode(*reward)));
                }
                ItemSource::Terminated => {
                    buffer.extend(step.terminated.iter().map(|b| u8::from(*b)));
                }
                ItemSource::Truncated => buffer.extend(step.truncated.iter().map(|b| u8::from(*b))),
                // `Valid`: rows are never padding.
                _ => buffer.resize(self.rows.envs, 1),
            }
        }
        let with_returns = self.rules.iter().filter_map(|rule| rule.returns.as_ref());
        for ((sums, _), buffers) in with_returns.zip(returns.chunks_exact_mut(2)) {
            let [returns, discounts] = buffers else {
                continue;
            };
            sums.encode_full(step.rewards, step.terminated, returns, discounts);
        }
    }

    /// With [`AutoresetMode::SameStep`], moves the first observations of the next episodes from the newest rows of the
    /// environments in `ended` to the side cells, and writes the last observations into these rows. Returns where the
    /// first observations are.
    fn write_last_observations(&mut self, step: &VectorStep<'_>, ended: &[usize]) -> Vec<SideRow> {
        let (AutoresetMode::SameStep, Some(open)) = (self.mode, &mut self.rows.open) else {
            return Vec::new();
        };
        let ordinal = open.ordinal;
        let mut firsts = vec![SideRow { ordinal, row: 0 }; ended.len()];
        let mut cell = Vec::new();
        for (column, bytes) in step.last_observations.iter().enumerate() {
            cell.resize(self.rows.schema.cells[column].bytes(), 0);
            for (index, env) in ended.iter().enumerate() {
                let (_, rest) = bytes.split_at(index * cell.len());
                rest.split_at(cell.len()).0.copy_to(&mut cell);
                let episode = self.rows.episode[*env];
                firsts[index].row = open.replace_newest(column, *env, &cell, episode);
            }
        }
        firsts
    }
}

impl Episodes {
    /// Begins an episode of an environment.
    fn begin(&mut self, env: usize, first_observation: Option<SideRow>) {
        self.running[env] = true;
        self.transitions[env] = 0;
        self.first_observation[env] = first_observation;
    }
}

impl ItemRecorder for VectorRecorder {
    fn flush(&mut self) -> Result<()> {
        self.rows.flush()
    }

    fn take_ready(&mut self) -> Drain<'_, (u32, NewItem)> {
        self.rows.take_ready()
    }

    fn pending_items(&self) -> usize {
        self.rows.pending_items()
    }

    fn unsent_items(&self) -> usize {
        self.rows.unsent_items()
    }
}
