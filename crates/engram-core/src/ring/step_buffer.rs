//! A replay buffer without a lock: a ring, the index of its items, and a random generator.

use rand_xoshiro::rand_core::SeedableRng;

use super::memory::RingMemory;
use super::options::StepBufferOptions;
use super::{
    BufferMemory, Drawn, Hindsight, ItemIndex, ItemStart, LiveState, RecentMix, Ring, RingGather,
    RingItems,
};
use crate::error::{Error, Result};
use crate::selector::TableRng;
use crate::shared_bytes::SharedBytes;
use crate::text::count;

/// The steps of several environments, and the items that are sampled from them.
#[derive(Debug)]
pub struct StepBuffer {
    pub(super) ring: Ring,
    pub(super) items: RingItems,
    pub(super) index: ItemIndex,
    gather: RingGather,
    hindsight: Option<Hindsight>,
    recent: Option<RecentMix>,
    pub(super) rng: TableRng,
    /// Only if the memory of the buffer outlives the process.
    pub(super) live: Option<LiveState>,
}

impl StepBuffer {
    /// Creates an empty buffer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it needs too much memory. [`Error::Signature`] if the column of the rewards or one of the
    /// `episode_columns` has a dtype or shape that is not allowed.
    pub fn new(options: &StepBufferOptions<'_>) -> Result<Self> {
        Self::in_memory(options, None)
    }

