//! A table at one moment, taken in steps so that nobody waits long.

use crate::cow::{Frozen, Room};
use crate::item::{Item, Slot};
use crate::op::{Lsn, SessionNumber};
use crate::pages::{Copied, CopyRoom};
use crate::rate_limiter::RateLimiter;
use crate::selector::{Selector, TableRng};
use crate::table::sessions::Entry;
use crate::table::{Contents, TableState};
use crate::trajectory::Trajectory;

/// What a table counts, and what its next choices depend on.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Limits and counters.
    pub limiter: RateLimiter,
    /// The generator behind its choices.
    pub rng: TableRng,
    /// Insertion number of the next item.
    pub next_seq: u64,
    /// Insertion number of the first item since creation or reset.
    pub first_seq: u64,
    /// Number of the next insert or update.
    pub next_touch: u64,
    /// Episodes whose last chunk left.
    pub num_deleted_episodes: u64,
    /// Items sampled at least once.
    pub num_unique_samples: u64,
    /// Samples handed out and not ended.
    pub leased: u64,
    /// The last change.
    pub last_lsn: Lsn,
}

/// A table at one moment, however it changes afterwards.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What it counted.
    pub counters: Counters,
    entries: Frozen<Item>,
    /// Of the sampler and the remover, where their draws depend on an order.
    orders: [Option<Ordered>; 2],
    inserted_at: Option<Copied<u64>>,
    sessions: Option<Copied<Entry>>,
}

/// Slots in the order that draws depend on.
#[derive(Clone, Debug)]
struct Ordered {
    /// `None` until they are copied.
    slots: Option<Copied<Slot>>,
    len: usize,
}

/// How much memory a snapshot needs, in pages of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SnapshotPages {
    items: usize,
    sampler: usize,
    remover: usize,
    inserted_at: usize,
    sessions: usize,
}

/// Memory for a snapshot's page pointers.
#[derive(Debug)]
pub struct SnapshotBuffers {
    items: Room<Item>,
    sampler: CopyRoom<Slot>,
    remover: CopyRoom<Slot>,
    inserted_at: CopyRoom<u64>,
    sessions: CopyRoom<Entry>,
}

impl SnapshotBuffers {
    /// Room for so many pages, and some more: the table may grow before the snapshot is begun.
    #[must_use]
    pub fn new(pages: SnapshotPages) -> Self {
        const fn some_more(pages: usize) -> usize {
            pages + pages / 8 + 64
        }
        Self {
            items: vec![None; some_more(pages.items)],
            sampler: vec![None; some_more(pages.sampler)],
            remover: vec![None; some_more(pages.remover)],
            inserted_at: vec![None; some_more(pages.inserted_at)],
            sessions: vec![None; some_more(pages.sessions)],
        }
    }
}

/// A snapshot under way.
#[derive(Debug)]
pub(super) struct Taking {
    snapshot: Snapshot,
    /// Whether its items are still to come.
    entries: bool,
    /// Whether there were sessions when it was begun.
    sessions: bool,
}

/// How a snapshot under way stands.
#[derive(Debug)]
pub enum SnapshotStep {
    /// It needs more steps.
    More,
    /// Here it is.
    Done(Box<Snapshot>),
    /// A reset, or another snapshot, ended it: begin anew.
    Aborted,
}

/// One item of a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct SnapshotItem<'a> {
    /// Its key.
    pub key: u64,
    /// Its priority then.
    pub priority: f64,
    /// Insertion number.
    pub seq: u64,
    /// Number of the insert or update that touched it last.
    pub touched: u64,
    /// Samples taken, leased ones included.
    pub times_sampled: u32,
    /// Samples handed out and not ended; the highest bit where it is hidden.
    pub leases: u32,
    /// Clock reading at its insertion, where the table has a ttl.
    pub inserted_at: Option<u64>,
    /// What it is made of.
    pub trajectory: &'a Trajectory,
}

impl Snapshot {
    /// Its items; an item's place is its number in this order.
    pub fn items(&self) -> impl Iterator<Item = SnapshotItem<'_>> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(slot, item)| {
            let inserted_at = self.inserted_at.as_ref();
            item.trajectory.as_ref().map(|trajectory| SnapshotItem {
                key: item.key,
                priority: item.priority,
                seq: item.seq,
                touched: item.touched,
                times_sampled: item.times_sampled,
                leases: item.leases,
                inserted_at: inserted_at.and_then(|inserted_at| inserted_at.get(slot)),
                trajectory,
            })
        })
    }

    /// The places of the sampler's and the remover's items, in the order that their draws depend on,
    /// where they do.
    #[must_use]
    pub fn orders(&self) -> [Option<Vec<u32>>; 2] {
        if self.orders.iter().all(Option::is_none) {
            return [None, None];
        }
        let mut next = 0;
        let entries = self.entries.iter();
        let places = entries.map(|item| {
            let place = next;
            next += u32::from(item.trajectory.is_some());
            place
        });
        let places: Vec<u32> = places.collect();
        self.orders.each_ref().map(|order| {
            let Ordered { slots, len } = order.as_ref()?;
            let slots = slots.iter().flat_map(Copied::iter).take(*len);
            Some(slots.map(|slot| places[slot as usize]).collect())
        })
    }

    /// The last number applied of each session, and when it was used last, in no particular order.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionNumber, u64)> + '_ {
        let entries = self.sessions.iter().flat_map(Copied::iter);
        entries.filter_map(super::sessions::Entry::number)
    }
}

