//! Calls that end leases, and that lease items again.

use std::sync::Arc;
use std::time::Duration;

use engram_core::{Handle, SessionNumber};

use crate::lease::Lease;
use crate::table::Table;
use crate::table::serve::MAX_RETURNED_PER_LOCK;
use crate::ticket::UntilDurable;

impl Table {
    /// Makes leased draws final; also for a closed table. Marks the number of the acknowledgement, if given, as applied.
    pub(crate) fn acknowledge(&self, handles: &[Handle], number: Option<SessionNumber>) {
        // The closure cannot fail.
        let _ = self.in_lock_steps(handles.len(), |locked, after, now, range| {
            // With the first part: the reader of a partly applied acknowledgement has all items.
            let number = number
                .filter(|_| range.start == 0)
                .map(|number| (number, now));
            let handles = handles[range].iter().copied();
            (locked.state).acknowledge_numbered(handles, number, &mut after.deferred);
            Ok(0)
        });
    }

    /// If the reader's acknowledgement with this number was applied, by this store or, if it survived, before a restart:
    /// a future that is ready once it is durable, or `None` if it need not be. Not applied, if its session was idle for 10
    /// minutes.
    #[must_use]
    pub fn until_acknowledged(&self, number: SessionNumber) -> Option<Option<UntilDurable>> {
        let is_applied = self.change(|locked, _, now| locked.state.is_applied(number, now));
        is_applied.then(|| self.removes_durably().then(|| self.until_durable()))
    }

    /// True if an acknowledgement may remove items from a durable store.
    pub(crate) fn removes_durably(&self) -> bool {
        self.options.max_times_sampled > 0 && self.sink.is_durable()
    }

    /// True if readers of an earlier store may continue: samples were on lease when it ended, or clients that number their
    /// items or acknowledgements have used the table during this time.
    #[must_use]
    pub fn may_have_readers(&self, time: Duration) -> bool {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.change(|locked, _, now| locked.state.may_have_readers(now.saturating_sub(time)))
    }

    /// Leases the items with these keys again, for a reader that has them and whose lease has ended. The lease has those
    /// that are in the table and may be sampled.
    #[must_use]
    pub fn lease_again(self: &Arc<Self>, keys: &[u64]) -> Lease {
        let mut handles = Vec::with_capacity(keys.len());
        // The closure cannot fail.
        let _ = self.in_lock_steps(keys.len(), |locked, _, _, range| {
            handles.extend(locked.state.lease_again(&keys[range]));
            Ok(0)
        });
        Lease::of(self, handles)
    }

    /// Returns leased items to the table; also for a closed table.
    pub(crate) fn return_leases(&self, handles: &[Handle]) {
        // In large parts, so that other calls rarely see a partly returned batch.
        for handles in handles.chunks(MAX_RETURNED_PER_LOCK) {
            self.change(|locked, _, _| locked.state.return_leases(handles.iter().copied()));
        }
    }

    /// Undoes the counts of samples without a lease.
    pub(crate) fn undo_samples(&self, handles: &[Handle]) {
        for handles in handles.chunks(MAX_RETURNED_PER_LOCK) {
            self.change(|locked, _, _| locked.state.undo_samples(handles.iter().copied()));
        }
    }

    /// Removes and counts drawn items that cannot be read.
    pub(crate) fn remove_unreadable(&self, handles: &[Handle]) {
        // The closure cannot fail.
        let _ = self.in_lock_steps(handles.len(), |locked, after, _, range| {
            let handles = handles[range].iter().copied();
            let removed = (locked.state).remove_unreadable(handles, &mut after.deferred);
            locked.unreadable_items += removed as u64;
            Ok(removed)
        });
    }
}
