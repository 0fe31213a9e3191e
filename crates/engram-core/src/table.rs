//! The state of a table: its items, the selectors that choose among them, and its rate limiter.
//!
//! Nothing here waits, locks or reads a clock; the engine does. The cost of a call that the engine makes under a
//! table's lock does not grow with the size of the table. Freeing what was removed can take longer: callers drop
//! [`DeferredDrops`] after they have released the lock.
//!
//! An item that was sampled as often as allowed is *hidden* while samples of it are on lease: sampler, remover and
//! ttl ignore it. It is removed once all its leases are acknowledged, and is visible again if one is returned.
//!
//! Everywhere in these files, `now` is a clock reading in nanoseconds.

mod apply;
mod draw;
mod insert_run;
mod options;
mod prefetch;
mod restore;
mod scan;
mod session_calls;
mod sessions;
mod snapshot;
mod survey;

use std::sync::Arc;

use rand_xoshiro::rand_core::SeedableRng;

use crate::cow::CowPages;
use crate::error::{Error, Result};
use crate::holders::HolderId;
use crate::item::{Item, NewItem, Slot};
use crate::key_map::KeyMap;
use crate::op::{Lsn, OpSink, Removal, SessionNumber, TableOp};
use crate::pages::CopyablePages;
use crate::rate_limiter::{RateLimiter, RateLimits};
use crate::selector::{Pick, Selector, SelectorKind, TableRng};
use crate::text::count;
use crate::trajectory::Trajectory;
pub use draw::{Draw, Handle, SampledItemInfo};
pub use options::{ITEM_OVERHEAD, MAX_NOTE_BYTES, TableOptions};
pub use restore::{Restore, SavedItem};
pub use scan::{MAX_KEYS_PER_LOOKUP, ScanItems, ScanOrder};
pub use sessions::SESSION_IDLE;
use sessions::Sessions;
use snapshot::SnapshotInProgress;
pub use snapshot::{
    Counters, Snapshot, SnapshotBuffers, SnapshotItem, SnapshotPageCounts, SnapshotParts,
    SnapshotStep,
};
pub use survey::{
    ItemNumbers, MAX_ITEMS_PER_SURVEY_STEP, MAX_PAGES_PER_SURVEY_STEP, PeekOrder, SurveySize,
};

/// Maximum number of items inserted, updated or deleted, or of slots searched, per hold of the table's lock.
const MAX_ITEMS_PER_LOCK_HOLD: usize = 1024;

/// Maximum number of items inserted, drawn, updated or deleted per hold of the lock while a snapshot exists: every
/// change may then copy a page, which takes about 5 us.
const MAX_ITEMS_PER_LOCK_HOLD_WITH_SNAPSHOT: usize = 256;

/// Maximum number of items that one call of [`TableState::shrink`] or [`TableState::expire`] removes; the next call
/// continues.
pub const MAX_REMOVALS_PER_CALL: usize = 256;

/// What was removed from a table. The caller drops it after releasing the table's lock, because
/// freeing memory can take long.
#[derive(Debug, Default)]
pub struct DeferredDrops {
    trajectories: Vec<Trajectory>,
    contents: Vec<Contents>,
    snapshots: Vec<SnapshotInProgress>,
}

impl DeferredDrops {
    /// True if there is nothing to drop.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trajectories.is_empty() && self.contents.is_empty() && self.snapshots.is_empty()
    }

    /// Adds an item that was not inserted.
    pub fn add(&mut self, item: NewItem) {
        self.trajectories.push(item.trajectory);
    }
}

/// Result of [`TableState::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The item can be inserted.
    Ready,
    /// The rate limiter blocks the item, or the table is full and must not evict an item. A later
    /// change of the table may allow it.
    Wait,
    /// The table exceeds its bounds: call [`TableState::shrink`], then [`TableState::admit`] again.
    Shrink,
}

/// The parts that grow with the table. A reset replaces them as a whole.
#[derive(Debug)]
struct Contents {
    items: CowPages<Item>,
    keys: KeyMap,
    sampler: Selector,
    remover: Selector,
    /// `None` without a ttl.
    expiry: Option<Expiry>,
    /// Number of referenced chunks of each episode.
    episodes: KeyMap,
    /// Identifies this table in the reference counts of chunks.
    holder: HolderId,
    /// Number of slots ever used, including vacant ones.
    slot_count: Slot,
    /// First slot of the list of vacant slots. [`Item::seq`] of a vacant slot is the next one, or `Slot::MAX`.
    vacant: Option<Slot>,
    /// Number of items.
    size: u64,
    /// Bytes of the items and of the distinct chunks they refer to.
    bytes: u64,
    /// Number of distinct episodes of the chunks that items refer to.
    num_episodes: u64,
}

