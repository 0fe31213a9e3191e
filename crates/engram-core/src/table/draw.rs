//! Drawing samples, with or without a lease.

use crate::item::{Item, Slot};
use crate::op::{Removal, SessionNumber, TableOp};
use crate::prefetch::prefetch_value;
use crate::selector::DrawDistribution;
use crate::table::{DeferredDrops, TableState};
use crate::trajectory::Trajectory;

/// Maximum number of draws per call, which bounds the time that the table's lock is held.
const MAX_DRAWS_PER_CALL: usize = 16_384;

/// An item that was sampled, or read by a scan. Its trajectory stays readable after the item is removed.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The cells it refers to.
    pub trajectory: Trajectory,
    /// Identifies the item, to acknowledge or return the lease.
    pub handle: Handle,
    /// Its key.
    pub key: u64,
    /// Probability of the draw; 1 for a scan.
    pub probability: f64,
    /// Its priority at the draw.
    pub priority: f64,
    /// Number of times it was sampled, including this draw, unless a scan read it.
    pub times_sampled: u32,
    /// Number of items in the table at the draw; for a scan, at its snapshot or lookup of keys.
    pub table_size: u64,
    /// Properties of the distribution it was drawn from.
    pub distribution: DrawDistribution,
}

/// The properties of a sampled item, without its trajectory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledItemInfo {
    /// Its key.
    pub key: u64,
    /// Probability of the draw.
    pub probability: f64,
    /// Its priority at the draw.
    pub priority: f64,
    /// Number of times it was sampled, including this draw.
    pub times_sampled: u32,
    /// Number of items in the table at the draw.
    pub table_size: u64,
    /// Properties of the distribution it was drawn from.
    pub distribution: DrawDistribution,
}

impl Draw {
    /// An item as a scan returns it: with probability 1, and not counted as a sample. `None` for a vacant slot.
    pub(super) fn of_item(item: &Item, slot: Slot, table_size: u64) -> Option<Self> {
        Some(Self {
            trajectory: item.trajectory.clone()?,
            handle: Handle {
                slot,
                seq: item.seq,
            },
            key: item.key,
            probability: 1.0,
            priority: item.priority,
            times_sampled: item.times_sampled,
            table_size,
            distribution: DrawDistribution::uniform(1),
        })
    }

    /// Insertion number of the item.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.handle.seq
    }

    /// The properties of the sampled item.
    #[must_use]
    pub fn info(&self) -> SampledItemInfo {
        SampledItemInfo {
            key: self.key,
            probability: self.probability,
            priority: self.priority,
            times_sampled: self.times_sampled,
            table_size: self.table_size,
            distribution: self.distribution,
        }
    }
}

/// Identifies an item: its slot and insertion number. Invalid once the item is removed, even if its
/// slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    slot: Slot,
    seq: u64,
}

impl TableState {
    /// The distribution of the next draw.
    pub fn distribution(&mut self) -> DrawDistribution {
        self.contents.sampler.distribution()
    }

    /// Draws up to `n` items, as many as the limiter and the table allow now, and appends them to
    /// `draws`. Returns the number of items drawn. There is a maximum per call, which is lower while a snapshot exists.
    ///
    /// Each leased draw must be ended by [`TableState::acknowledge`] or
    /// [`TableState::return_leases`].
    pub fn draw(
        &mut self,
        n: usize,
        leased: bool,
        draws: &mut Vec<Draw>,
        deferred: &mut DeferredDrops,
    ) -> usize {
        let n = n.min(self.max_draws_per_call());
        let start = draws.len();
        if self.options.max_times_sampled == 0 {
            // Drawing removes no items: all draws can be made at once.
            #[expect(clippy::cast_possible_truncation, reason = "at most n")]
            let allowed = self.counters.limiter.samples_allowed(n as u64) as usize;
            if allowed > 0 && !self.contents.sampler.is_empty() {
                self.draw_exactly(allowed, leased, draws, deferred);
            }
        } else {
            while draws.len() - start < n
                && self.counters.limiter.can_sample(1)
                && !self.contents.sampler.is_empty()
            {
                self.draw_exactly(1, leased, draws, deferred);
            }
        }
        draws.len() - start
    }

