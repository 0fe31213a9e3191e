//! Sample streams: each request yields exactly the number of samples requested, sent as they become available, unless
//! an error ends the stream.
//!
//! One task per stream. It stops drawing while one response is buffered for the transport and the next one is ready, or
//! while the budget for replies that are not read yet has no memory for the next sample.

use std::sync::Arc;
use std::time::Duration;

use engram_codec::{CallBudget, ReplyMessage, ReplyStream, Reservation, run_in_place};
use engram_core::gather::{LengthPolicy, estimate};
use engram_core::{Draw, Error, Result as CoreResult};
use engram_engine::{BatchLease as _, Lease, Sample, SampleOptions, Table, UntilDurable};
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::consume_budget;
use tokio::time::sleep;
use tonic::{Status, Streaming};

use crate::item::{ChunkKeyCounter, MAX_SAMPLE_BYTES, encode_sample};
use crate::pb;
use crate::pb::sample_stream_response::SampleEntry;
use crate::service_state::{ServiceState, stopping_status};
use crate::status::{invalid, status, unavailable};

/// Responses buffered between the task of a stream and the transport.
const BUFFERED_RESPONSES: usize = 1;

/// A response is sent once it has at least this many bytes.
const RESPONSE_BYTES: usize = 2 << 20;

/// Samples of at least this many bytes are encoded outside of the runtime's shared threads.
const LARGE_SAMPLE: usize = 1 << 20;

/// Maximum number of samples drawn at a time. Small, so that later draws reflect updates made meanwhile.
const DRAWS_PER_BATCH: usize = 128;

/// Pause before waiting again until changes are durable, after the journal could not be written.
const DURABILITY_RETRY_DELAY: Duration = Duration::from_millis(500);

/// How long a response waits until its samples are durably removed, after the server was asked to stop. Shorter than
/// the time that the server gives connections to close.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The text of a timeout, which dm-reverb's clients match word for word. It mentions inserts also for samples.
const TIMEOUT_TEXT: &str =
    "Rate Limiter: Timeout exceeded before the right to insert was acquired.";

type Response = ReplyMessage<pb::SampleStreamResponse>;

/// Serves a stream until its reader closes it or disconnects, or the server stops.
pub(crate) fn serve(
    service: &Arc<ServiceState>,
    requests: Streaming<pb::SampleStreamRequest>,
    call_budget: CallBudget,
) -> ReplyStream<pb::SampleStreamResponse> {
    let (responses, receiver) = mpsc::channel(BUFFERED_RESPONSES);
    let service = Arc::clone(service);
    let stream_budget = call_budget.clone();
    tokio::spawn(async move {
        let stream = SampleStream {
            service: &service,
            call_budget: stream_budget,
            chunk_keys: ChunkKeyCounter::default(),
            batch: DrawnBatch::default(),
            response: PartialResponse::default(),
            responses: &responses,
        };
        let end = tokio::select! {
            () = service.until_stopped() => Err(stopping_status()),
            // Dropping the leases returns samples that are drawn and not sent.
            () = responses.closed() => return,
            end = stream.run(requests) => end,
        };
        if let Err(status) = end {
            let _ = responses.send(Err(status).into()).await;
        }
    });
    ReplyStream::new(receiver, call_budget)
}

/// The state of one stream.
struct SampleStream<'a> {
    service: &'a Arc<ServiceState>,
    call_budget: CallBudget,
    chunk_keys: ChunkKeyCounter,
    batch: DrawnBatch,
    response: PartialResponse,
    responses: &'a Sender<Response>,
}

/// A response that is being filled.
#[derive(Default)]
struct PartialResponse {
    entries: Vec<SampleEntry>,
    /// Encoded bytes of the entries.
    bytes: usize,
    /// The memory reserved for the response. `None` only while the response is empty.
    reservation: Option<Reservation>,
    /// Leases of its samples, except those of the current batch, if the table limits how often items are sampled. They
    /// are acknowledged right before the response is passed to the transport, because dm-reverb's clients do not
    /// acknowledge samples.
    leases: Vec<Lease>,
    /// Number of its items that were sampled for the last time. They stay in the table until their lease ends, but
    /// dm-reverb's clients expect `table_size` not to count them.
    exhausted: u64,
}

/// The drawn samples that are being encoded.
#[derive(Default)]
struct DrawnBatch {
    /// Lease of its samples, without those that were split off. `None` if the table does not limit how often items are
    /// sampled.
    lease: Option<Lease>,
    /// Number of samples at the front of the lease that are in the response.
    ready: usize,
}

