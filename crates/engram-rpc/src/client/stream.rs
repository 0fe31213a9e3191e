//! Prefetching from a server: a few requests ahead, each on lease.

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

/// How long closing waits for the server's last word.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Batches under way at a time, whatever the prefetching: a server allows 1,024 for a stream, those
/// among them that it has not heard of again.
const MAX_IN_FLIGHT: usize = 1_000;

/// Batches that a reader may hold and not have used: more count as used, the oldest first.
const MAX_UNACKNOWLEDGED: usize = 500;

/// What a reader gets.
#[derive(Debug)]
pub enum RemoteNextBatch {
    /// A batch.
    Batch(ReceivedBatch),
    /// All batches were read, or none came in time.
    End,
    /// The reader was asked to stop waiting.
    Interrupted,
}

/// A reader's end of a sample stream of its own.
///
/// Whoever requests for the next batch, or closes the stream, says how many of the items so far were
/// delivered. Batches of which all were are acknowledged; what was not delivered in the end goes back.
#[derive(Debug)]
pub struct RemoteStream {
    requests: Option<SampleRequests>,
    /// Ends once the server knows what was used and what was not.
    task: Option<JoinHandle<bool>>,
    table: String,
    options: StreamOptions,
    batches_requested: u64,
    /// Items that were asked for, without those that batches which have come lacked.
    items_requested: u64,
    /// SampleRequests under way, and for how many items each is.
    in_flight: VecDeque<(usize, RemoteSampleTicket)>,
    /// The batches that a reader asked for.
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
            // One for few items waits until it is known that no more are needed.
            if n == 0 || (n < self.options.at_least && !self.in_flight.is_empty()) {
                return;
            }
            let ticket = requests.send(BatchRequest {
                table: self.table.clone(),
                n: u32::try_from(n).unwrap_or(u32::MAX),
                at_least: u32::try_from(at_least).unwrap_or(u32::MAX),
                timeout: None,
                partial: false,
                pad: length_policy == LengthPolicy::Pad,
                leased: true,
            });
            self.in_flight.push_back((n, ticket));
            self.items_requested += n as u64;
            self.batches_requested += 1;
        }
    }

    /// The next batch; the first `delivered` items of those so far have reached their reader.
    ///
    /// # Errors
    /// What ended the requests: the table was dropped, the server is gone.
    pub fn next(
        &mut self,
        delivered: u64,
        patience: &mut WaitOptions<'_>,
    ) -> Result<RemoteNextBatch> {
        while let Some(lease) = self.deliveries.pop_used(delivered) {
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
        match wait(ticket, patience) {
            WaitOutcome::Ready(outcome) => {
                let n = *n;
                self.in_flight.pop_front();
                let LeasedBatch { batch, lease } = outcome?;
                // A batch that lacks some leaves room for more.
                self.items_requested -= n.saturating_sub(batch.infos.len()) as u64;
                self.deliveries.push(batch.infos.len(), lease);
                self.prefetch();
                Ok(RemoteNextBatch::Batch(batch))
            }
            WaitOutcome::TimedOut => Ok(RemoteNextBatch::End),
            WaitOutcome::Interrupted => Ok(RemoteNextBatch::Interrupted),
        }
    }

    /// Gives the last batch back: it did not reach its reader.
    pub fn return_last(&mut self) {
        drop(self.deliveries.pop_newest());
    }

    /// Stops prefetching; all but the first `delivered` items go back. Waits until the server knows.
    pub fn close(&mut self, delivered: u64) {
        for fate in self.deliveries.finish(delivered) {
            match fate {
                LeaseOutcome::Used(lease) => lease.acknowledge(),
                LeaseOutcome::PartlyUsed(items, lease) => lease.acknowledge_first(items),
                LeaseOutcome::Unused(lease) => drop(lease),
            }
        }
        self.in_flight.clear();
        self.requests = None;
        if let Some(mut task) = self.task.take() {
            let mut patience = WaitOptions {
                deadline: Some(Instant::now() + CLOSE_TIMEOUT),
                interrupted: &mut || false,
            };
            let _ = wait(&mut task, &mut patience);
        }
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        self.close(u64::MAX);
    }
}
