//! The newest steps of several environments, and the items that a replay buffer samples from them.
//!
//! [`Ring`] stores steps. [`RingItems`] defines which steps an item consists of. [`ItemIndex`] records which items can
//! be sampled, and draws items. [`RingGather`] copies items into a batch. [`StepBuffer`] combines these.

mod changed_rows;
mod device_cells;
mod episode_flags;
mod episode_starts;
mod filled;
mod frame_stack;
mod gather;
mod hindsight;
mod index;
mod items;
mod largest;
mod live_state;
mod memory;
mod options;
mod recent_mix;
mod reopen;
mod saved;
mod scan;
mod sequences;
mod step_buffer;
#[cfg(test)]
mod test_buffer;

use std::ops::Range;

use crate::aligned::AlignedBytes;
use crate::error::Result;
use crate::shared_bytes::SharedBytes;
pub use device_cells::DeviceCells;
pub use episode_flags::EpisodeColumns;
use episode_flags::{CUT, ENDED, FIRST, TERMINATED};
use episode_starts::EpisodeStarts;
use filled::filled;
pub use frame_stack::FrameStack;
pub use gather::RingGather;
pub use hindsight::{GoalStrategy, Hindsight};
pub use index::{Drawn, ItemIndex, ItemStart, Priorities};
pub use items::RingItems;
pub use live_state::{EnvState, LiveState};
pub use memory::BufferMemory;
use memory::RingMemory;
pub use options::{OutputColumn, OutputSource, StepBufferOptions};
pub use recent_mix::RecentMix;
pub use saved::{BufferRestore, EnvSteps, SavedRun, StepRun};
pub use scan::BufferScan;
pub use step_buffer::StepBuffer;

/// A ring of steps for each of several environments, column after column.
///
/// A step has a position: the number of steps that its environment had before it. It is stored in slot `position mod
/// length` of its environment, until the step that is added `length` steps later overwrites it. The rows of a column
/// are the slots of the first environment, then those of the second, and so on.
#[derive(Debug)]
pub struct Ring {
    columns: Vec<RingColumn>,
    /// `ENDED`, `TERMINATED`, `FIRST` and `CUT` of each row; all zero without `episode_columns`.
    flags: AlignedBytes,
    envs: Vec<EnvRing>,
    /// Number of steps stored.
    len: usize,
    /// Slots per environment.
    length: usize,
    episode_columns: Option<EpisodeColumns>,
    /// Number of steps before those of an item that must also be stored, as far as they are in its episode, because
    /// stacks of frames contain them.
    lookback: usize,
    /// Recorded if items are episodes, or contain steps chosen from all of their episode.
    episode_starts: Option<EpisodeStarts>,
}

/// The cells of one column.
#[derive(Debug)]
struct RingColumn {
    cell_bytes: usize,
    bytes: AlignedBytes,
}

/// Which steps of an environment are stored.
#[derive(Clone, Copy, Debug, Default)]
struct EnvRing {
    /// Number of steps ever added, which is the position of the next one.
    added: u64,
    /// Number of steps stored; at most the number of slots.
    stored: usize,
    /// Slot of the next step.
    next_slot: usize,
    /// Position of the step after the newest ended step; 0 if no step has ended an episode.
    newest_end: u64,
}

impl Ring {
    /// Creates an empty ring. Python has checked that there is at least one environment, and one slot for each.
    /// `lookback` is the number of steps before those of an item that must also be stored.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the number of environments is too large.
    fn new(options: &StepBufferOptions<'_>, lookback: usize, memory: RingMemory) -> Result<Self> {
        let num_envs = options.num_envs;
        let episode_starts = if let RingItems::Episodes { max_length } = options.items {
            Some(EpisodeStarts::new(num_envs, Some(max_length))?)
        } else if options.hindsight.is_some() {
            Some(EpisodeStarts::new(num_envs, None)?)
        } else {
            None
        };
        let RingMemory { columns, flags } = memory;
        let columns = options.cells.iter().zip(columns);
        let columns = columns.map(|(cell, bytes)| RingColumn {
            cell_bytes: cell.bytes(),
            bytes,
        });
        Ok(Self {
            columns: columns.collect(),
            flags,
            envs: filled(EnvRing::default(), num_envs)?,
            len: 0,
            length: options.length,
            episode_columns: options.episode_columns,
            lookback,
            episode_starts,
        })
    }

