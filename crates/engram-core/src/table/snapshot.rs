//! Consistent snapshots of a table, taken in steps so that no step holds the lock for long.
//!
//! The owner of the table's lock calls [`begin_snapshot`](super::TableState::begin_snapshot) once and then
//! [`continue_snapshot`](super::TableState::continue_snapshot) until it returns [`SnapshotStep::Done`]. It releases the lock
//! between the steps, so the table changes meanwhile; the snapshot still contains the table as it was
//! when it began, because a write to a page not copied yet copies that page first ([`crate::cow`],
//! [`crate::pages`]). Each step copies a bounded number of pages, in this order:
//!
//! ```text
//! begin: counters ─> items ─> sampler order ─> remover order ─> insertion times ─> sessions ─> Done
//!                    └──────── a reset, or another caller received it: Aborted ────────────┘
//! ```
//!
//! A scan needs only the items: [`SnapshotParts::Items`].
//!
//! A second call of `begin_snapshot` replaces the snapshot in progress: all callers continue the new one, and one
//! of them receives it.
//!
//! Parts that the table does not have are skipped: the order of a selector without randomness, insertion
//! times without a ttl, sessions before the first one. [`SnapshotInProgress`] holds the parts copied so far;
//! each step continues with the first one that is missing.

mod take;

use crate::cow::{FrozenPages, PageBuffer};
use crate::item::{Item, Slot};
use crate::op::{Lsn, SessionNumber};
use crate::pages::{CopyBuffer, PagesCopy};
use crate::rate_limiter::RateLimiter;
use crate::selector::TableRng;
use crate::table::sessions::SessionEntry;
use crate::trajectory::Trajectory;

/// The counters of a table, and the generator of its random choices.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Limits and counters of the rate limiter.
    pub limiter: RateLimiter,
    /// Generator of its random choices.
    pub rng: TableRng,
    /// Insertion number of the next item.
    pub next_seq: u64,
    /// Insertion number of the first item since creation or reset. Handles of items with a smaller one are invalid.
    pub first_seq: u64,
    /// Update number that the next insert or priority update gets.
    pub next_update_number: u64,
    /// Number of episodes whose last chunk left the table, since creation or reset.
    pub num_deleted_episodes: u64,
    /// Number of items sampled at least once, since creation or reset. Items that have left the table stay counted.
    pub num_unique_samples: u64,
    /// Number of open leases, including those of removed items.
    pub leased: u64,
    /// Position of the table's last change.
    pub last_lsn: Lsn,
}

/// A table at one moment; later changes do not affect it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its counters.
    pub counters: Counters,
    /// By slot; vacant slots included. Empty until copied.
    items: FrozenPages<Item>,
    /// Slot orders of the sampler and of the remover. `None` for a selector without randomness, and with
    /// [`SnapshotParts::Items`].
    orders: [Option<SlotOrder>; 2],
    /// Per slot, the clock reading at the insertion of its item. `None` until copied, for a table without a ttl, and
    /// with [`SnapshotParts::Items`].
    inserted_at: Option<PagesCopy<u64>>,
    /// `None` until copied, for a table that never had a session, and with [`SnapshotParts::Items`].
    sessions: Option<PagesCopy<SessionEntry>>,
}

/// The slots of a random selector, in the order that its choices depend on.
#[derive(Clone, Debug)]
struct SlotOrder {
    /// `None` until copied.
    slots: Option<PagesCopy<Slot>>,
    /// Number of items of the selector: only the first `len` entries of `slots` are in use.
    len: usize,
}

/// Number of pages that a snapshot needs, for each part of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SnapshotPageCounts {
    items: usize,
    /// Of the sampler and of the remover.
    orders: [usize; 2],
    inserted_at: usize,
    sessions: usize,
}

/// Memory for a snapshot's page pointers, allocated before the lock is taken.
#[derive(Debug)]
pub struct SnapshotBuffers {
    items: PageBuffer<Item>,
    /// Of the sampler and of the remover.
    orders: [CopyBuffer<Slot>; 2],
    inserted_at: CopyBuffer<u64>,
    sessions: CopyBuffer<SessionEntry>,
}

