//! Operations of tickets on their table. `table.rs` states why these files import each other.

use std::task::Waker;

use engram_core::{Draw, Lsn, Result};

use crate::table::Table;
use crate::table::serve::{MAX_FINISHED_PER_LOCK, MAX_RETURNED_PER_LOCK, WaitingSample};

/// Whether a queued call is done.
pub(crate) enum QueueState<T> {
    Waiting,
    Done(T),
}

impl Table {
    /// Returns `Done` once all items of an insert are in the table, with the position of the table's last change;
    /// otherwise stores the waker.
    pub(crate) fn poll_insert(&self, id: u64, waker: &Waker) -> Result<QueueState<Lsn>> {
        self.change(|locked, _, _| {
            let lsn = locked.state.last_lsn();
            match locked.inserts.get_mut(&id) {
                None => Ok(QueueState::Done(lsn)),
                Some(wait) => {
                    wait.waker = Some(waker.clone());
                    locked.check_open().map(|()| QueueState::Waiting)
                }
            }
        })
    }

    /// Number of items of an insert that are not in the table yet.
    pub(crate) fn items_left(&self, id: u64) -> usize {
        let locked = self.state.lock();
        locked.inserts.get(&id).map_or(0, |wait| wait.items.len())
    }

    /// Removes an insert from the queue; returns how many of its items were not inserted.
    pub(crate) fn withdraw_insert(&self, id: u64) -> usize {
        let wait = self.change(|locked, _, now| {
            let wait = locked.inserts.remove(&id);
            locked.end_wait(wait.as_ref().and_then(|wait| wait.cursor), now);
            wait
        });
        wait.map_or(0, |wait| wait.items.len())
    }

    /// Returns `Done` with the draws once a sample is complete; otherwise stores the waker.
    pub(crate) fn poll_sample(
        &self,
        id: u64,
        leased: bool,
        waker: &Waker,
    ) -> Result<QueueState<Vec<Draw>>> {
        let state = self.change(|locked, after, _| {
            let Some(wait) = locked.samples.get_mut(&id) else {
                return Ok(QueueState::Done(Vec::new()));
            };
            if !wait.served {
                wait.waker = Some(waker.clone());
                return locked.check_open().map(|()| QueueState::Waiting);
            }
            Ok(QueueState::Done(locked.finish_sample(id, leased, after)))
        })?;
        if let QueueState::Done(draws) = &state {
            self.finish_rest(draws, leased);
        }
        Ok(state)
    }

    /// Ends a sample. Returns its draws if they are enough; unless they are leased, they are final. Otherwise, the items
    /// drawn so far return to the table.
    ///
    /// # Errors
    /// The number of items drawn, if they are not enough.
    pub(crate) fn withdraw_sample(&self, id: u64, leased: bool) -> Result<Vec<Draw>, usize> {
        let complete = self.change(|locked, after, _| {
            let wait = locked.samples.get(&id);
            let complete = wait.is_some_and(WaitingSample::can_return);
            complete.then(|| locked.finish_sample(id, leased, after))
        });
        if let Some(draws) = complete {
            self.finish_rest(&draws, leased);
            return Ok(draws);
        }
        Err(self.drop_sample(id))
    }

    /// Removes a sample from the queue and returns the items drawn so far to the table; returns their
    /// number.
    pub(crate) fn drop_sample(&self, id: u64) -> usize {
        let draws = self.change(|locked, _, _| {
            let wait = locked.samples.remove(&id);
            let draws = wait.map(|wait| wait.draws).unwrap_or_default();
            let first = draws.iter().take(MAX_RETURNED_PER_LOCK);
            locked.state.return_leases(first.map(|draw| draw.handle));
            draws
        });
        let rest = draws.iter().skip(MAX_RETURNED_PER_LOCK);
        self.return_leases(&rest.map(|draw| draw.handle).collect::<Vec<_>>());
        draws.len()
    }

    /// Makes the draws final that [`LockedTable::finish_sample`] has left, to keep its lock hold short.
    fn finish_rest(&self, draws: &[Draw], leased: bool) {
        if !leased {
            let rest = draws.iter().skip(MAX_FINISHED_PER_LOCK);
            self.acknowledge(&rest.map(|draw| draw.handle).collect::<Vec<_>>(), None);
        }
    }
}
