//! Prefetches batches from all shards of a table; each batch is on lease.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Ready, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use engram_core::{Error, Result, SelectorKind, TableOptions};
use engram_engine::{
    Batch, BatchLease, BatchStream, DeliveryTracker, SampleOptions, StreamOptions, WaitOptions,
    WaitOutcome, wait,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::lease::ShardedLease;
use super::sampling::{ShardedBatch, Turn};
use super::{BatchRequest, PendingResponse, SampleRequests, ShardedTables};

/// Maximum time that closing waits for the servers to handle the last acknowledgements.
const MAX_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of batches in flight, plus those that the reader has and that are not acknowledged.
const MAX_IN_FLIGHT: usize = 1_000;

/// Maximum number of batches that the reader has and that are not acknowledged. With more, the oldest are acknowledged.
const MAX_UNACKNOWLEDGED: usize = 500;

type Durable = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What is not known to be durable, of all batches: shards do not wait for each other.
type Undurable = Arc<Mutex<Vec<Durable>>>;

/// The lease on a batch of a stream.
struct StreamLease(ShardedLease, Undurable);

impl BatchLease for StreamLease {
    type Durable = Ready<Result<()>>;

    fn acknowledge_first(self, n: usize) -> Option<Self::Durable> {
        let durable = self.0.acknowledge_first(n);
        self.1.lock().extend(durable);
        None
    }
}

/// Batches of one table of all shards, prefetched over streams of their own. Works like a
/// [`RemoteStream`](crate::client::RemoteStream).
pub struct ShardedStream {
    tables: Arc<ShardedTables>,
    /// One per shard; empty after [`ShardedStream::close`].
    requests: Vec<SampleRequests>,
    tasks: Vec<JoinHandle<bool>>,
    table: String,
    acknowledges_at_once: bool,
    /// True if the items of a shard are drawn in order: a batch is requested when the previous one has arrived.
    is_ordered: bool,
    /// Ready when the last requested batch has arrived.
    last_turn: Option<oneshot::Receiver<()>>,
    options: StreamOptions,
    batches_requested: u64,
    items_requested: u64,
    /// Requested batches that were not returned to the reader yet, each with its number of items.
    in_flight: VecDeque<(usize, PendingResponse<ShardedBatch>)>,
    deliveries: DeliveryTracker<StreamLease>,
    undurable: Undurable,
}

impl fmt::Debug for ShardedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedStream")
            .field("table", &self.table)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ShardedStream {
    pub(super) fn new(
        tables: Arc<ShardedTables>,
        (requests, tasks): (Vec<SampleRequests>, Vec<JoinHandle<bool>>),
        table: &TableOptions,
        options: StreamOptions,
    ) -> Result<Self> {
        options.check()?;
        let mut stream = Self {
            tables,
            requests,
            tasks,
            table: table.name.clone(),
            acknowledges_at_once: table.max_times_sampled > 0 && !options.hold,
            is_ordered: !matches!(
                table.sampler,
                SelectorKind::Uniform | SelectorKind::Prioritized { .. }
            ),
            last_turn: None,
            options,
            batches_requested: 0,
            items_requested: 0,
            in_flight: VecDeque::new(),
            deliveries: DeliveryTracker::default(),
            undurable: Undurable::default(),
        };
        stream.prefetch();
        Ok(stream)
    }

    /// Requests batches until as many are in flight as the options and [`MAX_IN_FLIGHT`] allow.
    fn prefetch(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let StreamOptions {
            prefetch,
            max_batches,
            length_policy,
            ..
        } = self.options;
        while self.in_flight.len() < prefetch.min(MAX_IN_FLIGHT - self.deliveries.num_batches())
            && max_batches.is_none_or(|max| self.batches_requested < max)
        {
            let (n, at_least) = self.options.next_batch_size(self.items_requested);
            // As in a `RemoteStream`, a last, small batch is requested after all others have arrived.
            if n == 0 || (n < self.options.at_least && !self.in_flight.is_empty()) {
                return;
            }
            let request = BatchRequest {
                table: self.table.clone(),
                options: SampleOptions {
                    n,
                    at_least,
                    lease: true,
                    timeout: None,
                },
                length_policy,
            };
            let turn = if self.is_ordered {
                Turn::after(&mut self.last_turn)
            } else {
                Turn::default()
            };
            let ticket = (self.tables).start_sample(self.requests.clone(), request, turn);
            self.in_flight.push_back((n, ticket));
            self.items_requested += n as u64;
            self.batches_requested += 1;
        }
    }

    /// True if a server has returned the batch's items to their table, or is about to.
    fn is_stale(&self, batch: &ShardedBatch) -> bool {
        self.lease_timeout()
            .is_some_and(|timeout| batch.received.elapsed() >= timeout.mul_f64(0.9))
    }

    /// Waits until all acknowledgements that removed items from durable stores are durable.
    fn wait_until_durable(&self, options: &mut WaitOptions<'_>) -> WaitOutcome<Result<()>> {
        let undurable = Arc::clone(&self.undurable);
        let mut all = poll_fn(move |context| {
            let mut undurable = undurable.lock();
            while let Some(first) = undurable.last_mut() {
                match first.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(outcome) => {
                        undurable.pop();
                        match outcome {
                            // If a connection was lost, the server returns the items to the table, or has removed them.
                            Ok(()) | Err(Error::Unavailable(_)) => {}
                            Err(error) => return Poll::Ready(Err(error)),
                        }
                    }
                }
            }
            Poll::Ready(Ok(()))
        });
        wait(&mut all, options)
    }
}

