//! One table: items, the selectors that choose among them, and the limiter that holds them back.
//!
//! Nothing here waits, locks or reads a clock; the engine does. No call's cost grows with the
//! size of the table, but for [`TableState::reset`]'s leftovers, which the caller drops.

mod apply;
mod draw;
mod options;
mod restore;
mod sessions;
mod snapshot;

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
use crate::trajectory::Trajectory;
pub use draw::{Draw, Handle, SampledItemInfo};
pub use options::{MAX_NOTE, TableOptions};
pub use restore::{Restore, SavedItem};
pub use sessions::SESSION_IDLE;
use sessions::Sessions;
use snapshot::SnapshotInProgress;
pub use snapshot::{
    Counters, Snapshot, SnapshotBuffers, SnapshotItem, SnapshotPageCounts, SnapshotStep,
};

/// Bytes of bookkeeping that every item costs: its slot, key, and places in the selectors.
pub const ITEM_OVERHEAD: u64 = 128;

/// Items that one hold of a lock may change.
const ITEMS_PER_LOCK_HOLD: usize = 1024;

/// The same while each may copy a page, because of a snapshot: some 5 us each.
const ITEMS_PER_LOCK_HOLD_COPYING: usize = 256;

/// Items that one call evicts at most; the rest is left to the next.
const EVICTIONS_PER_CALL: usize = 256;

/// What left a table and may be freed once its lock is released.
#[derive(Debug, Default)]
pub struct DeferredDrops {
    trajectories: Vec<Trajectory>,
    contents: Vec<Contents>,
    snapshots: Vec<SnapshotInProgress>,
}

impl DeferredDrops {
    /// True when there is nothing to free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trajectories.is_empty() && self.contents.is_empty() && self.snapshots.is_empty()
    }

    /// Takes an item that does not enter.
    pub fn add(&mut self, item: NewItem) {
        self.trajectories.push(item.trajectory);
    }
}

/// Whether an item may enter now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Ready,
    /// Not before something else happens.
    Wait,
    /// Not before [`TableState::shrink`] has made room.
    Shrink,
}

/// Everything that grows with the table. Replaced as a whole by a reset.
#[derive(Debug)]
struct Contents {
    items: CowPages<Item>,
    keys: KeyMap<Slot>,
    sampler: Selector,
    remover: Selector,
    expiry: Option<Expiry>,
    /// Chunks of each episode that the table refers to.
    episodes: KeyMap<u32>,
    holder: HolderId,
    /// Slots handed out so far, vacant ones included.
    slots: Slot,
    /// First of the vacant slots, chained through their `seq`.
    vacant: Option<Slot>,
    size: u64,
    bytes: u64,
    num_episodes: u64,
}

/// Which items are due to expire first.
#[derive(Debug)]
struct Expiry {
    order: Selector,
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
            slots: 0,
            vacant: None,
            size: 0,
            bytes: 0,
            num_episodes: 0,
        }
    }
}

impl Drop for Contents {
    /// Chunks that outlive the table must not go on counting its references.
    fn drop(&mut self) {
        for slot in 0..self.slots {
            if let Some(trajectory) = &self.items[slot as usize].trajectory {
                for chunk in trajectory.chunks() {
                    chunk.holders().release(self.holder);
                }
            }
        }
    }
}

/// The state of one table. Its owner guards it with a lock.
#[derive(Debug)]
pub struct TableState {
    options: Arc<TableOptions>,
    sink: Arc<dyn OpSink>,
    contents: Contents,
    /// None until an item has a session: most tables' items never do.
    sessions: Option<Box<Sessions>>,
    limiter: RateLimiter,
    rng: TableRng,
    next_seq: u64,
    /// Handles of items inserted before this are void.
    first_seq: u64,
    next_touch: u64,
    num_deleted_episodes: u64,
    num_unique_samples: u64,
    /// Samples handed out and not ended, of items that are gone, too.
    leased: u64,
    last_lsn: Lsn,
    picks: Vec<Pick>,
    keys: Vec<u64>,
    found: Vec<(Slot, u64, f64)>,
    snapshot_in_progress: Option<SnapshotInProgress>,
}

