//! A stream's items on their way into tables, and what of them is settled.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use engram_core::{Chunk, Error, NewItem};
use engram_engine::{InsertTicket, JournalSpace};
use futures_util::stream::SelectAll;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::sleep;

use super::ack_queue::{AckQueue, MAX_ERROR_TEXT, error_bytes, refusal_error};
use super::batch_wait::{BatchProgress, BatchStatus, BatchWait, DURABILITY_RETRY_DELAY};
use super::pending_memory::{BatchMemory, PendingMemory};
use crate::pb;

/// AckQueue that may wait for their reader; then no more items are read.
const MAX_PENDING_ACKS: usize = 1024;

/// What a writer hears of its items.
type Outcome = Result<(), pb::Error>;

/// Items that travel together.
#[derive(Debug)]
pub(super) struct InsertBatch {
    /// Of the last of them.
    number: u64,
    memory: BatchMemory,
    /// Of its items, those that its writer has not heard to be in.
    unacknowledged: usize,
    /// Of its items, those that were not in, or not safe there, when it was last looked at.
    not_durable: usize,
    /// Those that were not in.
    not_applied: usize,
    outcome: Option<Outcome>,
    /// Tells batches apart.
    id: u64,
}

impl InsertBatch {
    pub(super) fn new(number: u64, items: &[NewItem]) -> Self {
        let mut memory = BatchMemory {
            items: items.len(),
            ..BatchMemory::default()
        };
        for item in items {
            memory.own += item.trajectory.footprint();
            for chunk in item.trajectory.chunks() {
                let last = memory.chunks.last();
                if !last.is_some_and(|last: &Arc<Chunk>| Arc::ptr_eq(last, chunk)) {
                    memory.chunks.push(Arc::clone(chunk));
                }
            }
        }
        Self {
            number,
            unacknowledged: memory.items,
            not_durable: memory.items,
            not_applied: memory.items,
            memory,
            outcome: None,
            id: 0,
        }
    }

    /// The number up to which items are in, unless that has been told, or its end will say so.
    fn next_settled(&mut self) -> Option<u64> {
        let is_new = (1..self.unacknowledged).contains(&self.not_durable);
        self.unacknowledged = self.unacknowledged.min(self.not_durable);
        is_new.then(|| self.number - self.not_durable as u64)
    }
}

/// A table's batches, in order.
#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<InsertBatch>,
    /// Batches at the front that are in, and wait to be safe there.
    applied_batches: usize,
    /// The last number that was told to be in.
    last_applied: u64,
}

impl Queue {
    fn find(&mut self, id: u64) -> Option<&mut InsertBatch> {
        let at = self.batches.binary_search_by_key(&id, |batch| batch.id);
        self.batches.get_mut(at.ok()?)
    }

    /// The number up to which items are in, unless that has been told.
    fn next_applied(&mut self) -> Option<u64> {
        let is_in = |batch: &InsertBatch| batch.not_applied == 0 || batch.outcome.is_some();
        while self.batches.get(self.applied_batches).is_some_and(is_in) {
            self.applied_batches += 1;
        }
        let some = self.batches.get(self.applied_batches);
        let some = some.filter(|batch| batch.not_applied < batch.memory.items);
        let last = match some {
            Some(batch) => batch.number - batch.not_applied as u64,
            None => {
                self.batches
                    .get(self.applied_batches.checked_sub(1)?)?
                    .number
            }
        };
        if last <= self.last_applied {
            return None;
        }
        self.last_applied = last;
        Some(last)
    }

    /// The same, where up to `settled` is told anyway.
    fn next_applied_beyond(&mut self, settled: Option<u64>) -> Option<u64> {
        self.last_applied = self.last_applied.max(settled.unwrap_or_default());
        self.next_applied()
    }

