//! What tickets ask of their table.

use std::task::Waker;

use engram_core::{Draw, Lsn, Result};

use crate::table::serve::WaitingSample;
use crate::table::{FINISH, GIVE_BACK, Table};

/// How a ticket stands.
pub(crate) enum TicketState<T> {
    Waiting,
    Done(T),
}

impl Table {
    /// Whether all items of an insert are in; remembers the waker otherwise.
    pub(crate) fn poll_insert(&self, id: u64, waker: &Waker) -> Result<TicketState<Lsn>> {
        self.change(|shared, _, _| {
            let lsn = shared.state.last_lsn();
            match shared.inserts.get_mut(&id) {
                None => Ok(TicketState::Done(lsn)),
                Some(wait) => {
                    wait.waker = Some(waker.clone());
                    shared.check_open().map(|()| TicketState::Waiting)
                }
            }
        })
    }

    /// How many items of an insert are not in yet.
    pub(crate) fn items_left(&self, id: u64) -> usize {
        let shared = self.shared.lock();
        shared.inserts.get(&id).map_or(0, |wait| wait.items.len())
    }

    /// Items of an insert that are not in yet; they never will be.
    pub(crate) fn withdraw_insert(&self, id: u64) -> usize {
        let wait = self.change(|shared, _, now| {
            let wait = shared.inserts.remove(&id);
            shared.end_wait(wait.as_ref().and_then(|wait| wait.numbers), now);
            wait
        });
        wait.map_or(0, |wait| wait.items.len())
    }

    /// Whether all draws of a sample are there; remembers the waker otherwise.
    pub(crate) fn poll_sample(
        &self,
        id: u64,
        leased: bool,
        waker: &Waker,
    ) -> Result<TicketState<Vec<Draw>>> {
        let progress = self.change(|shared, after, _| {
            let Some(wait) = shared.samples.get_mut(&id) else {
                return Ok(TicketState::Done(Vec::new()));
            };
            if !wait.served {
                wait.waker = Some(waker.clone());
                return shared.check_open().map(|()| TicketState::Waiting);
            }
            Ok(TicketState::Done(shared.finish_sample(id, leased, after)))
        })?;
        if let TicketState::Done(draws) = &progress {
            self.finish_rest(draws, leased);
        }
        Ok(progress)
    }

    /// Ends a sample early: what it has drawn so far is its caller's.
    pub(crate) fn cut_sample(&self, id: u64, leased: bool) -> Vec<Draw> {
        let draws = self.change(|shared, after, _| shared.finish_sample(id, leased, after));
        self.finish_rest(&draws, leased);
        draws
    }

    /// Ends a sample early unless it is complete: what it has drawn so far goes back.
    ///
    /// # Errors
    /// How many those were.
    pub(crate) fn withdraw_sample(&self, id: u64, leased: bool) -> Result<Vec<Draw>, usize> {
        let complete = self.change(|shared, after, _| {
            let wait = shared.samples.get(&id);
            let complete = wait.is_some_and(WaitingSample::is_enough);
            complete.then(|| shared.finish_sample(id, leased, after))
        });
        if let Some(draws) = complete {
            self.finish_rest(&draws, leased);
            return Ok(draws);
        }
        Err(self.drop_sample(id))
    }

    /// Withdraws a sample; what it has drawn so far goes back. Returns how many those were.
    pub(crate) fn drop_sample(&self, id: u64) -> usize {
        let draws = self.change(|shared, _, _| {
            let wait = shared.samples.remove(&id);
            let draws = wait.map(|wait| wait.draws).unwrap_or_default();
            let first = draws.iter().take(GIVE_BACK);
            shared.state.return_leases(first.map(|draw| draw.handle));
            draws
        });
        let rest = draws.iter().skip(GIVE_BACK);
        self.return_leases(&rest.map(|draw| draw.handle).collect::<Vec<_>>());
        draws.len()
    }

    /// Finishes what [`LockedTable::finish_sample`] leaves, so that no hold grows with the request.
    fn finish_rest(&self, draws: &[Draw], leased: bool) {
        if !leased {
            let rest = draws.iter().skip(FINISH);
            self.acknowledge(&rest.map(|draw| draw.handle).collect::<Vec<_>>());
        }
    }
}
