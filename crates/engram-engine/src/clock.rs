//! Where time comes from.

use std::fmt::Debug;
use std::time::Instant;

/// Where the clock of a new store begins: it can take in what is as old as ten years.
pub(crate) const BEGINNING: u64 = 315_360_000_000_000_000;

/// A source of time that never goes back.
pub trait Clock: Debug + Send + Sync {
    /// Nanoseconds since some fixed moment.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// Its first reading.
    first: u64,
}

impl SystemClock {
    /// A clock that goes on from there.
    #[must_use]
    pub fn from(first: u64) -> Self {
        Self {
            start: Instant::now(),
            first,
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::from(BEGINNING)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        let passed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.first.saturating_add(passed)
    }
}