impl TableState {
    /// Pages that a snapshot would have now.
    #[must_use]
    pub fn snapshot_pages(&mut self) -> SnapshotPages {
        let contents = &mut self.contents;
        let expiry = contents.expiry.as_ref();
        let sessions = self.sessions.as_ref();
        SnapshotPages {
            items: contents.items.pages(),
            sampler: contents.sampler.slots().map_or(0, |slots| slots.pages()),
            remover: contents.remover.slots().map_or(0, |slots| slots.pages()),
            inserted_at: expiry.map_or(0, |expiry| expiry.inserted_at.pages()),
            sessions: sessions.map_or(0, |sessions| sessions.entries().pages()),
        }
    }

    /// Begins a snapshot of this moment; [`TableState::continue_snapshot`] takes it in steps.
    pub fn begin_snapshot(&mut self, room: SnapshotBuffers) {
        let contents = &mut self.contents;
        contents.items.begin_snapshot(room.items);
        if let Some(slots) = contents.sampler.slots() {
            slots.begin_copy(room.sampler);
        }
        if let Some(slots) = contents.remover.slots() {
            slots.begin_copy(room.remover);
        }
        if let Some(expiry) = &mut contents.expiry {
            expiry.inserted_at.begin_copy(room.inserted_at);
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.entries_mut().begin_copy(room.sessions);
        }
        let order = |selector: &mut Selector| {
            let len = selector.len();
            selector.slots().map(|_| Ordered { slots: None, len })
        };
        let orders = [order(&mut contents.sampler), order(&mut contents.remover)];
        self.taking = Some(Taking {
            entries: true,
            sessions: self.sessions.is_some(),
            snapshot: Snapshot {
                counters: Counters {
                    limiter: self.limiter.clone(),
                    rng: self.rng.clone(),
                    next_seq: self.next_seq,
                    first_seq: self.first_seq,
                    next_touch: self.next_touch,
                    num_deleted_episodes: self.num_deleted_episodes,
                    num_unique_samples: self.num_unique_samples,
                    leased: self.leased,
                    last_lsn: self.last_lsn,
                },
                entries: Frozen::default(),
                orders,
                inserted_at: None,
                sessions: None,
            },
        });
    }

    /// Takes one bounded step of the snapshot under way.
    pub fn continue_snapshot(&mut self) -> SnapshotStep {
        let Some(mut taking) = self.taking.take() else {
            return SnapshotStep::Aborted;
        };
        if self.take_some(&mut taking) {
            return SnapshotStep::Done(Box::new(taking.snapshot));
        }
        self.taking = Some(taking);
        SnapshotStep::More
    }

    /// Takes some more of a snapshot; true once it is whole.
    fn take_some(&mut self, taking: &mut Taking) -> bool {
        let Contents {
            items,
            sampler,
            remover,
            expiry,
            ..
        } = &mut self.contents;
        let Snapshot {
            entries,
            orders,
            inserted_at,
            sessions,
            ..
        } = &mut taking.snapshot;
        if taking.entries {
            let Some(frozen) = items.continue_snapshot() else {
                return false;
            };
            *entries = frozen;
            taking.entries = false;
        }
        for (selector, order) in [sampler, remover].into_iter().zip(orders) {
            if let (Some(order), Some(slots)) = (order, selector.slots())
                && order.slots.is_none()
            {
                order.slots = slots.continue_copy();
                return false;
            }
        }
        if let Some(expiry) = expiry
            && inserted_at.is_none()
        {
            *inserted_at = expiry.inserted_at.continue_copy();
            return false;
        }
        if taking.sessions
            && let Some(live) = &mut self.sessions
            && sessions.is_none()
        {
            *sessions = live.entries_mut().continue_copy();
            return false;
        }
        true
    }

    /// The table of this moment, in one go: where nobody waits for it.
    #[must_use]
    pub fn snapshot(&mut self) -> Box<Snapshot> {
        let room = SnapshotBuffers::new(self.snapshot_pages());
        self.begin_snapshot(room);
        loop {
            if let SnapshotStep::Done(snapshot) = self.continue_snapshot() {
                return snapshot;
            }
        }
    }
}
