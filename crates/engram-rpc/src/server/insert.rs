//! Streams of items: decoded as they come, put into the queues of their tables, settled in order.
//!
//! One task per stream. It reads on while items wait, so that one table that blocks does not hold
//! up the others, until too many wait.

mod backlog;
mod lanes;
mod news;
mod waits;

use std::sync::Arc;

use engram_core::{Error, NewItem, Result as Outcome};
use engram_engine::{Session, Table};
use prost::Message as _;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::counts::Ongoing;
use super::names::{self, shortened};
use super::service::{Replies, Shared};
use crate::pb;
use crate::wire::{InsertStreamError, ReceivedDictionary};
use lanes::{Batch, Lanes};
use news::{News, TEXT, refusal};

/// Replies between a stream's task and the transport.
const REPLIES: usize = 16;

/// From this size on, a message takes long enough for others to want the thread.
const LARGE: usize = 256 << 10;

/// Runs of refused items in one message that are told apart, and why at length.
const MAX_REFUSALS: usize = 64;

/// Bytes of text for each after them.
const SHORT: usize = 256;

/// Bytes of a status's text: it travels in headers.
const STATUS_TEXT: usize = 2_000;

type Reply = Result<pb::InsertResponse, Status>;

/// Serves one stream until its writer is done, is gone, or the server stops.
pub(super) fn serve(
    shared: &Arc<Shared>,
    requests: Streaming<pb::InsertRequest>,
    call: Ongoing,
) -> Replies<pb::InsertResponse> {
    let (replies, receiver) = mpsc::channel(REPLIES);
    let writer = Writer {
        _call: call,
        shared: Arc::clone(shared),
        session: None,
        dictionary: ReceivedDictionary::default(),
        lanes: Lanes::default(),
        refusals: 0,
    };
    tokio::spawn(writer.run(requests, replies));
    ReceiverStream::new(receiver)
}

/// One stream's state. Dropping it withdraws the items that wait.
struct Writer {
    _call: Ongoing,
    shared: Arc<Shared>,
    session: Option<u64>,
    dictionary: ReceivedDictionary,
    lanes: Lanes,
    /// Runs of items that were refused out of the message at hand.
    refusals: usize,
}

impl Writer {
    async fn run(mut self, requests: Streaming<pb::InsertRequest>, replies: Sender<Reply>) {
        let mut end = self.work(requests, &replies).await;
        // What is settled is told; what waits is withdrawn: its writer may send it again.
        let mut news = std::mem::take(&mut self.lanes).withdraw();
        let safe = self.shared.engine.until_durable();
        drop(self);
        if let Err(error) = safe.await {
            // Nothing is told of what may be lost, not even that it is not in: items that come again are known by
            // their numbers.
            news = News::default();
            end = end.and(Err(Status::unavailable(error.to_string())));
        }
        while let Some(reply) = news.next_reply() {
            if replies.send(Ok(reply)).await.is_err() {
                return;
            }
        }
        if let Err(status) = end {
            let _ = replies.send(Err(status)).await;
        }
    }

    /// # Errors
    /// The status that the stream ends with.
    async fn work(
        &mut self,
        mut requests: Streaming<pb::InsertRequest>,
        replies: &Sender<Reply>,
    ) -> Result<(), Status> {
        let mut stopping = self.shared.stopping.clone();
        loop {
            tokio::select! {
                () = stopping.wait() => return Err(stopping.status()),
                () = replies.closed() => return Ok(()),
                permit = replies.reserve(), if self.lanes.has_reply() => {
                    let Ok(permit) = permit else {
                        return Ok(());
                    };
                    if let Some(reply) = self.lanes.next_reply() {
                        permit.send(Ok(reply));
                    }
                }
                request = requests.message(), if self.lanes.have_room() => match request? {
                    Some(request) if request.encoded_len() >= LARGE => {
                        tokio::task::block_in_place(|| self.take(request))?;
                    }
                    Some(request) => self.take(request)?,
                    None => return Ok(()),
                },
                () = self.lanes.progress() => {}
            }
        }
    }

