//! Table changes as values, which a journal records.

use std::fmt;
use std::task::{Poll, Waker};

use crate::error::Result;
use crate::item::NewItem;
use crate::rate_limiter::RateLimits;
use crate::selector::TableRng;

/// Log sequence number: position of a change in the journal, from 1 on; 0 for a change that is not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// Why an item left its table. Files have these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Removal {
    /// The remover chose it.
    Evicted = 0,
    /// It was sampled as often as allowed.
    Exhausted = 1,
    /// It became older than the table's ttl.
    Expired = 2,
    /// A caller deleted it, or it could not be read.
    Deleted = 3,
}

impl Removal {
    /// Every cause; a cause's index is its number.
    pub const ALL: [Self; 4] = [Self::Evicted, Self::Exhausted, Self::Expired, Self::Deleted];
}

/// A writer's session, and the number of one of its items. A session numbers the items of each table separately; a
/// retry sends an item with the same number again. Or a reader's session, and the number of one of its acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNumber {
    /// Random id of the session.
    pub session: u64,
    /// 1 for the first item that the session sends to the table; each further item gets the next
    /// number. The numbers of a reader's acknowledgements grow, but those of a table may have gaps.
    pub number: u64,
}

/// A change to one table. Applying it is deterministic: it uses no random numbers, no clock and no
/// rate limiter.
#[derive(Clone, Debug)]
pub enum TableOp<'a> {
    /// Inserts an item with a new key.
    Insert {
        /// The item.
        item: &'a NewItem,
        /// The store's clock at its insertion, in nanoseconds.
        now: u64,
        /// Its session and number, if it has one.
        number: Option<SessionNumber>,
    },
    /// Records the session and number of an item that is not inserted because its key exists already.
    SkipInsert {
        /// Its session and number.
        number: SessionNumber,
        /// The store's clock, in nanoseconds.
        now: u64,
    },
    /// Removes an item.
    Remove {
        /// Its key.
        key: u64,
        /// Why it is removed.
        cause: Removal,
    },
    /// Sets an item's priority.
    SetPriority {
        /// Its key.
        key: u64,
        /// Its new priority.
        priority: f64,
    },
    /// Counts samples of items.
    Sample {
        /// Keys of the items; a key occurs once per sample.
        keys: &'a [u64],
        /// True if the samples are leased and may be returned.
        leased: bool,
    },
    /// Sets the state of the random generator to that after a random choice. Precedes the change that results from the
    /// choice.
    SetRng {
        /// The new state.
        rng: &'a TableRng,
    },
    /// Ends leases; their samples stay counted.
    Acknowledge {
        /// Keys of the sampled items that are still in the table.
        keys: &'a [u64],
        /// Number of samples whose leases end: more than `keys` if sampled items have left the table.
        samples: u64,
    },
    /// Like [`Self::Acknowledge`], and marks the number of the reader's acknowledgement as applied.
    AcknowledgeNumbered {
        /// Keys of the sampled items that are still in the table.
        keys: &'a [u64],
        /// Number of samples whose leases end: more than `keys` if sampled items have left the table.
        samples: u64,
        /// The reader's session, and the number of its acknowledgement.
        number: SessionNumber,
        /// The store's clock, in nanoseconds.
        now: u64,
    },
    /// Ends leases and undoes the counts of their samples.
    ReturnLeases {
        /// Keys of the sampled items that are still in the table.
        keys: &'a [u64],
        /// Number of samples whose leases end: more than `keys` if sampled items have left the table.
        samples: u64,
    },
    /// Undoes the counts of samples that had no lease and did not reach their caller.
    UndoSamples {
        /// Keys of the sampled items that are still in the table.
        keys: &'a [u64],
        /// Number of samples: more than `keys` if sampled items have left the table.
        samples: u64,
    },
    /// Removes all items and sets the counters to 0. Insertion numbers continue, and sessions stay.
    Reset,
    /// Sets the limits of the rate limiter; its counters stay.
    SetLimits {
        /// The new limits.
        limits: &'a RateLimits,
    },
}

/// Records changes. The effect of a change is reported to callers only after it is recorded.
pub trait OpSink: fmt::Debug + Send + Sync {
    /// Records one change; returns its position. Called under the table's lock: must not block.
    fn append(&self, table: &str, op: &TableOp<'_>) -> Lsn;

    /// Position of the last change recorded by any table; 0 if there is none.
    fn last(&self) -> Lsn;

    /// Ready once all changes up to `lsn` are as durable as the store is configured to make them.
    /// Otherwise stores the waker, and wakes it once they are durable or cannot be made durable.
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage) if the changes cannot be made durable now. A later
    /// poll may succeed: the sink retains the changes and retries.
    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>>;

    /// True if the sink records changes, so that they can survive the process.
    fn is_durable(&self) -> bool {
        true
    }

    /// Ready while the sink's buffer, which holds appended changes until they are written, has space. Stores and wakes
    /// the waker like [`OpSink::poll_durable`].
    ///
    /// # Errors
    /// See [`OpSink::poll_durable`].
    fn poll_space(&self, _waker: &Waker) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// True if the sink has ended: changes that are not durable yet will not become durable.
    fn has_ended(&self) -> bool {
        false
    }

    /// Why changes cannot be made as durable as configured at present; `None` if no problem is known. Must not
    /// block.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// The sink of a store without a journal: records nothing and never makes a caller wait.
#[derive(Debug)]
pub struct Volatile;

impl OpSink for Volatile {
    fn append(&self, _table: &str, _op: &TableOp<'_>) -> Lsn {
        Lsn(0)
    }

    fn last(&self) -> Lsn {
        Lsn(0)
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn poll_durable(&self, _lsn: Lsn, _waker: &Waker) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}
