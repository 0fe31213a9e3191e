//! Which items of a replay buffer can be sampled, and their priorities.

mod priorities;
mod restore;

use std::ops::Range;

use hashbrown::HashSet;

use super::episode_starts::EpisodeStarts;
use super::filled::filled;
use super::{Ring, RingItems};
use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};
use crate::selector::{
    DrawDistribution, SelectorKind, TableRng, distribution, draw, uniform_below,
};
use crate::text::count;
use priorities::NO_ITEM;
pub use priorities::Priorities;

/// Number of priorities that are updated together: their memory is prefetched first, so that the cache misses overlap.
const UPDATES_TOGETHER: usize = 64;

/// The step that an item begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemStart {
    /// Its environment.
    pub env: usize,
    /// Its position.
    pub position: u64,
    /// Its slot.
    pub(super) slot: usize,
}

impl ItemStart {
    /// The key of the item, in a buffer with this many environments.
    #[must_use]
    pub fn key(&self, num_envs: usize) -> u64 {
        item_key(self.env, self.position, num_envs)
    }
}

/// Items that were drawn.
#[derive(Debug)]
pub struct Drawn {
    /// The step that each item begins with.
    pub starts: Vec<ItemStart>,
    /// Probability of each draw; a single value if all items were equally likely.
    pub probabilities: Vec<f64>,
    /// Priority of each item; empty if items have no priorities.
    pub priorities: Vec<f64>,
    /// Properties of the distribution that the items were drawn from.
    pub distribution: DrawDistribution,
    /// Row of the step that achieved the new goal of each item, `None` for items that keep their goal; empty without
    /// [`super::Hindsight`].
    pub(super) goal_rows: Vec<Option<usize>>,
}

impl Drawn {
    /// True for each item that got another goal; `None` without [`super::Hindsight`].
    #[must_use]
    pub fn relabeled(&self) -> Option<impl Iterator<Item = bool>> {
        let rows = &self.goal_rows;
        (rows.len() == self.starts.len()).then(|| rows.iter().map(Option::is_some))
    }
}

/// The items that can be sampled. Those of each environment begin with consecutive steps, or with the first steps of
/// consecutive episodes.
#[derive(Debug)]
pub struct ItemIndex {
    ranges: Vec<StartRange>,
    /// Number of items.
    len: usize,
    /// For each environment: the number of items of this environment and of all before it. Only with several
    /// environments, and only while `ends_are_current`.
    ends: Vec<usize>,
    ends_are_current: bool,
    priorities: Option<Priorities>,
    /// True if the items are episodes: only their first steps begin an item.
    of_episodes: bool,
    /// If this buffer has no priorities, but its memory contains those of an earlier buffer: for each environment, the
    /// position after the last step with such a priority. Otherwise empty.
    leftover_priority_ends: Vec<u64>,
}

/// Consecutive steps of an environment. Its items begin with all of them or, with `of_episodes`, with those that begin an
/// episode.
#[derive(Clone, Copy, Debug, Default)]
struct StartRange {
    /// Position of the first of these steps.
    first: u64,
    /// Position after the last of these steps.
    end: u64,
    /// Slot of the first of these steps.
    slot: usize,
    /// Number of items; with `of_episodes`, usually less than the number of steps.
    len: usize,
}

impl StartRange {
    /// The positions of these steps.
    fn positions(&self) -> Range<u64> {
        self.first..self.end
    }
}

