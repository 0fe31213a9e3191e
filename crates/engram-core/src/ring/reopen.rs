//! Continuing with the steps that are in the memory of a buffer, such as a mapped file that an earlier process has used.

use super::episode_flags::{CUT, ENDED, FIRST, TERMINATED};
use super::live_state::EnvState;
use super::{EnvRing, Ring, StepBuffer};
use crate::error::{Error, Result};
use crate::selector::TableRng;

/// Maximum number of steps that the environments of a buffer have had together. Larger numbers, which a file may contain,
/// could overflow.
pub(super) const MAX_STEPS: u64 = 1 << 62;

impl StepBuffer {
    /// Continues with the steps in the memory of a new buffer. `states` states which they are. If this buffer has episode
    /// columns, the earlier buffers in this memory had the same ones.
    ///
    /// # Errors
    /// [`Error::Payload`] if the states or flags are invalid; [`Error::Priority`] if a priority is too large for the
    /// sampler. Then the buffer must not be used.
    pub fn reopen(&mut self, states: &[EnvState], rng: TableRng) -> Result<()> {
        let Self {
            ring, items, index, ..
        } = self;
        ring.check_states(states)?;
        for (env, state) in ring.envs.iter_mut().zip(states) {
            *env = EnvRing::at(state.oldest, state.added, ring.length);
            ring.len += env.stored;
        }
        if ring.episode_columns.is_some() {
            for env in 0..ring.num_envs() {
                ring.find_episodes(env)?;
            }
            ring.cut_headless_episodes();
        }
        index.stage_own(ring, states)?;
        index.finish_restore(ring, items);
        self.rng = rng;
        self.publish(0..self.num_envs());
        if let Some(live) = &mut self.live {
            live.end_change(); // that an earlier process may have begun
        }
        Ok(())
    }

    /// Which steps and priorities of an environment the buffer has.
    #[must_use]
    pub fn env_state(&self, env: usize) -> EnvState {
        EnvState {
            oldest: self.ring.oldest(env),
            added: self.ring.envs[env].added,
            priorities_end: self.index.priorities_end(env),
        }
    }

    /// Stores the states of environments in the live state, if there is one.
    pub(super) fn publish(&mut self, envs: impl Iterator<Item = usize>) {
        let Some(mut live) = self.live.take() else {
            return;
        };
        envs.for_each(|env| live.publish(env, self.env_state(env)));
        self.live = Some(live);
    }

    /// Stores the states of all environments: if the process is killed meanwhile, the live state has none of them.
    pub(super) fn publish_together(&mut self) {
        let Some(mut live) = self.live.take() else {
            return;
        };
        let envs = 0..self.num_envs();
        live.change_all(|live| envs.for_each(|env| live.publish(env, self.env_state(env))));
        self.live = Some(live);
    }
}

impl EnvRing {
    /// An environment with the steps from `oldest` on, `added` excluded, in `length` slots.
    pub(super) fn at(oldest: u64, added: u64, length: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "both are at most `length`")]
        let (stored, next_slot) = ((added - oldest) as usize, (added % length as u64) as usize);
        Self {
            added,
            stored,
            next_slot,
            newest_end: 0,
        }
    }
}

impl Ring {
    /// Checks states that were read from a file.
    fn check_states(&self, states: &[EnvState]) -> Result<()> {
        let (num_envs, length) = (self.num_envs(), self.length as u64);
        if states.len() != num_envs {
            let found = states.len();
            return Err(Error::Payload(format!(
                "it has the states of {found} environments, expected {num_envs}"
            )));
        }
        let max_added = MAX_STEPS / num_envs as u64;
        let invalid = states.iter().find(|state| {
            let stored = state.added.checked_sub(state.oldest);
            stored.is_none_or(|stored| stored > length) || state.added > max_added
        });
        invalid.map_or(Ok(()), |EnvState { oldest, added, .. }| {
            Err(Error::Payload(format!(
                "an environment has the steps from {oldest} to {added} in {length} slots"
            )))
        })
    }

    /// Finds where episodes of an environment begin, and the position after its newest ended step.
    fn find_episodes(&mut self, env: usize) -> Result<()> {
        let mut newest_end = 0;
        let mut previous = None;
        let rows: Vec<(u64, usize)> = self.stored_rows(env).collect();
        for (position, row) in rows {
            let flags = self.flags[row];
            if flags > ENDED | TERMINATED | FIRST | CUT {
                return Err(Error::Payload(format!("a step has the flags {flags}")));
            }
            self.record_saved_start(env, position, row, flags);
            if let Some(previous) = previous.replace(row)
                && flags & FIRST != 0
                && newest_end < position
            {
                self.flags[previous] |= ENDED; // the process was killed before it did this: see `add_episode`
                newest_end = position;
            }
            if flags & ENDED != 0 {
                newest_end = position + 1;
            }
        }
        self.envs[env].newest_end = newest_end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ring::test_buffer::{buffer_of, no_flags};
    use crate::ring::{ENDED, FIRST, RingItems};

    #[test]
    fn a_step_before_the_first_one_of_an_episode_has_ended_its_own() {
        let mut buffer = buffer_of(RingItems::Steps, 1, 5);
        buffer.add(&[0], &no_flags(), 4);
        buffer.add_episode(0, &no_flags(), 2);
        let ring = &mut buffer.ring;
        let expected = [ENDED, 0, 0, ENDED, FIRST]; // the first slot has the newest step
        assert_eq!(ring.flags[..], expected);
        ring.flags[3] = 0; // as if the process was killed before it has ended the earlier episode
        ring.find_episodes(0).unwrap();
        assert_eq!(ring.flags[..], expected);
        assert_eq!(ring.envs[0].newest_end, 6);
    }
}