impl DrawnBatch {
    /// Splits off the lease of the samples in the response.
    fn split_ready(&mut self) -> Option<Lease> {
        let ready = std::mem::take(&mut self.ready);
        self.lease.as_mut().map(|lease| lease.split_first(ready))
    }
}

/// True if an entry of `entry` bytes may be added to a response of `others` bytes: if it fits, or the response is
/// empty.
fn has_room(others: usize, entry: usize) -> bool {
    others == 0 || others.saturating_add(entry) <= MAX_SAMPLE_BYTES
}

/// A request for samples.
struct SampleRequest {
    table: Arc<Table>,
    /// Number of samples not drawn yet.
    remaining: usize,
    /// How long to wait for the next sample; `None`: without limit.
    timeout: Option<Duration>,
}

impl SampleStream<'_> {
    async fn run(mut self, mut requests: Streaming<pb::SampleStreamRequest>) -> Result<(), Status> {
        while let Some(request) = requests.message().await? {
            let request = self.parse(&request)?;
            self.deliver(request).await?;
        }
        Ok(())
    }

    fn parse(&self, request: &pb::SampleStreamRequest) -> Result<SampleRequest, Status> {
        let remaining = usize::try_from(request.num_samples).unwrap_or(0);
        if remaining == 0 {
            return Err(invalid(format!(
                "`num_samples` must be > 0 (got {}).",
                request.num_samples
            )));
        }
        let table = self.service.engine.table(&request.table);
        let timeout = request.rate_limiter_timeout.map(|time| time.milliseconds);
        Ok(SampleRequest {
            table: table.map_err(|error| status(&error))?,
            remaining,
            timeout: timeout
                .and_then(|milliseconds| u64::try_from(milliseconds).ok())
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
        })
    }

    /// Draws, encodes and sends the samples of a request.
    async fn deliver(&mut self, mut request: SampleRequest) -> Result<(), Status> {
        let name = &request.table.options().name;
        let max_times_sampled = request.table.options().max_times_sampled;
        while request.remaining > 0 {
            let (sample, waited) = self.draw(&request).await?;
            request.remaining = request.remaining.saturating_sub(sample.draws.len());
            // The drawn `table_size` counts exhausted items that are not acknowledged yet: those in the response at the
            // time of the draw, and those of earlier samples of the batch.
            let exhausted_before_draw = self.response.exhausted;
            let mut exhausted_in_batch = 0;
            self.batch.lease = sample.lease;
            for mut draw in sample.draws {
                // If many samples are available, nothing below yields.
                consume_budget().await;
                let estimate = estimate(std::slice::from_ref(&draw), LengthPolicy::Ragged).bytes;
                self.reserve(estimate).await?;
                let exhausted = exhausted_before_draw + exhausted_in_batch;
                draw.table_size = draw.table_size.saturating_sub(exhausted);
                let is_exhausted = max_times_sampled > 0 && draw.times_sampled >= max_times_sampled;
                exhausted_in_batch += u64::from(is_exhausted);
                let entry = match self.encode(&draw, name, waited, estimate) {
                    Ok(entry) => entry,
                    Err(error) => {
                        // The samples before the failed one are valid.
                        self.send().await?;
                        let failed = Sample {
                            table: Arc::clone(&request.table),
                            draws: vec![draw],
                            lease: self.batch.lease.as_mut().map(|lease| lease.split_first(1)),
                        };
                        let error = failed.remove_unreadable(error, &self.service.pool);
                        return Err(status(&error));
                    }
                };
                let bytes = entry.encoded_len();
                if !has_room(self.response.bytes, bytes) {
                    self.send().await?;
                    self.reserve(bytes).await?;
                }
                self.batch.ready += 1;
                let response = &mut self.response;
                response.entries.push(entry);
                response.bytes += bytes;
                if let Some(reservation) = &mut response.reservation {
                    reservation.resize(response.bytes);
                }
                response.exhausted += u64::from(is_exhausted);
            }
            self.response.leases.extend(self.batch.split_ready());
        }
        self.send().await
    }

    /// Reserves memory for a sample of about this many bytes. Sends the response first if it is large enough or memory
    /// is short.
    async fn reserve(&mut self, bytes: usize) -> Result<(), Status> {
        if let Some(reservation) = &mut self.response.reservation {
            let total = self.response.bytes.saturating_add(bytes);
            if self.response.bytes < RESPONSE_BYTES && reservation.try_grow(total) {
                return Ok(());
            }
            self.send().await?;
        }
        self.response.reservation = Some(self.call_budget.connection().reserve(bytes).await);
        Ok(())
    }

    /// Encodes a sample of about `bytes` bytes.
    fn encode(
        &mut self,
        draw: &Draw,
        table: &str,
        waited: bool,
        bytes: usize,
    ) -> CoreResult<SampleEntry> {
        let (chunk_keys, pool) = (&mut self.chunk_keys, &self.service.pool);
        run_in_place(bytes >= LARGE_SAMPLE, || {
            encode_sample(draw, table, waited, chunk_keys, pool)
        })
    }

    /// Draws at least one sample; also returns whether it had to wait. Sends the samples encoded so far before it
    /// waits.
    async fn draw(&mut self, request: &SampleRequest) -> Result<(Sample, bool), Status> {
        let ticket = request.table.sample_with(SampleOptions {
            n: request.remaining.min(DRAWS_PER_BATCH),
            at_least: 1,
            lease: false,
            timeout: None,
        });
        let mut ticket = ticket.map_err(|error| status(&error))?;
        if let Some(sample) = (&mut ticket).now_or_never() {
            return Ok((sample.map_err(|error| status(&error))?, false));
        }
        self.send().await?;
        let timeout = request.timeout.map(|timeout| timeout.as_secs_f64());
        match ticket.with_timeout(timeout).await {
            Ok(sample) => Ok((sample, true)),
            Err(Error::DeadlineExceeded(_)) => Err(Status::deadline_exceeded(TIMEOUT_TEXT)),
            Err(error) => Err(status(&error)),
        }
    }

    /// Acknowledges the samples of the response, and passes it to the transport once their removal is as durable as the
    /// store promises. If the reader is gone before the acknowledgement, the samples are returned and the stream ends.
    async fn send(&mut self) -> Result<(), Status> {
        let PartialResponse {
            entries,
            bytes,
            mut reservation,
            mut leases,
            ..
        } = std::mem::take(&mut self.response);
        leases.extend(self.batch.split_ready());
        if entries.is_empty() {
            return Ok(());
        }
        let permit = self.responses.clone().reserve_owned().await;
        let permit = permit.map_err(|_| closed())?;
        let send = move || {
            // The reply counts as unread only from here on: the client could not read it before.
            if let Some(reservation) = &mut reservation {
                reservation.set_created(bytes);
            }
            permit.send(ReplyMessage {
                message: Ok(pb::SampleStreamResponse { entries }),
                reservation: reservation.map(Arc::new),
                bytes,
            });
        };
        let acknowledged = leases.into_iter().map(Lease::acknowledge);
        // The last acknowledgement becomes durable last.
        let Some(durable) = acknowledged.fold(None, |last, durable| durable.or(last)) else {
            send();
            return Ok(());
        };
        // The items are removed already, so a separate task sends their samples: it continues if the server stops.
        let (service, responses) = (Arc::clone(self.service), self.responses.clone());
        let sending = tokio::spawn(async move {
            tokio::select! {
                () = responses.closed() => Err(closed()),
                removed = until_durable(durable, &service) => removed.map(|()| send()),
            }
        });
        sending.await.unwrap_or_else(|_| Err(stopping_status()))
    }
}

