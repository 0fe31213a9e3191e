//! A model of a table: a list of items, slow and simple.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engram_core::table::ITEM_OVERHEAD;
use engram_core::table::SESSION_IDLE;
use engram_core::{
    Admission, Chunk, RateLimits, SelectorKind, SessionNumber, TableOptions, Trajectory,
};

/// An item of the model.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) priority: f64,
    pub(crate) seq: u64,
    /// Number of its last insert or update: see `Model::next_update_number`.
    pub(crate) update_number: u64,
    pub(crate) times_sampled: u32,
    /// Number of its open leases.
    pub(crate) leases: u32,
    /// True once it was drawn for the last allowed time.
    pub(crate) hidden: bool,
    pub(crate) inserted_at: u64,
    pub(crate) trajectory: Trajectory,
}

/// An open lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) key: u64,
    pub(crate) seq: u64,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) options: Arc<TableOptions>,
    pub(crate) limits: RateLimits,
    pub(crate) entries: Vec<Entry>,
    pub(crate) inserts: u64,
    pub(crate) samples: u64,
    pub(crate) deletes: u64,
    pub(crate) deleted_episodes: u64,
    pub(crate) unique_samples: u64,
    /// Number of open leases since the last reset, including those of removed items.
    open_leases: u64,
    pub(crate) next_seq: u64,
    /// Number of inserts and updates of items so far. Heaps order equal priorities by it.
    next_update_number: u64,
    /// `next_seq` at the last reset.
    first_seq: u64,
    /// Last number and last use of each session. The model never forgets a session.
    sessions: BTreeMap<u64, (u64, u64)>,
}

impl Model {
    pub(crate) fn new(options: Arc<TableOptions>) -> Self {
        Self {
            limits: options.limits.clone(),
            options,
            entries: Vec::new(),
            inserts: 0,
            samples: 0,
            deletes: 0,
            deleted_episodes: 0,
            unique_samples: 0,
            open_leases: 0,
            next_seq: 0,
            next_update_number: 0,
            first_seq: 0,
            sessions: BTreeMap::new(),
        }
    }

    /// The last number of a session; 0 if it is unknown or idle.
    pub(crate) fn last_number(&self, session: u64, now: u64) -> u64 {
        let entry = self.sessions.get(&session);
        let entry = entry.filter(|(_, last_use)| now - last_use < SESSION_IDLE);
        entry.map_or(0, |(last_number, _)| *last_number)
    }

    pub(crate) fn mark_applied(&mut self, number: SessionNumber, now: u64) {
        let SessionNumber { session, number } = number;
        self.sessions.insert(session, (number, now));
    }

    pub(crate) fn find(&self, key: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    pub(crate) fn hidden(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.hidden).count() as u64
    }