/// When the items expire: their order, and when each was inserted.
#[derive(Debug)]
struct Expiry {
    /// The oldest item is first.
    order: Selector,
    /// Per slot, the clock reading at the insertion of its item, in nanoseconds.
    inserted_at: CopyablePages<u64>,
}

impl Contents {
    fn new(options: &TableOptions) -> Self {
        Self {
            items: CowPages::new(Item::default()),
            keys: KeyMap::default(),
            sampler: Selector::new(options.sampler),
            remover: Selector::new(options.remover),
            expiry: options.ttl.map(|_| Expiry {
                order: Selector::new(SelectorKind::Fifo),
                inserted_at: CopyablePages::new(0),
            }),
            episodes: KeyMap::default(),
            holder: HolderId::fresh(),
            slot_count: 0,
            vacant: None,
            size: 0,
            bytes: 0,
            num_episodes: 0,
        }
    }
}

impl Drop for Contents {
    /// Releases the table's references to its chunks. A chunk, and its counts, outlive the table if others refer to it.
    fn drop(&mut self) {
        for slot in 0..self.slot_count {
            if let Some(trajectory) = &self.items[slot as usize].trajectory {
                for chunk in trajectory.chunks() {
                    chunk.holders().release(self.holder);
                }
            }
        }
    }
}

/// The state of a table. Its owner guards it with a lock.
#[derive(Debug)]
pub struct TableState {
    options: Arc<TableOptions>,
    sink: Arc<dyn OpSink>,
    contents: Contents,
    /// `None` until the first call for a session.
    sessions: Option<Box<Sessions>>,
    counters: Counters,
    /// Slot at which the next search for a hidden item begins.
    next_searched: Slot,
    /// Memory reused by draws and evictions.
    picks: Vec<Pick>,
    /// Memory reused by draws.
    drawn_keys: Vec<u64>,
    /// Memory reused by updates: slot, key and new priority.
    updates: Vec<(Slot, u64, f64)>,
    snapshot_in_progress: Option<SnapshotInProgress>,
    /// True if samples were on lease when [`TableState::end_leases`] was called.
    had_leases: bool,
}

/// Statistics of a table at one moment.
#[derive(Clone, Debug)]
pub struct TableStats {
    /// Number of items, hidden ones included.
    pub size: u64,
    /// Number of items hidden from the selectors: sampled as often as allowed, with samples still on lease.
    pub hidden_items: u64,
    /// Bytes of the items and of the distinct chunks they refer to.
    pub bytes: u64,
    /// Number of distinct episodes of the chunks that items refer to.
    pub num_episodes: u64,
    /// Number of episodes whose last chunk left the table, since creation or reset.
    pub num_deleted_episodes: u64,
    /// Number of items sampled at least once, since creation or reset. Items that have left the table stay counted.
    pub num_unique_samples: u64,
    /// Number of samples on lease. They count in `limiter`, until they are returned.
    pub leased: u64,
    /// Limits and counters of the rate limiter.
    pub limiter: RateLimiter,
}

impl TableState {
    /// Creates an empty table.
    ///
    /// # Errors
    /// Those of [`TableOptions::check`].
    pub fn new(options: Arc<TableOptions>, sink: Arc<dyn OpSink>) -> Result<Self> {
        options.check()?;
        Ok(Self {
            contents: Contents::new(&options),
            sessions: None,
            counters: Counters {
                limiter: RateLimiter::new(options.limits.clone()),
                rng: TableRng::seed_from_u64(options.seed),
                next_seq: 0,
                first_seq: 0,
                next_update_number: 0,
                num_deleted_episodes: 0,
                num_unique_samples: 0,
                leased: 0,
                last_lsn: Lsn::default(),
            },
            next_searched: 0,
            picks: Vec::new(),
            drawn_keys: Vec::new(),
            updates: Vec::new(),
            snapshot_in_progress: None,
            had_leases: false,
            options,
            sink,
        })
    }