    /// Number of environments.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.envs.len()
    }

    /// Number of slots per environment.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Number of steps stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no step is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `steps` consecutive steps of each of `envs`. Each of `columns` has the cells of the first of `envs`, then
    /// those of the second, and so on. The caller has checked the number of columns and their lengths, and that no
    /// environment is repeated.
    pub fn add(&mut self, envs: &[usize], columns: &[SharedBytes<'_>], steps: usize) {
        // There may be more steps than slots.
        for begin in (0..steps).step_by(self.length) {
            let part = begin..steps.min(begin + self.length);
            for (index, source) in columns.iter().enumerate() {
                for (number, env) in envs.iter().enumerate() {
                    let cell_bytes = self.columns[index].cell_bytes;
                    let source = source.piece(number, steps * cell_bytes);
                    self.write_cells(index, *env, source, part.clone());
                }
            }
            for (number, env) in envs.iter().enumerate() {
                if let Some(episodes) = self.episode_columns {
                    let terminated = columns[episodes.terminated].piece(number, steps);
                    let truncated = columns[episodes.truncated].piece(number, steps);
                    self.write_flags(*env, terminated, truncated, part.clone());
                }
                self.advance(*env, part.len());
            }
        }
    }

    /// Adds steps of an environment from a save, at most as many as there are slots. Without `flags`, the columns state
    /// where episodes end, and the first step also counts as the first one of an episode.
    fn add_saved(
        &mut self,
        env: usize,
        columns: &[SharedBytes<'_>],
        flags: Option<&[u8]>,
        steps: usize,
    ) {
        for (index, source) in columns.iter().enumerate() {
            self.write_cells(index, env, *source, 0..steps);
        }
        match (self.episode_columns, flags) {
            (None, _) => {}
            (Some(_), Some(flags)) => {
                let EnvRing {
                    added, next_slot, ..
                } = self.envs[env];
                for (number, flags) in flags.iter().enumerate() {
                    let row = self.row(env, self.slot_after(next_slot, number));
                    self.flags[row] = *flags;
                    self.record_saved_start(env, added + number as u64, row, *flags);
                    if flags & ENDED != 0 {
                        self.envs[env].newest_end = added + number as u64 + 1;
                    }
                }
            }
            (Some(episodes), None) => {
                let (terminated, truncated) =
                    (columns[episodes.terminated], columns[episodes.truncated]);
                self.write_flags(env, terminated, truncated, 0..steps);
            }
        }
        self.advance(env, steps);
    }

    /// Records whether an episode begins with a step of a save or file, or is cut before it. Its row has these flags.
    fn record_saved_start(&mut self, env: usize, position: u64, row: usize, flags: u8) {
        let Some(starts) = &mut self.episode_starts else {
            return;
        };
        let flags_now = starts.add_saved(env, position, flags);
        if flags_now != flags {
            self.flags[row] = flags_now; // only then, so that a mapped page stays unchanged
        }
    }

    /// Counts steps of an environment that were written.
    fn advance(&mut self, index: usize, steps: usize) {
        let env = &mut self.envs[index];
        env.added += steps as u64;
        let stored = self.length.min(env.stored + steps);
        self.len += stored - env.stored;
        env.stored = stored;
        env.next_slot = (env.next_slot + steps) % self.length;
        let oldest = env.added - stored as u64;
        if let Some(starts) = &mut self.episode_starts {
            starts.remove_before(index, oldest);
        }
    }

    /// Writes the cells `part` of `source` to the next slots of an environment.
    fn write_cells(
        &mut self,
        column: usize,
        env: usize,
        source: SharedBytes<'_>,
        part: Range<usize>,
    ) {
        let slot = self.envs[env].next_slot;
        let RingColumn { cell_bytes, bytes } = &mut self.columns[column];
        let (_, source) = source.split_at(part.start * *cell_bytes);
        let until_wrap = part.len().min(self.length - slot);
        let (before_wrap, rest) = source.split_at(until_wrap * *cell_bytes);
        let (after_wrap, _) = rest.split_at((part.len() - until_wrap) * *cell_bytes);
        let first = env * self.length * *cell_bytes;
        let target = first + slot * *cell_bytes;
        before_wrap.copy_to(&mut bytes[target..target + before_wrap.len()]);
        after_wrap.copy_to(&mut bytes[first..first + after_wrap.len()]);
    }

    /// Writes the flags of the steps `part` to the next slots of an environment.
    fn write_flags(
        &mut self,
        env: usize,
        terminated: SharedBytes<'_>,
        truncated: SharedBytes<'_>,
        part: Range<usize>,
    ) {
        let first_row = env * self.length;
        let state = &mut self.envs[env];
        // The first step after `clear` also counts as the first one of an episode.
        let mut is_first = state.stored == 0 || state.newest_end == state.added;
        let flags = terminated.arrays().zip(truncated.arrays());
        for (number, ([terminated], [truncated])) in
            flags.skip(part.start).take(part.len()).enumerate()
        {
            let ended = terminated != 0 || truncated != 0;
            let position = state.added + number as u64;
            let cut = self
                .episode_starts
                .as_mut()
                .is_some_and(|starts| starts.add(env, position, is_first));
            self.flags[first_row + (state.next_slot + number) % self.length] = u8::from(ended)
                * ENDED
                + u8::from(terminated != 0) * TERMINATED
                + u8::from(is_first) * FIRST
                + u8::from(cut) * CUT;
            if ended {
                state.newest_end = position + 1;
            }
            is_first = ended;
        }
    }

    /// Ends the episode of an environment with its newest step, as if that step had been truncated, although its cells
    /// do not change. Does nothing if no step is stored, or the newest one has ended its episode.
    pub fn end_episode(&mut self, env: usize) {
        let ended = self.begin_episode(env);
        self.flag_ended(env, ended);
    }

    /// Makes the next step of an environment the first one of an episode. If the newest step has not ended its episode,
    /// returns its position; [`Self::flag_ended`] must follow.
    fn begin_episode(&mut self, env: usize) -> Option<u64> {
        let state = &mut self.envs[env];
        if self.episode_columns.is_none() || state.stored == 0 || state.newest_end == state.added {
            return None;
        }
        state.newest_end = state.added;
        Some(state.added - 1)
    }

    /// Flags the step at this position as the last one of its episode, if it was not overwritten since.
    fn flag_ended(&mut self, env: usize, position: Option<u64>) {
        if let Some(position) = position.filter(|position| *position >= self.oldest(env)) {
            let row = self.row(env, self.slot(env, position));
            self.flags[row] |= ENDED;
        }
    }

    /// Removes all steps. Positions continue.
    pub fn clear(&mut self) {
        for env in &mut self.envs {
            env.stored = 0;
        }
        self.len = 0;
        self.forget_episode_starts();
    }

    /// Forgets all steps that were ever added.
    fn forget_all(&mut self) {
        self.envs.fill(EnvRing::default());
        self.len = 0;
        self.forget_episode_starts();
    }

    fn forget_episode_starts(&mut self) {
        if let Some(starts) = &mut self.episode_starts {
            starts.clear();
        }
    }

    /// After a restore: cuts episodes of which neither the first step nor a cut was restored, from their first restored
    /// step on.
    fn cut_headless_episodes(&mut self) {
        for env in 0..self.num_envs() {
            let oldest = self.oldest(env);
            let cuts = match &mut self.episode_starts {
                Some(starts) => starts.cut_headless(env, oldest..self.envs[env].added),
                None => return,
            };
            for position in cuts {
                let row = self.row(env, self.slot(env, position));
                self.flags[row] |= CUT;
            }
        }
    }

    /// True if the step in this row is the first one of its episode, or after a cut.
    fn begins_episode(&self, row: usize) -> bool {
        self.flags[row] & (FIRST | CUT) != 0
    }

    /// Position and row of each stored step of an environment, oldest first.
    fn stored_rows(&self, env: usize) -> impl Iterator<Item = (u64, usize)> {
        let oldest = self.oldest(env);
        let first = self.slot(env, oldest);
        (0..self.envs[env].stored).map(move |number| {
            let row = self.row(env, self.slot_after(first, number));
            (oldest + number as u64, row)
        })
    }

    /// Position of the oldest stored step of an environment; that of its next step if none is stored.
    fn oldest(&self, env: usize) -> u64 {
        self.envs[env].added - self.envs[env].stored as u64
    }

    /// Row of a slot of an environment.
    fn row(&self, env: usize, slot: usize) -> usize {
        env * self.length + slot
    }

    /// Slot of a stored step, or of the next step.
    fn slot(&self, env: usize, position: u64) -> usize {
        let EnvRing {
            added, next_slot, ..
        } = self.envs[env];
        #[expect(clippy::cast_possible_truncation, reason = "at most `length`")]
        let age = (added - position) as usize;
        self.slot_before(next_slot, age)
    }

    /// The item that begins with the stored step at this position.
    fn start(&self, env: usize, position: u64) -> ItemStart {
        ItemStart {
            env,
            position,
            slot: self.slot(env, position),
        }
    }

    /// The slot `steps` after another one; `steps` is at most `length`.
    fn slot_after(&self, slot: usize, steps: usize) -> usize {
        let slot = slot + steps;
        if slot < self.length {
            slot
        } else {
            slot - self.length
        }
    }

    /// The slot `steps` before another one; `steps` is at most `length`.
    fn slot_before(&self, slot: usize, steps: usize) -> usize {
        if steps <= slot {
            slot - steps
        } else {
            slot + self.length - steps
        }
    }
}
