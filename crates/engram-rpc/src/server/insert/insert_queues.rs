//! The items of one stream that wait for their tables, and the acknowledgements for the writer.
//!
//! Each table has a queue of batches, in the order of their item numbers. The writer receives two numbers per table:
//! all items up to the first are *completed* (durable or rejected), all items up to the second are *inserted* (perhaps
//! not durable yet) or rejected: they no longer wait for their table. A batch is therefore reported only once the batches before it are, even if it is done earlier. A
//! third number reports up to which item the table's rate limiter *allows* items, so that they do not wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use engram_core::{Chunk, Error, NewItem};
use engram_engine::{InsertTicket, JournalSpace};
use futures_util::stream::SelectAll;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::sleep;

use super::ack_queue::{AckQueue, MAX_ERROR_BYTES, bounded_error, error_bytes};
use super::batch_wait::{BatchProgress, BatchStatus, BatchWait, DURABILITY_RETRY_DELAY};
use super::pending_memory::{BatchMemory, PendingMemory};
use super::used_tables::UsedTables;
use crate::pb;

/// The server reads no further items while this many acknowledgements wait to be sent.
const MAX_PENDING_ACKS: usize = 1024;

/// The result of a batch, as sent to the writer.
type Outcome = Result<(), pb::Error>;

/// Items that one call passed to their table, or consecutive items that were rejected without such a call.
#[derive(Debug)]
pub(super) struct InsertBatch {
    /// Number of the last item.
    number: u64,
    memory: BatchMemory,
    /// Number of items that were not reported as completed yet.
    unacknowledged: usize,
    /// Number of items that are not durable, as of the last status.
    not_durable: usize,
    /// Number of items that are not inserted, as of the last status.
    not_inserted: usize,
    /// `None` until the batch is done.
    outcome: Option<Outcome>,
    /// Ascending within a stream.
    id: u64,
}

impl InsertBatch {
    pub(super) fn new(number: u64, items: &[NewItem]) -> Self {
        let mut memory = BatchMemory {
            items: items.len(),
            ..BatchMemory::default()
        };
        for item in items {
            memory.extra_bytes += item.trajectory.footprint();
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
            not_inserted: memory.items,
            memory,
            outcome: None,
            id: 0,
        }
    }

    /// True if all items are inserted (perhaps not durable yet) or rejected.
    fn is_inserted(&self) -> bool {
        self.not_inserted == 0 || self.outcome.is_some()
    }

    /// Returns the number up to which items are completed and counts them as reported. `None` if they were reported
    /// before, or if all items of the batch are durable: these are reported when the batch is done.
    fn next_completed(&mut self) -> Option<u64> {
        let has_new = (1..self.unacknowledged).contains(&self.not_durable);
        self.unacknowledged = self.unacknowledged.min(self.not_durable);
        has_new.then(|| self.number - self.not_durable as u64)
    }
}

/// A table's batches, in order.
#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<InsertBatch>,
    /// Number of batches at the front whose items are all inserted (perhaps not durable yet) or rejected.
    inserted_batches: usize,
    /// Items up to this number were reported as inserted or as completed.
    last_reported: u64,
}

impl Queue {
    fn find(&mut self, id: u64) -> Option<&mut InsertBatch> {
        let index = self.batches.binary_search_by_key(&id, |batch| batch.id);
        self.batches.get_mut(index.ok()?)
    }

    /// Returns the number of the last item before the first that waits; `None` if none waits.
    fn number_before_wait(&self) -> Option<u64> {
        let mut batches = self.batches.range(self.inserted_batches..);
        let waiting = batches.find(|batch| !batch.is_inserted())?;
        Some(waiting.number - waiting.not_inserted as u64)
    }

    /// Returns the number up to which items are inserted or rejected, and counts them as reported; `None` if it has not
    /// grown since the last report.
    fn next_inserted(&mut self) -> Option<u64> {
        while self
            .batches
            .get(self.inserted_batches)
            .is_some_and(InsertBatch::is_inserted)
        {
            self.inserted_batches += 1;
        }
        let next = self.batches.get(self.inserted_batches);
        let partly_inserted = next.filter(|batch| batch.not_inserted < batch.memory.items);
        let last = match partly_inserted {
            Some(batch) => batch.number - batch.not_inserted as u64,
            None => {
                self.batches
                    .get(self.inserted_batches.checked_sub(1)?)?
                    .number
            }
        };
        if last <= self.last_reported {
            return None;
        }
        self.last_reported = last;
        Some(last)
    }

    /// Like [`Self::next_inserted`], but leaves out items up to `completed`: they are reported as completed.
    fn next_inserted_beyond(&mut self, completed: Option<u64>) -> Option<u64> {
        self.last_reported = self.last_reported.max(completed.unwrap_or_default());
        self.next_inserted()
    }

