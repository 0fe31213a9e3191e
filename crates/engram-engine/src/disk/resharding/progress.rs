//! Reports how much of the work is done.

use engram_core::{Error, Result};

/// Callback for progress: receives the number of bytes processed so far and the total number: the size of all logs,
/// twice, because they are read and then copied. Returns false to stop.
pub type ReshardProgress<'a> = &'a mut (dyn FnMut(u64, u64) -> bool + Send);

/// Bytes between two calls of a [`ReshardProgress`].
const INTERVAL: u64 = 4 << 20;

/// The work of a resharding, in parts.
pub(super) struct Work<'a> {
    progress: ReshardProgress<'a>,
    total: u64,
    /// Bytes of the parts that are completed.
    completed: u64,
    /// Bytes when `progress` was last called.
    reported: u64,
    is_stopped: bool,
}

impl<'a> Work<'a> {
    pub(super) fn new(progress: ReshardProgress<'a>) -> Self {
        Self {
            progress,
            total: 0,
            completed: 0,
            reported: 0,
            is_stopped: false,
        }
    }

    pub(super) fn set_total(&mut self, total: u64) {
        self.total = total;
    }

    /// Reports that `done` of `all` steps of a part of `bytes` bytes are done.
    pub(super) fn advance(&mut self, bytes: u64, done: u64, all: u64) {
        let of_part = u128::from(bytes) * u128::from(done.min(all)) / u128::from(all.max(1));
        let now = self.completed + u64::try_from(of_part).unwrap_or(bytes);
        if now >= self.reported + INTERVAL {
            self.report(now);
        }
    }

    /// Completes a part of `bytes` bytes.
    pub(super) fn complete(&mut self, bytes: u64) {
        self.completed += bytes;
        self.report(self.completed);
    }

    fn report(&mut self, now: u64) {
        self.reported = now;
        if !self.is_stopped {
            self.is_stopped = !(self.progress)(now.min(self.total), self.total);
        }
    }

    /// # Errors
    /// [`Error::Closed`] if the callback has returned false.
    pub(super) fn check(&self) -> Result<()> {
        if !self.is_stopped {
            return Ok(());
        }
        Err(Error::Closed("the resharding was stopped".into()))
    }
}
