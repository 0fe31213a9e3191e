//! Which steps a buffer in a mapped file has at any moment, also if its process is killed.

use crate::aligned::AlignedBytes;
use crate::error::Result;

use super::filled::filled;

/// Which steps and priorities of an environment are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnvState {
    /// Position of the oldest stored step; that of the next step if none is stored.
    pub oldest: u64,
    /// Number of steps ever added, which is the position of the next one.
    pub added: u64,
    /// Position after the last step whose row is valid among the priorities: it has the priority of an item, or that of
    /// none. Rows of later steps are left over. A buffer without priorities keeps the number that an earlier one stored.
    pub priorities_end: u64,
}

/// The state of all environments, in memory that outlives the process. Each number is stored with one instruction.
///
/// Before steps are written, the end of the slots that they overwrite is stored; afterwards, the new state. If the process
/// is killed in between, the steps in these slots are not part of the state: neither the old nor the new ones.
#[derive(Debug)]
pub struct LiveState(AlignedBytes);

/// Numbers before those of the first environment.
const HEADER_NUMBERS: usize = 8;
/// Numbers per environment: those of [`EnvState`], and the position after the last step that is being written.
const ENV_NUMBERS: usize = 4;

/// Number in the header: 1 while all environments are changed together.
const IS_CHANGING: usize = 0;

impl LiveState {
    /// Size in bytes; `None` if it is too large for any machine.
    pub(super) fn bytes(num_envs: usize) -> Option<usize> {
        let numbers = num_envs
            .checked_mul(ENV_NUMBERS)?
            .checked_add(HEADER_NUMBERS)?;
        numbers.checked_mul(size_of::<u64>())
    }

    /// The state in this memory. Zeros are the state of an empty buffer.
    pub(super) fn new(memory: AlignedBytes) -> Self {
        Self(memory)
    }

    fn number(&self, index: usize) -> u64 {
        self.0
            .as_chunks()
            .0
            .get(index)
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Index of the first number of an environment.
    fn env(env: usize) -> usize {
        HEADER_NUMBERS + env * ENV_NUMBERS
    }

    /// The states of `num_envs` environments with rings of `length` slots; `None` if the process was killed while it
    /// changed all together.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn read(&self, num_envs: usize, length: u64) -> Result<Option<Vec<EnvState>>> {
        if self.number(IS_CHANGING) != 0 {
            return Ok(None);
        }
        let mut states = filled(EnvState::default(), num_envs)?;
        for (env, state) in states.iter_mut().enumerate() {
            let [oldest, added, priorities_end, writing_end] =
                [0, 1, 2, 3].map(|number| self.number(Self::env(env) + number));
            *state = EnvState {
                oldest: oldest.max(writing_end.saturating_sub(length)).min(added),
                added,
                priorities_end,
            };
        }
        Ok(Some(states))
    }

    /// Records that slots are being overwritten by the steps of an environment up to position `end`.
    pub(super) fn begin_write(&mut self, env: usize, end: u64) {
        self.0.store_u64(Self::env(env) + 3, end);
    }

    /// Stores the state of an environment after steps were written.
    pub(super) fn publish(&mut self, env: usize, state: EnvState) {
        let numbers = [state.oldest, state.added, state.priorities_end];
        for (number, value) in numbers.into_iter().enumerate() {
            self.0.store_u64(Self::env(env) + number, value);
        }
    }

    /// Changes the states of all environments together.
    pub(super) fn change_all(&mut self, change: impl FnOnce(&mut Self)) {
        self.0.store_u64(IS_CHANGING, 1);
        change(self);
        self.end_change();
    }

    /// Records that the states of all environments are valid again.
    pub(super) fn end_change(&mut self) {
        self.0.store_u64(IS_CHANGING, 0);
    }
}