impl SnapshotBuffers {
    /// Buffers for this many pages and some more: the table may grow before the snapshot begins.
    #[must_use]
    pub fn new(pages: SnapshotPageCounts) -> Self {
        const fn with_reserve(pages: usize) -> usize {
            pages + pages / 8 + 64
        }
        Self {
            items: vec![None; with_reserve(pages.items)],
            orders: pages.orders.map(|pages| vec![None; with_reserve(pages)]),
            inserted_at: vec![None; with_reserve(pages.inserted_at)],
            sessions: vec![None; with_reserve(pages.sessions)],
        }
    }
}

/// Which parts of a table a snapshot contains, besides the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotParts {
    /// All parts.
    All,
    /// Only the items, without their insertion times.
    Items,
}

/// A snapshot that has begun and is not complete.
#[derive(Debug)]
pub(super) struct SnapshotInProgress {
    snapshot: Snapshot,
    parts: SnapshotParts,
    /// True until the items are copied.
    needs_items: bool,
    /// True if sessions are to be copied: with [`SnapshotParts::All`], if the table had any when the snapshot began.
    needs_sessions: bool,
}

/// Result of [`continue_snapshot`](super::TableState::continue_snapshot).
#[derive(Debug)]
pub enum SnapshotStep {
    /// The snapshot needs more steps.
    More,
    /// The complete snapshot.
    Done(Box<Snapshot>),
    /// No snapshot is in progress: a reset dropped it, or another caller received it. Begin again.
    Aborted,
}

/// One item of a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct SnapshotItem<'a> {
    /// Its key.
    pub key: u64,
    /// Its priority.
    pub priority: f64,
    /// Insertion number.
    pub seq: u64,
    /// Number of its insert or, if later, its last priority update; not comparable with `seq`.
    pub update_number: u64,
    /// Samples taken, leased ones included.
    pub times_sampled: u32,
    /// Number of open leases; the highest bit is set while the item is hidden from the selectors.
    pub leases: u32,
    /// Clock reading at its insertion, nanoseconds; `None` if the table has no ttl, or with [`SnapshotParts::Items`].
    pub inserted_at: Option<u64>,
    /// The cells it refers to.
    pub trajectory: &'a Trajectory,
}

impl Snapshot {
    /// The items by slot; vacant slots included.
    pub(super) fn into_pages(self) -> FrozenPages<Item> {
        self.items
    }

    /// All items. An item's position in this order identifies it in [`Snapshot::orders`].
    pub fn items(&self) -> impl Iterator<Item = SnapshotItem<'_>> {
        let slots = self.items.iter().enumerate();
        slots.filter_map(|(slot, item)| {
            let inserted_at = self.inserted_at.as_ref();
            item.trajectory.as_ref().map(|trajectory| SnapshotItem {
                key: item.key,
                priority: item.priority,
                seq: item.seq,
                update_number: item.update_number,
                times_sampled: item.times_sampled,
                leases: item.leases,
                inserted_at: inserted_at.and_then(|inserted_at| inserted_at.get(slot)),
                trajectory,
            })
        })
    }

    /// For the sampler and for the remover: the positions of its items in [`Snapshot::items`], in the order that its
    /// choices depend on. `None` for a selector without randomness, and with [`SnapshotParts::Items`].
    #[must_use]
    pub fn orders(&self) -> [Option<Vec<u32>>; 2] {
        if self.orders.iter().all(Option::is_none) {
            return [None, None];
        }
        let mut next = 0;
        let positions = self.items.iter().map(|item| {
            let position = next;
            next += u32::from(item.trajectory.is_some());
            position
        });
        let positions: Vec<u32> = positions.collect();
        self.orders.each_ref().map(|order| {
            let SlotOrder { slots, len } = order.as_ref()?;
            let slots = slots.iter().flat_map(PagesCopy::iter).take(*len);
            Some(slots.map(|slot| positions[slot as usize]).collect())
        })
    }

    /// The last applied number of each session and the clock reading of its last use, unordered.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionNumber, u64)> + '_ {
        let entries = self.sessions.iter().flat_map(PagesCopy::iter);
        entries.filter_map(super::sessions::SessionEntry::last_number)
    }
}