impl ItemIndex {
    /// The index of an empty ring. `exponent` is that of a `Prioritized` selector; `None` for a `Uniform` one. `memory` is
    /// that of the priorities; `None` for memory on the heap.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn new(
        ring: &Ring,
        items: &RingItems,
        exponent: Option<f64>,
        memory: Option<AlignedBytes>,
    ) -> Result<Self> {
        let rows = ring.num_envs() * ring.length();
        let priorities = exponent.map(|exponent| Priorities::in_memory(exponent, rows, memory));
        Ok(Self {
            ranges: filled(StartRange::default(), ring.num_envs())?,
            len: 0,
            ends: filled(0, ring.num_envs())?,
            ends_are_current: true,
            priorities: priorities.transpose()?,
            of_episodes: matches!(items, RingItems::Episodes { .. }),
            leftover_priority_ends: Vec::new(),
        })
    }

    /// The memory of the priorities and of their tree.
    pub(super) fn memory(&mut self) -> impl Iterator<Item = &mut AlignedBytes> {
        self.priorities.iter_mut().flat_map(Priorities::memory)
    }

    /// Number of items.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first steps of all episodes, if these are what items begin with.
    fn episode_starts<'a>(&self, ring: &'a Ring) -> Option<&'a EpisodeStarts> {
        ring.episode_starts.as_ref().filter(|_| self.of_episodes)
    }

    /// The items of an environment, which begin with steps of this range.
    fn range(&self, ring: &Ring, env: usize, starts: &Range<u64>) -> StartRange {
        StartRange {
            first: starts.start,
            end: starts.end,
            slot: if starts.is_empty() {
                0
            } else {
                ring.slot(env, starts.start)
            },
            len: self.episode_starts(ring).map_or_else(
                || range_len(starts),
                |episodes| episodes.within(env, starts.clone()).count(),
            ),
        }
    }

    /// The items of an environment that begin with steps of this range, oldest first.
    pub(super) fn items_within<'a>(
        &'a self,
        ring: &'a Ring,
        env: usize,
        positions: Range<u64>,
    ) -> impl Iterator<Item = ItemStart> + 'a {
        let items = positions.filter(move |position| self.begins_item(ring, env, *position));
        items.map(move |position| ring.start(env, position))
    }

    /// True if the stored step at this position begins an item.
    fn begins_item(&self, ring: &Ring, env: usize, position: u64) -> bool {
        self.ranges[env].positions().contains(&position)
            && (!self.of_episodes || ring.begins_episode(ring.row(env, ring.slot(env, position))))
    }

    /// The positions of the steps that may begin an environment's items: with `of_episodes`, only those of them that begin
    /// an episode do, otherwise all.
    pub(super) fn starts(&self, env: usize) -> Range<u64> {
        self.ranges[env].positions()
    }

    /// Updates the items of these environments after steps were added to or removed from the ring.
    pub(super) fn update(
        &mut self,
        ring: &Ring,
        items: &RingItems,
        envs: impl Iterator<Item = usize> + Clone,
    ) {
        let initial = self.remove_priorities(ring, items, envs.clone());
        for env in envs {
            let new = items.starts(ring, env);
            let old_end = self.ranges[env].end;
            let new_range = self.range(ring, env, &new);
            let of_episodes = self.of_episodes;
            if let Some(priorities) = &mut self.priorities {
                let added = old_end.clamp(new.start, new.end)..new.end;
                let offset = added.start - new.start;
                for row in rows_after(ring, env, new_range.slot, offset, added.end - added.start) {
                    let is_item = !of_episodes || ring.begins_episode(row);
                    priorities.set(row, if is_item { initial } else { NO_ITEM });
                }
            }
            self.set_range(env, new_range);
        }
    }

    /// Removes the priorities of items that are gone. Returns that of all new items, which depends on those of the items
    /// that remain.
    fn remove_priorities(
        &mut self,
        ring: &Ring,
        items: &RingItems,
        envs: impl Iterator<Item = usize>,
    ) -> f64 {
        let Some(priorities) = &mut self.priorities else {
            return 0.0;
        };
        for env in envs {
            let first = items.starts(ring, env).start;
            let old = self.ranges[env];
            let gone = first.clamp(old.first, old.end) - old.first;
            for row in rows_after(ring, env, old.slot, 0, gone) {
                priorities.set(row, NO_ITEM);
            }
            // Steps before the first start that were never in a range, because later steps were added in the same call.
            // Their rows may still be zeroed memory. That is 0.0, not `NO_ITEM` (-0.0): the next buffer in this memory
            // would read it as an item's priority.
            for position in old.end.max(ring.oldest(env))..first {
                priorities.set(ring.row(env, ring.slot(env, position)), NO_ITEM);
            }
        }
        priorities.initial()
    }

    fn set_range(&mut self, env: usize, new: StartRange) {
        let old = std::mem::replace(&mut self.ranges[env], new);
        if new.len != old.len {
            self.len = self.len - old.len + new.len;
            self.ends_are_current = false;
        }
    }

    /// The items at these indices in the list of all items, environment after environment.
    fn starts_at(&mut self, ring: &Ring, indices: impl Iterator<Item = usize>) -> Vec<ItemStart> {
        // Recomputed here and not whenever steps are added: that would take long for each step of one of many
        // environments.
        if !self.ends_are_current && self.ranges.len() > 1 {
            let mut end = 0;
            for (range, env_end) in self.ranges.iter().zip(&mut self.ends) {
                end += range.len;
                *env_end = end;
            }
            self.ends_are_current = true;
        }
        indices.map(|index| self.start_at(ring, index)).collect()
    }

    /// See [`Self::starts_at`].
    fn start_at(&self, ring: &Ring, index: usize) -> ItemStart {
        let (env, offset) = if self.ranges.len() == 1 {
            (0, index)
        } else {
            let env = self.ends.partition_point(|end| *end <= index);
            (env, index + self.ranges[env].len - self.ends[env])
        };
        self.start_of(ring, env, offset)
    }

    /// The item of an environment that has `offset` older ones.
    fn start_of(&self, ring: &Ring, env: usize, offset: usize) -> ItemStart {
        let range = &self.ranges[env];
        if let Some(episodes) = self.episode_starts(ring) {
            return ring.start(env, episodes.nth_from(env, range.first, offset));
        }
        ItemStart {
            env,
            position: range.first + offset as u64,
            slot: ring.slot_after(range.slot, offset),
        }
    }

    /// The item of an environment that has `number` newer ones.
    pub(super) fn start_from_newest(&self, ring: &Ring, env: usize, number: usize) -> ItemStart {
        self.start_of(ring, env, self.ranges[env].len - 1 - number)
    }

    /// True if fewer than `newest` items of the same environment are newer.
    pub(super) fn is_among_newest(&self, ring: &Ring, start: &ItemStart, newest: usize) -> bool {
        let oldest = self.ranges[start.env].len.min(newest) - 1;
        start.position >= self.start_from_newest(ring, start.env, oldest).position
    }

    /// Number of items of each environment.
    pub(super) fn lens(&self) -> impl Iterator<Item = usize> {
        self.ranges.iter().map(|range| range.len)
    }

    /// The start of the item with this key; `None` if the item cannot be sampled.
    pub(super) fn find(&self, ring: &Ring, key: u64) -> Option<ItemStart> {
        let envs = self.ranges.len() as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below the number of environments"
        )]
        let (env, position) = match envs {
            1 => (0, key),
            _ => ((key % envs) as usize, key / envs),
        };
        self.begins_item(ring, env, position)
            .then(|| ring.start(env, position))
    }

    /// The keys of all items in random order.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn shuffled_keys(&self, ring: &Ring, random: &mut TableRng) -> Result<Vec<u64>> {
        let envs = self.ranges.len();
        let mut keys = Vec::new();
        keys.try_reserve_exact(self.len).map_err(|_| {
            let what = format!("an epoch of {}", count(self.len, "item"));
            Error::out_of_memory(what, self.len.checked_mul(size_of::<u64>()))
        })?;
        for (env, range) in self.ranges.iter().enumerate() {
            let key = |position| item_key(env, position, envs);
            match self.episode_starts(ring) {
                Some(episodes) => keys.extend(episodes.within(env, range.positions()).map(key)),
                None => keys.extend(range.positions().map(key)),
            }
        }
        shuffle(&mut keys, random);
        Ok(keys)
    }

    /// Draws `n` items. There must be at least one item; without replacement, at least `n`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without replacement if there are priorities.
    pub(super) fn draw(
        &mut self,
        ring: &Ring,
        n: usize,
        replacement: bool,
        random: &mut TableRng,
    ) -> Result<Drawn> {
        let len = self.len;
        let Some(priorities) = &mut self.priorities else {
            let starts = if replacement {
                self.draw_uniformly(ring, n, random)
            } else {
                self.starts_at(ring, choose(n, len, random).into_iter())
            };
            return Ok(self.equally_likely_draw(ring, starts));
        };
        if !replacement {
            return Err(Error::InvalidArgument(
                "`replacement` must be True with a Prioritized sampler; got False".into(),
            ));
        }
        let tree = priorities.tree();
        let distribution = distribution(tree, len);
        let total = tree.total();
        if total <= 0.0 {
            let starts = self.draw_uniformly(ring, n, random);
            return Ok(self.equally_likely_draw(ring, starts));
        }
        let rows = draw(tree, n, random);
        for row in &rows {
            priorities.prefetch(*row);
        }
        let tree = priorities.tree();
        let probabilities = rows.iter().map(|row| tree.weight(*row) / total).collect();
        let values = rows.iter().map(|row| priorities.get(*row)).collect();
        Ok(Drawn {
            starts: rows
                .into_iter()
                .map(|row| self.start_in_row(ring, row))
                .collect(),
            probabilities,
            priorities: values,
            distribution,
            goal_rows: Vec::new(),
        })
    }

    /// Draws `n` items with replacement, all equally likely.
    pub(super) fn draw_uniformly(
        &mut self,
        ring: &Ring,
        n: usize,
        random: &mut TableRng,
    ) -> Vec<ItemStart> {
        let len = self.len;
        self.starts_at(ring, (0..n).map(|_| uniform_below(random, len)))
    }

    /// Makes a [`Drawn`] of these items, which the caller has chosen: as if all items had been equally likely.
    pub(super) fn equally_likely_draw(&self, ring: &Ring, starts: Vec<ItemStart>) -> Drawn {
        let distribution = DrawDistribution::uniform(self.len);
        let priorities = self
            .priorities
            .as_ref()
            .map_or_else(Vec::new, |priorities| {
                let rows = starts.iter().map(|start| ring.row(start.env, start.slot));
                rows.map(|row| priorities.get(row)).collect()
            });
        Drawn {
            starts,
            probabilities: vec![distribution.min_probability],
            priorities,
            distribution,
            goal_rows: Vec::new(),
        }
    }

    /// The item that begins with the step in this row.
    fn start_in_row(&self, ring: &Ring, row: usize) -> ItemStart {
        let (env, slot) = match self.ranges.len() {
            1 => (0, row), // divisions are slow
            _ => (row / ring.length(), row % ring.length()),
        };
        let range = &self.ranges[env];
        let offset = ring.slot_before(slot, range.slot);
        ItemStart {
            env,
            position: range.first + offset as u64,
            slot,
        }
    }

    /// Sets the priorities of items; skips keys without an item. Returns the number of keys found.
    ///
    /// # Errors
    /// [`Error::Priority`] if a priority is not allowed. [`Error::InvalidArgument`] if there are no priorities, or the
    /// numbers of keys and priorities differ. Then no priority is changed.
    pub(super) fn update_priorities(
        &mut self,
        ring: &Ring,
        keys: &[u64],
        new: &[f64],
    ) -> Result<usize> {
        let Some(exponent) = self.priorities.as_ref().map(|it| it.exponent) else {
            return Err(Error::InvalidArgument(
                "priorities need a Prioritized sampler; create the buffer with `sampler=selectors.Prioritized(...)`"
                    .into(),
            ));
        };
        if keys.len() != new.len() {
            return Err(Error::InvalidArgument(format!(
                "`keys` and `priorities` must have the same length; got {} and {}",
                keys.len(),
                new.len()
            )));
        }
        let kind = SelectorKind::Prioritized { exponent };
        kind.check_priorities_for("the replay buffer", new)?;
        let mut found = 0;
        let parts = keys.chunks(UPDATES_TOGETHER);
        for (keys, new) in parts.zip(new.chunks(UPDATES_TOGETHER)) {
            let mut rows = [None; UPDATES_TOGETHER];
            for (row, key) in rows.iter_mut().zip(keys) {
                *row = (self.find(ring, *key)).map(|start| ring.row(start.env, start.slot));
            }
            let Some(priorities) = &mut self.priorities else {
                return Ok(0);
            };
            for row in rows.iter().flatten() {
                priorities.prefetch(*row);
            }
            for (row, priority) in rows.iter().zip(new) {
                if let Some(row) = row {
                    priorities.set(*row, *priority + 0.0); // -0.0, which is `NO_ITEM`, becomes 0.0
                    found += 1;
                }
            }
        }
        Ok(found)
    }
}

