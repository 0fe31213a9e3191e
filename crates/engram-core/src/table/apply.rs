//! Applies changes to a table. Most functions apply the change of one [`TableOp`], which their caller
//! records. Recovery applies recorded changes with the same functions.

use std::sync::Arc;

use crate::item::{HIDDEN, Item, NewItem, Slot};
use crate::op::{Lsn, OpSink, Removal, SessionNumber, TableOp};
use crate::selector::TableRng;
use crate::table::{Contents, DeferredDrops, ITEM_OVERHEAD, TableState};

impl TableState {
    /// Reports a change to the sink, before or after it is applied, and stores its position.
    pub(super) fn record(&mut self, op: &TableOp<'_>) {
        self.counters.last_lsn = self.sink.append(&self.options.name, op);
    }

    /// Records the current state of the random generator.
    pub fn record_rng(&mut self) {
        let rng = &self.counters.rng;
        let op = TableOp::SetRng { rng };
        self.counters.last_lsn = self.sink.append(&self.options.name, &op);
    }

    /// The generator of the table's random choices.
    #[must_use]
    pub fn generator(&self) -> &TableRng {
        &self.counters.rng
    }

    /// Applies a recorded change without recording it, to replay a journal.
    pub fn replay(&mut self, op: &TableOp<'_>, deferred: &mut DeferredDrops) {
        let slot_of = |state: &Self, key| state.contents.keys.get(key);
        match *op {
            TableOp::Insert { item, now, number } => {
                if slot_of(self, item.key).is_none() {
                    self.add_item(item.clone(), now);
                }
                if let Some(number) = number {
                    self.mark_applied(number, now);
                }
            }
            TableOp::SkipInsert { number, now } => self.mark_applied(number, now),
            TableOp::Remove { key, .. } => {
                if let Some(slot) = slot_of(self, key) {
                    self.remove_item(slot, deferred);
                }
            }
            TableOp::SetPriority { key, priority } => {
                if let Some(slot) = slot_of(self, key) {
                    self.set_priority(slot, priority);
                }
            }
            TableOp::SetRng { rng } => self.counters.rng = rng.clone(),
            TableOp::Sample { keys, leased } => {
                self.counters.leased += keys.len() as u64 * u64::from(leased);
                for key in keys {
                    if let Some(slot) = slot_of(self, *key) {
                        self.count_sample(slot, leased);
                    }
                }
            }
            TableOp::Acknowledge { keys, samples } => self.replay_acknowledgement(keys, samples),
            TableOp::AcknowledgeNumbered {
                keys,
                samples,
                number,
                now,
            } => {
                self.mark_applied(number, now);
                self.replay_acknowledgement(keys, samples);
            }
            TableOp::ReturnLeases { keys, samples } => {
                self.counters.leased = self.counters.leased.saturating_sub(samples);
                self.undo_limiter_samples(samples);
                for key in keys {
                    if let Some(slot) = slot_of(self, *key) {
                        self.end_lease(slot);
                        self.undo_sample(slot);
                    }
                }
            }
            TableOp::UndoSamples { keys, samples } => {
                self.undo_limiter_samples(samples);
                for key in keys {
                    if let Some(slot) = slot_of(self, *key) {
                        self.undo_sample(slot);
                    }
                }
            }
            TableOp::Reset => self.clear(deferred),
            TableOp::SetLimits { limits } => self.counters.limiter.limits = limits.clone(),
        }
    }

    fn replay_acknowledgement(&mut self, keys: &[u64], samples: u64) {
        self.counters.leased = self.counters.leased.saturating_sub(samples);
        for key in keys {
            if let Some(slot) = self.contents.keys.get(*key) {
                self.end_lease(slot);
            }
        }
    }

    /// Like [`TableState::replay`], and sets the position of the last change.
    pub fn replay_at(&mut self, op: &TableOp<'_>, lsn: Lsn, deferred: &mut DeferredDrops) {
        self.replay(op, deferred);
        self.counters.last_lsn = lsn;
    }

    /// Sets the position of the last change: all changes to this table up to it are applied.
    pub fn set_last_lsn(&mut self, lsn: Lsn) {
        self.counters.last_lsn = lsn;
    }

