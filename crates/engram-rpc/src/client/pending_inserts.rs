//! A writer's items on their way to a server's tables.

use std::collections::VecDeque;
use std::sync::Arc;

use engram_core::{Error, NewItem, Result};
use parking_lot::Mutex;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::GrpcClient;
use super::reconnecting_stream::ReconnectingStream;
use crate::pb;
use crate::wire::{InsertRequestBuilder, SentDictionary, decode_error};

/// What the writer and its conversation both look at.
#[derive(Debug, Default)]
pub(crate) struct InsertProgress {
    state: Mutex<ProgressState>,
    pub(crate) waker: futures_util::task::AtomicWaker,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// One per table.
    counts: Vec<TableCounts>,
    /// Why what the tables have cannot be made safe at the moment.
    problem: Option<Error>,
    errors: VecDeque<Error>,
    /// Items that those errors refused.
    refused: u64,
    /// Tables that were dropped or closed: their successors must be looked up.
    dropped: Vec<u32>,
}

/// Items of a writer for a table, which are numbered from 1 on.
#[derive(Clone, Copy, Debug, Default)]
struct TableCounts {
    sent: u64,
    /// That the table has, as far as is known: they may not be safe there.
    taken: u64,
    settled: u64,
}

impl TableCounts {
    fn in_flight(&self) -> u64 {
        self.sent - self.taken.max(self.settled)
    }

    fn unsettled(&self) -> u64 {
        self.sent - self.settled
    }
}

impl InsertProgress {
    pub(crate) fn add_table(&self) {
        self.state.lock().counts.push(TableCounts::default());
    }

    pub(crate) fn count_sent(&self, table: u32, items: u64) {
        self.state.lock().counts[table as usize].sent += items;
    }

    fn sum(&self, of: impl Fn(&TableCounts) -> u64) -> usize {
        let items = self.state.lock().counts.iter().map(of).sum();
        u64::try_into(items).unwrap_or(usize::MAX)
    }

    /// Items sent that no table has yet, as far as is known.
    pub(crate) fn in_flight(&self) -> usize {
        self.sum(TableCounts::in_flight)
    }

    /// Items sent and not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.sum(TableCounts::unsettled)
    }

    pub(crate) fn unsettled_of(&self, table: u32) -> u64 {
        self.state.lock().counts[table as usize].unsettled()
    }

    /// The table of the oldest item in flight, or so.
    pub(crate) fn waiting_table(&self) -> Option<u32> {
        let state = self.state.lock();
        let waiting = (state.counts.iter()).position(|counts| counts.in_flight() > 0);
        waiting.and_then(|table| u32::try_from(table).ok())
    }

    /// Items sent that no table has, as far as the writer has been told.
    pub(crate) fn items_left(&self) -> usize {
        let refused = self.state.lock().refused;
        self.in_flight() + usize::try_from(refused).unwrap_or(usize::MAX)
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        let mut state = self.state.lock();
        let error = state.errors.pop_front();
        if state.errors.is_empty() {
            state.refused = 0;
        }
        error
    }

    /// Why what the tables have cannot be made safe, if anybody has said so since somebody asked last.
    pub(crate) fn take_problem(&self) -> Option<Error> {
        self.state.lock().problem.take()
    }

    /// The table has a successor.
    pub(crate) fn restore_table(&self, table: usize) {
        self.state
            .lock()
            .dropped
            .retain(|dropped| *dropped as usize != table);
    }

    pub(crate) fn is_dropped(&self, table: u32) -> bool {
        self.state.lock().dropped.contains(&table)
    }
}

pub(crate) enum InsertCommand {
    /// A table, whose number is one more than that of the last.
    AddTable(String),
    /// Items for a table, in order.
    Items(u32, Vec<NewItem>),
    /// Somebody waits: try again to reach a server that was given up.
    Retry,
}

/// What goes to one table.
#[derive(Debug)]
struct TableQueue {
    table: String,
    /// Items that are not settled, in order: the first is number `settled + 1`.
    unsettled: VecDeque<NewItem>,
    settled: u64,
    /// The last item that this connection has been told, or that need not be told.
    sent: u64,
}

impl TableQueue {
    fn new(table: String) -> Self {
        Self {
            table,
            unsettled: VecDeque::new(),
            settled: 0,
            sent: 0,
        }
    }

    /// The next item to be told, and its number.
    fn next_unsent(&self) -> Option<(u64, &NewItem)> {
        let next = usize::try_from(self.sent - self.settled).ok()?;
        let item = self.unsettled.get(next)?;
        Some((self.sent + 1, item))
    }

    /// Forgets items up to a number; returns how many.
    fn settle(&mut self, number: u64) -> u64 {
        let last = self.settled + self.unsettled.len() as u64;
        let count = number.clamp(self.settled, last) - self.settled;
        self.settled += count;
        self.sent = self.sent.max(self.settled);
        (0..count).for_each(|_| drop(self.unsettled.pop_front()));
        count
    }
}