    /// Removes the first batch, if it is done.
    fn pop_done(&mut self) -> Option<(InsertBatch, Outcome)> {
        let outcome = self.batches.front_mut()?.outcome.take()?;
        self.inserted_batches = self.inserted_batches.saturating_sub(1);
        Some((self.batches.pop_front()?, outcome))
    }
}

/// The queues of all tables, and the acknowledgements that were not sent.
#[derive(Default)]
pub(super) struct InsertQueues {
    queues: HashMap<Arc<str>, Queue>,
    used_tables: UsedTables,
    waits: SelectAll<BatchWait>,
    pending_memory: PendingMemory,
    acks: AckQueue,
    next_id: u64,
    /// Set while the store's journal is full.
    journal_full: Option<JournalSpace>,
}

impl InsertQueues {
    /// True if the server may read more items from the stream.
    pub(super) fn has_room(&self) -> bool {
        self.pending_memory.has_room()
            && self.acks.len() < MAX_PENDING_ACKS
            && self.journal_full.is_none()
    }

    /// Adds items that were passed to their table.
    pub(super) fn add(&mut self, table: &str, mut batch: InsertBatch, mut ticket: InsertTicket) {
        // Most batches are done at once.
        let outcome = (&mut ticket).now_or_never();
        // Items that are inserted and cannot be made durable now may become durable later.
        let is_final = |outcome: &Outcome| outcome.is_ok() || !ticket.is_applied();
        batch.outcome = outcome.map(encode_outcome).filter(is_final);
        self.journal_full = ticket.table().journal_space();
        self.used_tables.record(table, ticket.table(), batch.number);
        let (id, left) = (self.next_id, batch.not_durable);
        if let Some(table_name) = self.push(table, batch) {
            let mut wait = BatchWait::new(table_name, id, ticket, left);
            // Some of the items may be inserted already.
            let progress = wait.next().now_or_never().flatten();
            self.waits.push(wait);
            if let Some(progress) = progress {
                self.record(progress);
            }
        }
        self.push_allowed(table);
    }

    /// Reports up to which number the rate limiter of a table allows items, if that has changed.
    fn push_allowed(&mut self, table: &str) {
        let queue = self.queues.get(table);
        let before_wait = queue.and_then(Queue::number_before_wait);
        if let Some(number) = self.used_tables.next_allowed(table, before_wait) {
            self.acks.push_allowed(table, number);
        }
    }

    /// Adds rejected items: those up to this number that were not added before.
    pub(super) fn reject(&mut self, table: &str, number: u64, error: pb::Error) {
        let mut batch = InsertBatch::new(number, &[]);
        batch.memory.extra_bytes = error_bytes(&error);
        batch.outcome = Some(Err(error));
        self.push(table, batch);
    }

    /// Appends a batch to the queue of its table; returns the table's name if the batch is not done. A batch that is
    /// done is acknowledged at once if no other batch of its table is queued.
    fn push(&mut self, table: &str, mut batch: InsertBatch) -> Option<Arc<str>> {
        batch.id = self.next_id;
        self.next_id += 1;
        let name = match self.queues.get_key_value(table) {
            Some((name, _)) => Arc::clone(name),
            None if batch.outcome.is_some() => {
                self.push_completed(table, batch.number, batch.outcome?);
                return None;
            }
            None => Arc::from(table),
        };
        let is_pending = batch.outcome.is_none();
        self.pending_memory.add(&batch.memory);
        self.queues
            .entry(Arc::clone(&name))
            .or_default()
            .batches
            .push_back(batch);
        is_pending.then_some(name)
    }

    /// Waits until the status of a batch changes, and records it, or until the journal has space again or cannot write.
    /// Does not return if nothing is pending.
    pub(super) async fn progress(&mut self) {
        let progress = tokio::select! {
            Some(progress) = self.waits.next() => progress,
            () = wait_for_space(&mut self.journal_full), if self.journal_full.is_some() => return,
            else => return std::future::pending().await,
        };
        self.record(progress);
        while let Some(Some(progress)) = self.waits.next().now_or_never() {
            self.record(progress);
            if self.acks.len() >= MAX_PENDING_ACKS {
                break;
            }
        }
    }

    /// Records the new status of a batch, and queues the acknowledgements that follow from it.
    fn record(&mut self, (table, id, status): BatchProgress) {
        match status {
            BatchStatus::Done(outcome) => self.record_done(&table, id, encode_outcome(outcome)),
            BatchStatus::Durable(left) => self.record_durable(&table, id, left),
            BatchStatus::Inserted(left) => self.record_inserted(&table, id, left),
            BatchStatus::StorageError(error) => self.record_storage_error(&table, id, &error),
        }
        self.push_allowed(&table);
    }