/// Waits until a removal is durable. If the server stops, waits no longer than [`STOP_TIMEOUT`].
///
/// # Errors
/// `UNAVAILABLE` if it does not become durable.
async fn until_durable(mut durable: UntilDurable, service: &ServiceState) -> Result<(), Status> {
    let stopped = async {
        service.until_stopped().await;
        sleep(STOP_TIMEOUT).await;
    };
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            biased;
            outcome = &mut durable => match outcome {
                Ok(()) => return Ok(()),
                Err(error) if durable.has_failed() => return Err(unavailable(&error)),
                // The journal cannot be written now: try again below. The samples must not be sent before their
                // removal is durable: dm-reverb's clients do not acknowledge, so only the journal records that the
                // client received them.
                Err(_) => {}
            },
            () = &mut stopped => return Err(stopping_status()),
        }
        tokio::select! {
            () = sleep(DURABILITY_RETRY_DELAY) => {}
            () = &mut stopped => return Err(stopping_status()),
        }
    }
}

/// The status of a stream whose reader is gone.
fn closed() -> Status {
    Status::cancelled("the client has closed the stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_at_most_as_large_as_clients_can_read() {
        assert!(has_room(0, MAX_SAMPLE_BYTES));
        assert!(has_room(1, MAX_SAMPLE_BYTES - 1));
        assert!(!has_room(1, MAX_SAMPLE_BYTES));
        assert!(!has_room(RESPONSE_BYTES, usize::MAX));
    }
}
