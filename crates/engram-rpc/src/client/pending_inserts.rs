//! The client's side of an insert stream: the items of one writer that the server has not completed.
//!
//! An item is *sent*, then *inserted* (in its table, not durable yet) and *completed* (durable as far as the server's
//! store promises, or rejected). When the connection breaks, all items that are not completed are sent again; the
//! server recognises those that it has by the session and their numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engram_core::text::count;
use engram_core::writer::ShardId;
use engram_core::{Error, NewItem, RateLimits, Result};
use parking_lot::Mutex;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::Connector;
use super::connection::GrpcClient;
use super::failover::next_session;
use super::reconnecting_stream::ReconnectingStream;
use crate::pb;
use crate::wire::{InsertRequestBuilder, SentDictionary, decode_error};

/// Progress of the items, shared by the writer and its stream.
#[derive(Debug, Default)]
pub struct InsertProgress {
    state: Mutex<ProgressState>,
    /// True if the server could not be reached or has rejected the stream; it may have inserted items in flight. The
    /// next command makes the stream connect again.
    has_failed: AtomicBool,
    pub(crate) waker: futures_util::task::AtomicWaker,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// One per table.
    counts: Vec<TableCounts>,
    /// Why inserted items cannot be made durable at the moment.
    durability_error: Option<Error>,
    /// Errors that were not returned to the writer yet, oldest first, each with the number of items rejected with it.
    errors: VecDeque<(Error, u64)>,
    /// Numbers of tables that were dropped or closed. A new table may have the same name.
    dropped: Vec<u32>,
    /// Changes of the shard that the items are sent to, oldest first: a table, the number of its last item that the
    /// earlier shard has completed, and the id of the next shard.
    shard_changes: Vec<(u32, u64, u16)>,
}

/// The highest numbers of a writer's items for one table; numbers begin at 1.
#[derive(Clone, Copy, Debug, Default)]
struct TableCounts {
    sent: u64,
    /// In the table, perhaps not durable yet.
    inserted: u64,
    /// Durable as far as the store promises, or rejected.
    completed: u64,
    /// The table's rate limiter allows items up to this number, as of the last response. `None` before the first
    /// response on a connection.
    allowed: Option<u64>,
    /// As `allowed`, before the first response: the highest number if the limiter never blocks inserts, otherwise 0.
    allowed_at_first: u64,
}

impl TableCounts {
    fn in_flight(&self) -> u64 {
        self.sent - self.inserted.max(self.completed)
    }

    fn incomplete(&self) -> u64 {
        self.sent - self.completed
    }

    fn waiting(&self) -> u64 {
        let allowed = self.allowed.unwrap_or(self.allowed_at_first);
        self.sent
            .saturating_sub(self.inserted.max(self.completed).max(allowed))
    }

    fn awaits_first_reply(&self) -> bool {
        self.allowed.is_none() && self.waiting() > 0
    }
}

impl InsertProgress {
    pub(crate) fn add_table(&self, limits: &RateLimits) {
        self.state.lock().counts.push(TableCounts {
            allowed_at_first: allowed_at_first(limits),
            ..TableCounts::default()
        });
    }

    pub(crate) fn count_sent(&self, table: u32, items: u64) {
        self.state.lock().counts[table as usize].sent += items;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn set_failed(&self, has_failed: bool) {
        self.has_failed.store(has_failed, Ordering::Relaxed);
    }

    fn sum(&self, count: impl Fn(&TableCounts) -> u64) -> usize {
        let items = self.state.lock().counts.iter().map(count).sum();
        u64::try_into(items).unwrap_or(usize::MAX)
    }

    /// Number of items sent and not known to be in their tables or rejected.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.sum(TableCounts::in_flight)
    }