    fn take(&mut self, request: pb::InsertRequest) -> Result<(), Status> {
        match (self.session, request.session) {
            (None, Some(session)) => self.session = Some(session),
            (Some(_), None) => {}
            (None, None) => {
                return Err(Status::invalid_argument(
                    "the first message of the stream names no session; it must",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(Status::invalid_argument(
                    "a later message of the stream names a session; only the first may",
                ));
            }
        }
        self.take_in(request).map_err(|broken| match broken {
            InsertStreamError::Invalid(error) => {
                Status::invalid_argument(shortened(error.to_string(), STATUS_TEXT))
            }
            InsertStreamError::LimitExceeded(text) => Status::resource_exhausted(text),
        })
    }

    fn take_in(&mut self, request: pb::InsertRequest) -> Result<(), InsertStreamError> {
        self.refusals = 0;
        for schema in request.schemas {
            self.dictionary.add_schema(schema)?;
        }
        for shape in request.window_shapes {
            self.dictionary.add_window_shape(shape)?;
        }
        for chunk in &request.chunks {
            self.dictionary.add_chunk(chunk)?;
        }
        if !request.chunk_part.is_empty() {
            self.dictionary.add_chunk_part(&request.chunk_part)?;
        }
        for items in request.items {
            self.insert(&items)?;
        }
        for chunk in request.released_chunks {
            self.dictionary.release_chunk(chunk);
        }
        Ok(())
    }

    /// Puts items into their table's queue; those that it refuses are settled with its error.
    fn insert(&mut self, message: &pb::Items) -> Result<(), InsertStreamError> {
        names::check(&message.table)?;
        let items = self.dictionary.decode_items(message)?;
        if items.is_empty() {
            return Ok(());
        }
        let count = items.len() as u64;
        let end = message
            .first_number
            .checked_add(count)
            .filter(|_| message.first_number > 0);
        let Some(last) = end.map(|end| end - 1) else {
            return Err(InsertStreamError::Invalid(Error::InvalidArgument(format!(
                "{count} items are numbered from {} on; numbers are from 1 on and below 2^64",
                message.first_number
            ))));
        };
        let table = match names::table(&self.shared.engine, &message.table) {
            Ok(table) => table,
            Err(error) => {
                self.refuse(&message.table, last, &error);
                return Ok(());
            }
        };
        let session = Session {
            id: self.session.unwrap_or_default(),
            first: message.first_number,
        };
        if items
            .iter()
            .all(|item| item.trajectory.check_parts().is_ok())
        {
            let batch = Batch::new(last, &items);
            match table.insert_numbered(items, Some(session)) {
                Ok(ticket) => {
                    self.lanes.add(&message.table, batch, ticket);
                    return Ok(());
                }
                Err(error @ Error::Closed(_)) => {
                    self.refuse(&message.table, last, &error);
                    return Ok(());
                }
                // Some of them are bad: they are looked at one by one.
                Err(_) => {}
            }
        }
        let items = self.dictionary.decode_items(message)?;
        self.insert_good(&message.table, &table, session, items);
        Ok(())
    }

    /// Inserts those that are good, and refuses the others.
    fn insert_good(
        &mut self,
        name: &str,
        table: &Arc<Table>,
        session: Session,
        items: Vec<NewItem>,
    ) {
        let end = session.first.saturating_add(items.len() as u64);
        let mut run = Session { ..session };
        let mut good: Vec<NewItem> = Vec::new();
        let mut refused: Option<Error> = None;
        let before = self.refusals;
        for (number, item) in (session.first..end).zip(items) {
            let bad = check(table, &item).err();
            if let Some(error) = refused.take_if(|error| bad.as_ref() != Some(error)) {
                self.refuse(name, number - 1, &error);
                run.first = number;
            }
            match bad {
                // Each costs memory, and items may alternate as often as they like: what is left is
                // refused as a whole.
                Some(error) if self.refusals - before >= MAX_REFUSALS => {
                    self.insert_run(name, table, run, std::mem::take(&mut good));
                    self.refuse(name, end - 1, &error);
                    return;
                }
                Some(error) => {
                    if refused.is_none() {
                        self.insert_run(name, table, run, std::mem::take(&mut good));
                    }
                    refused = Some(error);
                }
                None => good.push(item),
            }
        }
        match refused {
            Some(error) => self.refuse(name, end - 1, &error),
            None => self.insert_run(name, table, run, good),
        }
    }

    fn insert_run(&mut self, name: &str, table: &Arc<Table>, run: Session, items: Vec<NewItem>) {
        if items.is_empty() {
            return;
        }
        let last = run.first.saturating_add(items.len() as u64 - 1);
        let batch = Batch::new(last, &items);
        match table.insert_numbered(items, Some(run)) {
            Ok(ticket) => self.lanes.add(name, batch, ticket),
            Err(error) => self.refuse(name, last, &error),
        }
    }

    /// Settles items up to a number with an error.
    fn refuse(&mut self, name: &str, number: u64, error: &Error) {
        let text = if self.refusals < MAX_REFUSALS {
            TEXT
        } else {
            SHORT
        };
        self.refusals += 1;
        self.lanes.refuse(name, number, refusal(error, text));
    }
}

fn check(table: &Table, item: &NewItem) -> Outcome<()> {
    item.trajectory.check_parts()?;
    table.options().check_item(item)
}
