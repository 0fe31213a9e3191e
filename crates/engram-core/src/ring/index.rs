//! Which items of a replay buffer can be sampled, and their priorities.

mod restore;

use std::ops::Range;

use hashbrown::HashSet;

use super::largest::Largest;
use super::{Ring, RingItems, filled};
use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};
use crate::prefetch::prefetch_line;
use crate::selector::{
    DrawDistribution, SelectorKind, TableRng, distribution, draw, uniform_below, weight,
};
use crate::sum_tree::{FixedSums, SumTree};
use crate::text::count;

/// Priority of a new item if no item has a priority above 0.
const DEFAULT_PRIORITY: f64 = 1.0;

/// Priority of a row with which no item begins. It equals 0, but its sign differs from that of an item's priority 0, also
/// for the next buffer in this memory.
const NO_ITEM: f64 = -0.0;

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
}

/// The items that can be sampled. Those of each environment begin with consecutive steps.
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
    /// Without `priorities`, in memory that an earlier buffer has used: for each environment, the position after the last
    /// step whose priority it has left there. Otherwise empty.
    left_ends: Vec<u64>,
}

/// The consecutive steps of an environment that its items begin with.
#[derive(Clone, Copy, Debug, Default)]
struct StartRange {
    /// Position of the first of these steps.
    first: u64,
    /// Slot of the first of these steps.
    slot: usize,
    len: usize,
}

impl StartRange {
    /// The positions of these steps.
    fn positions(&self) -> Range<u64> {
        self.first..self.first + self.len as u64
    }
}

/// The priorities of items, by the row of the step that they begin with.
#[derive(Debug)]
pub struct Priorities {
    exponent: f64,
    /// One number per row; `NO_ITEM` or 0 for rows with which no item begins.
    values: AlignedBytes,
    /// `values` raised to `exponent`.
    tree: SumTree<FixedSums>,
    largest: Largest,
}

