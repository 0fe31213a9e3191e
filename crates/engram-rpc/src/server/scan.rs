//! Scan streams: each reads the items of one table once, in batches that the client requests.
//!
//! A stream has one task, which gathers the next batch once it was requested and its memory was reserved from the
//! budget for replies that are not read yet. The keys of a scan that has not begun use the same budget.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use engram_codec::{
    CallBudget, ConnectionBudget, ReplyMessage, ReplyStream, Reservation, run_blocking,
    run_in_place,
};
use engram_core::gather::{Estimate, LengthPolicy, estimate};
use engram_core::table::ScanOrder;
use engram_core::{Draw, Error, Result};
use engram_engine::{Scan, ScanOptions};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{interval, timeout};
use tonic::{Status, Streaming};

use super::counters::{Call, OpenCounter, OpenGuard};
use super::sample::{LARGE_BATCH_BYTES, REPLY_BUFFER};
use super::service_state::ServiceState;
use super::table_names::find_table;
use crate::pb::scan_request::Request;
use crate::pb::scan_response::Outcome;
use crate::wire::{
    HEADER_BYTES_PER_ITEM, OutgoingBatch, decode_peek_options, decode_u64s, encode_error,
    encode_peek,
};
use crate::{MAX_ITEMS_PER_BATCH, MAX_KEYS_PER_SCAN, pb};

/// Maximum number of batches that one message may request.
const MAX_REQUESTED: u32 = 1024;

/// The items of larger batches are collected outside of the runtime's shared threads, because that takes long.
const LARGE_BATCH_ITEMS: usize = 4096;

/// Maximum number of open scans of a server. One connection may have a quarter of them.
const MAX_OPEN_SCANS: u64 = 256;

/// The memory of keys is reserved for this many keys at a time.
const KEYS_PER_RESERVATION: usize = 65_536;

/// Bytes reserved per key: its places in a vector that grows, and in a set.
const BYTES_PER_KEY: usize = 32;

/// How often a scan that begins reports progress, so that its connection is not closed as stalled.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(25);

type Message = ReplyMessage<pb::ScanResponse>;

/// Serves one stream until the client ends it, the connection breaks or the server shuts down.
pub(super) fn serve(
    state: &Arc<ServiceState>,
    requests: Streaming<pb::ScanRequest>,
    call_budget: CallBudget,
    call: OpenGuard,
    scans_of_connection: Arc<OpenCounter>,
) -> ReplyStream<pb::ScanResponse> {
    let (replies, receiver) = mpsc::channel(REPLY_BUFFER);
    let stream = ScanStream {
        _call: call,
        _scan_of_connection: scans_of_connection.begin(),
        scans_of_connection,
        state: Arc::clone(state),
        connection: call_budget.connection().clone(),
        requests,
        requested: 0,
        replies: replies.clone(),
    };
    let mut shutdown = state.shutdown.clone();
    tokio::spawn(async move {
        let end = tokio::select! {
            () = shutdown.wait() => {
                let stopped = Outcome::Error(encode_error(&shutdown.error()));
                let _ = replies.send(small_message(stopped)).await;
                Err(shutdown.status())
            }
            () = replies.closed() => Ok(()),
            end = stream.run() => end,
        };
        if let Err(status) = end {
            let _ = replies.send(Err(status).into()).await;
        }
    });
    ReplyStream::new(receiver, call_budget)
}

/// The state of one stream.
struct ScanStream {
    _call: OpenGuard,
    _scan_of_connection: OpenGuard,
    scans_of_connection: Arc<OpenCounter>,
    state: Arc<ServiceState>,
    connection: ConnectionBudget,
    requests: Streaming<pb::ScanRequest>,
    /// Number of batches that were requested and not begun.
    requested: u32,
    replies: Sender<Message>,
}

/// The keys of a scan that has not begun, and the memory that is reserved for them.
#[derive(Default)]
struct Keys {
    keys: Vec<u64>,
    reserved: Vec<Reservation>,
}

/// A scan and its parameters.
struct OpenScan {
    scan: Scan,
    batch_size: usize,
    length_policy: LengthPolicy,
}

/// Drops the scan in a thread that may block, because the scan may have to free many items.
struct DropInBackground(Option<OpenScan>);

impl Drop for DropInBackground {
    fn drop(&mut self) {
        let scan = self.0.take();
        // There is no runtime if the server has stopped.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(scan));
        }
    }
}