    /// Records inserted items, and reports them once all items before them are inserted.
    fn record_inserted(&mut self, table: &str, id: u64, left: usize) {
        let Some(queue) = self.queues.get_mut(table) else {
            return;
        };
        if let Some(batch) = queue.find(id) {
            batch.not_inserted = left;
        }
        if let Some(number) = queue.next_inserted() {
            self.acks.push_inserted(table, number, None);
        }
    }

    /// Reports why inserted items cannot be made durable. All batches of a table wait for the same journal, so only the
    /// first one reports its errors.
    fn record_storage_error(&mut self, table: &str, id: u64, error: &Error) {
        let queue = self.queues.get(table);
        let first = queue.and_then(|queue| queue.batches.front());
        if first.is_some_and(|batch| batch.id == id) {
            self.acks
                .push_inserted(table, 0, Some(bounded_error(error, MAX_ERROR_BYTES)));
        }
    }

    /// Records durable items, and reports them once their batch is the first of its table.
    fn record_durable(&mut self, table: &str, id: u64, left: usize) {
        let Some(queue) = self.queues.get_mut(table) else {
            return;
        };
        if let Some(batch) = queue.find(id) {
            batch.not_durable = left;
            batch.not_inserted = batch.not_inserted.min(left);
        }
        let completed = queue
            .batches
            .front_mut()
            .and_then(InsertBatch::next_completed);
        let inserted = queue.next_inserted_beyond(completed);
        self.push_acks(table, completed, inserted);
    }

    /// Records the outcome of a batch, and reports all batches at the front of the queue that are done.
    fn record_done(&mut self, table: &Arc<str>, id: u64, outcome: Outcome) {
        let Some(mut queue) = self.queues.remove(table) else {
            return;
        };
        if let Some(batch) = queue.find(id).filter(|batch| batch.outcome.is_none()) {
            batch.outcome = Some(outcome);
        }
        while let Some((batch, outcome)) = queue.pop_done() {
            self.pending_memory.remove(&batch.memory);
            queue.last_reported = queue.last_reported.max(batch.number);
            self.push_completed(table, batch.number, outcome);
        }
        // Items of the next batch may have become durable while it was not the first.
        let completed = queue
            .batches
            .front_mut()
            .and_then(InsertBatch::next_completed);
        let inserted = queue.next_inserted_beyond(completed);
        self.push_acks(table, completed, inserted);
        if !queue.batches.is_empty() {
            self.queues.insert(Arc::clone(table), queue);
        }
    }

    fn push_acks(&mut self, table: &str, completed: Option<u64>, inserted: Option<u64>) {
        if let Some(number) = completed {
            self.push_completed(table, number, Ok(()));
        }
        if let Some(number) = inserted {
            self.acks.push_inserted(table, number, None);
        }
    }

    fn push_completed(&mut self, table: &str, number: u64, outcome: Outcome) {
        self.acks.push_completed(table, number, outcome.err());
    }

    /// Number of items of a table that were received and are neither durable nor rejected yet.
    pub(super) fn in_flight(&self, table: &str) -> u64 {
        let batches = self.queues.get(table).map(|queue| queue.batches.iter());
        let items = batches
            .into_iter()
            .flatten()
            .map(|batch| match batch.outcome {
                None => batch.not_durable as u64,
                Some(_) => 0,
            });
        items.sum()
    }

    /// True if there are acknowledgements to send.
    pub(super) fn has_reply(&self) -> bool {
        self.acks.len() > 0
    }

    pub(super) fn next_reply(&mut self) -> Option<pb::InsertResponse> {
        self.acks.next_reply()
    }

    /// Withdraws all items that are not inserted. Returns the acknowledgements that are left to send, including those
    /// of items inserted since the last poll. These items may not be durable yet: the caller must wait until they are
    /// before it sends the acknowledgements.
    pub(super) fn withdraw(mut self) -> AckQueue {
        let mut waits: Vec<BatchWait> = std::mem::take(&mut self.waits).into_iter().collect();
        // The last batch of a table is withdrawn first: no item may be inserted after an earlier one was withdrawn.
        waits.sort_unstable_by(|a, b| b.sort_key().cmp(&a.sort_key()));
        let withdrawn: Vec<_> = waits.into_iter().filter_map(BatchWait::withdraw).collect();
        for progress in withdrawn.into_iter().rev() {
            self.record(progress);
        }
        self.acks
    }
}

/// Waits until the journal has space, then clears `space`. After a storage error, returns after the retry delay and
/// leaves `space` set, so that the caller waits again.
async fn wait_for_space(space: &mut Option<JournalSpace>) {
    if let Some(wait) = space {
        match wait.await {
            Ok(()) => *space = None,
            Err(_) => sleep(DURABILITY_RETRY_DELAY).await,
        }
    }
}

fn encode_outcome(outcome: Result<(), Error>) -> Outcome {
    outcome.map_err(|error| bounded_error(&error, MAX_ERROR_BYTES))
}

#[cfg(test)]
mod tests;
