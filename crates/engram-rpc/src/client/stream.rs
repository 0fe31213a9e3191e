//! Prefetches batches from a server, or from all shards of a table; each batch is on lease.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::{Error, Result, TableOptions};
use engram_engine::{
    Batch, BatchLease, BatchStream, DeliveryTracker, SampleOptions, StreamOptions, WaitOptions,
    WaitOutcome, wait, wait_by,
};

use tokio::task::JoinHandle;

use super::connect::Connector;
use super::pending_sample::BatchRequest;
use super::sample_requests::{LeasedBatch, RemoteLease, RemoteSampleTicket, SampleRequests};

/// Maximum time that closing waits for the server to handle the last acknowledgements.
pub(super) const MAX_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// With a short `reconnect_timeout`, closing waits for at most that and this long in addition.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// Maximum number of batches in flight, plus those that the reader has and that are not acknowledged. A server allows
/// 1,024 per stream.
const MAX_IN_FLIGHT: usize = 1_000;

/// Maximum number of batches that the reader has and that are not acknowledged. With more, the oldest are acknowledged.
const MAX_UNACKNOWLEDGED: usize = 500;

/// Where a stream requests its batches.
pub trait BatchSource: Debug + Send {
    /// A requested batch. Dropping it cancels the request.
    type Ticket: Future<Output = Result<LeasedBatch<Self::ReceivedLease>>> + Send + Unpin;
    /// The lease on a batch that has arrived.
    type ReceivedLease: Send;
    /// The lease on a batch that the reader has.
    type Lease: BatchLease + Send;

    /// Requests a batch; `None` after [`Self::close`].
    fn request(&mut self, request: BatchRequest) -> Option<Self::Ticket>;

    /// True if the server, or one of them, has returned the items to their table.
    ///
    /// # Errors
    /// Why further requests would fail too, if they would.
    fn has_ended(&self, lease: &Self::ReceivedLease) -> Result<bool>;

    /// Waits until the result of [`Self::has_ended`] is known: while a connection is broken, it is not.
    fn until_known(lease: &Self::ReceivedLease) -> impl Future<Output = ()> + Send;

    /// Returns the lease for the reader of a batch that has arrived.
    fn lease_for_reader(&self, lease: Self::ReceivedLease) -> Self::Lease;