    /// Sets the sink that later changes are recorded in.
    pub fn set_sink(&mut self, sink: Arc<dyn OpSink>) {
        self.sink = sink;
    }

    /// Removes an item, then records the removal. This order is for speed: recording locks the sink, and the
    /// processor completes all pending memory accesses before it takes a lock. Cache misses of the removal overlap
    /// with earlier ones only if the removal precedes the lock.
    pub(super) fn remove(&mut self, slot: Slot, cause: Removal, deferred: &mut DeferredDrops) {
        let key = self.contents.items[slot as usize].key;
        self.remove_item(slot, deferred);
        self.record(&TableOp::Remove { key, cause });
    }

    /// Adds an item with a new key.
    pub(super) fn add_item(&mut self, item: NewItem, now: u64) {
        let contents = &mut self.contents;
        let slot = if let Some(slot) = contents.vacant {
            // In a vacant slot, `seq` is the next vacant slot, or `Slot::MAX`.
            let next = contents.items[slot as usize].seq;
            contents.vacant = Slot::try_from(next).ok().filter(|slot| *slot != Slot::MAX);
            slot
        } else {
            let slot = contents.slot_count;
            contents.slot_count += 1;
            contents.items.ensure_index(slot as usize);
            slot
        };
        let item = Item {
            key: item.key,
            priority: item.priority,
            seq: self.counters.next_seq,
            update_number: self.counters.next_update_number,
            trajectory: Some(item.trajectory),
            times_sampled: 0,
            leases: 0,
        };
        self.counters.next_seq += 1;
        self.counters.next_update_number += 1;
        self.counters.limiter.inserts += 1;
        contents.size += 1;
        contents.keys.insert(item.key, slot);
        contents.hold_chunks(&item);
        let rank = item.rank();
        contents.sampler.insert(slot, rank);
        contents.remover.insert(slot, rank);
        if let Some(expiry) = &mut contents.expiry {
            expiry.inserted_at.set(slot as usize, now);
            expiry.order.insert(slot, rank);
        }
        contents.items[slot as usize] = item;
    }

    /// Marks the item or acknowledgement with this session number as applied.
    pub(super) fn mark_applied(&mut self, number: SessionNumber, now: u64) {
        self.sessions
            .get_or_insert_default()
            .mark_applied(number, now);
    }

    /// Removes the item of a slot; moves its trajectory to `deferred`.
    pub(super) fn remove_item(&mut self, slot: Slot, deferred: &mut DeferredDrops) {
        let contents = &mut self.contents;
        let vacant = Item {
            seq: u64::from(contents.vacant.unwrap_or(Slot::MAX)),
            ..Item::default()
        };
        let item = std::mem::replace(&mut contents.items[slot as usize], vacant);
        contents.vacant = Some(slot);
        contents.size -= 1;
        contents.keys.remove(item.key);
        if !item.is_hidden() {
            contents.remove_from_selectors(slot);
        }
        self.counters.limiter.deletes += 1;
        self.counters.num_deleted_episodes += contents.release_chunks(&item);
        deferred.trajectories.extend(item.trajectory);
    }

    /// Sets the priority of the item of a slot.
    pub(super) fn set_priority(&mut self, slot: Slot, priority: f64) {
        let item = &mut self.contents.items[slot as usize];
        item.priority = priority;
        item.update_number = self.counters.next_update_number;
        self.counters.next_update_number += 1;
        let rank = item.rank();
        if !item.is_hidden() {
            self.contents.sampler.update(slot, rank);
            self.contents.remover.update(slot, rank);
        }
    }

    /// Counts a sample of an item and returns the item. Hides it from the selectors if no more samples of it
    /// are allowed.
    pub(super) fn count_sample(&mut self, slot: Slot, leased: bool) -> &Item {
        let item = &mut self.contents.items[slot as usize];
        self.counters.limiter.samples += 1;
        self.counters.num_unique_samples += u64::from(item.times_sampled == 0);
        item.times_sampled = item.times_sampled.saturating_add(1);
        item.leases += u32::from(leased);
        if item.times_sampled == self.options.max_times_sampled && !item.is_hidden() {
            item.leases |= HIDDEN;
            self.contents.remove_from_selectors(slot);
        }
        &self.contents.items[slot as usize]
    }

