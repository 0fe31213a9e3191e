//! Changes to tables as values: what a journal would record.

use std::fmt;
use std::task::{Poll, Waker};

use crate::error::Result;
use crate::item::NewItem;
use crate::rate_limiter::RateLimits;
use crate::selector::TableRng;

/// Position of a change in the log of all changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// Why an item left its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The remover chose it.
    Evicted,
    /// It was sampled as often as it may be.
    Exhausted,
    /// It outlived the table's ttl.
    Expired,
    /// Somebody asked for it.
    Deleted,
}

/// Which of a writer's items one is, for one table: a retry sends it under the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNumber {
    /// Random number of the writer's session.
    pub session: u64,
    /// 1 for the first item that the session sends to the table, one more for each that follows.
    pub number: u64,
}

/// A change to one table with every choice already made: applying it involves no chance, no
/// clock and no limiter.
#[derive(Clone, Debug)]
pub enum TableOp<'a> {
    /// A new key enters.
    Insert {
        /// The item.
        item: &'a NewItem,
        /// Clock reading at its insertion, nanoseconds.
        now: u64,
        /// Which of its session's items it is, where it has a session.
        number: Option<SessionNumber>,
    },
    /// An item did not enter because its key was there already: only its number counts.
    SkipInsert {
        /// Which of its session's items it was.
        number: SessionNumber,
        /// Clock reading, nanoseconds.
        now: u64,
    },
    /// An item leaves.
    Remove {
        /// Which.
        key: u64,
        /// Why.
        cause: Removal,
    },
    /// An item's priority changes.
    SetPriority {
        /// Which.
        key: u64,
        /// Its new priority.
        priority: f64,
    },
    /// Items are handed out, once per occurrence.
    Sample {
        /// Which.
        keys: &'a [u64],
        /// Whether they may still come back.
        leased: bool,
    },
    /// The generator has made choices: this is what it is now. Before the change that they led to.
    SetRng {
        /// The generator.
        rng: &'a TableRng,
    },
    /// Leased samples are final.
    Acknowledge {
        /// Which, of those whose items are still there.
        keys: &'a [u64],
        /// How many in all.
        samples: u64,
    },
    /// Leased samples come back: as if they had never been handed out.
    ReturnLeases {
        /// Which, of those whose items are still there.
        keys: &'a [u64],
        /// How many in all: samples of items that are gone no longer count either.
        samples: u64,
    },
    /// Everything goes, counters included.
    Reset,
    /// The rate limiter's bounds change; its counters stay.
    SetLimits {
        /// The new bounds.
        limits: &'a RateLimits,
    },
}

/// Where changes are recorded before anyone is told that they happened.
pub trait OpSink: fmt::Debug + Send + Sync {
    /// Records one change. Called under the table's lock: must not wait.
    fn append(&self, table: &str, op: &TableOp<'_>) -> Lsn;

    /// The last change recorded, by whichever table.
    fn last(&self) -> Lsn;

    /// Whether everything up to `lsn` is as safe as was promised. Otherwise remembers the waker
    /// and wakes it once it is, or cannot be made so.
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage) where it cannot be made so now. It may be later:
    /// nothing is given up.
    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>>;

    /// Whether more changes can be taken. Otherwise as [`OpSink::poll_durable`]: so that what is
    /// not written yet does not grow without bound.
    ///
    /// # Errors
    /// As [`OpSink::poll_durable`].
    fn poll_room(&self, _waker: &Waker) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The sink of a store without a journal: promises nothing, so nobody waits.
#[derive(Debug)]
pub struct Volatile;

impl OpSink for Volatile {
    fn append(&self, _table: &str, _op: &TableOp<'_>) -> Lsn {
        Lsn(0)
    }

    fn last(&self) -> Lsn {
        Lsn(0)
    }

    fn poll_durable(&self, _lsn: Lsn, _waker: &Waker) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}