impl ScanStream {
    /// Serves the stream until it ends.
    ///
    /// # Errors
    /// The status that the stream ends with.
    async fn run(mut self) -> Result<(), Status> {
        let Some((begin, keys)) = self.receive_begin().await? else {
            return Ok(());
        };
        let mut open = match self.begin(begin, keys).await {
            Ok(open) => DropInBackground(Some(open)),
            Err(error) => {
                self.send(Outcome::Error(encode_error(&error))).await?;
                return Ok(());
            }
        };
        let Some(open) = &mut open.0 else {
            return Ok(());
        };
        let num_items = open.scan.num_items();
        let peeked = open.scan.peek().map(encode_peek);
        let first = Outcome::Begun(pb::ScanBegun { num_items, peeked });
        let mut is_open = self.send(first).await?;
        while is_open && self.receive_requests().await? {
            self.requested -= 1;
            let items = open.next_items();
            is_open = match items {
                Ok(items) if items.is_empty() => {
                    self.send(Outcome::End(pb::Empty {})).await?;
                    return Ok(());
                }
                Ok(items) => self.send_batch(open, items).await?,
                Err(error) => self.send(Outcome::Error(encode_error(&error))).await?,
            };
        }
        Ok(())
    }

    /// Receives the next request. `None` if the client ends the stream.
    async fn receive(&mut self) -> Result<Option<pb::ScanRequest>, Status> {
        let idle_timeout = self.state.lease_timeout;
        with_idle_timeout(idle_timeout, self.requests.message()).await?
    }

    /// Receives the keys and the request to begin. `None` if the client ends the stream before that.
    async fn receive_begin(&mut self) -> Result<Option<(pb::BeginScan, Keys)>, Status> {
        let mut keys = Keys::default();
        while let Some(message) = self.receive().await? {
            match message.request {
                Some(Request::KeysLe(more)) => {
                    let more = decode_u64s("keys_le", &more);
                    let more = more.map_err(|error| Status::invalid_argument(error.to_string()))?;
                    let count = keys.keys.len() + more.len();
                    if count > MAX_KEYS_PER_SCAN {
                        return Err(Status::resource_exhausted(format!(
                            "too many keys: a scan may have at most {MAX_KEYS_PER_SCAN}"
                        )));
                    }
                    while keys.reserved.len() * KEYS_PER_RESERVATION < count {
                        let bytes = KEYS_PER_RESERVATION * BYTES_PER_KEY;
                        let mut reservation = self.reserve(bytes).await?;
                        reservation.set_created(bytes);
                        keys.reserved.push(reservation);
                    }
                    keys.keys.extend(more);
                }
                Some(Request::Begin(begin)) => return Ok(Some((begin, keys))),
                Some(Request::Batches(_)) | None => {
                    return Err(Status::invalid_argument(
                        "the scan has not begun; `begin` must be set before `batches`",
                    ));
                }
            }
        }
        Ok(None)
    }

    /// Checks that the server and the connection do not have too many open scans, including this one.
    fn check_open_scans(&self) -> Result<()> {
        let scans_of_server = self.state.counters.get(Call::Scan).open();
        let (owner, max) = if self.scans_of_connection.open() > MAX_OPEN_SCANS / 4 {
            ("connection", MAX_OPEN_SCANS / 4)
        } else if scans_of_server > MAX_OPEN_SCANS {
            ("server", MAX_OPEN_SCANS)
        } else {
            return Ok(());
        };
        Err(Error::OutOfMemory(format!(
            "too many scans: this {owner} has {max} open ones already, its limit; close some, or begin this one later"
        )))
    }

    async fn begin(&self, begin: pb::BeginScan, keys: Keys) -> Result<OpenScan> {
        self.check_open_scans()?;
        if !(1..=MAX_ITEMS_PER_BATCH).contains(&begin.batch_size) {
            return Err(Error::InvalidArgument(format!(
                "`batch_size` must be from 1 to {MAX_ITEMS_PER_BATCH}; got {}",
                begin.batch_size
            )));
        }
        let batch_size = begin.batch_size as usize;
        let order = match begin.order() {
            pb::begin_scan::Order::OldestFirst => ScanOrder::OldestFirst,
            pb::begin_scan::Order::NewestFirst => ScanOrder::NewestFirst,
        };
        let length_policy = if begin.pad {
            LengthPolicy::Pad
        } else {
            LengthPolicy::Ragged
        };
        let table = find_table(&self.state.engine, &begin.table)?;
        let Keys { keys, reserved } = keys;
        let options = ScanOptions {
            order,
            keys: begin.only_keys.then_some(keys),
            peek: begin.peek.as_ref().map(decode_peek_options),
        };
        // Takes a snapshot, which may wait for another one.
        let mut scan = pin!(run_blocking(
            move || Scan::begin(&table, &options),
            Error::Closed
        ));
        let mut progress = interval(PROGRESS_INTERVAL);
        let scan = loop {
            tokio::select! {
                scan = &mut scan => break scan?,
                _ = progress.tick() => reserved.first().into_iter().for_each(Reservation::record_progress),
            }
        };
        Ok(OpenScan {
            scan,
            batch_size,
            length_policy,
        })
    }

