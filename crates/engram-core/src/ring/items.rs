//! Which steps the items of a replay buffer consist of, and which of them can be sampled.

use std::ops::Range;

use super::Ring;
use super::episode_flags::FIRST;

/// What is sampled. An item is identified by its start, the step that it begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RingItems {
    /// Single steps.
    Steps,
    /// Up to `n_step` steps of one episode, with the sum of their rewards.
    Transitions {
        /// Maximum number of steps.
        n_step: usize,
        /// Discount per step.
        discount: f64,
    },
    /// `length` steps from the start on, and `burn_in` steps before it.
    Sequences {
        /// Number of steps from the start on.
        length: usize,
        /// Number of steps before the start. If the episode has fewer, its first step is repeated.
        burn_in: usize,
        /// True: after the end of an episode, the next episode follows. False: zeros follow.
        continues: bool,
    },
    /// All steps of one episode. Longer ones are cut.
    Episodes {
        /// Maximum number of steps.
        max_length: usize,
    },
}

impl RingItems {
    /// Number of cells of a column with a time axis; `None` without one.
    #[must_use]
    pub fn time_axis(&self) -> Option<usize> {
        match *self {
            Self::Sequences {
                length, burn_in, ..
            } => Some(burn_in + length),
            Self::Episodes { max_length } => Some(max_length),
            Self::Steps | Self::Transitions { .. } => None,
        }
    }

    /// Positions of the steps of an environment that items can begin with now. With `Episodes`, only those steps of this
    /// range begin an item that are in [`Ring::episode_starts`].
    ///
    /// They are consecutive: an item is complete once its last step is stored, or the end of its episode, unless the
    /// next episode continues it; and then the items that begin earlier are complete, too. The burn-in of a sequence
    /// must also be stored, as far as it is in the episode.
    pub(super) fn starts(&self, ring: &Ring, env: usize) -> Range<u64> {
        let state = &ring.envs[env];
        let (steps, ends_with_episode) = match *self {
            Self::Episodes { .. } => {
                let starts = ring.episode_starts.as_ref();
                let complete = starts.map_or(0..0, |starts| {
                    starts.complete(env, state.added, state.newest_end)
                });
                let first = self.first_start(ring, env).max(complete.start);
                return first..complete.end.max(first);
            }
            Self::Steps => (1, false),
            Self::Transitions { n_step, .. } => (n_step, true),
            Self::Sequences {
                length, continues, ..
            } => (length, !continues),
        };
        let mut end = (state.added + 1).saturating_sub(steps as u64);
        if ends_with_episode {
            end = end.max(state.newest_end);
        }
        let first = self.first_start(ring, env);
        first..end.max(first)
    }

    /// Position of the oldest step whose burn-in and stacked frames are stored, as far as they are in the episode.
    fn first_start(&self, ring: &Ring, env: usize) -> u64 {
        let oldest = ring.oldest(env);
        let burn_in = match *self {
            Self::Sequences { burn_in, .. } => burn_in,
            Self::Steps | Self::Transitions { .. } | Self::Episodes { .. } => 0,
        };
        let stored = ring.envs[env].stored;
        let steps_before = stored.min(burn_in + ring.lookback);
        if steps_before == 0 {
            return oldest;
        }
        let mut slot = ring.slot(env, oldest);
        for skipped in 0..steps_before {
            if ring.flags[ring.row(env, slot)] & FIRST != 0 {
                return oldest + skipped as u64;
            }
            slot = ring.slot_after(slot, 1);
        }
        oldest + steps_before as u64
    }
}
