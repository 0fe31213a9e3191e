//! Items: the entries of tables.

use crate::trajectory::Trajectory;

/// Index of an item in its table's pages; reused after the item is removed.
pub type Slot = u32;

/// An item to insert into a table.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Key below 2^63.
    pub key: u64,
    /// The cells that it refers to.
    pub trajectory: Trajectory,
    /// Initial priority.
    pub priority: f64,
}

/// An item in a table. Exactly one cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Item {
    pub(crate) key: u64,
    pub(crate) priority: f64,
    /// Insertion number in its table: grows by one, never reused. In a vacant slot: the next vacant slot, or
    /// `Slot::MAX`.
    pub(crate) seq: u64,
    /// Number of its insert or, if later, its last priority update: the table numbers inserts and priority updates
    /// together, not as `seq` does. Heaps order items of equal priority by this number.
    pub(crate) update_number: u64,
    /// `None` if the slot is vacant.
    pub(crate) trajectory: Option<Trajectory>,
    /// Number of samples taken, leased ones included. A returned sample no longer counts.
    pub(crate) times_sampled: u32,
    /// Number of open leases, one for each leased draw; with the bit [`HIDDEN`] once the item was sampled as often as
    /// allowed.
    pub(crate) leases: u32,
}

/// Bit of [`Item::leases`]: the item is hidden from sampler and remover.
pub(crate) const HIDDEN: u32 = 1 << 31;

impl Item {
    pub(crate) fn is_hidden(&self) -> bool {
        self.leases & HIDDEN != 0
    }

    /// True if the item was sampled as often as allowed and has no open lease: it must be removed.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.leases == HIDDEN
    }

    pub(crate) fn open_leases(&self) -> u32 {
        self.leases & !HIDDEN
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank {
            seq: self.seq,
            update_number: self.update_number,
            priority: self.priority,
        }
    }
}

/// The values that selectors order items by.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// Insertion number.
    pub seq: u64,
    /// Number of the insert or, if later, the last priority update; not comparable with `seq`.
    pub update_number: u64,
    /// Current priority.
    pub priority: f64,
}

const _: () = assert!(size_of::<Item>() == 64);
