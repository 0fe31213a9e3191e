//! Readings of the store's clock and the system's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::FIRST_READING;

/// Readings of both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClockReading {
    /// The store's clock, in nanoseconds.
    pub(crate) store: u64,
    /// The system's clock, in seconds since 1970.
    pub(crate) system: u64,
}

impl ClockReading {
    /// Reads the system's clock; `store` is the reading of the store's clock.
    pub(crate) fn now(store: u64) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let system = since_epoch.map_or(0, |since_epoch| since_epoch.as_secs());
        Self { store, system }
    }

    /// Reading at which the store's clock continues: this reading plus the time that has passed since then by the
    /// system's clock (0 if that was set back). For the default value, which means a new store, the first reading.
    pub(super) fn resumed_clock(self) -> u64 {
        if self == Self::default() {
            return FIRST_READING;
        }
        let passed = Self::now(0).system.saturating_sub(self.system);
        let passed = u64::try_from(Duration::from_secs(passed).as_nanos()).unwrap_or(0);
        self.store.saturating_add(passed)
    }
}
