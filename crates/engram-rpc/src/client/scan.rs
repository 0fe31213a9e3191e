//! The client's side of a scan: a stream of its own, on a connection of its own.
//!
//! The scan is lost with its connection, because the server has the snapshot. If the connection is lost before the scan
//! has begun, the scan begins again on another connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use engram_core::pool::Pool;
use engram_core::table::ScanOrder;
use engram_core::{Error, Result};
use engram_engine::{Peek, ScanOptions};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use super::connect::Connector;
use super::connect_errors::describe_call_failure;
use super::connection::GrpcClient;
use super::reconnecting_stream::closed_error;
use crate::pb;
use crate::pb::scan_request::Request;
use crate::pb::scan_response::Outcome;
use crate::wire::{
    BatchAssembler, ReceivedBatch, decode_error, decode_peeked, encode_numbers, encode_peek_options,
};

/// Number of batches that are requested ahead.
const PREFETCHED_BATCHES: u32 = 2;

/// Number of keys per message: 256 KiB.
const KEYS_PER_MESSAGE: usize = 32_768;

/// Pause before another attempt to begin a scan.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Which items to read, and how.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// Name of the table.
    pub table: String,
    /// The items and their order.
    pub options: ScanOptions,
    /// Maximum number of items per batch.
    pub batch_size: u32,
    /// Pad shorter items instead of returning ragged columns.
    pub pad: bool,
}

/// A scan that has begun. Dropping it ends the scan.
#[derive(Debug)]
pub struct RemoteScan {
    num_items: u64,
    peek: Option<Peek>,
    requests: UnboundedSender<pb::ScanRequest>,
    /// `Ok(None)` at the end.
    batches: UnboundedReceiver<Result<Option<ReceivedBatch>>>,
    /// What [`Self::next_batch`] returns after the last message: the end, or why the connection was lost.
    outcome: Result<()>,
}

impl RemoteScan {
    /// Number of items that the scan reads in total.
    #[must_use]
    pub fn num_items(&self) -> u64 {
        self.num_items
    }

    /// What was found, if this is a peek.
    #[must_use]
    pub fn peek(&self) -> Option<&Peek> {
        self.peek.as_ref()
    }

    /// Returns a future of the next batch; `None` at the end.
    ///
    /// # Errors
    /// After an error of the server, the scan continues with the next call. [`Error::Unavailable`] if the connection
    /// was lost, [`Error::DeadlineExceeded`] if the scan was idle for too long: then all later calls fail.
    pub fn next_batch(
        &mut self,
    ) -> impl Future<Output = Result<Option<ReceivedBatch>>> + Send + Unpin {
        poll_fn(|context| {
            self.batches.poll_recv(context).map(|received| {
                let Some(batch) = received else {
                    return self.outcome.clone().map(|()| None);
                };
                match &batch {
                    Ok(None) => self.outcome = Ok(()),
                    Ok(Some(_)) => {}
                    Err(error) => self.outcome = Err(error.clone()),
                }
                // Fails if the stream has ended.
                let _ = self.requests.send(Request::Batches(1).into());
                batch
            })
        })
    }
}

impl From<Request> for pb::ScanRequest {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
        }
    }
}

/// Why a scan did not begin.
enum BeginError {
    /// The call failed; another connection may help.
    Status(Status),
    /// The server rejected the scan, or its response is invalid.
    Final(Error),
}

/// Begins a scan. The task that receives its batches runs until the scan is dropped or has ended.
pub(super) async fn begin(
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    request: ScanRequest,
) -> Result<RemoteScan> {
    let started = Instant::now();
    loop {
        let connection = connector.connect(started).await?;
        let status = match open(connection.client, &request, &connector.address()).await {
            Ok((requests, responses, num_items, peek)) => {
                let (sender, batches) = mpsc::unbounded_channel();
                let table = request.table;
                tokio::spawn(async move {
                    let end = tokio::select! {
                        end = receive(responses, &pool, &sender) => end,
                        () = connector.closed() => Err(ReceiveError::Final(closed_error())),
                        () = sender.closed() => return,
                    };
                    if let Err(error) = end {
                        // Fails if the scan was dropped.
                        let _ = sender.send(Err(error.describe(&connector, &table)));
                    }
                });
                return Ok(RemoteScan {
                    num_items,
                    peek,
                    requests,
                    batches,
                    outcome: Err(closed_error()),
                });
            }
            Err(BeginError::Final(error)) => return Err(error),
            Err(BeginError::Status(status)) => status,
        };
        if status.code() == Code::Unimplemented {
            return Err(unsupported("scans", &connector.address()));
        }
        if let Some(error) = connector.permanent_error(&status) {
            return Err(error);
        }
        if started.elapsed() > connector.reconnect_timeout() {
            return Err(connector.unreachable(&describe_call_failure(&status)));
        }
        sleep(RETRY_DELAY).await;
    }
}

