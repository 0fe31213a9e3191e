//! Streams of samples: exactly as many as were asked for, as soon as some can be had.
//!
//! One task per stream. It draws no further while three responses wait for the transport.

use std::sync::Arc;
use std::time::Duration;

use engram_core::Draw;
use engram_engine::{Lease, Sample, SampleTicket, Table};
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::item::{MAX_SAMPLE, SampleKeys, entry, is_large};
use crate::pb;
use crate::pb::sample_stream_response::SampleEntry;
use crate::service::{Shared, stopping};
use crate::status::{invalid, status};

/// Responses between a stream's task and the transport.
const RESPONSES: usize = 3;

/// From this size on, another response is begun.
const RESPONSE: usize = 2 << 20;

/// Samples that are drawn at a time: what is drawn is not changed by what comes meanwhile.
const BATCH: usize = 128;

/// How often a call that waits looks for items that have expired meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// What clients look for, word by word, also where it is samples that wait.
const TIMEOUT: &str = "Rate Limiter: Timeout exceeded before the right to insert was acquired.";

type Reply = Result<pb::SampleStreamResponse, Status>;

/// Serves one stream until its reader is done, is gone, or the server stops.
pub(crate) fn serve(
    shared: &Arc<Shared>,
    requests: Streaming<pb::SampleStreamRequest>,
) -> ReceiverStream<Reply> {
    let (replies, receiver) = mpsc::channel(RESPONSES);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let reader = Reader {
            shared: &shared,
            keys: SampleKeys::default(),
            batch: Batch::default(),
            response: Response::default(),
            replies: &replies,
        };
        let end = tokio::select! {
            () = shared.stopping() => Err(stopping()),
            // What is drawn and not sent goes back.
            () = replies.closed() => return,
            end = reader.run(requests) => end,
        };
        if let Err(status) = end {
            let _ = replies.send(Err(status)).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// One stream's state.
struct Reader<'a> {
    shared: &'a Shared,
    keys: SampleKeys,
    batch: Batch,
    response: Response,
    replies: &'a Sender<Reply>,
}

/// A response that is being filled.
#[derive(Default)]
struct Response {
    entries: Vec<SampleEntry>,
    bytes: usize,
    /// Samples of items that sampling uses up. Those that were handed to the transport count as used:
    /// dm-reverb's clients do not say what they have.
    /// That of the batch in hand is not among them.
    leases: Vec<Lease>,
    /// Items among them that were sampled for the last time: they count in their table until the lease ends, and do
    /// not for dm-reverb's clients.
    used_up: u64,
}

/// The draws that are becoming entries.
#[derive(Default)]
struct Batch {
    /// Of those that were not sent.
    lease: Option<Lease>,
    /// How many of them are in the response.
    ready: usize,
}

impl Batch {
    /// The lease of those in the response.
    fn split_ready(&mut self) -> Option<Lease> {
        let ready = std::mem::take(&mut self.ready);
        self.lease.as_mut().map(|lease| lease.split_first(ready))
    }
}

/// May an entry of so many bytes follow others of so many in one response?
fn has_room(others: usize, entry: usize) -> bool {
    others == 0 || others.saturating_add(entry) <= MAX_SAMPLE
}

/// What a request asks for.
struct Asked {
    table: Arc<Table>,
    /// How many are still to be sent.
    left: usize,
    timeout: Option<Duration>,
}

impl Reader<'_> {
    async fn run(mut self, mut requests: Streaming<pb::SampleStreamRequest>) -> Result<(), Status> {
        while let Some(request) = requests.message().await? {
            let asked = self.asked(&request)?;
            self.deliver(asked).await?;
        }
        Ok(())
    }

    fn asked(&self, request: &pb::SampleStreamRequest) -> Result<Asked, Status> {
        let left = usize::try_from(request.num_samples).unwrap_or(0);
        if left == 0 {
            return Err(invalid(format!(
                "`num_samples` must be > 0 (got {}).",
                request.num_samples
            )));
        }
        let table = self.shared.engine.table(&request.table);
        let timeout = request.rate_limiter_timeout.map(|time| time.milliseconds);
        Ok(Asked {
            table: table.map_err(|error| status(&error))?,
            left,
            timeout: timeout
                .and_then(|milliseconds| u64::try_from(milliseconds).ok())
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
        })
    }

    async fn deliver(&mut self, mut asked: Asked) -> Result<(), Status> {
        let name = &asked.table.options().name;
        let last_time = asked.table.options().max_times_sampled;
        while asked.left > 0 {
            let (sample, waited) = self.draw(&asked).await?;
            asked.left = asked.left.saturating_sub(sample.draws.len());
            let (before, mut used_up) = (self.response.used_up, 0);
            self.batch.lease = sample.lease;
            for mut draw in sample.draws {
                // Many samples may be had without waiting: others want the thread, and the reader may be gone.
                consume_budget().await;
                if self.response.bytes >= RESPONSE {
                    self.send().await?;
                }
                draw.table_size = draw.table_size.saturating_sub(before + used_up);
                let is_used_up = last_time > 0 && draw.times_sampled >= last_time;
                used_up += u64::from(is_used_up);
                let entry = match self.entry(&draw, name, waited) {
                    Ok(entry) => entry,
                    Err(status) => {
                        // Those before it are good.
                        self.send().await?;
                        return Err(status);
                    }
                };
                let bytes = entry.encoded_len();
                if !has_room(self.response.bytes, bytes) {
                    self.send().await?;
                }
                self.batch.ready += 1;
                let response = &mut self.response;
                response.entries.push(entry);
                response.bytes += bytes;
                response.used_up += u64::from(is_used_up);
            }
            self.response.leases.extend(self.batch.split_ready());
        }
        self.send().await
    }

    fn entry(&mut self, draw: &Draw, table: &str, waited: bool) -> Result<SampleEntry, Status> {
        let (keys, pool) = (&mut self.keys, &self.shared.pool);
        let entry = if is_large(draw) {
            tokio::task::block_in_place(|| entry(draw, table, waited, keys, pool))
        } else {
            entry(draw, table, waited, keys, pool)
        };
        entry.map_err(|error| status(&error))
    }

    /// Some samples, at least one, and whether they had to be waited for. What is there already is sent
    /// before anybody waits.
    async fn draw(&mut self, asked: &Asked) -> Result<(Sample, bool), Status> {
        let mut ticket = ask(asked)?;
        if let Some(sample) = (&mut ticket).now_or_never() {
            return Ok((sample.map_err(|error| status(&error))?, false));
        }
        self.send().await?;
        let sample = wait(ticket, asked.timeout).await?;
        Ok((sample, true))
    }

    /// Hands what there is to the transport. Where that is not to be, it goes back, and the stream is over.
    async fn send(&mut self) -> Result<(), Status> {
        let Response {
            entries,
            mut leases,
            ..
        } = std::mem::take(&mut self.response);
        leases.extend(self.batch.split_ready());
        if entries.is_empty() {
            return Ok(());
        }
        let response = pb::SampleStreamResponse { entries };
        let sent = self.replies.send(Ok(response)).await;
        sent.map_err(|_| Status::cancelled("the reader is gone"))?;
        leases.into_iter().for_each(Lease::acknowledge);
        Ok(())
    }
}

fn ask(asked: &Asked) -> Result<SampleTicket, Status> {
    // Where sampling uses items up, they go back should they not get as far as the transport.
    let leased = asked.table.options().max_times_sampled > 0;
    let ticket = asked.table.sample_some(asked.left.min(BATCH), 1, leased);
    ticket.map_err(|error| status(&error))
}

async fn wait(mut ticket: SampleTicket, timeout: Option<Duration>) -> Result<Sample, Status> {
    let expires = ticket.table().options().ttl.is_some();
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        tokio::select! {
            biased;
            sample = &mut ticket => return sample.map_err(|error| status(&error)),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                let sample = ticket.take_partial();
                if sample.draws.is_empty() {
                    return Err(Status::deadline_exceeded(TIMEOUT));
                }
                return Ok(sample);
            }
            // Asking again removes what has expired, which may let others in.
            () = sleep(GLANCE), if expires => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_no_larger_than_its_readers_may_read() {
        assert!(has_room(0, MAX_SAMPLE));
        assert!(has_room(1, MAX_SAMPLE - 1));
        assert!(!has_room(1, MAX_SAMPLE));
        assert!(!has_room(RESPONSE, usize::MAX));
    }
}