    /// The options at creation. The limits may have changed since: see [`TableState::limiter`].
    #[must_use]
    pub fn options(&self) -> &Arc<TableOptions> {
        &self.options
    }

    /// Limits and counters of the rate limiter.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.counters.limiter
    }

    /// Position of the last change.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        self.counters.last_lsn
    }

    /// Returns whether `item` can be inserted now.
    #[must_use]
    pub fn admit(&self, item: &NewItem) -> Admission {
        let limiter = &self.counters.limiter;
        if self.must_shrink() {
            return Admission::Shrink;
        }
        let is_allowed = limiter.can_insert(1, self.hidden_items());
        if is_allowed && (self.has_room(item) || self.may_evict()) {
            Admission::Ready
        } else {
            Admission::Wait
        }
    }

    /// True while the table exceeds its bounds and [`TableState::shrink`] can evict items.
    #[must_use]
    pub fn must_shrink(&self) -> bool {
        self.exceeds_bounds(0) && (self.can_evict_visible() || self.can_evict_hidden())
    }

    /// True if an item that the remover can choose may be evicted. While items are hidden, the last
    /// visible item stays: the hidden ones are removed once their samples are acknowledged.
    fn can_evict_visible(&self) -> bool {
        self.contents.remover.len() > usize::from(self.hidden_items() > 0)
    }

    /// True if a hidden item may be evicted. Its readers can still read it, as with any evicted item.
    fn can_evict_hidden(&self) -> bool {
        self.hidden_items() > 0 && self.limiter_allows_eviction(0)
    }

    /// True if a full table may evict an item to make room for a new one.
    ///
    /// False if the table is empty or already exceeds its bounds. Also false if items are hidden and the limiter
    /// would block the new item if all open leases were returned, as in a queue: the hidden items are removed once
    /// their samples are acknowledged, while evicting would lose an item that was never delivered.
    #[must_use]
    pub fn may_evict(&self) -> bool {
        self.contents.size > 0 && !self.exceeds_bounds(0) && self.limiter_allows_eviction(1)
    }

    /// True if no item is hidden, or the limiter would allow `n` more items if all open leases were returned.
    fn limiter_allows_eviction(&self, n: u64) -> bool {
        let (limiter, leased) = (&self.counters.limiter, self.counters.leased);
        self.hidden_items() == 0 || limiter.can_insert_if_undone(n, leased, 0)
    }

    /// True if `n` items can be inserted now: the limiter allows them, and `max_size` leaves space for them
    /// or the table may evict items. `max_bytes` is not considered.
    #[must_use]
    pub fn can_insert(&self, n: u64) -> bool {
        let has_space = self.contents.size.saturating_add(n) <= self.options.max_size;
        let limiter = &self.counters.limiter;
        limiter.can_insert(n, self.hidden_items()) && (has_space || self.limiter_allows_eviction(n))
    }

    /// Number of items that can be inserted now, one after the other; `u64::MAX` if there is practically no limit.
    /// `max_bytes` is not considered.
    #[must_use]
    pub fn inserts_allowed(&self) -> u64 {
        let (limiter, leased) = (&self.counters.limiter, self.counters.leased);
        let hidden = self.hidden_items();
        let allowed = limiter.inserts_allowed_if_undone(0, hidden);
        if hidden == 0 {
            return allowed;
        }
        let free = self.options.max_size.saturating_sub(self.contents.size);
        allowed.min(free.max(limiter.inserts_allowed_if_undone(leased, 0)))
    }

    /// True if the limiter allows `n` samples now, and at least `min_size` items are not hidden.
    #[must_use]
    pub fn can_sample(&self, n: u64) -> bool {
        let visible = self.contents.sampler.len() as u64;
        let limiter = &self.counters.limiter;
        visible >= limiter.limits.min_size && limiter.can_sample(n)
    }

    /// Number of items that a caller may change before it should release the lock for other threads.
    #[must_use]
    pub fn max_items_per_lock_hold(&self) -> usize {
        if self.contents.items.is_shared() {
            MAX_ITEMS_PER_LOCK_HOLD_WITH_SNAPSHOT
        } else {
            MAX_ITEMS_PER_LOCK_HOLD
        }
    }

    /// Number of items hidden from the selectors.
    fn hidden_items(&self) -> u64 {
        self.contents.size - self.contents.sampler.len() as u64
    }

    /// True if the item fits without an eviction even if the table has none of its chunks yet.
    fn has_room(&self, item: &NewItem) -> bool {
        let bytes = self
            .options
            .max_bytes
            .map_or(0, |_| self.options.item_bytes(item));
        self.contents.size < self.options.max_size && !self.exceeds_bounds(bytes)
    }

    /// True if the table with `more_bytes` added exceeds `max_size` or `max_bytes`.
    fn exceeds_bounds(&self, more_bytes: u64) -> bool {
        let Contents { size, bytes, .. } = self.contents;
        size > self.options.max_size
            || self
                .options
                .max_bytes
                .is_some_and(|max| bytes + more_bytes > max)
    }

    /// Inserts an item, evicts items (possibly the new one) as [`TableState::shrink`] does, and returns true. If the
    /// item's key exists, adds the item to `deferred` instead and returns false.
    ///
    /// The caller has checked the item with [`TableOptions::check_item`] and [`TableState::admit`].
    pub fn insert(&mut self, item: NewItem, now: u64, deferred: &mut DeferredDrops) -> bool {
        self.insert_numbered(item, None, now, deferred)
    }

    /// Like [`TableState::insert`], for an item that may have a session number. Marks the number as
    /// applied, even if the key exists. The caller has checked that [`TableState::is_applied`] is false.
    pub fn insert_numbered(
        &mut self,
        item: NewItem,
        number: Option<SessionNumber>,
        now: u64,
        deferred: &mut DeferredDrops,
    ) -> bool {
        if self.contents.keys.get(item.key).is_some() {
            if let Some(number) = number {
                self.record(&TableOp::SkipInsert { number, now });
                self.mark_applied(number, now);
            }
            deferred.add(item);
            return false;
        }
        let op = TableOp::Insert {
            item: &item,
            now,
            number,
        };
        self.record(&op);
        self.add_item(item, now);
        if let Some(number) = number {
            self.mark_applied(number, now);
        }
        self.shrink(deferred);
        true
    }

    /// Evicts a bounded number of items while the table exceeds its bounds. Returns true once it is within
    /// its bounds, or no more items may be evicted.
    pub fn shrink(&mut self, deferred: &mut DeferredDrops) -> bool {
        let mut picks = std::mem::take(&mut self.picks);
        let mut slots_to_search = MAX_ITEMS_PER_LOCK_HOLD;
        for _ in 0..MAX_REMOVALS_PER_CALL {
            if !self.must_shrink() {
                break;
            }
            if !self.can_evict_visible() {
                match self.find_hidden(&mut slots_to_search) {
                    Some(slot) => self.remove(slot, Removal::Evicted, deferred),
                    None => break,
                }
                continue;
            }
            picks.clear();
            let rng = &mut self.counters.rng;
            self.contents.remover.pick(1, rng, &mut picks);
            if self.contents.remover.is_random() {
                self.record_rng();
            }
            self.remove(picks[0].slot, Removal::Evicted, deferred);
        }
        self.picks = picks;
        !self.must_shrink()
    }

    /// Searches at most `slots_to_search` slots for a hidden item, and reduces that number by those searched. Returns
    /// the item's slot; `None` if none of these slots has a hidden item. The next call continues the search.
    fn find_hidden(&mut self, slots_to_search: &mut usize) -> Option<Slot> {
        while *slots_to_search > 0 {
            *slots_to_search -= 1;
            let slot = self.next_searched % self.contents.slot_count;
            self.next_searched = slot + 1;
            if self.contents.items[slot as usize].is_hidden() {
                return Some(slot);
            }
        }
        None
    }

    /// Removes a bounded number of visible items whose age has reached the ttl, and forgets a bounded number
    /// of idle sessions. Returns true once no visible item is that old.
    pub fn expire(&mut self, now: u64, deferred: &mut DeferredDrops) -> bool {
        if let Some(sessions) = &mut self.sessions {
            sessions.forget_idle(now);
        }
        for _ in 0..MAX_REMOVALS_PER_CALL {
            match self.next_expiry() {
                Some(due) if due <= now => {
                    let Some(slot) = self.oldest() else {
                        return true;
                    };
                    self.remove(slot, Removal::Expired, deferred);
                }
                _ => return true,
            }
        }
        false
    }

    /// Clock reading at which the next visible item expires, in nanoseconds. `None` without a ttl or
    /// visible items.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        let ttl = self.options.ttl?;
        let slot = self.oldest()?;
        let expiry = self.contents.expiry.as_ref()?;
        Some(expiry.inserted_at[slot as usize].saturating_add(ttl))
    }

    /// The visible item that expires next. `None` without a ttl or visible items.
    fn oldest(&self) -> Option<Slot> {
        match &self.contents.expiry.as_ref()?.order {
            Selector::Order(order) if order.len() > 0 => Some(order.first()),
            _ => None,
        }
    }

    /// Sets priorities and ignores unknown keys. Returns the number of updates with a known key.
    ///
    /// The caller has checked the priorities with [`TableOptions::check_priority`].
    pub fn update(&mut self, updates: impl Iterator<Item = (u64, f64)>) -> usize {
        let mut known = std::mem::take(&mut self.updates);
        // Look up all keys first, so that cache misses overlap.
        let slots = updates.filter_map(|(key, priority)| {
            self.contents
                .keys
                .get(key)
                .map(|slot| (slot, key, priority))
        });
        known.extend(slots);
        for (slot, _, _) in &known {
            self.contents.items.prefetch(*slot as usize);
        }
        let slots = known.iter().map(|(slot, _, _)| *slot);
        self.contents.sampler.prefetch(slots);
        let matched = known.len();
        for (slot, key, priority) in known.drain(..) {
            self.record(&TableOp::SetPriority { key, priority });
            self.set_priority(slot, priority);
        }
        self.updates = known;
        matched
    }

    /// Deletes items and ignores unknown keys. Returns the number of deleted items.
    pub fn delete(&mut self, keys: &[u64], deferred: &mut DeferredDrops) -> usize {
        let mut matched = 0;
        for key in keys {
            if let Some(slot) = self.contents.keys.get(*key) {
                self.remove(slot, Removal::Deleted, deferred);
                matched += 1;
            }
        }
        matched
    }

    /// Removes all items and sets the counters to 0. Insertion numbers continue, and sessions stay.
    pub fn reset(&mut self, deferred: &mut DeferredDrops) {
        self.record(&TableOp::Reset);
        self.clear(deferred);
    }

    /// Removes all items without recording the change, for a table that is no longer used.
    pub fn discard(&mut self, deferred: &mut DeferredDrops) {
        self.clear(deferred);
    }

    /// Sets the limits of the rate limiter; its counters stay.
    ///
    /// # Errors
    /// Those of [`RateLimits::check_kind_bytes`] and [`RateLimits::check`].
    pub fn set_limits(&mut self, limits: RateLimits) -> Result<()> {
        limits.check_kind_bytes(&self.options.name)?;
        limits.check(&self.options.name, self.options.max_size)?;
        self.record(&TableOp::SetLimits { limits: &limits });
        self.counters.limiter.limits = limits;
        Ok(())
    }

    /// Current statistics.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        TableStats {
            size: self.contents.size,
            hidden_items: self.hidden_items(),
            bytes: self.contents.bytes,
            num_episodes: self.contents.num_episodes,
            num_deleted_episodes: self.counters.num_deleted_episodes,
            num_unique_samples: self.counters.num_unique_samples,
            leased: self.counters.leased,
            limiter: self.counters.limiter.clone(),
        }
    }

    /// Checks that the items of a full table may be sampled `n` times together. The rate limiter is not considered.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] if `n` exceeds `max_size * max_times_sampled`, unless the latter is 0 (unlimited);
    /// [`Error::InvalidArgument`] if `n` is 0.
    pub fn check_sample(&self, n: usize) -> Result<()> {
        let TableOptions {
            name,
            max_size,
            max_times_sampled,
            ..
        } = &*self.options;
        if n == 0 {
            return Err(Error::InvalidArgument(format!(
                "`n` must be at least 1; got 0 (a request for samples of table `{name}`)"
            )));
        }
        let max_samples = max_size.saturating_mul(u64::from(*max_times_sampled));
        if *max_times_sampled > 0 && n as u64 > max_samples {
            return Err(Error::Unsatisfiable(format!(
                "table `{name}` can never yield {} at once: it has at most {}, each sampled at most {}",
                count(n, "sample"),
                count(*max_size, "item"),
                count(*max_times_sampled, "time")
            )));
        }
        Ok(())
    }
}
