//! Which steps the items of a replay buffer consist of, and which of them can be sampled.

use std::ops::Range;

use super::{FIRST, Ring};

/// What is sampled. Each item begins with a step, and is identified by it.
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
    /// `length` steps, and `burn_in` steps before the first of these.
    Sequences {
        /// Number of steps from the chosen one on.
        length: usize,
        /// Number of steps before it. Where the episode has fewer, its first step is repeated.
        burn_in: usize,
        /// True: the next episode follows after the end of one. False: zeros follow.
        continues: bool,
    },
}

/// The columns that state where episodes end. Their cells are single bools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeColumns {
    /// True at the step with which an episode terminated.
    pub terminated: usize,
    /// True at the last step of an episode that did not terminate.
    pub truncated: usize,
}

impl RingItems {
    /// Number of cells of a column with a time axis; `None` without one.
    #[must_use]
    pub fn time_axis(&self) -> Option<usize> {
        match *self {
            Self::Sequences {
                length, burn_in, ..
            } => Some(burn_in + length),
            Self::Steps | Self::Transitions { .. } => None,
        }
    }

    /// Positions of the steps of an environment that items can begin with now.
    ///
    /// They are consecutive: an item needs its last step, or the end of its episode, and both are certain for all steps
    /// before one for which they are. A sequence also needs its burn-in, unless the episode has begun later.
    pub(super) fn starts(&self, ring: &Ring, env: usize) -> Range<u64> {
        let (steps, ends_with_episode) = match *self {
            Self::Steps => (1, false),
            Self::Transitions { n_step, .. } => (n_step, true),
            Self::Sequences {
                length, continues, ..
            } => (length, !continues),
        };
        let state = &ring.envs[env];
        let mut end = (state.added + 1).saturating_sub(steps as u64);
        if ends_with_episode {
            end = end.max(state.ended);
        }
        let first = self.first_start(ring, env);
        first..end.max(first)
    }

    /// Position of the first step whose burn-in is stored.
    fn first_start(&self, ring: &Ring, env: usize) -> u64 {
        let oldest = ring.oldest(env);
        let Self::Sequences { burn_in, .. } = *self else {
            return oldest;
        };
        let stored = ring.envs[env].stored;
        let mut slot = ring.slot(env, oldest);
        for skipped in 0..burn_in.min(stored) {
            if ring.flags[ring.row(env, slot)] & FIRST != 0 {
                return oldest + skipped as u64;
            }
            slot = ring.slot_after(slot, 1);
        }
        oldest + burn_in.min(stored) as u64
    }
}
