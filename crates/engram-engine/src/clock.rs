//! Time sources.

use std::fmt::Debug;
use std::time::Instant;

/// First reading of a new store's clock, in nanoseconds: ten years, so that items up to ten years old
/// can be restored into a new store.
pub(crate) const FIRST_READING: u64 = 315_360_000_000_000_000;

/// A monotonic time source.
pub trait Clock: Debug + Send + Sync {
    /// Nanoseconds since a fixed moment.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock, with a chosen first reading.
#[derive(Debug)]
pub struct MonotonicClock {
    start: Instant,
    /// Reading at `start`, in nanoseconds.
    first_reading: u64,
}

impl MonotonicClock {
    /// A clock whose first reading is `first_reading`, in nanoseconds.
    #[must_use]
    pub fn starting_at(first_reading: u64) -> Self {
        Self {
            start: Instant::now(),
            first_reading,
        }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::starting_at(FIRST_READING)
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.first_reading.saturating_add(elapsed)
    }
}
