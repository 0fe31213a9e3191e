//! Where a stream of batches from all shards of a table requests them.

use std::fmt;
use std::future::{Ready, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engram_core::{Error, Result, TableOptions};
use engram_engine::{BatchLease, DeliveryTracker, StreamOptions, WaitOptions, WaitOutcome, wait};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::lease::ShardedLease;
use super::sampling::{ShardedBatch, Turn};
use super::{BatchRequest, PendingResponse, SampleRequests, ShardedTables};
use crate::client::stream::{BatchSource, MAX_CLOSE_TIMEOUT, PrefetchedStream};

/// Batches of one table of all shards.
pub type ShardedStream = PrefetchedStream<ShardedSource>;

type Durable = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What is not known to be durable, of all batches: shards do not wait for each other.
#[derive(Clone, Default)]
struct Undurable(Arc<Mutex<Vec<Durable>>>);

impl fmt::Debug for Undurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undurable")
    }
}

/// The lease on a batch of a stream.
#[derive(Debug)]
pub struct StreamLease(ShardedLease, Undurable);

impl BatchLease for StreamLease {
    type Durable = Ready<Result<()>>;

    fn acknowledge_first(self, n: usize) -> Option<Self::Durable> {
        let durable = self.0.acknowledge_first(n);
        self.1.0.lock().extend(durable);
        None
    }
}

/// The sample requests of one stream to each shard.
#[derive(Debug)]
pub struct ShardedSource {
    tables: Arc<ShardedTables>,
    /// One per shard; empty after [`BatchSource::close`].
    requests: Vec<SampleRequests>,
    /// True if the items of a shard are drawn in order: a batch is requested when the previous one has arrived.
    is_ordered: bool,
    /// Ready when the last requested batch has arrived.
    last_turn: Option<oneshot::Receiver<()>>,
    undurable: Undurable,
}

impl ShardedStream {
    pub(super) fn open(
        tables: Arc<ShardedTables>,
        (requests, tasks): (Vec<SampleRequests>, Vec<JoinHandle<bool>>),
        table: &TableOptions,
        options: StreamOptions,
    ) -> Result<Self> {
        let source = ShardedSource {
            tables,
            requests,
            is_ordered: !table.sampler.is_random(),
            last_turn: None,
            undurable: Undurable::default(),
        };
        Self::new(source, tasks, MAX_CLOSE_TIMEOUT, table, options)
    }
}

impl BatchSource for ShardedSource {
    type Ticket = PendingResponse<ShardedBatch>;
    type ReceivedLease = ShardedLease;
    type Lease = StreamLease;

    fn request(&mut self, request: BatchRequest) -> Option<Self::Ticket> {
        if !self.is_open() {
            return None;
        }
        let turn = if self.is_ordered {
            Turn::after(&mut self.last_turn)
        } else {
            Turn::default()
        };
        Some((self.tables).start_sample(self.requests.clone(), request, turn))
    }

    fn has_ended(&self, lease: &ShardedLease) -> Result<bool> {
        Ok(lease.has_ended())
    }

    async fn until_known(lease: &ShardedLease) {
        lease.until_known().await;
    }

    fn lease_for_reader(&self, lease: ShardedLease) -> StreamLease {
        StreamLease(lease, self.undurable.clone())
    }

    fn wait_until_durable(
        &mut self,
        _: &mut DeliveryTracker<StreamLease>,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>> {
        let undurable = self.undurable.clone();
        let mut all = poll_fn(move |context| {
            let mut undurable = undurable.0.lock();
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

    fn lease_timeout(&self) -> Option<Duration> {
        let clients = self.tables.clients.iter();
        clients
            .filter_map(|client| client.connector().lease_timeout())
            .min()
    }

    fn is_open(&self) -> bool {
        !self.requests.is_empty()
    }

    fn close(&mut self) {
        self.requests.clear();
    }
}