impl Priorities {
    /// The priorities of this many rows, at least one; all are 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(exponent: f64, rows: usize) -> Result<Self> {
        Self::in_memory(exponent, rows, None)
    }

    /// [`Self::new`] in `memory` or, for `None`, on the heap.
    fn in_memory(exponent: f64, rows: usize, memory: Option<AlignedBytes>) -> Result<Self> {
        let bytes = rows.checked_mul(size_of::<f64>());
        let too_large = || Error::out_of_memory("the sampler of the replay buffer", bytes);
        Ok(Self {
            exponent,
            values: memory
                .or_else(|| bytes.and_then(AlignedBytes::zeroed))
                .ok_or_else(too_large)?,
            tree: SumTree::with_leaves(rows).ok_or_else(too_large)?,
            largest: Largest::new(rows)?,
        })
    }

    /// The memory of the priorities and of the tree, for settings such as huge pages.
    fn memory(&mut self) -> impl Iterator<Item = &mut [u8]> {
        std::iter::once(&mut *self.values).chain(self.tree.memory())
    }

    fn get(&self, row: usize) -> f64 {
        self.values.as_f64s()[row]
    }

    /// Sets a priority. Its weight, `priority ** exponent`, must be finite and at least 0.
    pub fn set(&mut self, row: usize, priority: f64) {
        let old = std::mem::replace(&mut self.values.as_f64s_mut()[row], priority);
        self.record(row, old, priority);
    }

    /// Records that the priority of a row was `old` and is `new` now.
    fn record(&mut self, row: usize, old: f64, new: f64) {
        self.largest.change(row, old, new);
        self.tree.set(row, weight(new, self.exponent));
    }

    /// Prefetches the priority of this row.
    fn prefetch(&self, row: usize) {
        prefetch_line(&raw const self.values.as_f64s()[row]);
    }

    /// The largest priority.
    pub fn largest(&mut self) -> f64 {
        self.largest.get(self.values.as_f64s())
    }

    /// The tree of the weights, one leaf per row. They must not be changed.
    pub fn tree(&mut self) -> &mut SumTree<FixedSums> {
        &mut self.tree
    }

    /// The priority of a new item.
    fn initial(&mut self) -> f64 {
        let largest = self.largest();
        if largest > 0.0 {
            largest
        } else {
            DEFAULT_PRIORITY
        }
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
            left_ends: Vec::new(),
        })
    }

    /// The memory of the priorities.
    pub(super) fn memory(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.priorities.iter_mut().flat_map(Priorities::memory)
    }

    /// Number of items.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Positions of the steps of an environment that items begin with.
    pub(super) fn starts(&self, env: usize) -> Range<u64> {
        self.ranges[env].positions()
    }

    /// Updates the items of these environments after steps were added to or removed from the ring.
    pub(super) fn update(
        &mut self,
        ring: &Ring,
        items: &RingItems,
        envs: impl Iterator<Item = usize>,
    ) {
        // Computed before the change, so that all new items get the same priority.
        let initial = self.priorities.as_mut().map_or(0.0, Priorities::initial);
        for env in envs {
            let new = items.starts(ring, env);
            let slot = self.ranges[env].slot;
            let old = self.ranges[env].positions();
            let new_slot = if new.is_empty() {
                0
            } else {
                ring.slot(env, new.start)
            };
            if let Some(priorities) = &mut self.priorities {
                // The rows of `len` slots, of which the first is `offset` slots after `from`.
                let rows = |from: usize, offset: u64, len: u64| {
                    (offset..offset + len).map(move |steps| {
                        #[expect(clippy::cast_possible_truncation, reason = "fewer than `length`")]
                        let slot = ring.slot_after(from, steps as usize);
                        ring.row(env, slot)
                    })
                };
                let gone = old.start..new.start.clamp(old.start, old.end);
                for row in rows(slot, 0, gone.end - gone.start) {
                    priorities.set(row, NO_ITEM);
                }
                let added = old.end.clamp(new.start, new.end)..new.end;
                for row in rows(new_slot, added.start - new.start, added.end - added.start) {
                    priorities.set(row, initial);
                }
            }
            let new = StartRange {
                first: new.start,
                slot: new_slot,
                len: range_len(&new),
            };
            self.set_range(env, new);
        }
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
        let range = &self.ranges[env];
        ItemStart {
            env,
            position: range.first + offset as u64,
            slot: ring.slot_after(range.slot, offset),
        }
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
        let range = &self.ranges[env];
        let offset = usize::try_from(position.checked_sub(range.first)?).ok()?;
        (offset < range.len).then(|| ItemStart {
            env,
            position,
            slot: ring.slot_after(range.slot, offset),
        })
    }

    /// The keys of all items in random order.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn shuffled_keys(&self, random: &mut TableRng) -> Result<Vec<u64>> {
        let envs = self.ranges.len();
        let mut keys = Vec::new();
        keys.try_reserve_exact(self.len).map_err(|_| {
            let what = format!("an epoch of {}", count(self.len, "item"));
            Error::out_of_memory(what, self.len.checked_mul(size_of::<u64>()))
        })?;
        keys.extend(self.ranges.iter().enumerate().flat_map(|(env, range)| {
            let positions = range.positions();
            positions.map(move |position| item_key(env, position, envs))
        }));
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
            return Ok(self.uniformly_drawn(ring, starts));
        };
        if !replacement {
            return Err(Error::InvalidArgument(
                "`replacement` must be True with a Prioritized sampler; got False".into(),
            ));
        }
        let distribution = distribution(&mut priorities.tree, len);
        let total = priorities.tree.total();
        if total <= 0.0 {
            let starts = self.draw_uniformly(ring, n, random);
            return Ok(self.uniformly_drawn(ring, starts));
        }
        let rows = draw(&mut priorities.tree, n, random);
        for row in &rows {
            priorities.prefetch(*row);
        }
        let weights = rows.iter().map(|row| priorities.tree.weight(*row) / total);
        let probabilities = weights.collect();
        let values = rows.iter().map(|row| priorities.get(*row)).collect();
        Ok(Drawn {
            starts: rows
                .into_iter()
                .map(|row| self.start_in_row(ring, row))
                .collect(),
            probabilities,
            priorities: values,
            distribution,
        })
    }

    /// Draws `n` items with replacement, all equally likely.
    fn draw_uniformly(&mut self, ring: &Ring, n: usize, random: &mut TableRng) -> Vec<ItemStart> {
        let len = self.len;
        self.starts_at(ring, (0..n).map(|_| uniform_below(random, len)))
    }

    /// The result of a draw of these items, in which all items were equally likely.
    pub(super) fn uniformly_drawn(&self, ring: &Ring, starts: Vec<ItemStart>) -> Drawn {
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
        new.iter()
            .try_for_each(|priority| kind.check_priority_for("the replay buffer", *priority))?;
        let row = |key: &u64| {
            let start = self.find(ring, *key)?;
            Some(ring.row(start.env, start.slot))
        };
        let rows: Vec<Option<usize>> = keys.iter().map(row).collect();
        let Some(priorities) = &mut self.priorities else {
            return Ok(0);
        };
        for (rows, new) in rows
            .chunks(UPDATES_TOGETHER)
            .zip(new.chunks(UPDATES_TOGETHER))
        {
            for row in rows.iter().flatten() {
                priorities.tree.prefetch(*row);
                priorities.prefetch(*row);
            }
            for (row, priority) in rows.iter().zip(new) {
                if let Some(row) = row {
                    priorities.set(*row, *priority + 0.0); // never `NO_ITEM`
                }
            }
        }
        Ok(rows.iter().flatten().count())
    }
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