impl BatchStream for ShardedStream {
    fn next(&mut self, options: &mut WaitOptions<'_>) -> Result<Option<Batch>> {
        self.deliveries.acknowledge_delivered();
        while self.deliveries.num_batches() >= MAX_UNACKNOWLEDGED {
            self.deliveries.acknowledge_oldest();
        }
        match self.wait_until_durable(options) {
            WaitOutcome::Ready(durable) => durable?,
            WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(None),
        }
        loop {
            let Some((n, ticket)) = self.in_flight.front_mut() else {
                return Ok(None);
            };
            let outcome = match wait(ticket, options) {
                WaitOutcome::Ready(outcome) => outcome,
                WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(None),
            };
            let n = *n;
            self.in_flight.pop_front();
            let batch = outcome?;
            if self.is_stale(&batch) {
                self.items_requested -= n as u64;
                self.batches_requested -= 1;
                drop(batch);
                self.prefetch();
                continue;
            }
            let ShardedBatch { batch, lease, .. } = batch;
            self.items_requested -= n.saturating_sub(batch.infos.len()) as u64;
            let lease = StreamLease(lease, Arc::clone(&self.undurable));
            self.deliveries.push(batch.infos.len(), lease);
            self.prefetch();
            return Ok(Some(batch));
        }
    }

    fn lease_timeout(&self) -> Option<Duration> {
        let clients = self.tables.clients.iter();
        clients
            .filter_map(|client| client.connector().lease_timeout())
            .min()
    }

    fn deliver(&mut self, items: u64) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        self.deliveries.delivered = items;
        if self.acknowledges_at_once {
            self.deliveries.acknowledge_delivered();
        }
        true
    }

    fn return_last(&mut self) {
        self.deliveries.return_newest();
    }

    fn close(
        &mut self,
        at_most: Duration,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>> {
        self.deliveries.finish();
        self.in_flight.clear();
        let called = Instant::now();
        let durable = self.wait_until_durable(options);
        self.requests.clear();
        let began = options.deadline.map_or_else(Instant::now, |_| called);
        let deadline = Some(began + MAX_CLOSE_TIMEOUT.min(at_most));
        self.tasks.retain_mut(|task| {
            let mut options = WaitOptions {
                deadline,
                interrupted: &mut || false,
            };
            !matches!(wait(task, &mut options), WaitOutcome::Ready(_))
        });
        durable
    }
}

impl Drop for ShardedStream {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            let mut options = WaitOptions {
                deadline: Some(Instant::now()),
                interrupted: &mut || false,
            };
            let _ = self.close(Duration::MAX, &mut options);
        }
    }
}
