//! Insert streams: items are decoded, passed to their tables, and acknowledged in order.
//!
//! Each stream has one task. It continues to read while items wait, so that a table that blocks does not hold up the
//! others. It stops reading while too many items or acknowledgements wait, or the store's journal is full.

mod ack_queue;
mod batch_wait;
mod insert_queues;
mod pending_memory;
mod used_tables;

use std::sync::Arc;

use engram_core::{Error, NewItem, Result as CoreResult, text};
use engram_engine::{SessionRun, Table};
use prost::Message as _;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::counters::OpenGuard;
use super::service_state::{Replies, ServiceState};
use super::stream_users::StreamUsers;
use super::table_names::{self, truncate_text};
use crate::pb;
use crate::wire::{InsertStreamError, ReceivedDictionary};
use ack_queue::{AckQueue, MAX_ERROR_BYTES, bounded_error};
use insert_queues::{InsertBatch, InsertQueues};

/// Replies buffered between a stream's task and the transport.
const REPLY_BUFFER: usize = 16;

/// Messages of at least this size are handled outside of the runtime's shared threads.
const LARGE_MESSAGE_BYTES: usize = 256 << 10;

/// Maximum number of runs of rejected items in one message that have a full error text each. A run consists of
/// consecutive items of one table that are rejected with the same error.
const MAX_DETAILED_REJECTIONS: usize = 64;

/// Maximum bytes of the error text of each later run of the same message.
const MAX_SHORT_ERROR_BYTES: usize = 256;

/// Maximum bytes of a status's text, which is sent in headers.
const MAX_STATUS_BYTES: usize = 2_000;

type Reply = Result<pb::InsertResponse, Status>;

/// Serves one stream until the writer ends it, the connection breaks or the server shuts down.
pub(super) fn serve(
    state: &Arc<ServiceState>,
    requests: Streaming<pb::InsertRequest>,
    call: OpenGuard,
    users: StreamUsers,
) -> Replies<pb::InsertResponse> {
    let (replies, receiver) = mpsc::channel(REPLY_BUFFER);
    let stream = InsertStream {
        _call: call,
        state: Arc::clone(state),
        session: None,
        dictionary: ReceivedDictionary::default(),
        queues: InsertQueues::default(),
        users,
        rejections: 0,
    };
    tokio::spawn(stream.run(requests, replies));
    ReceiverStream::new(receiver)
}

/// The state of one stream. Dropping it withdraws the waiting items.
struct InsertStream {
    _call: OpenGuard,
    state: Arc<ServiceState>,
    /// Id of the writer's session, from the first message; `None` before it.
    session: Option<u64>,
    dictionary: ReceivedDictionary,
    queues: InsertQueues,
    users: StreamUsers,
    /// Number of runs of rejected items in the current message.
    rejections: usize,
}

impl InsertStream {
    /// Serves the stream, then sends the remaining acknowledgements and the status that it ends with.
    async fn run(mut self, requests: Streaming<pb::InsertRequest>, replies: Sender<Reply>) {
        let mut end = self.serve_requests(requests, &replies).await;
        // Waiting items are withdrawn: the writer may send them again.
        let mut acks = std::mem::take(&mut self.queues).withdraw();
        let until_durable = self.state.engine.until_durable();
        drop(self);
        if let Err(error) = until_durable.await {
            // Inserted items may be lost, so nothing is acknowledged. If the writer sends items again, those that the
            // server still has are recognised by their numbers.
            acks = AckQueue::default();
            end = end.and(Err(Status::unavailable(error.to_string())));
        }
        while let Some(reply) = acks.next_reply() {
            if replies.send(Ok(reply)).await.is_err() {
                return;
            }
        }
        if let Err(status) = end {
            let _ = replies.send(Err(status)).await;
        }
    }