/// Numbers about a table at one moment.
#[derive(Clone, Debug)]
pub struct TableStats {
    /// Items, those on their last lease included.
    pub size: u64,
    /// Items that neither sampler nor remover may choose: on their last lease.
    pub hidden: u64,
    /// Bytes of the distinct chunks it refers to, and of its items.
    pub bytes: u64,
    /// Distinct episodes among those chunks.
    pub num_episodes: u64,
    /// Episodes whose last chunk left, since creation or reset.
    pub num_deleted_episodes: u64,
    /// Items sampled at least once, since creation or reset.
    pub num_unique_samples: u64,
    /// Limits and counters.
    pub limiter: RateLimiter,
}

impl TableState {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the options make no sense.
    pub fn new(options: Arc<TableOptions>, sink: Arc<dyn OpSink>) -> Result<Self> {
        options.check()?;
        Ok(Self {
            contents: Contents::new(&options),
            sessions: None,
            limiter: RateLimiter::new(options.limits.clone()),
            rng: TableRng::seed_from_u64(options.seed),
            next_seq: 0,
            first_seq: 0,
            next_touch: 0,
            num_deleted_episodes: 0,
            num_unique_samples: 0,
            leased: 0,
            last_lsn: Lsn::default(),
            picks: Vec::new(),
            keys: Vec::new(),
            found: Vec::new(),
            snapshot_in_progress: None,
            options,
            sink,
        })
    }

    /// What the table was made with; the limits may have changed since.
    #[must_use]
    pub fn options(&self) -> &Arc<TableOptions> {
        &self.options
    }

    /// Limits and counters.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// The last change made.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Whether `item` may enter now.
    #[must_use]
    pub fn admit(&self, item: &NewItem) -> Admission {
        if self.must_shrink() {
            Admission::Shrink
        } else if self.limiter.can_insert(1) && (self.has_room(item) || self.may_evict()) {
            Admission::Ready
        } else {
            Admission::Wait
        }
    }

    /// True while the table exceeds its bounds and [`TableState::shrink`] can do something about it.
    #[must_use]
    pub fn must_shrink(&self) -> bool {
        // Beside leased items only the newest is left: it must not pay for them.
        let spare = self.contents.remover.len() > usize::from(self.hidden() > 0);
        self.over_bounds(0) && spare
    }

    /// Whether a full table may evict for a new item. Not where only leased samples let it in, as
    /// in a queue: their items will leave by themselves, and evicting would lose one never sampled.
    #[must_use]
    pub fn may_evict(&self) -> bool {
        let limiter = &self.limiter;
        let on_lease = self.hidden() * u64::from(self.options.max_times_sampled);
        !self.contents.remover.is_empty()
            && !self.over_bounds(0)
            && (on_lease == 0 || limiter.can_insert_without(on_lease))
    }

    /// How many items a caller should change before it lets others have the lock.
    #[must_use]
    pub fn items_per_lock_hold(&self) -> usize {
        if self.contents.items.is_shared() {
            ITEMS_PER_LOCK_HOLD_COPYING
        } else {
            ITEMS_PER_LOCK_HOLD
        }
    }

    fn hidden(&self) -> u64 {
        self.contents.size - self.contents.sampler.len() as u64
    }

    fn has_room(&self, item: &NewItem) -> bool {
        let bytes = self
            .options
            .max_bytes
            .map_or(0, |_| self.options.item_bytes(item));
        self.contents.size < self.options.max_size && !self.over_bounds(bytes)
    }

    fn over_bounds(&self, more_bytes: u64) -> bool {
        let Contents { size, bytes, .. } = self.contents;
        size > self.options.max_size
            || self
                .options
                .max_bytes
                .is_some_and(|max| bytes + more_bytes > max)
    }

    /// Lets an item in that [`TableState::admit`] found ready; false when its key was already there.
    ///
    /// The caller has checked it with [`TableOptions::check_item`]. Afterwards the remover makes
    /// room, among all items, the new one included.
    pub fn insert(&mut self, item: NewItem, now: u64, deferred: &mut DeferredDrops) -> bool {
        self.insert_numbered(item, None, now, deferred)
    }