    /// True if one call of [`TableState::draw`] is certain to draw `n` items now.
    #[must_use]
    pub fn can_draw_at_once(&self, n: usize) -> bool {
        let allowed = n <= self.max_draws_per_call() && self.counters.limiter.can_sample(n as u64);
        // A draw that removes its item changes what the limiter allows next, so only one draw is
        // certain.
        allowed
            && !self.contents.sampler.is_empty()
            && (self.options.max_times_sampled == 0 || n == 1)
    }

    /// Maximum number of draws of one call now.
    fn max_draws_per_call(&self) -> usize {
        if self.contents.items.is_shared() {
            self.max_items_per_lock_hold()
        } else {
            MAX_DRAWS_PER_CALL
        }
    }

    /// Draws exactly `n` items. The limiter must allow them, and the sampler must not be empty. `n` must be 1 if
    /// the table has `max_times_sampled`: a draw may then remove its item.
    fn draw_exactly(
        &mut self,
        n: usize,
        leased: bool,
        draws: &mut Vec<Draw>,
        deferred: &mut DeferredDrops,
    ) {
        let distribution = self.contents.sampler.distribution();
        let table_size = self.contents.size;
        let mut picks = std::mem::take(&mut self.picks);
        let mut keys = std::mem::take(&mut self.drawn_keys);
        picks.clear();
        keys.clear();
        let rng = &mut self.counters.rng;
        self.contents.sampler.pick(n, rng, &mut picks);
        for pick in &picks {
            self.contents.items.prefetch(pick.slot as usize);
        }
        for pick in &picks {
            let item = &self.contents.items[pick.slot as usize];
            keys.push(item.key);
            if let Some(Trajectory::Rows { chunk, .. } | Trajectory::Window { chunk, .. }) =
                &item.trajectory
            {
                prefetch_value(&raw const **chunk);
            }
        }
        if self.contents.sampler.is_random() {
            self.record_rng();
        }
        self.record(&TableOp::Sample {
            keys: &keys,
            leased,
        });
        self.counters.leased += n as u64 * u64::from(leased);
        draws.reserve(n);
        for pick in &picks {
            let item = self.count_sample(pick.slot, leased);
            let exhausted = item.is_exhausted();
            let Some(trajectory) = item.trajectory.clone() else {
                continue;
            };
            draws.push(Draw {
                trajectory,
                handle: Handle {
                    slot: pick.slot,
                    seq: item.seq,
                },
                key: item.key,
                probability: pick.probability,
                priority: item.priority,
                times_sampled: item.times_sampled,
                table_size,
                distribution,
            });
            if exhausted {
                self.remove(pick.slot, Removal::Exhausted, deferred);
            }
        }
        self.picks = picks;
        self.drawn_keys = keys;
    }

    /// Ends leases; their samples stay counted. Removes items that were sampled as often as allowed and have no
    /// other lease.
    pub fn acknowledge(
        &mut self,
        handles: impl Iterator<Item = Handle>,
        deferred: &mut DeferredDrops,
    ) {
        self.acknowledge_numbered(handles, None, deferred);
    }