    /// Handles requests and sends acknowledgements until the writer ends the stream or disconnects.
    ///
    /// # Errors
    /// The status that the stream ends with.
    async fn serve_requests(
        &mut self,
        mut requests: Streaming<pb::InsertRequest>,
        replies: &Sender<Reply>,
    ) -> Result<(), Status> {
        let mut shutdown = self.state.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.wait() => return Err(shutdown.status()),
                () = replies.closed() => return Ok(()),
                permit = replies.reserve(), if self.queues.has_reply() => {
                    let Ok(permit) = permit else {
                        return Ok(());
                    };
                    if let Some(reply) = self.queues.next_reply() {
                        permit.send(Ok(reply));
                    }
                }
                request = requests.message(), if self.queues.has_room() => match request? {
                    Some(request) if self.takes_long(&request) => {
                        tokio::task::block_in_place(|| self.handle_request(request))?;
                    }
                    Some(request) => self.handle_request(request)?,
                    None => return Ok(()),
                },
                () = self.queues.progress() => {}
            }
            let queues = &self.queues;
            self.users
                .set_in_flight(|table| queues.in_flight(&table.options().name));
        }
    }

    /// True if handling a request may take long: if it is large, or if it may have the last part of a chunk. This part
    /// may be short, but the whole chunk is checked when it arrives.
    fn takes_long(&self, request: &pb::InsertRequest) -> bool {
        self.dictionary.has_incomplete_chunk() || request.encoded_len() >= LARGE_MESSAGE_BYTES
    }

    fn handle_request(&mut self, request: pb::InsertRequest) -> Result<(), Status> {
        match (self.session, request.session) {
            (None, Some(session)) => self.session = Some(session),
            (Some(_), None) => {}
            (None, None) => {
                return Err(Status::invalid_argument(
                    "`session` is missing; the first message of a stream must set it",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(Status::invalid_argument(
                    "`session` is set in a later message; only the first of a stream may set it",
                ));
            }
        }
        self.apply_request(request).map_err(|error| match error {
            InsertStreamError::Invalid(error) => {
                Status::invalid_argument(truncate_text(error.to_string(), MAX_STATUS_BYTES))
            }
            InsertStreamError::LimitExceeded(text) => Status::resource_exhausted(text),
        })
    }

    fn apply_request(&mut self, request: pb::InsertRequest) -> Result<(), InsertStreamError> {
        self.rejections = 0;
        for schema in request.schemas {
            self.dictionary.add_schema(&schema)?;
        }
        for shape in request.window_shapes {
            self.dictionary.add_window_shape(&shape)?;
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

    /// Passes items to their table. Invalid items, and all items for an unknown or closed table, are acknowledged with
    /// an error.
    fn insert(&mut self, message: &pb::Items) -> Result<(), InsertStreamError> {
        table_names::check_length(&message.table)?;
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
                "`first_number` is {} for {}; the numbers of all items must be at least 1 and below 2^64 - 1",
                message.first_number,
                text::count(count, "item")
            ))));
        };
        let table = match table_names::find_table(&self.state.engine, &message.table) {
            Ok(table) => table,
            Err(error) => {
                self.reject(&message.table, last, &error);
                return Ok(());
            }
        };
        self.users.record(&table, self.session, count);
        let run = SessionRun {
            session: self.session.unwrap_or_default(),
            first_number: message.first_number,
        };
        if items
            .iter()
            .all(|item| item.trajectory.check_parts().is_ok())
        {
            let batch = InsertBatch::new(last, &items);
            match table.insert_numbered(items, Some(run)) {
                Ok(ticket) => {
                    self.queues.add(&message.table, batch, ticket);
                    return Ok(());
                }
                Err(error @ Error::Closed(_)) => {
                    self.reject(&message.table, last, &error);
                    return Ok(());
                }
                // Some items are invalid: below, all are decoded again and checked one by one.
                Err(_) => {}
            }
        }
        let items = self.dictionary.decode_items(message)?;
        self.insert_valid(&message.table, &table, run, items);
        Ok(())
    }

    /// Inserts the valid items and rejects the others. After [`MAX_DETAILED_REJECTIONS`] runs of rejected items,
    /// rejects all remaining items, beginning with the next invalid one.
    fn insert_valid(
        &mut self,
        table_name: &str,
        table: &Arc<Table>,
        run: SessionRun,
        items: Vec<NewItem>,
    ) {
        let end = run.first_number.saturating_add(items.len() as u64);
        let mut valid: Vec<NewItem> = Vec::new();
        let mut valid_run = run;
        let mut rejected: Option<Error> = None;
        let rejections_before = self.rejections;
        for (number, item) in (run.first_number..end).zip(items) {
            let invalid = check_item(table, &item).err();
            if let Some(error) = rejected.take_if(|error| invalid.as_ref() != Some(error)) {
                self.reject(table_name, number - 1, &error);
                valid_run.first_number = number;
            }
            match invalid {
                // Every run costs memory, so the number of runs is limited.
                Some(error) if self.rejections - rejections_before >= MAX_DETAILED_REJECTIONS => {
                    self.insert_run(table_name, table, valid_run, std::mem::take(&mut valid));
                    self.reject(table_name, end - 1, &error);
                    return;
                }
                Some(error) => {
                    if rejected.is_none() {
                        self.insert_run(table_name, table, valid_run, std::mem::take(&mut valid));
                    }
                    rejected = Some(error);
                }
                None => valid.push(item),
            }
        }
        match rejected {
            Some(error) => self.reject(table_name, end - 1, &error),
            None => self.insert_run(table_name, table, valid_run, valid),
        }
    }

    /// Inserts a run of valid items.
    fn insert_run(
        &mut self,
        table_name: &str,
        table: &Arc<Table>,
        run: SessionRun,
        items: Vec<NewItem>,
    ) {
        if items.is_empty() {
            return;
        }
        let last = run.first_number.saturating_add(items.len() as u64 - 1);
        let batch = InsertBatch::new(last, &items);
        match table.insert_numbered(items, Some(run)) {
            Ok(ticket) => self.queues.add(table_name, batch, ticket),
            Err(error) => self.reject(table_name, last, &error),
        }
    }

    /// Acknowledges the items up to number `last` with an error.
    fn reject(&mut self, table_name: &str, last: u64, error: &Error) {
        let max_bytes = if self.rejections < MAX_DETAILED_REJECTIONS {
            MAX_ERROR_BYTES
        } else {
            MAX_SHORT_ERROR_BYTES
        };
        self.rejections += 1;
        self.queues
            .reject(table_name, last, bounded_error(error, max_bytes));
    }
}

fn check_item(table: &Table, item: &NewItem) -> CoreResult<()> {
    item.trajectory.check_parts()?;
    table.options().check_item(item)
}
