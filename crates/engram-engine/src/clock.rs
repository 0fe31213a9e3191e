//! Where time comes from.

use std::fmt::Debug;
use std::time::Instant;

/// A source of time that never goes back.
pub trait Clock: Debug + Send + Sync {
    /// Nanoseconds since some fixed moment.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