    /// Waits until all acknowledgements that removed items from a durable store are durable.
    fn wait_until_durable(
        &mut self,
        deliveries: &mut DeliveryTracker<Self::Lease>,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>>;

    /// See [`BatchStream::lease_timeout`].
    fn lease_timeout(&self) -> Option<Duration>;

    /// True until [`Self::close`].
    fn is_open(&self) -> bool;

    /// Sends no more requests, so that the tasks of the source end once the servers have handled all acknowledgements.
    fn close(&mut self);
}

/// Batches of one table, prefetched over streams of their own.
///
/// A batch is requested, received, returned by `next`, delivered and then acknowledged.
/// A batch that waited for so long that its lease ends, or whose lease has not outlived a broken connection, is cancelled
/// and requested again.
pub struct PrefetchedStream<S: BatchSource> {
    source: S,
    /// Run the source's streams. They end after [`BatchSource::close`]; those that did are removed.
    tasks: Vec<JoinHandle<bool>>,
    /// Maximum time that closing waits for the tasks.
    close_timeout: Duration,
    table: String,
    /// True if delivered items are acknowledged at once. With `hold`, and for tables from which sampling removes
    /// nothing, they are acknowledged when the next batch is requested.
    acknowledges_at_once: bool,
    options: StreamOptions,
    /// Number of batches requested, without stale ones (see `is_stale`): they are requested again.
    batches_requested: u64,
    /// Number of items requested, without those of stale batches and those that incomplete batches lacked: they are
    /// requested again.
    items_requested: u64,
    /// Requested batches that were not returned to the reader yet, each with its number of items.
    in_flight: VecDeque<(usize, S::Ticket)>,
    /// The batch that is returned next, if it has arrived, with the number of items that were requested.
    arrived: Option<(usize, LeasedBatch<S::ReceivedLease>)>,
    /// Batches that the reader has and that are not acknowledged.
    deliveries: DeliveryTracker<S::Lease>,
}

impl<S: BatchSource> Debug for PrefetchedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchedStream")
            .field("table", &self.table)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<S: BatchSource> PrefetchedStream<S> {
    pub(super) fn new(
        source: S,
        tasks: Vec<JoinHandle<bool>>,
        close_timeout: Duration,
        table: &TableOptions,
        options: StreamOptions,
    ) -> Result<Self> {
        options.check()?;
        let mut stream = Self {
            source,
            tasks,
            close_timeout,
            table: table.name.clone(),
            acknowledges_at_once: table.max_times_sampled > 0 && !options.hold,
            options,
            batches_requested: 0,
            items_requested: 0,
            in_flight: VecDeque::new(),
            arrived: None,
            deliveries: DeliveryTracker::default(),
        };
        stream.request_up_to(options.prefetch);
        Ok(stream)
    }

    /// Requests batches until this many are in flight, or as many as the other options and [`MAX_IN_FLIGHT`] allow.
    fn request_up_to(&mut self, batches: usize) {
        let StreamOptions {
            max_batches,
            length_policy,
            ..
        } = self.options;
        while self.in_flight.len() < batches.min(MAX_IN_FLIGHT - self.deliveries.num_batches())
            && max_batches.is_none_or(|max| self.batches_requested < max)
        {
            let (n, at_least) = self.options.next_batch_size(self.items_requested);
            // A last, small batch is requested only after all others have arrived: if one of them is incomplete, the
            // size of the last one changes.
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
            let Some(ticket) = self.source.request(request) else {
                return;
            };
            self.in_flight.push_back((n, ticket));
            self.items_requested += n as u64;
            self.batches_requested += 1;
        }
    }

    /// True if the server has returned the batch's items to their table, or is about to.
    fn is_stale(&self, leased: &LeasedBatch<S::ReceivedLease>) -> Result<bool> {
        let timeout = self.source.lease_timeout();
        // The last tenth of the timeout is left for the acknowledgement to arrive.
        let is_late =
            timeout.is_some_and(|timeout| leased.received.elapsed() >= timeout.mul_f64(0.9));
        Ok(is_late || self.source.has_ended(&leased.lease)?)
    }
}

impl<S: BatchSource> BatchStream for PrefetchedStream<S> {
    fn next(&mut self, options: &mut WaitOptions<'_>) -> Result<Option<Batch>> {
        self.deliveries.acknowledge_delivered();
        while self.deliveries.num_batches() >= MAX_UNACKNOWLEDGED {
            self.deliveries.acknowledge_oldest();
        }
        match (self.source).wait_until_durable(&mut self.deliveries, options) {
            // If the connection was lost, the next connection continues with the items that are left.
            WaitOutcome::Ready(Ok(()) | Err(Error::Unavailable(_))) => {}
            WaitOutcome::Ready(Err(error)) => return Err(error),
            WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(None),
        }
        loop {
            if self.arrived.is_none() {
                // Only if `prefetch` is 0, none is in flight.
                self.request_up_to(self.options.prefetch.max(1));
                let Some((n, ticket)) = self.in_flight.front_mut() else {
                    return Ok(None);
                };
                let outcome = match wait(ticket, options) {
                    WaitOutcome::Ready(outcome) => outcome,
                    WaitOutcome::TimedOut | WaitOutcome::Interrupted => return Ok(None),
                };
                let n = *n;
                self.in_flight.pop_front();
                self.arrived = Some((n, outcome?));
            }
            if let Some((_, leased)) = &self.arrived
                && !matches!(
                    wait(&mut pin!(S::until_known(&leased.lease)), options),
                    WaitOutcome::Ready(())
                )
            {
                return Ok(None);
            }
            let Some((n, leased)) = self.arrived.take() else {
                return Ok(None);
            };
            if self.is_stale(&leased)? {
                self.items_requested -= n as u64;
                self.batches_requested -= 1;
                drop(leased);
                continue;
            }
            let LeasedBatch { batch, lease, .. } = leased;
            let lease = self.source.lease_for_reader(lease);
            // The items that an incomplete batch lacks are requested again later.
            self.items_requested -= n.saturating_sub(batch.infos.len()) as u64;
            self.deliveries.push(batch.infos.len(), lease);
            self.request_up_to(self.options.prefetch);
            return Ok(Some(batch));
        }
    }

