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
use crate::wire::{Parcel, Told, error_in};

/// What the writer and its conversation both look at.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    pub(crate) waker: futures_util::task::AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// Per table: items sent, and items settled.
    tables: Vec<(u64, u64)>,
    errors: VecDeque<Error>,
    /// Items that those errors refused.
    refused: u64,
    /// Tables that were dropped or closed: their successors must be looked up.
    lost: Vec<u32>,
}

impl Progress {
    pub(crate) fn add_table(&self) {
        self.state.lock().tables.push((0, 0));
    }

    pub(crate) fn count_sent(&self, table: u32, items: u64) {
        self.state.lock().tables[table as usize].0 += items;
    }

    /// Items sent and not settled.
    pub(crate) fn in_flight(&self) -> usize {
        let state = self.state.lock();
        let unsettled: u64 = state
            .tables
            .iter()
            .map(|(sent, settled)| sent - settled)
            .sum();
        usize::try_from(unsettled).unwrap_or(usize::MAX)
    }

    pub(crate) fn in_flight_to(&self, table: u32) -> u64 {
        let (sent, settled) = self.state.lock().tables[table as usize];
        sent - settled
    }

    /// The table of the oldest unsettled item, or so.
    pub(crate) fn waits_for(&self) -> Option<u32> {
        let state = self.state.lock();
        let waiting = state
            .tables
            .iter()
            .position(|(sent, settled)| sent > settled);
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

#[derive(Debug)]
struct Entry {
    table: u32,
    number: u64,
    item: NewItem,
}

/// The conversation of one writer.
#[derive(Debug)]
pub(crate) struct Sending {
    session: u64,
    begun: bool,
    /// The server could not be reached; nothing is tried until somebody waits.
    given_up: bool,
    /// Names, the number of the next item, and the last settled number.
    tables: Vec<(String, u64, u64)>,
    /// All items that are not settled, and perhaps some that are; in order.
    unsettled: VecDeque<Entry>,
    /// How many of them this connection has been told.
    said: usize,
    told: Told,
    parcel: Parcel,
    requests: VecDeque<pb::InsertRequest>,
    progress: Arc<Progress>,
}

impl Sending {
    pub(crate) fn new(session: u64, progress: Arc<Progress>) -> Self {
        Self {
            session,
            begun: false,
            given_up: false,
            tables: Vec::new(),
            unsettled: VecDeque::new(),
            said: 0,
            told: Told::default(),
            parcel: Parcel::default(),
            requests: VecDeque::new(),
            progress,
        }
    }

    /// Fills requests from what is unsaid, one message's worth.
    fn fill(&mut self) {
        while self.said < self.unsettled.len() && !self.parcel.is_full() {
            let Entry {
                table,
                number,
                item,
            } = &self.unsettled[self.said];
            let (name, _, settled) = &self.tables[*table as usize];
            if number > settled
                && let Err(error) = self.parcel.add(&mut self.told, name, *number, item)
            {
                self.progress.state.lock().errors.push_back(error);
            }
            self.said += 1;
        }
        self.parcel.release(&mut self.told);
        self.requests = self.parcel.take();
    }

    fn drop_settled(&mut self) {
        while let Some(entry) = self.unsettled.front()
            && self.said > 0
            && entry.number <= self.tables[entry.table as usize].2
        {
            self.unsettled.pop_front();
            self.said -= 1;
        }
    }
}

impl Talk for Sending {
    type Command = Command;
    type Out = pb::InsertRequest;
    type In = pb::InsertReply;

    async fn open(
        mut api: Api,
        out: ReceiverStream<pb::InsertRequest>,
    ) -> Result<Streaming<pb::InsertReply>, Status> {
        Ok(api.insert(out).await?.into_inner())
    }

    fn command(&mut self, command: Command) {
        self.given_up = false;
        match command {
            Command::Table(name) => self.tables.push((name, 1, 0)),
            Command::Items(table, items) => {
                let next = &mut self.tables[table as usize].1;
                for item in items {
                    self.unsettled.push_back(Entry {
                        table,
                        number: *next,
                        item,
                    });
                    *next += 1;
                }
            }
            Command::Wake => {}
        }
    }

    fn disconnected(&mut self) {
        self.begun = false;
        self.said = 0;
        self.told = Told::default();
        self.parcel = Parcel::default();
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
        !self.requests.is_empty() || self.said < self.unsettled.len()
    }

    fn heard(&mut self, message: pb::InsertReply) -> Result<(), Error> {
        let mut state = self.progress.state.lock();
        for settled in message.settled {
            let known = self
                .tables
                .iter()
                .position(|(name, ..)| *name == settled.table);
            let Some(at) = known else {
                return Err(Error::Payload(format!(
                    "the server settled items for table `{}`, which this writer does not use",
                    settled.table
                )));
            };
            let (_, next, last) = &mut self.tables[at];
            let before = *last;
            *last = settled.number.min(*next - 1).max(before);
            state.tables[at].1 = *last;
            if let Some(error) = settled.error {
                state.refused += *last - before;
                let error = error_in(error);
                if matches!(error, Error::Closed(_) | Error::UnknownTable { .. }) {
                    state.lost.extend(u32::try_from(at));
                }
                state.errors.push_back(error);
            }
        }
        drop(state);
        self.drop_settled();
        self.progress.waker.wake();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.given_up || self.unsettled.is_empty()
    }

    fn fail(&mut self, error: &Error) {
        self.given_up = true;
        let left = self.progress.in_flight();
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