    /// As [`TableState::insert`], for an item that may belong to a session. The caller has asked
    /// [`TableState::is_applied`]; the item's number counts as applied from now on, also where its
    /// key was already there.
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
                self.record_number(number, now);
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
            self.record_number(number, now);
        }
        self.shrink(deferred);
        true
    }

    /// Evicts a bounded number of items where the table exceeds its bounds; true when done.
    pub fn shrink(&mut self, deferred: &mut DeferredDrops) -> bool {
        let mut victim = std::mem::take(&mut self.picks);
        for _ in 0..EVICTIONS_PER_CALL {
            if !self.must_shrink() {
                break;
            }
            victim.clear();
            self.contents.remover.pick(1, &mut self.rng, &mut victim);
            if self.contents.remover.is_random() {
                self.record_choice();
            }
            self.remove(victim[0].slot, Removal::Evicted, deferred);
        }
        self.picks = victim;
        !self.must_shrink()
    }

    /// Removes items that are older than the ttl; true when none is left. Forgets some of the
    /// sessions that have been idle for long, too.
    pub fn expire(&mut self, now: u64, deferred: &mut DeferredDrops) -> bool {
        if let Some(sessions) = &mut self.sessions {
            sessions.forget_idle(now);
        }
        for _ in 0..EVICTIONS_PER_CALL {
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

    /// When the oldest item expires, nanoseconds.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        let ttl = self.options.ttl?;
        let slot = self.oldest()?;
        let expiry = self.contents.expiry.as_ref()?;
        Some(expiry.inserted_at[slot as usize].saturating_add(ttl))
    }

    fn oldest(&self) -> Option<Slot> {
        match &self.contents.expiry.as_ref()?.order {
            Selector::Order(order) if order.len() > 0 => Some(order.first()),
            _ => None,
        }
    }

    /// Sets priorities; keys that are not there are passed over. Returns how many were.
    ///
    /// The caller has checked the priorities with [`TableOptions::check_priority`].
    pub fn update(&mut self, updates: impl Iterator<Item = (u64, f64)>) -> usize {
        let mut found = std::mem::take(&mut self.found);
        // Looking all keys up first lets the lookups' cache misses overlap.
        let slots = updates.filter_map(|(key, priority)| {
            self.contents
                .keys
                .get(key)
                .map(|slot| (slot, key, priority))
        });
        found.extend(slots);
        for (slot, _, _) in &found {
            self.contents.items.prefetch(*slot as usize);
        }
        let slots = found.iter().map(|(slot, _, _)| *slot);
        self.contents.sampler.prefetch(slots);
        let matched = found.len();
        for (slot, key, priority) in found.drain(..) {
            self.record(&TableOp::SetPriority { key, priority });
            self.set_priority(slot, priority);
        }
        self.found = found;
        matched
    }

    /// Deletes items; keys that are not there are passed over. Returns how many were.
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

    /// Forgets all items and counts; what it held goes to the deferred.
    pub fn reset(&mut self, deferred: &mut DeferredDrops) {
        self.record(&TableOp::Reset);
        self.clear(deferred);
    }

    /// Frees everything, unrecorded: for a table that nobody will ask again.
    pub fn discard(&mut self, deferred: &mut DeferredDrops) {
        self.clear(deferred);
    }

    /// Changes the limiter's bounds; its counts stay.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when nothing could ever be sampled under them.
    pub fn set_limits(&mut self, limits: RateLimits) -> Result<()> {
        limits.check(&self.options.name, self.options.max_size)?;
        self.record(&TableOp::SetLimits { limits: &limits });
        self.limiter.limits = limits;
        Ok(())
    }

    /// Numbers about this moment.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        TableStats {
            size: self.contents.size,
            hidden: self.hidden(),
            bytes: self.contents.bytes,
            num_episodes: self.contents.num_episodes,
            num_deleted_episodes: self.num_deleted_episodes,
            num_unique_samples: self.num_unique_samples,
            limiter: self.limiter.clone(),
        }
    }

    /// Why `n` samples can never be had, whatever happens.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`]; [`Error::InvalidArgument`] when none are asked for.
    pub fn check_sample(&self, n: usize) -> Result<()> {
        let TableOptions {
            name,
            max_size,
            max_times_sampled,
            ..
        } = &*self.options;
        if n == 0 {
            return Err(Error::InvalidArgument(format!(
                "asked for 0 samples from table `{name}`; at least 1"
            )));
        }
        let most = max_size.saturating_mul(u64::from(*max_times_sampled));
        if *max_times_sampled > 0 && n as u64 > most {
            return Err(Error::Unsatisfiable(format!(
                "{n} samples from table `{name}` can never be had at once: it holds at most \
                 {max_size} items, each sampled at most {max_times_sampled} times"
            )));
        }
        Ok(())
    }
}
