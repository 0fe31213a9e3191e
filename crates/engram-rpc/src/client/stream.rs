//! Prefetches batches from a server; each batch is on lease.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::{Error, Result};
use engram_engine::{DeliveryTracker, LeaseOutcome, StreamOptions, WaitOptions, WaitOutcome, wait};

use tokio::task::JoinHandle;

use super::sample_requests::{
    BatchRequest, LeasedBatch, RemoteLease, RemoteSampleTicket, SampleRequests,
};
use crate::wire::ReceivedBatch;

/// How long closing waits for the server to handle the last acknowledgements.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of batches that are in flight or delivered and not acknowledged. A server allows 1,024 per stream.
const MAX_IN_FLIGHT: usize = 1_000;

/// Maximum number of delivered batches that are not acknowledged. With more, the oldest are acknowledged.
const MAX_UNACKNOWLEDGED: usize = 500;

/// The result of [`RemoteStream::next`].
#[derive(Debug)]
pub enum RemoteNextBatch {
    /// A batch.
    Batch(ReceivedBatch),
    /// All batches were read, or none arrived before the deadline.
    End,
    /// The wait was interrupted.
    Interrupted,
}

/// Batches of one table, prefetched over a stream of their own.
///
/// A batch is requested, received, returned by [`RemoteStream::next`] and then acknowledged. [`RemoteStream::next`] and
/// [`RemoteStream::close`] receive `delivered`, the number of items that the reader has passed on to its caller so far:
/// batches within that number are acknowledged. On closing, the other items are returned to their table.
#[derive(Debug)]
pub struct RemoteStream {
    requests: Option<SampleRequests>,
    /// Ends once the server has handled all acknowledgements and cancellations.
    task: Option<JoinHandle<bool>>,
    table: String,
    options: StreamOptions,
    batches_requested: u64,
    /// Number of items requested, without those that incomplete batches lacked.
    items_requested: u64,
    /// Requested batches that were not delivered yet, each with its number of items.
    in_flight: VecDeque<(usize, RemoteSampleTicket)>,
    /// Delivered batches that are not acknowledged.
    deliveries: DeliveryTracker<RemoteLease>,
}

impl RemoteStream {
    pub(crate) fn new(
        (requests, task): (SampleRequests, JoinHandle<bool>),
        table: String,
        options: StreamOptions,
    ) -> Result<Self> {
        if options.batch_size == 0 || options.prefetch == 0 {
            return Err(Error::InvalidArgument(format!(
                "`batch_size` and `prefetch` must be at least 1, got {} and {}",
                options.batch_size, options.prefetch
            )));
        }
        options.check_at_least()?;
        let mut stream = Self {
            requests: Some(requests),
            task: Some(task),
            table,
            options,
            batches_requested: 0,
            items_requested: 0,
            in_flight: VecDeque::new(),
            deliveries: DeliveryTracker::default(),
        };
        stream.prefetch();
        Ok(stream)
    }

    fn prefetch(&mut self) {
        let Some(requests) = &self.requests else {
            return;
        };
        let StreamOptions {
            prefetch,
            max_batches,
            length_policy,
            ..
        } = self.options;
        while self.in_flight.len() < prefetch.min(MAX_IN_FLIGHT - self.deliveries.len())
            && max_batches.is_none_or(|max| self.batches_requested < max)
        {
            let (n, at_least) = self.options.next_batch_size(self.items_requested);
            // A last, small batch waits: batches in flight may turn out incomplete and change its size.
            if n == 0 || (n < self.options.at_least && !self.in_flight.is_empty()) {
                return;
            }
            let ticket = requests.send(BatchRequest {
                table: self.table.clone(),
                n: u32::try_from(n).unwrap_or(u32::MAX),
                at_least: u32::try_from(at_least).unwrap_or(u32::MAX),
                timeout: None,
                allow_partial: false,
                pad: length_policy == LengthPolicy::Pad,
                lease: true,
            });
            self.in_flight.push_back((n, ticket));
            self.items_requested += n as u64;
            self.batches_requested += 1;
        }
    }

    /// Acknowledges batches within the first `delivered` items, and waits for the next batch.
    ///
    /// # Errors
    /// The reason why the request failed: for example, the table was dropped or the server cannot be reached.
    pub fn next(
        &mut self,
        delivered: u64,
        options: &mut WaitOptions<'_>,
    ) -> Result<RemoteNextBatch> {
        while let Some(lease) = self.deliveries.pop_acknowledged(delivered) {
            lease.acknowledge();
        }
        while self.deliveries.len() >= MAX_UNACKNOWLEDGED
            && let Some(lease) = self.deliveries.pop_oldest()
        {
            lease.acknowledge();
        }
        let Some((n, ticket)) = self.in_flight.front_mut() else {
            return Ok(RemoteNextBatch::End);
        };
        match wait(ticket, options) {
            WaitOutcome::Ready(outcome) => {
                let n = *n;
                self.in_flight.pop_front();
                let LeasedBatch { batch, lease } = outcome?;
                // The items that an incomplete batch lacks are requested again.
                self.items_requested -= n.saturating_sub(batch.infos.len()) as u64;
                self.deliveries.push(batch.infos.len(), lease);
                self.prefetch();
                Ok(RemoteNextBatch::Batch(batch))
            }
            WaitOutcome::TimedOut => Ok(RemoteNextBatch::End),
            WaitOutcome::Interrupted => Ok(RemoteNextBatch::Interrupted),
        }
    }

    /// Returns the items of the last batch to their table, because the batch did not reach the caller.
    pub fn return_last(&mut self) {
        drop(self.deliveries.pop_newest());
    }

    /// Stops prefetching, acknowledges the first `delivered` items and returns the others to their table. Waits up to two
    /// seconds until the server has handled that.
    pub fn close(&mut self, delivered: u64) {
        for outcome in self.deliveries.finish(delivered) {
            match outcome {
                LeaseOutcome::Acknowledged(lease) => lease.acknowledge(),
                LeaseOutcome::PartlyAcknowledged(items, lease) => lease.acknowledge_first(items),
                LeaseOutcome::Unacknowledged(lease) => drop(lease),
            }
        }
        self.in_flight.clear();
        self.requests = None;
        if let Some(mut task) = self.task.take() {
            let mut options = WaitOptions {
                deadline: Some(Instant::now() + CLOSE_TIMEOUT),
                interrupted: &mut || false,
            };
            let _ = wait(&mut task, &mut options);
        }
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        self.close(u64::MAX);
    }
}
