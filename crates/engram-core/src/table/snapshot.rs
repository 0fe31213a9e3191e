//! A table's items at one moment, taken in steps so that nobody waits long.

use crate::cow::{Frozen, Room};
use crate::item::Item;
use crate::rate_limiter::RateLimiter;
use crate::table::TableState;
use crate::trajectory::Trajectory;

/// The items of a table at one moment, however it changes afterwards.
#[derive(Clone, Debug)]
pub struct Snapshot {
    entries: Frozen<Item>,
    /// Limits and counters.
    pub limiter: RateLimiter,
}

/// Memory for a snapshot's page pointers.
#[derive(Debug)]
pub struct SnapshotRoom(Room<Item>);

impl SnapshotRoom {
    /// Room for so many pages, and some more: the table may grow before the snapshot is begun.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self(vec![None; pages + pages / 8 + 64])
    }
}

/// How a snapshot under way stands.
#[derive(Debug)]
pub enum SnapshotStep {
    /// It needs more steps.
    More,
    /// Here it is.
    Done(Snapshot),
    /// A reset, or another snapshot, ended it: begin anew.
    Lost,
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
    /// Samples taken, leased ones included.
    pub times_sampled: u32,
    /// What it is made of.
    pub trajectory: &'a Trajectory,
}

impl Snapshot {
    /// Its items, in no particular order.
    pub fn items(&self) -> impl Iterator<Item = SnapshotItem<'_>> {
        self.entries.iter().filter_map(|item| {
            item.trajectory.as_ref().map(|trajectory| SnapshotItem {
                key: item.key,
                priority: item.priority,
                seq: item.seq,
                times_sampled: item.times_sampled,
                trajectory,
            })
        })
    }
}

impl TableState {
    /// Pages that a snapshot would have now.
    #[must_use]
    pub fn snapshot_pages(&self) -> usize {
        self.contents.items.pages()
    }

    /// Begins a snapshot of this moment; [`TableState::continue_snapshot`] takes it in steps.
    pub fn begin_snapshot(&mut self, room: SnapshotRoom) {
        self.contents.items.begin_snapshot(room.0);
        self.snapshot_limiter = Some(self.limiter.clone());
    }

    /// Takes one bounded step of the snapshot under way.
    pub fn continue_snapshot(&mut self) -> SnapshotStep {
        if !self.contents.items.is_taking() {
            return SnapshotStep::Lost;
        }
        let Some(entries) = self.contents.items.continue_snapshot() else {
            return SnapshotStep::More;
        };
        let limiter = self
            .snapshot_limiter
            .take()
            .unwrap_or_else(|| self.limiter.clone());
        SnapshotStep::Done(Snapshot { entries, limiter })
    }

    /// The items of this moment, in one go: for tables that nobody waits for.
    #[must_use]
    pub fn snapshot(&mut self) -> Snapshot {
        let room = SnapshotRoom::new(self.snapshot_pages());
        self.begin_snapshot(room);
        loop {
            if let SnapshotStep::Done(snapshot) = self.continue_snapshot() {
                return snapshot;
            }
        }
    }
}