    /// The first batch, if it has ended, and how.
    fn next_ended(&mut self) -> Option<(InsertBatch, Outcome)> {
        let outcome = self.batches.front_mut()?.outcome.take()?;
        self.applied_batches = self.applied_batches.saturating_sub(1);
        Some((self.batches.pop_front()?, outcome))
    }
}

/// What waits, table by table, in order; and what its writer has yet to hear.
#[derive(Default)]
pub(super) struct InsertQueues {
    queues: HashMap<Arc<str>, Queue>,
    waits: SelectAll<BatchWait>,
    pending_memory: PendingMemory,
    acks: AckQueue,
    next_id: u64,
    /// Too much waits to be written.
    space: Option<JournalSpace>,
}

impl InsertQueues {
    /// May more items be read?
    pub(super) fn has_room(&self) -> bool {
        self.pending_memory.has_room() && self.acks.len() < MAX_PENDING_ACKS && self.space.is_none()
    }

    /// Takes note of items that are in a table's queue.
    pub(super) fn add(&mut self, table: &str, mut batch: InsertBatch, mut ticket: InsertTicket) {
        // Most are served at once.
        let outcome = (&mut ticket).now_or_never();
        // What is in and cannot be made safe now may be later.
        let is_final = |outcome: &Outcome| outcome.is_ok() || !ticket.is_applied();
        batch.outcome = outcome.map(outcome_out).filter(is_final);
        self.space = ticket.table().journal_space();
        let (id, left) = (self.next_id, batch.not_durable);
        if let Some(table) = self.push(table, batch) {
            let mut wait = BatchWait::new(table, id, ticket, left);
            // Some of them may be in.
            let status = wait.next().now_or_never().flatten();
            self.waits.push(wait);
            if let Some(done) = status {
                self.record(done);
            }
        }
    }

    /// Takes note of items up to a number that their table will not have.
    pub(super) fn refuse(&mut self, table: &str, number: u64, error: pb::Error) {
        let mut batch = InsertBatch::new(number, &[]);
        batch.memory.own = error_bytes(&error);
        batch.outcome = Some(Err(error));
        self.push(table, batch);
    }

    /// Puts a batch behind those of its table; returns the table where it has to be waited for.
    fn push(&mut self, table: &str, mut batch: InsertBatch) -> Option<Arc<str>> {
        batch.id = self.next_id;
        self.next_id += 1;
        let name = match self.queues.get_key_value(table) {
            Some((name, _)) => Arc::clone(name),
            None if batch.outcome.is_some() => {
                self.push_settled(table, batch.number, batch.outcome?);
                return None;
            }
            None => Arc::from(table),
        };
        let waits = batch.outcome.is_none();
        self.pending_memory.add(&batch.memory);
        self.queues
            .entry(Arc::clone(&name))
            .or_default()
            .batches
            .push_back(batch);
        waits.then_some(name)
    }

    /// Waits until some items are settled, or less waits to be written, or for ever.
    pub(super) async fn progress(&mut self) {
        let done = tokio::select! {
            Some(done) = self.waits.next() => done,
            () = wait_for_space(&mut self.space), if self.space.is_some() => return,
            else => return std::future::pending().await,
        };
        self.record(done);
        while let Some(Some(done)) = self.waits.next().now_or_never() {
            self.record(done);
            if self.acks.len() >= MAX_PENDING_ACKS {
                break;
            }
        }
    }

    fn record(&mut self, (table, id, status): BatchProgress) {
        match status {
            BatchStatus::Done(outcome) => self.record_done(&table, id, outcome_out(outcome)),
            BatchStatus::NotDurable(left) => self.record_durable(&table, id, left),
            BatchStatus::NotApplied(out) => self.record_applied(&table, id, out),
            BatchStatus::StorageError(error) => self.record_storage_error(&table, id, &error),
        }
    }

    /// Tells how much of a batch is in; one behind another that is not is told of after that.
    fn record_applied(&mut self, table: &str, id: u64, out: usize) {
        let Some(queue) = self.queues.get_mut(table) else {
            return;
        };
        if let Some(batch) = queue.find(id) {
            batch.not_applied = out;
        }
        if let Some(number) = queue.next_applied() {
            self.acks.push_applied(table, number, None);
        }
    }

