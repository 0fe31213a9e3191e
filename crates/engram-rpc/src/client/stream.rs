//! Prefetching from a server: a few asks ahead, each on lease.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use engram_core::gather::Uneven;
use engram_core::{Error, Result};
use engram_engine::{DeliveryTracker, LeaseOutcome, StreamOptions, WaitOptions, WaitOutcome, wait};

use tokio::task::JoinHandle;

use super::sample::{Ask, AskTicket, Asks, Delivered, RemoteLease};
use crate::wire::Arrived;

/// How long closing waits for the server's last word.
const FAREWELL: Duration = Duration::from_secs(2);

/// Batches under way at a time, whatever the prefetching: a server allows 1,024 for a stream, those
/// among them that it has not heard of again.
const MOST_AHEAD: usize = 1_000;

/// Batches that a reader may hold and not have used: more count as used, the oldest first.
const MOST_HANDED: usize = 500;

/// What a reader gets.
#[derive(Debug)]
pub enum RemoteNext {
    /// A batch.
    Batch(Arrived),
    /// All batches were read, or none came in time.
    End,
    /// The reader was asked to stop waiting.
    Interrupted,
}

/// A reader's end of a sample stream of its own.
///
/// Whoever asks for the next batch, or closes the stream, says how many of the items so far were
/// delivered. Batches of which all were are acknowledged; what was not delivered in the end goes back.
#[derive(Debug)]
pub struct RemoteStream {
    asks: Option<Asks>,
    /// Ends once the server knows what was used and what was not.
    task: Option<JoinHandle<bool>>,
    table: String,
    options: StreamOptions,
    asked: u64,
    /// Items that were asked for, without those that batches which have come lacked.
    items: u64,
    /// Asks under way, and for how many items each is.
    ahead: VecDeque<(usize, AskTicket)>,
    /// The batches that a reader asked for.
    deliveries: DeliveryTracker<RemoteLease>,
}

impl RemoteStream {
    pub(crate) fn new(
        (asks, task): (Asks, JoinHandle<bool>),
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
            asks: Some(asks),
            task: Some(task),
            table,
            options,
            asked: 0,
            items: 0,
            ahead: VecDeque::new(),
            deliveries: DeliveryTracker::default(),
        };
        stream.ask_ahead();
        Ok(stream)
    }

    fn ask_ahead(&mut self) {
        let Some(asks) = &self.asks else { return };
        let StreamOptions {
            prefetch,
            max_batches,
            uneven,
            ..
        } = self.options;
        while self.ahead.len() < prefetch.min(MOST_AHEAD - self.deliveries.len())
            && max_batches.is_none_or(|max| self.asked < max)
        {
            let (n, at_least) = self.options.next_batch_size(self.items);
            // One for few items waits until it is known that no more are needed.
            if n == 0 || (n < self.options.at_least && !self.ahead.is_empty()) {
                return;
            }
            let ticket = asks.ask(Ask {
                table: self.table.clone(),
                n: u32::try_from(n).unwrap_or(u32::MAX),
                at_least: u32::try_from(at_least).unwrap_or(u32::MAX),
                timeout: None,
                partial: false,
                pad: uneven == Uneven::Pad,
                leased: true,
            });
            self.ahead.push_back((n, ticket));
            self.items += n as u64;
            self.asked += 1;
        }
    }

    /// The next batch; the first `delivered` items of those so far have reached their reader.
    ///
    /// # Errors
    /// What ended the asks: the table was dropped, the server is gone.
    pub fn next(&mut self, delivered: u64, patience: &mut WaitOptions<'_>) -> Result<RemoteNext> {
        while let Some(lease) = self.deliveries.pop_used(delivered) {
            lease.acknowledge();
        }
        while self.deliveries.len() >= MOST_HANDED
            && let Some(lease) = self.deliveries.pop_oldest()
        {
            lease.acknowledge();
        }
        let Some((n, ticket)) = self.ahead.front_mut() else {
            return Ok(RemoteNext::End);
        };
        match wait(ticket, patience) {
            WaitOutcome::Ready(outcome) => {
                let n = *n;
                self.ahead.pop_front();
                let Delivered { batch, lease } = outcome?;
                // A batch that lacks some leaves room for more.
                self.items -= n.saturating_sub(batch.facts.len()) as u64;
                self.deliveries.push(batch.facts.len(), lease);
                self.ask_ahead();
                Ok(RemoteNext::Batch(batch))
            }
            WaitOutcome::TimedOut => Ok(RemoteNext::End),
            WaitOutcome::Interrupted => Ok(RemoteNext::Interrupted),
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
        self.ahead.clear();
        self.asks = None;
        if let Some(mut task) = self.task.take() {
            let mut patience = WaitOptions {
                deadline: Some(Instant::now() + FAREWELL),
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