    /// Number of items sent that the rate limiters of their tables did not allow when the server last answered. Before
    /// the first answer, all items count that a limiter might block.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.sum(TableCounts::waiting)
    }

    /// True if items count as waiting only because the server has not answered for their table on this connection.
    #[must_use]
    pub fn awaits_first_reply(&self) -> bool {
        let state = self.state.lock();
        state.counts.iter().any(TableCounts::awaits_first_reply)
    }

    /// Number of items sent and not completed.
    pub(crate) fn incomplete(&self) -> usize {
        self.sum(TableCounts::incomplete)
    }

    /// Number of items sent to one table that were not rejected, and are not known to be as durable there as the
    /// server's store promises.
    #[must_use]
    pub fn incomplete_items(&self, table: u32) -> u64 {
        self.state.lock().counts[table as usize].incomplete()
    }

    /// Returns the number of the first table with waiting items; if there is none, of the first with items in flight.
    pub(crate) fn first_pending_table(&self) -> Option<u32> {
        let state = self.state.lock();
        let find = |is_first: fn(&TableCounts) -> bool| state.counts.iter().position(is_first);
        let waiting = find(|counts| counts.waiting() > 0);
        let first = waiting.or_else(|| find(|counts| counts.in_flight() > 0));
        first.and_then(|table| u32::try_from(table).ok())
    }

    /// Number of items in flight, plus rejected items. A rejected item counts until
    /// [`RemoteOutbox::check_errors`](super::RemoteOutbox::check_errors) has returned its error.
    #[must_use]
    pub fn items_left(&self) -> usize {
        let state = self.state.lock();
        let in_flight: u64 = state.counts.iter().map(TableCounts::in_flight).sum();
        let rejected: u64 = state.errors.iter().map(|(_, items)| items).sum();
        usize::try_from(in_flight + rejected).unwrap_or(usize::MAX)
    }

    /// Removes the oldest error: why items were rejected, or why the stream failed.
    pub(crate) fn take_error(&self) -> Option<Error> {
        let (error, _) = self.state.lock().errors.pop_front()?;
        Some(error)
    }

    /// Returns why inserted items cannot be made durable; each report of the server is returned once.
    pub(crate) fn take_durability_error(&self) -> Option<Error> {
        self.state.lock().durability_error.take()
    }

    /// Returns the shard id in the key of an item, by its number; `None` if the shard has not changed since its writer
    /// chose the key.
    pub(crate) fn changed_shard(&self, table: u32, number: u64) -> Option<u16> {
        let state = self.state.lock();
        let mut changes = state.shard_changes.iter().rev();
        let change =
            changes.find(|(changed, completed, _)| *changed == table && *completed < number);
        change.map(|(_, _, id)| *id)
    }

    /// Number of items sent to a table so far.
    #[must_use]
    pub fn sent(&self, table: u32) -> u64 {
        self.state.lock().counts[table as usize].sent
    }

    /// Records that a dropped table exists again, with these limits.
    pub(crate) fn restore_table(&self, table: usize, limits: &RateLimits) {
        let mut state = self.state.lock();
        state.dropped.retain(|dropped| *dropped as usize != table);
        state.counts[table].allowed = None;
        state.counts[table].allowed_at_first = allowed_at_first(limits);
    }

    pub(crate) fn is_dropped(&self, table: u32) -> bool {
        self.state.lock().dropped.contains(&table)
    }
}

/// See [`TableCounts::allowed_at_first`].
fn allowed_at_first(limits: &RateLimits) -> u64 {
    if limits.never_block_inserts() {
        u64::MAX
    } else {
        0
    }
}

/// A command of a [`super::RemoteOutbox`] for its stream.
pub(crate) enum InsertCommand {
    /// Adds a table; tables are numbered from 0 in this order.
    AddTable(String),
    /// Items for the table of this number, in order.
    Items(u32, Vec<NewItem>),
    /// Connect again after a failure, because the writer waits.
    Retry,
}

/// A writer's items for one table.
#[derive(Debug)]
struct TableQueue {
    table: String,
    /// Items that are not completed, in order: the first is number `completed + 1`.
    incomplete: VecDeque<NewItem>,
    /// Number of the last item that is completed.
    completed: u64,
    /// Number of the last item that was sent on this connection or is completed.
    sent: u64,
}