type OpenStream = (
    UnboundedSender<pb::ScanRequest>,
    Streaming<pb::ScanResponse>,
    u64,
    Option<Peek>,
);

/// Opens the stream and waits until the scan has begun.
async fn open(
    mut client: GrpcClient,
    request: &ScanRequest,
    address: &str,
) -> Result<OpenStream, BeginError> {
    let (sender, receiver) = mpsc::unbounded_channel::<pb::ScanRequest>();
    let send = |request: Request| {
        // Cannot fail: the receiver exists.
        let _ = sender.send(request.into());
    };
    for keys in request
        .options
        .keys
        .iter()
        .flat_map(|keys| keys.chunks(KEYS_PER_MESSAGE))
    {
        send(Request::KeysLe(encode_numbers(keys.iter().copied())));
    }
    let order = match request.options.order {
        ScanOrder::OldestFirst => pb::begin_scan::Order::OldestFirst,
        ScanOrder::NewestFirst => pb::begin_scan::Order::NewestFirst,
    };
    send(Request::Begin(pb::BeginScan {
        table: request.table.clone(),
        order: order.into(),
        only_keys: request.options.keys.is_some(),
        batch_size: request.batch_size,
        pad: request.pad,
        peek: request.options.peek.as_ref().map(encode_peek_options),
    }));
    send(Request::Batches(PREFETCHED_BATCHES));
    let responses = client.scan(UnboundedReceiverStream::new(receiver)).await;
    let mut responses = responses.map_err(BeginError::Status)?.into_inner();
    let first = responses.message().await.map_err(BeginError::Status)?;
    match first.and_then(|message| message.outcome) {
        Some(Outcome::Begun(begun)) => {
            if request.options.peek.is_some() != begun.peeked.is_some() {
                return Err(BeginError::Final(unsupported("peeks", address)));
            }
            let peek = begun.peeked.map(decode_peeked);
            Ok((sender, responses, begun.num_items, peek))
        }
        Some(Outcome::Error(error)) => Err(BeginError::Final(decode_error(error))),
        _ => Err(BeginError::Final(invalid("the scan did not begin"))),
    }
}

/// Why no further batch is received.
enum ReceiveError {
    /// The stream failed.
    Status(Status),
    /// The client is closed, or a response is invalid.
    Final(Error),
}

impl ReceiveError {
    fn describe(self, connector: &Connector, table: &str) -> Error {
        let status = match self {
            Self::Final(error) => return error,
            Self::Status(status) => status,
        };
        if status.code() == Code::DeadlineExceeded {
            return Error::DeadlineExceeded(status.message().into());
        }
        connector.permanent_error(&status).unwrap_or_else(|| {
            Error::Unavailable(format!(
                "the connection to the server at {} was lost during a scan of table `{table}`: {}; begin the scan again",
                connector.address(),
                describe_call_failure(&status)
            ))
        })
    }
}

/// Receives batches, and passes them on, until the end of the scan.
async fn receive(
    mut responses: Streaming<pb::ScanResponse>,
    pool: &Arc<Pool>,
    batches: &UnboundedSender<Result<Option<ReceivedBatch>>>,
) -> Result<(), ReceiveError> {
    let mut assembler = BatchAssembler::default();
    while let Some(message) = responses.message().await.map_err(ReceiveError::Status)? {
        let batch = match message.outcome {
            Some(Outcome::Batch(batch)) => assembler.begin(batch, pool),
            Some(Outcome::BatchPart(part)) => assembler.push(&part),
            Some(Outcome::Error(error)) => {
                let _ = batches.send(Err(decode_error(error)));
                continue;
            }
            Some(Outcome::End(pb::Empty {})) => {
                let _ = batches.send(Ok(None));
                return Ok(());
            }
            Some(Outcome::Begun(_)) | None => Err(invalid("neither a batch nor an error")),
        };
        if let Some(batch) = batch.map_err(ReceiveError::Final)? {
            // Fails if the scan was dropped; then this task ends.
            let _ = batches.send(Ok(Some(batch)));
        }
    }
    Err(ReceiveError::Status(Status::unavailable(
        "the server has ended the scan",
    )))
}

fn unsupported(what: &str, address: &str) -> Error {
    Error::Handshake(format!(
        "the server at {address} does not support {what}: its version of Engram is older; install the same version of \
         Engram on both"
    ))
}

fn invalid(what: &str) -> Error {
    Error::Payload(format!("invalid response: {what}"))
}