    /// [`Self::new`] in this memory, of which the parts have the sizes that [`BufferMemory::sizes`] returns. Steps in it
    /// are not part of the buffer before [`Self::reopen`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_memory(
        options: &StepBufferOptions<'_>,
        memory: Option<BufferMemory>,
    ) -> Result<Self> {
        let gather = RingGather::new(options)?;
        let (live, priorities, memory) = match memory {
            Some(memory) => (
                Some(memory.live),
                Some(memory.priorities),
                Some(memory.ring),
            ),
            None => (None, None, None),
        };
        let memory = if let Some(memory) = memory {
            memory
        } else {
            let rows = options.num_envs.checked_mul(options.length);
            RingMemory::allocate(options.cells, options.names, rows)?
        };
        let ring = Ring::new(options, gather.lookback(), memory)?;
        Ok(Self {
            index: ItemIndex::new(&ring, &options.items, options.exponent, priorities)?,
            ring,
            items: options.items,
            gather,
            hindsight: options.hindsight,
            recent: options.recent,
            rng: TableRng::seed_from_u64(options.seed),
            live,
        })
    }

    /// The parts on the heap of the memory of each column, of the priorities and of their tree, for settings such as huge
    /// pages. They are not accessed before the first step is added or restored, or [`Self::reopen`].
    pub fn heap_memory(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let columns = self.ring.columns.iter_mut();
        let memory = columns
            .map(|column| &mut column.bytes)
            .chain(self.index.memory());
        memory
            .filter(|bytes| bytes.is_on_heap())
            .map(|bytes| &mut **bytes)
    }

    /// Number of steps stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// True if no step is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Number of items that can be sampled.
    #[must_use]
    pub fn num_items(&self) -> usize {
        self.index.len()
    }

    /// Adds steps; see [`Ring::add`].
    pub fn add(&mut self, envs: &[usize], columns: &[SharedBytes<'_>], steps: usize) {
        self.begin_write(envs, steps);
        self.ring.add(envs, columns, steps);
        self.finish_change(envs.iter().copied());
    }

    /// Adds a whole episode to an environment, apart from the steps before and after it.
    pub fn add_episode(&mut self, env: usize, columns: &[SharedBytes<'_>], steps: usize) {
        self.begin_write(&[env], steps);
        let ended = self.ring.begin_episode(env);
        self.ring.add(&[env], columns, steps);
        self.ring.end_episode(env);
        self.finish_change(std::iter::once(env));
        // Only now: if the process is killed before, the episode is not there, and the earlier one has not ended. If it
        // is killed here, the flag follows from that of the next step.
        self.ring.flag_ended(env, ended);
    }

    /// Ends the episodes of these environments; see [`Ring::end_episode`].
    pub fn end_episodes(&mut self, envs: &[usize]) {
        for env in envs {
            self.ring.end_episode(*env);
        }
        self.finish_change(envs.iter().copied());
    }

    /// Removes all steps.
    pub fn clear(&mut self) {
        self.ring.clear();
        self.finish_change(0..self.ring.num_envs());
    }

    /// Records that slots of these environments are being overwritten by this many steps.
    fn begin_write(&mut self, envs: &[usize], steps: usize) {
        if let Some(live) = &mut self.live {
            for env in envs {
                live.begin_write(*env, self.ring.envs[*env].added + steps as u64);
            }
        }
    }

    /// Updates the items of these environments after their steps have changed, and publishes the new state.
    fn finish_change(&mut self, envs: impl Iterator<Item = usize> + Clone) {
        self.index.update(&self.ring, &self.items, envs.clone());
        self.publish(envs);
    }

    /// Draws `n` items.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] if there are too few. [`Error::InvalidArgument`] without replacement if there are
    /// priorities.
    pub fn draw(&mut self, n: usize, replacement: bool) -> Result<Drawn> {
        let available = self.index.len();
        if available == 0 {
            return Err(Error::Unsatisfiable(self.why_empty(&self.items)));
        }
        if !replacement && n > available {
            return Err(Error::Unsatisfiable(format!(
                "`batch_size` must be at most the number of items, {available}, without replacement; got {n}"
            )));
        }
        let (index, rng) = (&mut self.index, &mut self.rng);
        let drawn = match &self.recent {
            Some(recent) if replacement => recent.draw(index, &self.ring, n, rng),
            _ => index.draw(&self.ring, n, replacement, rng)?,
        };
        Ok(self.with_goals(drawn))
    }

    /// Draws the goals of these items.
    fn with_goals(&mut self, mut drawn: Drawn) -> Drawn {
        if let Some(hindsight) = self.hindsight {
            drawn.goal_rows = hindsight.draw(&self.ring, &drawn.starts, &mut self.rng);
        }
        drawn
    }

    /// Why there are none of these items.
    fn why_empty(&self, items: &RingItems) -> String {
        let steps = self.ring.len();
        if steps == 0 {
            return "the replay buffer is empty; add steps before sampling".into();
        }
        let needed = match *items {
            RingItems::Steps => 1,
            RingItems::Transitions { n_step, .. } => n_step,
            RingItems::Sequences { length, .. } => length,
            RingItems::Episodes { max_length } => max_length,
        };
        let or_end = match *items {
            RingItems::Sequences {
                continues: true, ..
            }
            | RingItems::Steps => "",
            _ => ", or the end of an episode",
        };
        format!(
            "the replay buffer has {} and no item yet; an item needs {} of one environment{or_end}",
            count(steps, "step"),
            count(needed, "consecutive step")
        )
    }

    /// Draws `n` starts of `length` consecutive steps of an environment with replacement, all equally likely, whatever
    /// the buffer's items are. The same steps and the same `seed` give the same starts. `length` is at least 1.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] if no environment has `length` steps, [`Error::OutOfMemory`].
    pub fn draw_sequences(&self, n: usize, length: usize, seed: u64) -> Result<Drawn> {
        let items = RingItems::Sequences {
            length,
            burn_in: 0,
            continues: true,
        };
        let mut index = ItemIndex::new(&self.ring, &items, None, None)?;
        index.update(&self.ring, &items, 0..self.ring.num_envs());
        if index.len() == 0 {
            return Err(Error::Unsatisfiable(self.why_empty(&items)));
        }
        index.draw(&self.ring, n, true, &mut TableRng::seed_from_u64(seed))
    }

    /// The start in the slot of this position, whichever step is in that slot now.
    #[must_use]
    pub fn start_in_slot_of(&self, env: usize, position: u64) -> ItemStart {
        #[expect(clippy::cast_possible_truncation, reason = "below `length`")]
        let slot = (position % self.ring.length() as u64) as usize;
        ItemStart {
            env,
            position,
            slot,
        }
    }

    /// Number of slots per environment.
    #[must_use]
    pub fn length(&self) -> usize {
        self.ring.length()
    }

    /// The keys of all items in random order.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn shuffled_keys(&mut self) -> Result<Vec<u64>> {
        self.index.shuffled_keys(&self.ring, &mut self.rng)
    }

    /// Removes keys from the end of `keys` and returns their items, until `n` items are found or no keys are left.
    /// Skips items that cannot be sampled any more.
    pub fn take(&mut self, keys: &mut Vec<u64>, n: usize) -> Drawn {
        let mut starts = Vec::with_capacity(n.min(keys.len()));
        while starts.len() < n
            && let Some(key) = keys.pop()
        {
            starts.extend(self.index.find(&self.ring, key));
        }
        let drawn = self.index.equally_likely_draw(&self.ring, starts);
        self.with_goals(drawn)
    }

    /// Sets the priorities of items. Skips keys without an item; returns the number of keys found.
    ///
    /// # Errors
    /// [`Error::Priority`] or [`Error::InvalidArgument`]. Then no priority is changed.
    pub fn update_priorities(&mut self, keys: &[u64], priorities: &[f64]) -> Result<usize> {
        self.index.update_priorities(&self.ring, keys, priorities)
    }

    /// Copies items, which must still be in the buffer, into one array per output column.
    ///
    /// # Errors
    /// None. This returns a `Result` because it shares code with the batches of tables.
    pub fn gather(&self, drawn: &Drawn, outputs: Vec<&mut [u8]>) -> Result<()> {
        self.gather.gather(&self.ring, &self.items, drawn, outputs)
    }
}
