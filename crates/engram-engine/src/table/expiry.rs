//! Removes expired items while calls wait: this may let some of them proceed.
//!
//! Each lock holder removes the items that have expired. While calls wait, an alarm also does, when the next item expires.
//! `table.rs` states why it and this file import each other.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crate::table::Table;
use crate::table::serve::LockedTable;

/// Minimum time from one alarm of a table to the next, so that frequent expiries cost little.
const MIN_INTERVAL: Duration = Duration::from_millis(5);

/// Removes the expired items of a table when it is woken.
struct ExpiryWaker(Weak<Table>);

impl Wake for ExpiryWaker {
    fn wake(self: Arc<Self>) {
        if let Some(table) = self.0.upgrade() {
            // Fails for a closed table, which has no items.
            let _ = table.expire();
        }
    }
}

/// A waker that removes the expired items of a table.
pub(super) fn waker(table: &Weak<Table>) -> Waker {
    Waker::from(Arc::new(ExpiryWaker(Weak::clone(table))))
}

impl Table {
    /// If calls wait, sets an alarm for the next expiry. `now` is the clock's reading.
    pub(super) fn set_expiry_alarm(&self, locked: &mut LockedTable, now: u64) {
        let Some(expiry) = locked.state.next_expiry() else {
            return;
        };
        if locked.inserts.is_empty() && locked.first_unserved_sample().is_none() {
            return;
        }
        let began = Instant::now();
        let delay = Duration::from_nanos(expiry.saturating_sub(now)).max(MIN_INTERVAL);
        let alarm = locked.expiry_alarm.as_ref();
        if let Some(time) = began.checked_add(delay)
            && !alarm.is_some_and(|alarm| (began..=time).contains(&alarm.time))
        {
            let alarm = (self.context.timer).wake_at(time, self.expiry_waker.clone());
            locked.expiry_alarm = Some(alarm);
        }
    }
}