    /// Waits until a batch is requested. False if the client ends the stream before that.
    async fn receive_requests(&mut self) -> Result<bool, Status> {
        while self.requested == 0 {
            let Some(message) = self.receive().await? else {
                return Ok(false);
            };
            let Some(Request::Batches(more)) = message.request else {
                return Err(Status::invalid_argument(
                    "the scan has begun already; only `batches` may follow `begin`",
                ));
            };
            if more > MAX_REQUESTED {
                return Err(Status::resource_exhausted(format!(
                    "too many batches: a scan may request at most {MAX_REQUESTED} at once; got {more}"
                )));
            }
            self.requested = more;
        }
        Ok(true)
    }

    /// Reserves memory of the budget for replies that are not read.
    async fn reserve(&self, bytes: usize) -> Result<Reservation, Status> {
        let limit = self.state.lease_timeout;
        timeout(limit, self.connection.reserve(bytes)).await.map_err(|_| {
            Status::deadline_exceeded(format!(
                "the server has ended the scan: its memory for unread replies stayed full for {} s (`lease_timeout`), \
                 because clients did not read the replies to other requests: begin the scan again, or use a smaller \
                 `batch_size`",
                limit.as_secs_f64()
            ))
        })
    }

    /// Sends a message. False if the client is gone.
    async fn send_message(&self, message: Message) -> Result<bool, Status> {
        let sent = with_idle_timeout(self.state.lease_timeout, self.replies.send(message)).await?;
        Ok(sent.is_ok())
    }

    /// Sends a small message. False if the client is gone.
    async fn send(&self, outcome: Outcome) -> Result<bool, Status> {
        self.send_message(small_message(outcome)).await
    }

    /// Gathers and sends a batch, or the error that replaces it. False if the client is gone.
    async fn send_batch(&self, open: &mut OpenScan, items: Vec<Draw>) -> Result<bool, Status> {
        let estimate = estimate(&items, open.length_policy);
        let header_bytes = HEADER_BYTES_PER_ITEM * items.len();
        let bytes = estimate.bytes.saturating_add(header_bytes);
        let reservation = self.reserve(bytes).await?;
        let is_large = estimate.bytes >= LARGE_BATCH_BYTES;
        let batch = run_in_place(is_large, || open.gather(items, &estimate, &self.state));
        match batch {
            Ok(batch) => self.send_messages(batch, reservation).await,
            Err(error) => self.send(Outcome::Error(encode_error(&error))).await,
        }
    }

    async fn send_messages(
        &self,
        mut batch: OutgoingBatch,
        mut reservation: Reservation,
    ) -> Result<bool, Status> {
        reservation.set_created(batch.bytes());
        let mut reservation = Some(Arc::new(reservation));
        loop {
            let bytes = batch.bytes();
            let Some(message) = batch.next() else {
                return Ok(true);
            };
            let reply = ReplyMessage {
                message: Ok(encode_response(message.into())),
                reservation: if batch.is_empty() {
                    reservation.take()
                } else {
                    reservation.clone()
                },
                bytes: bytes - batch.bytes(),
            };
            if !self.send_message(reply).await? {
                return Ok(false);
            }
        }
    }
}

impl OpenScan {
    fn next_items(&mut self) -> Result<Vec<Draw>> {
        let is_large = self.batch_size > LARGE_BATCH_ITEMS;
        run_in_place(is_large, || self.scan.next_items(self.batch_size))
    }

    fn gather(
        &mut self,
        items: Vec<Draw>,
        estimate: &Estimate,
        state: &ServiceState,
    ) -> Result<OutgoingBatch> {
        let batch = (estimate.gather(&items, &state.pool))
            .and_then(|columns| OutgoingBatch::new(columns, &items, false, false));
        batch.map_err(|error| (self.scan).leave_out_unreadable(items, error, &state.pool))
    }
}

/// Waits until the client sends a request or reads its replies.
///
/// # Errors
/// The status that the stream ends with if this takes longer than a scan may be idle.
async fn with_idle_timeout<T>(
    idle_timeout: Duration,
    wait: impl Future<Output = T>,
) -> Result<T, Status> {
    timeout(idle_timeout, wait).await.map_err(|_| {
        Status::deadline_exceeded(format!(
            "the scan was idle for {} s; the server has ended it to release its memory (`lease_timeout`): begin it \
             again, and read it without such pauses",
            idle_timeout.as_secs_f64()
        ))
    })
}

/// A message that needs no reservation.
fn small_message(outcome: Outcome) -> Message {
    Ok(encode_response(outcome)).into()
}

fn encode_response(outcome: Outcome) -> pb::ScanResponse {
    pb::ScanResponse {
        outcome: Some(outcome),
    }
}