/// The rows of `len` slots of an environment, of which the first is `offset` slots after `slot`.
fn rows_after(
    ring: &Ring,
    env: usize,
    slot: usize,
    offset: u64,
    len: u64,
) -> impl Iterator<Item = usize> {
    (offset..offset + len).map(move |steps| {
        #[expect(clippy::cast_possible_truncation, reason = "fewer than `length`")]
        let slot = ring.slot_after(slot, steps as usize);
        ring.row(env, slot)
    })
}

/// The key of an item. Keys are never reused, because the positions of an environment increase.
fn item_key(env: usize, position: u64, num_envs: usize) -> u64 {
    position * num_envs as u64 + env as u64
}

fn range_len(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(0)
}

/// Chooses `n` different numbers below `len`, in random order.
fn choose(n: usize, len: usize, random: &mut TableRng) -> Vec<usize> {
    // Floyd's algorithm: Bentley and Floyd, "A sample of brilliance", 1987.
    let mut seen = HashSet::with_capacity(n);
    let mut chosen: Vec<usize> = (len - n..len)
        .map(|last| {
            let number = uniform_below(random, last + 1);
            let number = if seen.contains(&number) { last } else { number };
            seen.insert(number);
            number
        })
        .collect();
    shuffle(&mut chosen, random);
    chosen
}

/// Fisher and Yates's shuffle.
fn shuffle<T>(values: &mut [T], random: &mut TableRng) {
    for last in (1..values.len()).rev() {
        values.swap(last, uniform_below(random, last + 1));
    }
}