    /// Does what [`Self::acknowledge`] does. If a number and the clock's reading are given, marks the number as applied:
    /// [`Self::is_applied`] then returns true, also after a restart that the acknowledgement survives.
    pub fn acknowledge_numbered(
        &mut self,
        handles: impl Iterator<Item = Handle>,
        number: Option<(SessionNumber, u64)>,
        deferred: &mut DeferredDrops,
    ) {
        let (handles, keys) = self.since_reset(handles);
        if handles.is_empty() {
            return;
        }
        let samples = handles.len() as u64;
        let keys = &keys;
        if let Some((number, now)) = number {
            self.record(&TableOp::AcknowledgeNumbered {
                keys,
                samples,
                number,
                now,
            });
            self.mark_applied(number, now);
        } else {
            self.record(&TableOp::Acknowledge { keys, samples });
        }
        self.counters.leased -= samples;
        for handle in handles {
            if self.is_live(handle) {
                self.end_lease(handle.slot);
                if self.is_exhausted(handle.slot) {
                    self.remove(handle.slot, Removal::Exhausted, deferred);
                }
            }
        }
    }

    /// Ends leases and undoes the counts of their samples; hidden items become visible again.
    ///
    /// Items that were removed meanwhile stay removed.
    pub fn return_leases(&mut self, handles: impl Iterator<Item = Handle>) {
        let (handles, keys) = self.since_reset(handles);
        debug_assert!(handles.len() as u64 <= self.counters.leased);
        self.record_returned_leases(&keys, handles.len() as u64);
        for handle in handles {
            if self.is_live(handle) {
                self.end_lease(handle.slot);
                self.undo_sample(handle.slot);
            }
        }
    }

    /// Undoes the counts of draws without a lease that did not reach their caller.
    ///
    /// Items that were removed meanwhile stay removed.
    pub fn undo_samples(&mut self, handles: impl Iterator<Item = Handle>) {
        let (handles, keys) = self.since_reset(handles);
        if handles.is_empty() {
            return;
        }
        let samples = handles.len() as u64;
        let keys = &keys;
        self.record(&TableOp::UndoSamples { keys, samples });
        self.undo_limiter_samples(samples);
        for handle in handles {
            if self.is_live(handle) {
                self.undo_sample(handle.slot);
            }
        }
    }

    /// Draws the items with these keys on lease, without asking the rate limiter: for a reader that has them already, and
    /// whose leases have ended, which undid the draws. Returns the handles of those that are in the table and may be
    /// sampled.
    pub fn lease_again(&mut self, keys: &[u64]) -> Vec<Handle> {
        let mut handles = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(slot) = self.contents.keys.get(*key) else {
                continue;
            };
            if self.contents.items[slot as usize].is_hidden() {
                continue;
            }
            self.record(&TableOp::Sample {
                keys: &[*key],
                leased: true,
            });
            self.counters.leased += 1;
            let seq = self.count_sample(slot, true).seq;
            handles.push(Handle { slot, seq });
        }
        handles
    }

    /// Removes drawn items whose cells cannot be read. Returns how many of them were still in the table.
    pub fn remove_unreadable(
        &mut self,
        handles: impl Iterator<Item = Handle>,
        deferred: &mut DeferredDrops,
    ) -> usize {
        let mut removed = 0;
        for handle in handles {
            if self.is_live(handle) {
                self.remove(handle.slot, Removal::Deleted, deferred);
                removed += 1;
            }
        }
        removed
    }

    /// True if the item is still in the table.
    fn is_live(&self, handle: Handle) -> bool {
        if handle.seq < self.counters.first_seq {
            return false;
        }
        let item = &self.contents.items[handle.slot as usize];
        item.trajectory.is_some() && item.seq == handle.seq
    }

    /// The handles of draws since the last reset, which has ended earlier leases, and the keys of those of their items that
    /// are still in the table.
    fn since_reset(&self, handles: impl Iterator<Item = Handle>) -> (Vec<Handle>, Vec<u64>) {
        let handles = handles.filter(|handle| handle.seq >= self.counters.first_seq);
        let handles: Vec<Handle> = handles.collect();
        let live = handles.iter().filter(|handle| self.is_live(**handle));
        let keys = live.map(|handle| self.contents.items[handle.slot as usize].key);
        let keys = keys.collect();
        (handles, keys)
    }
}
