//! A writer's items on their way to a server's tables.

use std::collections::VecDeque;
use std::sync::Arc;

use engram_core::{Error, NewItem, Result};
use parking_lot::Mutex;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::Api;
use super::talk::Talk;
use crate::pb;
use crate::wire::{InsertRequestBuilder, SentDictionary, decode_error};

/// What the writer and its conversation both look at.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    pub(crate) waker: futures_util::task::AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// One per table.
    counts: Vec<Counts>,
    /// Why what the tables have cannot be made safe at the moment.
    problem: Option<Error>,
    errors: VecDeque<Error>,
    /// Items that those errors refused.
    refused: u64,
    /// Tables that were dropped or closed: their successors must be looked up.
    lost: Vec<u32>,
}

/// Items of a writer for a table, which are numbered from 1 on.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    /// That the table has, as far as is known: they may not be safe there.
    taken: u64,
    settled: u64,
}

impl Counts {
    fn in_flight(&self) -> u64 {
        self.sent - self.taken.max(self.settled)
    }

    fn unsettled(&self) -> u64 {
        self.sent - self.settled
    }
}

impl Progress {
    pub(crate) fn add_table(&self) {
        self.state.lock().counts.push(Counts::default());
    }

    pub(crate) fn count_sent(&self, table: u32, items: u64) {
        self.state.lock().counts[table as usize].sent += items;
    }

    fn sum(&self, of: impl Fn(&Counts) -> u64) -> usize {
        let items = self.state.lock().counts.iter().map(of).sum();
        u64::try_into(items).unwrap_or(usize::MAX)
    }

    /// Items sent that no table has yet, as far as is known.
    pub(crate) fn in_flight(&self) -> usize {
        self.sum(Counts::in_flight)
    }

    /// Items sent and not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.sum(Counts::unsettled)
    }

    pub(crate) fn unsettled_of(&self, table: u32) -> u64 {
        self.state.lock().counts[table as usize].unsettled()
    }

    /// The table of the oldest item in flight, or so.
    pub(crate) fn waits_for(&self) -> Option<u32> {
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
    pub(crate) fn found(&self, table: usize) {
        self.state
            .lock()
            .lost
            .retain(|lost| *lost as usize != table);
    }

    pub(crate) fn is_lost(&self, table: u32) -> bool {
        self.state.lock().lost.contains(&table)
    }
}

pub(crate) enum Command {
    /// A table, whose number is one more than that of the last.
    Table(String),
    /// Items for a table, in order.
    Items(u32, Vec<NewItem>),
    /// Somebody waits: try again to reach a server that was given up.
    Wake,
}

/// What goes to one table.
#[derive(Debug)]
struct Lane {
    table: String,
    /// Items that are not settled, in order: the first is number `settled + 1`.
    unsettled: VecDeque<NewItem>,
    settled: u64,
    /// The last item that this connection has been told, or that need not be told.
    said: u64,
}

impl Lane {
    fn new(table: String) -> Self {
        Self {
            table,
            unsettled: VecDeque::new(),
            settled: 0,
            said: 0,
        }
    }

    /// The next item to be told, and its number.
    fn unsaid(&self) -> Option<(u64, &NewItem)> {
        let next = usize::try_from(self.said - self.settled).ok()?;
        let item = self.unsettled.get(next)?;
        Some((self.said + 1, item))
    }

    /// Forgets items up to a number; returns how many.
    fn settle(&mut self, number: u64) -> u64 {
        let last = self.settled + self.unsettled.len() as u64;
        let count = number.clamp(self.settled, last) - self.settled;
        self.settled += count;
        self.said = self.said.max(self.settled);
        (0..count).for_each(|_| drop(self.unsettled.pop_front()));
        count
    }
}

/// The conversation of one writer.
#[derive(Debug)]
pub(crate) struct Sending {
    session: u64,
    begun: bool,
    /// The server could not be reached; nothing is tried until somebody waits.
    given_up: bool,
    /// One per table: a table that blocks keeps nothing of what goes to the others.
    lanes: Vec<Lane>,
    /// The lane that is first in the next message.
    turn: usize,
    sent: SentDictionary,
    builder: InsertRequestBuilder,
    requests: VecDeque<pb::InsertRequest>,
    progress: Arc<Progress>,
}

