//! Hindsight experience replay: items whose goal is replaced by one that their episode has achieved.

use super::{ItemStart, Ring};
use crate::selector::{TableRng, uniform_below, uniform_unit};

/// Which items get another goal, and which one (Andrychowicz et al. 2017, "Hindsight Experience Replay").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hindsight {
    /// Which step of the episode has achieved the new goal.
    pub strategy: GoalStrategy,
    /// Probability with which an item gets another goal.
    pub relabel: f64,
}

/// Which stored step of an item's episode is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalStrategy {
    /// The last one.
    Final,
    /// The item's own one or a later one, all equally likely.
    Future,
    /// Any, all equally likely.
    Episode,
}

impl Hindsight {
    /// Draws for each item the row of the step that achieved its new goal; `None` for items that keep their goal.
    pub(super) fn draw(
        &self,
        ring: &Ring,
        starts: &[ItemStart],
        random: &mut TableRng,
    ) -> Vec<Option<usize>> {
        let row = |start: &ItemStart| {
            (uniform_unit(random) < self.relabel).then(|| self.goal_row(ring, start, random))
        };
        starts.iter().map(row).collect()
    }

    fn goal_row(&self, ring: &Ring, start: &ItemStart, random: &mut TableRng) -> usize {
        let ItemStart { env, position, .. } = *start;
        let stored = ring.oldest(env)..ring.envs[env].added;
        let episode = match &ring.episode_starts {
            Some(starts) => starts.episode(env, position, &stored),
            None => position..position + 1, // not reached: `StepBuffer` records where episodes begin
        };
        let first = match self.strategy {
            GoalStrategy::Final => episode.end - 1,
            GoalStrategy::Future => position,
            GoalStrategy::Episode => episode.start,
        };
        #[expect(clippy::cast_possible_truncation, reason = "at most `length`")]
        let steps = (episode.end - first) as usize;
        let goal = first + uniform_below(random, steps) as u64;
        ring.row(env, ring.slot(env, goal))
    }
}
