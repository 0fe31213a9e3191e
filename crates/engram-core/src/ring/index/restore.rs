//! The priorities of a save, and the index of a buffer that is filled from one.
//!
//! While the save is read, the priorities of restored steps are *staged*: stored in the rows of the steps, NaN for steps
//! with which no item of the save begins.

use super::ItemIndex;
use super::priorities::NO_ITEM;
use crate::error::Result;
use crate::ring::{EnvRing, EnvState, Ring, RingItems, filled};
use crate::selector::SelectorKind;

impl ItemIndex {
    /// True if items have priorities.
    pub(in crate::ring) fn has_priorities(&self) -> bool {
        self.priorities.is_some()
    }

    /// The priorities of the items that begin with `len` consecutive steps, of which the first has this position and row;
    /// NaN where no item begins. `None` if there are no priorities.
    pub(in crate::ring) fn priorities<'a>(
        &'a self,
        ring: &'a Ring,
        env: usize,
        position: u64,
        row: usize,
        len: usize,
    ) -> Option<impl Iterator<Item = f64> + 'a> {
        let values = &self.priorities.as_ref()?.values.as_f64s()[row..row + len];
        let priority = move |(value, position): (&f64, u64)| {
            if self.begins_item(ring, env, position) {
                *value
            } else {
                f64::NAN
            }
        };
        Some(values.iter().zip(position..).map(priority))
    }

    /// Stages the priorities of the next `len` steps of an environment; `None` if the save has none.
    ///
    /// # Errors
    /// [`crate::Error::Priority`] if one of them is not allowed. Then none is staged.
    pub(in crate::ring) fn stage(
        &mut self,
        ring: &Ring,
        env: usize,
        len: usize,
        saved: Option<&[[u8; 8]]>,
    ) -> Result<()> {
        let Some(priorities) = &mut self.priorities else {
            return Ok(());
        };
        let saved =
            |number: usize| saved.map_or(f64::NAN, |saved| f64::from_le_bytes(saved[number]));
        let kind = SelectorKind::Prioritized {
            exponent: priorities.exponent,
        };
        (0..len)
            .map(saved)
            .filter(|priority| !priority.is_nan())
            .try_for_each(|priority| kind.check_priority_for("the replay buffer", priority))?;
        let next = ring.envs[env].next_slot;
        for number in 0..len {
            let row = ring.row(env, ring.slot_after(next, number));
            priorities.values.as_f64s_mut()[row] = saved(number) + 0.0; // -0.0, which is `NO_ITEM`, becomes 0.0
        }
        Ok(())
    }

    /// Stages the priorities that are in the memory of a buffer already. Those of other rows become 0. Without priorities,
    /// those in the memory are left for the next buffer.
    ///
    /// # Errors
    /// [`crate::Error::Priority`] if one of them is not allowed; [`crate::Error::OutOfMemory`].
    pub(in crate::ring) fn stage_own(&mut self, ring: &Ring, states: &[EnvState]) -> Result<()> {
        let Some(priorities) = &mut self.priorities else {
            self.leftover_priority_ends = filled(0, states.len())?;
            for (end, state) in self.leftover_priority_ends.iter_mut().zip(states) {
                *end = state.priorities_end.min(state.added);
            }
            return Ok(());
        };
        let kind = SelectorKind::Prioritized {
            exponent: priorities.exponent,
        };
        let values = priorities.values.as_f64s_mut();
        for (env, state) in states.iter().enumerate() {
            for (position, row) in ring.stored_rows(env) {
                let is_item = values[row].to_bits() != NO_ITEM.to_bits();
                if position >= state.priorities_end || !is_item {
                    values[row] = f64::NAN;
                } else if !values[row].is_nan() {
                    kind.check_priority_for("the replay buffer", values[row])?;
                }
            }
            let EnvRing {
                stored, next_slot, ..
            } = ring.envs[env];
            for number in 0..ring.length() - stored {
                let row = ring.row(env, ring.slot_after(next_slot, number));
                if values[row].to_bits() != 0 {
                    values[row] = 0.0; // only then, so that unused memory stays unused
                }
            }
        }
        Ok(())
    }

    /// [`EnvState::priorities_end`](super::super::EnvState::priorities_end) of an environment.
    pub(in crate::ring) fn priorities_end(&self, env: usize) -> u64 {
        match self.priorities {
            Some(_) => self.ranges[env].positions().end,
            None => self.leftover_priority_ends.get(env).copied().unwrap_or(0),
        }
    }

    /// Removes all staged priorities.
    pub(in crate::ring) fn discard_staged(&mut self, ring: &Ring) {
        if let Some(priorities) = &mut self.priorities {
            for (_, row) in (0..ring.num_envs()).flat_map(|env| ring.stored_rows(env)) {
                priorities.values.as_f64s_mut()[row] = 0.0;
            }
        }
    }

    /// Indexes the steps of a ring that was filled from a save. Items without a staged priority get that of new items.
    pub(in crate::ring) fn finish_restore(&mut self, ring: &Ring, items: &RingItems) {
        for env in 0..ring.num_envs() {
            let starts = items.starts(ring, env);
            self.set_range(env, self.range(ring, env, &starts));
        }
        let Some(mut priorities) = self.priorities.take() else {
            return;
        };
        let index = &*self;
        let rows = || {
            (0..ring.num_envs()).flat_map(|env| {
                let stored = ring.stored_rows(env);
                stored.map(move |(position, row)| (row, index.begins_item(ring, env, position)))
            })
        };
        for (row, is_item) in rows() {
            if !is_item {
                priorities.values.as_f64s_mut()[row] = NO_ITEM;
            }
            let known = priorities.get(row);
            if !known.is_nan() {
                priorities.record(row, 0.0, known);
            }
        }
        let initial = priorities.initial(); // the largest known priority
        for (row, _) in rows() {
            if priorities.get(row).is_nan() {
                priorities.values.as_f64s_mut()[row] = initial;
                priorities.record(row, 0.0, initial);
            }
        }
        self.priorities = Some(priorities);
    }
}