impl Sending {
    pub(crate) fn new(session: u64, progress: Arc<Progress>) -> Self {
        Self {
            session,
            begun: false,
            given_up: false,
            lanes: Vec::new(),
            turn: 0,
            sent: SentDictionary::default(),
            builder: InsertRequestBuilder::default(),
            requests: VecDeque::new(),
            progress,
        }
    }

    /// Fills requests from what is unsaid, one message's worth. The lanes take turns at being
    /// first: one that never ends does not hold up the others.
    fn fill(&mut self) {
        for step in 0..self.lanes.len() {
            let at = (self.turn + step) % self.lanes.len();
            let lane = &mut self.lanes[at];
            while !self.builder.is_full()
                && let Some((number, item)) = lane.unsaid()
            {
                let added = self
                    .builder
                    .add_item(&mut self.sent, &lane.table, number, item);
                if let Err(error) = added {
                    self.progress.state.lock().errors.push_back(error);
                }
                lane.said = number;
            }
            if self.builder.is_full() {
                self.turn = (at + 1) % self.lanes.len();
                break;
            }
        }
        self.builder.release_unused_chunks(&mut self.sent);
        self.requests = self.builder.take_requests();
    }
}

impl Sending {
    fn lane(&self, table: &str) -> Result<usize, Error> {
        let known = (self.lanes.iter()).position(|lane| lane.table == table);
        known.ok_or_else(|| {
            Error::Payload(format!(
                "the server has items for table `{table}`, which this writer does not use"
            ))
        })
    }
}

impl Talk for Sending {
    type Command = Command;
    type Out = pb::InsertRequest;
    type In = pb::InsertResponse;

    async fn open(
        mut api: Api,
        out: ReceiverStream<pb::InsertRequest>,
    ) -> Result<Streaming<pb::InsertResponse>, Status> {
        Ok(api.insert(out).await?.into_inner())
    }

    fn command(&mut self, command: Command) {
        self.given_up = false;
        match command {
            Command::Table(name) => self.lanes.push(Lane::new(name)),
            Command::Items(table, items) => self.lanes[table as usize].unsettled.extend(items),
            Command::Wake => {}
        }
    }

    fn disconnected(&mut self) {
        self.begun = false;
        for lane in &mut self.lanes {
            lane.said = lane.settled;
        }
        // What was not settled may be gone.
        let mut state = self.progress.state.lock();
        state.problem = None;
        for counts in &mut state.counts {
            counts.taken = counts.settled;
        }
        drop(state);
        self.sent = SentDictionary::default();
        self.builder = InsertRequestBuilder::default();
        self.requests.clear();
    }

    fn next_out(&mut self) -> Option<pb::InsertRequest> {
        if self.requests.is_empty() {
            self.fill();
        }
        let mut request = self.requests.pop_front().unwrap_or_default();
        if !self.begun {
            self.begun = true;
            request.session = Some(self.session);
        }
        Some(request)
    }

    fn has_out(&self) -> bool {
        !self.requests.is_empty() || self.lanes.iter().any(|lane| lane.unsaid().is_some())
    }

    fn heard(&mut self, message: pb::InsertResponse) -> Result<(), Error> {
        for taken in message.inserted {
            let at = self.lane(&taken.table)?;
            let mut state = self.progress.state.lock();
            let counts = &mut state.counts[at];
            counts.taken = counts.taken.max(taken.number.min(counts.sent));
            if let Some(problem) = taken.durability_error {
                state.problem = Some(decode_error(problem));
            }
        }
        for settled in message.completed {
            let at = self.lane(&settled.table)?;
            let count = self.lanes[at].settle(settled.number);
            let mut state = self.progress.state.lock();
            state.counts[at].settled += count;
            if count > 0 {
                state.problem = None;
            }
            if let Some(error) = settled.error {
                state.refused += count;
                let error = decode_error(error);
                if matches!(error, Error::Closed(_) | Error::UnknownTable { .. }) {
                    state.lost.extend(u32::try_from(at));
                }
                state.errors.push_back(error);
            }
        }
        self.progress.waker.wake();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.given_up || self.lanes.iter().all(|lane| lane.unsettled.is_empty())
    }

    fn fail(&mut self, error: &Error) {
        self.given_up = true;
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