/// The conversation of one writer.
#[derive(Debug)]
pub(crate) struct PendingInserts {
    session: u64,
    session_sent: bool,
    /// The server could not be reached; nothing is tried until somebody waits.
    gave_up: bool,
    /// One per table: a table that blocks keeps nothing of what goes to the others.
    queues: Vec<TableQueue>,
    /// The queue that is first in the next message.
    first_queue: usize,
    dictionary: SentDictionary,
    builder: InsertRequestBuilder,
    requests: VecDeque<pb::InsertRequest>,
    progress: Arc<InsertProgress>,
}

impl PendingInserts {
    pub(crate) fn new(session: u64, progress: Arc<InsertProgress>) -> Self {
        Self {
            session,
            session_sent: false,
            gave_up: false,
            queues: Vec::new(),
            first_queue: 0,
            dictionary: SentDictionary::default(),
            builder: InsertRequestBuilder::default(),
            requests: VecDeque::new(),
            progress,
        }
    }

    /// Fills requests from what is next_unsent, one message's worth. The queues take turns at being
    /// first: one that never ends does not hold up the others.
    fn fill(&mut self) {
        for step in 0..self.queues.len() {
            let at = (self.first_queue + step) % self.queues.len();
            let queue = &mut self.queues[at];
            while !self.builder.is_full()
                && let Some((number, item)) = queue.next_unsent()
            {
                let added = self
                    .builder
                    .add_item(&mut self.dictionary, &queue.table, number, item);
                if let Err(error) = added {
                    self.progress.state.lock().errors.push_back(error);
                }
                queue.sent = number;
            }
            if self.builder.is_full() {
                self.first_queue = (at + 1) % self.queues.len();
                break;
            }
        }
        self.builder.release_unused_chunks(&mut self.dictionary);
        self.requests = self.builder.take_requests();
    }
}

impl PendingInserts {
    fn queue(&self, table: &str) -> Result<usize, Error> {
        let known = (self.queues.iter()).position(|queue| queue.table == table);
        known.ok_or_else(|| {
            Error::Payload(format!(
                "the server has items for table `{table}`, which this writer does not use"
            ))
        })
    }
}

impl ReconnectingStream for PendingInserts {
    type Command = InsertCommand;
    type Request = pb::InsertRequest;
    type Response = pb::InsertResponse;

    async fn open(
        mut client: GrpcClient,
        out: ReceiverStream<pb::InsertRequest>,
    ) -> Result<Streaming<pb::InsertResponse>, Status> {
        Ok(client.insert(out).await?.into_inner())
    }

    fn handle_command(&mut self, command: InsertCommand) {
        self.gave_up = false;
        match command {
            InsertCommand::AddTable(name) => self.queues.push(TableQueue::new(name)),
            InsertCommand::Items(table, items) => {
                self.queues[table as usize].unsettled.extend(items)
            }
            InsertCommand::Retry => {}
        }
    }

    fn on_disconnect(&mut self) {
        self.session_sent = false;
        for queue in &mut self.queues {
            queue.sent = queue.settled;
        }
        // What was not settled may be gone.
        let mut state = self.progress.state.lock();
        state.problem = None;
        for counts in &mut state.counts {
            counts.taken = counts.settled;
        }
        drop(state);
        self.dictionary = SentDictionary::default();
        self.builder = InsertRequestBuilder::default();
        self.requests.clear();
    }

    fn next_request(&mut self) -> Option<pb::InsertRequest> {
        if self.requests.is_empty() {
            self.fill();
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
        for taken in message.inserted {
            let at = self.queue(&taken.table)?;
            let mut state = self.progress.state.lock();
            let counts = &mut state.counts[at];
            counts.taken = counts.taken.max(taken.number.min(counts.sent));
            if let Some(problem) = taken.durability_error {
                state.problem = Some(decode_error(problem));
            }
        }
        for settled in message.completed {
            let at = self.queue(&settled.table)?;
            let count = self.queues[at].settle(settled.number);
            let mut state = self.progress.state.lock();
            state.counts[at].settled += count;
            if count > 0 {
                state.problem = None;
            }
            if let Some(error) = settled.error {
                state.refused += count;
                let error = decode_error(error);
                if matches!(error, Error::Closed(_) | Error::UnknownTable { .. }) {
                    state.dropped.extend(u32::try_from(at));
                }
                state.errors.push_back(error);
            }
        }
        self.progress.waker.wake();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.gave_up || self.queues.iter().all(|queue| queue.unsettled.is_empty())
    }

    fn fail_pending(&mut self, error: &Error) {
        self.gave_up = true;
        let left = self.progress.unsettled();
        let error = match error {
            Error::Unavailable(text) => {
                Error::Unavailable(format!("{text}; {left} items are not acknowledged"))
            }
            other => other.clone(),
        };
        self.progress.state.lock().errors.push_back(error);
        self.progress.waker.wake();
    }
}