impl TableQueue {
    fn new(table: String) -> Self {
        Self {
            table,
            incomplete: VecDeque::new(),
            completed: 0,
            sent: 0,
        }
    }

    /// Returns the next item to send and its number.
    fn next_unsent(&self) -> Option<(u64, &NewItem)> {
        let next = usize::try_from(self.sent - self.completed).ok()?;
        Some((self.sent + 1, self.incomplete.get(next)?))
    }

    /// Removes items up to a number; returns how many were removed.
    fn complete(&mut self, number: u64) -> u64 {
        let mut count = 0;
        while self.completed < number && self.incomplete.pop_front().is_some() {
            self.completed += 1;
            count += 1;
        }
        self.sent = self.sent.max(self.completed);
        count
    }
}

/// The state of one writer's insert stream.
#[derive(Debug)]
pub(crate) struct PendingInserts {
    /// Random id of the writer's session.
    session: u64,
    /// True if the id was sent on this connection.
    session_sent: bool,
    /// One per table, so that a table that blocks does not hold up the items of others.
    queues: Vec<TableQueue>,
    /// The queue whose items are first in the next message.
    first_queue: usize,
    dictionary: SentDictionary,
    builder: InsertRequestBuilder,
    /// Messages to send next.
    requests: VecDeque<pb::InsertRequest>,
    /// The shard that the items are sent to. Shared by the writer, whose keys have this id.
    shard: ShardId,
    progress: Arc<InsertProgress>,
}

impl PendingInserts {
    pub(crate) fn new(session: u64, shard: ShardId, progress: Arc<InsertProgress>) -> Self {
        Self {
            session,
            session_sent: false,
            queues: Vec::new(),
            first_queue: 0,
            dictionary: SentDictionary::default(),
            builder: InsertRequestBuilder::default(),
            requests: VecDeque::new(),
            shard,
            progress,
        }
    }

    /// Builds the next messages from unsent items. The queues take turns at being first, so that a long queue does not
    /// hold up the others.
    fn build_requests(&mut self) {
        for turn in 0..self.queues.len() {
            let table = (self.first_queue + turn) % self.queues.len();
            let queue = &mut self.queues[table];
            while !self.builder.is_full()
                && let Some((number, item)) = queue.next_unsent()
            {
                let key = shard_key(&self.shard, item.key);
                self.builder
                    .add_item(&mut self.dictionary, &queue.table, number, item, key);
                queue.sent = number;
            }
            if self.builder.is_full() {
                self.first_queue = (table + 1) % self.queues.len();
                break;
            }
        }
        self.builder.release_unused_chunks(&mut self.dictionary);
        self.requests = self.builder.take_requests();
    }
}

impl PendingInserts {
    /// Returns the index of a table's queue.
    fn queue_index(&self, table: &str) -> Result<usize, Error> {
        let index = (self.queues.iter()).position(|queue| queue.table == table);
        index.ok_or_else(|| {
            Error::Payload(format!(
                "invalid response: it acknowledges items of table `{table}`, which this writer does not use"
            ))
        })
    }
}

/// Returns the key that an item has on a shard: its writer may have created it for another one.
fn shard_key(shard: &ShardId, key: u64) -> u64 {
    if shard.get() == 0 {
        key
    } else {
        shard.key(key)
    }
}

impl ReconnectingStream for PendingInserts {
    type Command = InsertCommand;
    type Request = pb::InsertRequest;
    type Response = pb::InsertResponse;

    async fn open(
        mut client: GrpcClient,
        requests: ReceiverStream<pb::InsertRequest>,
    ) -> Result<Streaming<pb::InsertResponse>, Status> {
        Ok(client.insert(requests).await?.into_inner())
    }