    /// Ends a lease of an item; its sample stays counted. The caller reduces the table's number of open leases.
    pub(super) fn end_lease(&mut self, slot: Slot) {
        let item = &mut self.contents.items[slot as usize];
        item.leases -= u32::from(item.open_leases() > 0);
    }

    /// See [`Item::is_exhausted`].
    pub(super) fn is_exhausted(&self, slot: Slot) -> bool {
        self.contents.items[slot as usize].is_exhausted()
    }

    /// Reduces the limiter's samples.
    pub(super) fn undo_limiter_samples(&mut self, samples: u64) {
        let limiter = &mut self.counters.limiter;
        limiter.samples = limiter.samples.saturating_sub(samples);
    }

    /// Undoes the counts of a sample in its item, whose lease has ended if it had one. The caller reduces the limiter's
    /// samples. Makes a hidden item visible.
    pub(super) fn undo_sample(&mut self, slot: Slot) {
        let item = &mut self.contents.items[slot as usize];
        item.times_sampled = item.times_sampled.saturating_sub(1);
        let unique = u64::from(item.times_sampled == 0);
        self.counters.num_unique_samples = self.counters.num_unique_samples.saturating_sub(unique);
        if item.is_hidden() {
            item.leases &= !HIDDEN;
            let rank = item.rank();
            let contents = &mut self.contents;
            contents.sampler.reinsert(slot, rank);
            contents.remover.reinsert(slot, rank);
            if let Some(expiry) = &mut contents.expiry {
                expiry.order.reinsert(slot, rank);
            }
        }
    }

    /// Removes all items, sets the counters to 0 and drops a snapshot in progress. Session numbers stay: a retry of
    /// an item sent before the reset must not insert it again.
    pub(super) fn clear(&mut self, deferred: &mut DeferredDrops) {
        let empty = Contents::new(&self.options);
        deferred
            .contents
            .push(std::mem::replace(&mut self.contents, empty));
        deferred.snapshots.extend(self.snapshot_in_progress.take());
        let counters = &mut self.counters;
        counters.first_seq = counters.next_seq;
        counters.num_deleted_episodes = 0;
        counters.num_unique_samples = 0;
        counters.leased = 0;
        counters.limiter.inserts = 0;
        counters.limiter.samples = 0;
        counters.limiter.deletes = 0;
    }
}

impl Contents {
    /// Removes an item from the selectors and the order of expiry, because it is hidden or removed.
    fn remove_from_selectors(&mut self, slot: Slot) {
        self.sampler.remove(slot);
        self.remover.remove(slot);
        if let Some(expiry) = &mut self.expiry {
            expiry.order.remove(slot);
        }
    }

    /// Counts the references of a new item to its chunks, its bytes, and the bytes and episodes of chunks that no
    /// other item refers to.
    pub(super) fn hold_chunks(&mut self, item: &Item) {
        let Some(trajectory) = &item.trajectory else {
            return;
        };
        self.bytes += ITEM_OVERHEAD + trajectory.footprint() as u64;
        for chunk in trajectory.chunks() {
            if chunk.holders().hold(self.holder) {
                self.bytes += chunk.footprint() as u64;
                for episode in &chunk.origin().episodes {
                    let chunks = self.episodes.get_or_zero(*episode);
                    self.num_episodes += u64::from(*chunks == 0);
                    *chunks += 1;
                }
            }
        }
    }

    /// Undoes [`Contents::hold_chunks`] for a removed item. Returns the number of episodes that lost their last
    /// chunk.
    fn release_chunks(&mut self, item: &Item) -> u64 {
        let Some(trajectory) = &item.trajectory else {
            return 0;
        };
        let mut lost_episodes = 0;
        self.bytes -= ITEM_OVERHEAD + trajectory.footprint() as u64;
        for chunk in trajectory.chunks() {
            if chunk.holders().release(self.holder) {
                self.bytes -= chunk.footprint() as u64;
                for episode in &chunk.origin().episodes {
                    let chunks = self.episodes.get_or_zero(*episode);
                    *chunks -= 1;
                    if *chunks == 0 {
                        self.episodes.remove(*episode);
                        lost_episodes += 1;
                    }
                }
            }
        }
        self.num_episodes -= lost_episodes;
        lost_episodes
    }
}