    fn lease_timeout(&self) -> Option<Duration> {
        self.source.lease_timeout()
    }

    fn deliver(&mut self, items: u64) -> bool {
        if !self.source.is_open() {
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

    /// Waits for the servers' other replies no longer than two seconds, or less if `reconnect_timeout` is short.
    fn close(
        &mut self,
        at_most: Duration,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>> {
        self.deliveries.finish();
        self.in_flight.clear();
        self.arrived = None;
        let called = Instant::now();
        let durable = (self.source).wait_until_durable(&mut self.deliveries, options);
        self.source.close();
        let began = options.deadline.map_or_else(Instant::now, |_| called);
        let deadline = Some(began + self.close_timeout.min(at_most));
        (self.tasks).retain_mut(|task| wait_by(task, deadline).is_none());
        durable
    }
}

impl<S: BatchSource> Drop for PrefetchedStream<S> {
    fn drop(&mut self) {
        if self.source.is_open() {
            let mut options = WaitOptions {
                deadline: Some(Instant::now()),
                interrupted: &mut || false,
            };
            let _ = self.close(Duration::MAX, &mut options);
        }
    }
}

/// Batches of one table of a server.
pub type RemoteStream = PrefetchedStream<RemoteSource>;

/// The sample requests of one stream.
#[derive(Debug)]
pub struct RemoteSource {
    /// `None` after [`BatchSource::close`].
    requests: Option<SampleRequests>,
    connector: Arc<Connector>,
    /// Why the server could not make acknowledgements durable when it was last asked.
    durability_error: Option<Error>,
}

impl RemoteStream {
    pub(crate) fn open(
        (requests, task): (SampleRequests, JoinHandle<bool>),
        connector: &Arc<Connector>,
        table: &TableOptions,
        options: StreamOptions,
    ) -> Result<Self> {
        let close_timeout = MAX_CLOSE_TIMEOUT.min(connector.reconnect_timeout() + CLOSE_GRACE);
        let source = RemoteSource {
            requests: Some(requests),
            connector: Arc::clone(connector),
            durability_error: None,
        };
        Self::new(source, vec![task], close_timeout, table, options)
    }
}

impl BatchSource for RemoteSource {
    type Ticket = RemoteSampleTicket;
    type ReceivedLease = RemoteLease;
    type Lease = RemoteLease;

    fn request(&mut self, request: BatchRequest) -> Option<RemoteSampleTicket> {
        self.requests
            .as_ref()
            .map(|requests| requests.send(request))
    }

    fn has_ended(&self, lease: &RemoteLease) -> Result<bool> {
        lease.has_ended()
    }

    async fn until_known(lease: &RemoteLease) {
        lease.until_known().await;
    }

    fn lease_for_reader(&self, lease: RemoteLease) -> RemoteLease {
        lease
    }

    fn wait_until_durable(
        &mut self,
        deliveries: &mut DeliveryTracker<RemoteLease>,
        options: &mut WaitOptions<'_>,
    ) -> WaitOutcome<Result<()>> {
        match (&self.durability_error, &self.requests) {
            (Some(_), Some(requests)) => deliveries.durable = Some(requests.confirm_again()),
            (Some(error), None) => return WaitOutcome::Ready(Err(error.clone())),
            (None, _) => {}
        }
        let Some(durable) = &mut deliveries.durable else {
            return WaitOutcome::Ready(Ok(()));
        };
        let outcome = wait(durable, options);
        if let WaitOutcome::Ready(outcome) = &outcome {
            deliveries.durable = None;
            let error = outcome.as_ref().err();
            // If the connection was lost, there is nothing to ask for again: the server returns the items to the table,
            // or has removed them.
            let error = error.filter(|error| !matches!(error, Error::Unavailable(_)));
            self.durability_error = error.cloned();
        }
        outcome
    }

    fn lease_timeout(&self) -> Option<Duration> {
        self.connector.lease_timeout()
    }

    fn is_open(&self) -> bool {
        self.requests.is_some()
    }

    fn close(&mut self) {
        self.requests = None;
    }
}