    fn handle_command(&mut self, command: InsertCommand) {
        self.progress.set_failed(false);
        match command {
            InsertCommand::AddTable(name) => self.queues.push(TableQueue::new(name)),
            InsertCommand::Items(table, items) => {
                self.queues[table as usize].incomplete.extend(items);
            }
            InsertCommand::Retry => {}
        }
    }

    fn on_disconnect(&mut self) {
        self.session_sent = false;
        for queue in &mut self.queues {
            queue.sent = queue.completed;
        }
        // Items that are not completed may be lost.
        let mut state = self.progress.state.lock();
        state.durability_error = None;
        for counts in &mut state.counts {
            counts.inserted = counts.completed;
            counts.allowed = None;
        }
        drop(state);
        self.dictionary = SentDictionary::default();
        self.builder = InsertRequestBuilder::default();
        self.requests.clear();
    }

    fn on_connect(&mut self, connector: &Connector) {
        let (before, id) = (self.shard.get(), connector.shard().get());
        self.shard.set(id);
        if before != 0 && before != id {
            let completed = (0..)
                .zip(&self.queues)
                .map(|(table, queue)| (table, queue.completed, id));
            self.progress.state.lock().shard_changes.extend(completed);
        }
    }

    fn move_from(&mut self, unreachable: &Arc<Connector>) -> bool {
        for queue in &self.queues {
            let items = queue.incomplete.iter();
            let keys = items.map(|item| shard_key(&self.shard, item.key));
            unreachable.failover.add_moved_items(&queue.table, keys);
        }
        unreachable.connect_later();
        // The unreachable server may know items by their numbers that are deleted when it is reached again: should they
        // be sent to it then, it must insert them.
        self.session = next_session(self.session);
        true
    }

    fn next_request(&mut self) -> Option<pb::InsertRequest> {
        if self.requests.is_empty() {
            self.build_requests();
        }
        let mut request = self.requests.pop_front().unwrap_or_default();
        if !self.session_sent {
            self.session_sent = true;
            request.session = Some(self.session);
        }
        Some(request)
    }

    fn has_request(&self) -> bool {
        !self.requests.is_empty()
            || self
                .queues
                .iter()
                .any(|queue| queue.next_unsent().is_some())
    }

    fn handle_response(&mut self, message: pb::InsertResponse) -> Result<(), Error> {
        for inserted in message.inserted {
            let table = self.queue_index(&inserted.table)?;
            let mut state = self.progress.state.lock();
            let counts = &mut state.counts[table];
            counts.inserted = counts.inserted.max(inserted.number.min(counts.sent));
            if let Some(durability_error) = inserted.durability_error {
                state.durability_error = Some(decode_error(durability_error));
            }
        }
        for completed in message.completed {
            let table = self.queue_index(&completed.table)?;
            let count = self.queues[table].complete(completed.number);
            let mut state = self.progress.state.lock();
            state.counts[table].completed = self.queues[table].completed;
            if count > 0 {
                state.durability_error = None;
            }
            if let Some(error) = completed.error {
                let error = decode_error(error);
                if matches!(error, Error::Closed(_) | Error::UnknownTable { .. }) {
                    state.dropped.extend(u32::try_from(table));
                }
                state.errors.push_back((error, count));
            }
        }
        for allowed in message.allowed {
            let table = self.queue_index(&allowed.table)?;
            self.progress.state.lock().counts[table].allowed = Some(allowed.number);
        }
        self.progress.waker.wake();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.progress.has_failed() || self.queues.iter().all(|queue| queue.incomplete.is_empty())
    }

    fn fail_pending(&mut self, error: &Error) {
        self.progress.set_failed(true);
        let left = self.progress.incomplete();
        let error = match error {
            Error::Unavailable(text) => {
                Error::Unavailable(format!("{text}; {} not acknowledged", count(left, "item")))
            }
            other => other.clone(),
        };
        self.progress.state.lock().errors.push_back((error, 0));
        self.progress.waker.wake();
    }
}