    /// Tells why what is in is not safe: once for all that wait with it.
    fn record_storage_error(&mut self, table: &str, id: u64, error: &Error) {
        let queue = self.queues.get(table);
        let first = queue.and_then(|queue| queue.batches.front());
        if first.is_some_and(|batch| batch.id == id) {
            self.acks
                .push_applied(table, 0, Some(refusal_error(error, MAX_ERROR_TEXT)));
        }
    }

    /// Tells how far a batch is; one behind the first of its table is told of after that.
    fn record_durable(&mut self, table: &str, id: u64, left: usize) {
        let Some(queue) = self.queues.get_mut(table) else {
            return;
        };
        if let Some(batch) = queue.find(id) {
            batch.not_durable = left;
            batch.not_applied = batch.not_applied.min(left);
        }
        let settled = queue
            .batches
            .front_mut()
            .and_then(InsertBatch::next_settled);
        let applied = queue.next_applied_beyond(settled);
        self.push_acks(table, settled, applied);
    }

    fn record_done(&mut self, table: &Arc<str>, id: u64, outcome: Outcome) {
        let Some(mut queue) = self.queues.remove(table) else {
            return;
        };
        if let Some(batch) = queue.find(id).filter(|batch| batch.outcome.is_none()) {
            batch.outcome = Some(outcome);
        }
        while let Some((batch, outcome)) = queue.next_ended() {
            self.pending_memory.remove(&batch.memory);
            queue.last_applied = queue.last_applied.max(batch.number);
            self.push_settled(table, batch.number, outcome);
        }
        // What was noted of the next while it was not the first.
        let settled = queue
            .batches
            .front_mut()
            .and_then(InsertBatch::next_settled);
        let applied = queue.next_applied_beyond(settled);
        self.push_acks(table, settled, applied);
        if !queue.batches.is_empty() {
            self.queues.insert(Arc::clone(table), queue);
        }
    }

    fn push_acks(&mut self, table: &str, settled: Option<u64>, applied: Option<u64>) {
        if let Some(number) = settled {
            self.push_settled(table, number, Ok(()));
        }
        if let Some(number) = applied {
            self.acks.push_applied(table, number, None);
        }
    }

    fn push_settled(&mut self, table: &str, number: u64, outcome: Outcome) {
        self.acks.push_settled(table, number, outcome.err());
    }

    /// True when there is something to tell.
    pub(super) fn has_reply(&self) -> bool {
        self.acks.len() > 0
    }

    pub(super) fn next_reply(&mut self) -> Option<pb::InsertResponse> {
        self.acks.next_reply()
    }

    /// Takes what waits out of its tables; what is left is to be told: also of items that went in
    /// since anybody looked.
    pub(super) fn withdraw(mut self) -> AckQueue {
        let mut waits: Vec<BatchWait> = std::mem::take(&mut self.waits).into_iter().collect();
        // Of each table, the last first: none may go in past one that is withdrawn.
        waits.sort_unstable_by(|a, b| b.place().cmp(&a.place()));
        let ends: Vec<_> = waits.into_iter().filter_map(BatchWait::withdraw).collect();
        for end in ends.into_iter().rev() {
            self.record(end);
        }
        self.acks
    }
}

/// Waits until there is space, or for a while where nothing can be written.
async fn wait_for_space(space: &mut Option<JournalSpace>) {
    if let Some(wait) = space {
        match wait.await {
            Ok(()) => *space = None,
            Err(_) => sleep(DURABILITY_RETRY_DELAY).await,
        }
    }
}

fn outcome_out(outcome: Result<(), Error>) -> Outcome {
    outcome.map_err(|error| refusal_error(&error, MAX_ERROR_TEXT))
}

#[cfg(test)]
mod tests;