    pub(crate) fn visible(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.hidden)
    }

    fn chunks(&self) -> BTreeMap<u64, &Arc<Chunk>> {
        let chunks = self
            .entries
            .iter()
            .flat_map(|entry| entry.trajectory.chunks());
        chunks.map(|chunk| (chunk.origin().key, chunk)).collect()
    }

    pub(crate) fn episodes(&self) -> BTreeSet<u64> {
        let chunks = self.chunks();
        let episodes = chunks.values().flat_map(|chunk| &chunk.origin().episodes);
        episodes.copied().collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let chunks: usize = self.chunks().values().map(|chunk| chunk.footprint()).sum();
        let items = self
            .entries
            .iter()
            .map(|entry| ITEM_OVERHEAD + entry.trajectory.footprint() as u64);
        chunks as u64 + items.sum::<u64>()
    }

    /// True if the table would be within its bounds with this many items and bytes.
    fn fits(&self, size: u64, bytes: u64) -> bool {
        size <= self.options.max_size && self.options.max_bytes.is_none_or(|max| bytes <= max)
    }

    /// True if the table must evict.
    pub(crate) fn must_evict(&self) -> bool {
        !self.fits(self.entries.len() as u64, self.bytes()) && !self.evictable().is_empty()
    }

    /// The keys that the table may evict now. If some items are hidden, the last visible item is not evicted.
    pub(crate) fn evictable(&self) -> Vec<u64> {
        if self.visible().count() > usize::from(self.hidden() > 0) {
            return self.choices(self.options.remover).into_keys().collect();
        }
        let hidden = self.entries.iter().filter(|entry| entry.hidden);
        let hidden = hidden.map(|entry| entry.key);
        hidden.filter(|_| self.may_evict(0)).collect()
    }

    /// True if no item is hidden, or the limiter would allow this many more inserts if all leases were
    /// returned.
    fn may_evict(&self, inserts: u64) -> bool {
        let inserts = self.inserts + inserts;
        self.hidden() == 0
            || inserts - self.deletes <= self.limits.min_size
            || self.diff(inserts, self.samples.saturating_sub(self.open_leases))
                <= self.limits.max_diff
    }

    fn diff(&self, inserts: u64, samples: u64) -> f64 {
        inserts as f64 * self.limits.samples_per_insert - samples as f64
    }

    pub(crate) fn can_sample(&self) -> bool {
        self.inserts - self.deletes >= self.limits.min_size
            && self.diff(self.inserts, self.samples + 1) >= self.limits.min_diff
    }

    fn can_insert(&self) -> bool {
        (self.visible().count() as u64) < self.limits.min_size
            || self.diff(self.inserts + 1, self.samples) <= self.limits.max_diff
    }

    pub(crate) fn admission(&self, item_bytes: u64) -> Admission {
        let (size, bytes) = (self.entries.len() as u64, self.bytes());
        if self.must_evict() {
            return Admission::Shrink;
        }
        let has_room = self.fits(size + 1, bytes + item_bytes);
        let may_evict = size > 0 && self.fits(size, bytes) && self.may_evict(1);
        if self.can_insert() && (has_room || may_evict) {
            Admission::Ready
        } else {
            Admission::Wait
        }
    }

    pub(crate) fn insert(&mut self, key: u64, priority: f64, trajectory: Trajectory, now: u64) {
        self.entries.push(Entry {
            key,
            priority,
            seq: self.next_seq,
            update_number: self.next_update_number,
            times_sampled: 0,
            leases: 0,
            hidden: false,
            inserted_at: now,
            trajectory,
        });
        self.next_seq += 1;
        self.next_update_number += 1;
        self.inserts += 1;
    }

    pub(crate) fn remove(&mut self, key: u64) {
        let old_episodes = self.episodes();
        let index = self.find(key).unwrap();
        self.entries.remove(index);
        self.deletes += 1;
        self.deleted_episodes += old_episodes.difference(&self.episodes()).count() as u64;
    }

    pub(crate) fn set_priority(&mut self, key: u64, priority: f64) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        self.entries[index].priority = priority;
        self.entries[index].update_number = self.next_update_number;
        self.next_update_number += 1;
        true
    }

    /// Counts a sample; true if it removes the item.
    pub(crate) fn sample(&mut self, key: u64, leased: bool) -> bool {
        let index = self.find(key).unwrap();
        let entry = &mut self.entries[index];
        self.samples += 1;
        self.unique_samples += u64::from(entry.times_sampled == 0);
        entry.times_sampled += 1;
        entry.leases += u32::from(leased);
        self.open_leases += u64::from(leased);
        entry.hidden = entry.times_sampled == self.options.max_times_sampled;
        entry.hidden && entry.leases == 0
    }

    /// The leased item, if it is still in the table.
    fn live(&mut self, lease: Lease) -> Option<&mut Entry> {
        let is_leased_item = |entry: &&mut Entry| entry.key == lease.key && entry.seq == lease.seq;
        self.entries.iter_mut().find(is_leased_item)
    }

    /// Ends a lease whose sample is final; true if that removes the item.
    pub(crate) fn acknowledge(&mut self, lease: Lease) -> bool {
        self.open_leases -= u64::from(lease.seq >= self.first_seq);
        self.live(lease).is_some_and(|entry| {
            entry.leases -= 1;
            entry.hidden && entry.leases == 0
        })
    }

    pub(crate) fn return_lease(&mut self, lease: Lease) {
        if lease.seq < self.first_seq {
            return;
        }
        self.samples -= 1;
        self.open_leases -= 1;
        if let Some(entry) = self.live(lease) {
            entry.leases -= 1;
            entry.times_sampled -= 1;
            entry.hidden = false;
            let unsampled = entry.times_sampled == 0;
            self.unique_samples -= u64::from(unsampled);
        }
    }

    pub(crate) fn reset(&mut self) {
        self.entries.clear();
        self.first_seq = self.next_seq;
        self.inserts = 0;
        self.samples = 0;
        self.deletes = 0;
        self.deleted_episodes = 0;
        self.unique_samples = 0;
        self.open_leases = 0;
    }

    /// The keys that a selector may choose now, and their probabilities.
    pub(crate) fn choices(&self, kind: SelectorKind) -> BTreeMap<u64, f64> {
        let first_by = |order: &dyn Fn(&&Entry, &&Entry) -> std::cmp::Ordering| {
            let first = self.visible().min_by(|a, b| order(a, b));
            first.map(|entry| (entry.key, 1.0)).into_iter().collect()
        };
        let count = self.visible().count() as f64;
        match kind {
            SelectorKind::Fifo => first_by(&|a, b| a.seq.cmp(&b.seq)),
            SelectorKind::Lifo => first_by(&|a, b| b.seq.cmp(&a.seq)),
            SelectorKind::MinHeap => first_by(&|a, b| {
                let order = a.priority.partial_cmp(&b.priority).unwrap();
                order.then(a.update_number.cmp(&b.update_number))
            }),
            SelectorKind::MaxHeap => first_by(&|a, b| {
                let order = b.priority.partial_cmp(&a.priority).unwrap();
                order.then(a.update_number.cmp(&b.update_number))
            }),
            SelectorKind::Uniform => self.visible().map(|e| (e.key, 1.0 / count)).collect(),
            SelectorKind::Prioritized { exponent } => {
                let weight = |entry: &Entry| {
                    if entry.priority == 0.0 {
                        0.0
                    } else {
                        entry.priority.powf(exponent)
                    }
                };
                let total: f64 = self.visible().map(weight).sum();
                let probability = |entry: &Entry| {
                    if total == 0.0 {
                        1.0 / count
                    } else {
                        weight(entry) / total
                    }
                };
                let choices = self.visible().map(|entry| (entry.key, probability(entry)));
                choices
                    .filter(|(_, probability)| *probability > 0.0)
                    .collect()
            }
        }
    }

    pub(crate) fn oldest(&self) -> Option<&Entry> {
        self.visible().min_by_key(|entry| entry.seq)
    }
}
