//! Where episodes begin.

use std::collections::VecDeque;
use std::ops::Range;

use super::episode_flags::{CUT, FIRST};
use super::filled::filled;
use crate::error::Result;

/// For each environment, the positions of the stored steps with which episodes begin, oldest first.
#[derive(Debug)]
pub(super) struct EpisodeStarts {
    /// Longer episodes are cut: each part counts as an episode.
    max_length: Option<u64>,
    envs: Vec<VecDeque<u64>>,
}

impl EpisodeStarts {
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub(super) fn new(num_envs: usize, max_length: Option<usize>) -> Result<Self> {
        Ok(Self {
            max_length: max_length.map(|length| length as u64),
            envs: filled(VecDeque::new(), num_envs)?,
        })
    }

    /// Records the next step of an environment. Returns true if its episode is cut before it.
    pub(super) fn add(&mut self, env: usize, position: u64, is_first: bool) -> bool {
        let starts = &mut self.envs[env];
        let cut = !is_first
            && starts
                .back()
                .is_some_and(|start| Some(position - start) == self.max_length);
        if is_first || cut {
            starts.push_back(position);
        }
        cut
    }

    /// Like [`Self::add`], for a step of a save or file that has these flags. Returns its flags with the cuts of this
    /// buffer. A cut of the save is one of them if the steps before it, to the beginning of the episode, are not in the
    /// save. A buffer that does not cut episodes leaves the cuts for the next one.
    pub(super) fn add_saved(&mut self, env: usize, position: u64, flags: u8) -> u8 {
        let is_first = flags & FIRST != 0;
        if self.max_length.is_none() {
            self.add(env, position, is_first);
            return flags;
        }
        let after_unknown = !is_first && flags & CUT != 0 && self.envs[env].is_empty();
        let cut = self.add(env, position, is_first || after_unknown) || after_unknown;
        (flags & !CUT) | (u8::from(cut) * CUT)
    }

    /// Cuts the steps at these positions, all of an environment, if no episode begins with one of them. Returns the
    /// positions of the steps that follow the cuts.
    pub(super) fn cut_headless(&mut self, env: usize, positions: Range<u64>) -> Vec<u64> {
        let starts = &mut self.envs[env];
        let Some(length) = self.max_length.filter(|_| starts.is_empty()) else {
            return Vec::new();
        };
        let step = usize::try_from(length).unwrap_or(usize::MAX);
        starts.extend(positions.step_by(step));
        starts.iter().copied().collect()
    }

    /// Removes the steps before this position, which were overwritten.
    pub(super) fn remove_before(&mut self, env: usize, position: u64) {
        let starts = &mut self.envs[env];
        while starts.front().is_some_and(|start| *start < position) {
            starts.pop_front();
        }
    }

    /// Removes all steps.
    pub(super) fn clear(&mut self) {
        for starts in &mut self.envs {
            starts.clear();
        }
    }

    /// Position of the first step of an episode: the episode that begins at `position` has number 0.
    pub(super) fn nth_from(&self, env: usize, position: u64, number: usize) -> u64 {
        let starts = &self.envs[env];
        let first = starts.partition_point(|start| *start < position);
        starts[first + number]
    }

    /// Positions of the first steps of episodes from this range of positions.
    pub(super) fn within(&self, env: usize, positions: Range<u64>) -> impl Iterator<Item = u64> {
        let starts = &self.envs[env];
        let index = |position| starts.partition_point(|start| *start < position);
        starts
            .range(index(positions.start)..index(positions.end))
            .copied()
    }

    /// The range of positions that has the first steps of all complete episodes of an environment, and of no other
    /// ones. `added` is the number of steps ever added to it, `newest_end` the position after the newest ended step.
    pub(super) fn complete(&self, env: usize, added: u64, newest_end: u64) -> Range<u64> {
        let starts = &self.envs[env];
        let (Some(oldest), Some(newest)) = (starts.front(), starts.back()) else {
            return added..added;
        };
        let is_full = (self.max_length).is_some_and(|max_length| added - newest >= max_length);
        let is_complete = newest_end > *newest || is_full;
        *oldest..if is_complete { added } else { *newest }
    }

    /// The stored steps of the episode that has the step at `position`, given the positions of all stored steps of the
    /// environment.
    pub(super) fn episode(&self, env: usize, position: u64, stored: &Range<u64>) -> Range<u64> {
        let starts = &self.envs[env];
        let later = starts.partition_point(|start| *start <= position);
        let first = later.checked_sub(1).map_or(stored.start, |it| starts[it]);
        first..starts.get(later).copied().unwrap_or(stored.end)
    }
}
