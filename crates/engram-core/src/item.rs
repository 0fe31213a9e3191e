//! Items: what tables hold.

use crate::trajectory::Trajectory;

/// Place of an item in its table's pages; reused after the item is gone.
pub type Slot = u32;

/// An item on its way into a table.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Key below 2^63.
    pub key: u64,
    /// What it is made of.
    pub trajectory: Trajectory,
    /// Priority to begin with.
    pub priority: f64,
}

/// An item in a table: one cache line, and aligned to it.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Item {
    pub(crate) key: u64,
    pub(crate) priority: f64,
    /// Insertion number in its table: grows by one, never reused.
    pub(crate) seq: u64,
    /// Number of the insert or priority update that touched it last; breaks ties between heaps' equals.
    pub(crate) touched: u64,
    /// `None` where the slot is vacant.
    pub(crate) trajectory: Option<Trajectory>,
    pub(crate) times_sampled: u32,
    /// Samples handed out and not yet acknowledged; `HIDDEN` is set on the last allowed one.
    pub(crate) leases: u32,
}

/// Set in [`Item::leases`] while neither sampler nor remover may see the item.
pub(crate) const HIDDEN: u32 = 1 << 31;

impl Item {
    pub(crate) fn is_hidden(&self) -> bool {
        self.leases & HIDDEN != 0
    }

    /// True when it was sampled for the last time and nobody can give it back.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.leases == HIDDEN
    }

    pub(crate) fn open_leases(&self) -> u32 {
        self.leases & !HIDDEN
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank {
            seq: self.seq,
            touched: self.touched,
            priority: self.priority,
        }
    }
}

/// What selectors may order items by.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// Insertion number.
    pub seq: u64,
    /// Number of the last insert or update.
    pub touched: u64,
    /// Current priority.
    pub priority: f64,
}

const _: () = assert!(size_of::<Item>() == 64);
