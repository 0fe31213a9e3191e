//! Waits for batches of items that their table has not inserted, or that are not durable yet.
//!
//! A batch waits until its table has inserted its items, in order (the rate limiter may let some in and block the
//! rest), and until the store has made them durable. The stream of a [`BatchWait`] reports each step:
//!
//! ```text
//! waiting --Inserted(left)--> partly inserted --Durable(left)--> partly durable -- ... --Done--> end
//!                               |        ^
//!                  StorageError |        | after DURABILITY_RETRY_DELAY
//!                               +--------+
//! ```
//!
//! `left` is the number of items at the end of the batch that have not reached the reported step: those not inserted,
//! or those not durable. It only decreases. Steps that follow each other quickly are reported once, with the last
//! `left`. `Done` may be the only report.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use engram_core::{Error, Result};
use engram_engine::{InsertTicket, UntilDurable};
use futures_util::{FutureExt as _, Stream};
use tokio::time::{Sleep, sleep};

/// Pause before trying again to make items durable, after a storage error.
pub(super) const DURABILITY_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A table, the id of one of its batches, and the batch's status.
pub(super) type BatchProgress = (Arc<str>, u64, BatchStatus);

/// The status of a batch.
#[derive(Debug)]
pub(super) enum BatchStatus {
    /// `Ok`: all items are inserted and durable. `Err`: the items that are not inserted are rejected.
    Done(Result<()>),
    /// All but this many items are inserted; they may not be durable yet.
    Inserted(usize),
    /// All but this many items are inserted and durable.
    Durable(usize),
    /// Why the inserted items cannot be made durable now.
    StorageError(Error),
}

/// A waiting batch. As a stream: its status whenever that changes.
#[derive(Debug)]
pub(super) struct BatchWait {
    table: Arc<str>,
    id: u64,
    /// `None` after `Done`.
    ticket: Option<InsertTicket>,
    /// Number of items that were not inserted as of the last report.
    not_inserted: usize,
    /// Number of items that were not durable as of the last [`BatchStatus::Durable`].
    not_durable: usize,
    /// While inserted items are made durable: the `left` of the [`BatchStatus::Durable`] that will report them.
    flushing: Option<(usize, UntilDurable)>,
    /// Pause after a storage error.
    retry_delay: Option<Pin<Box<Sleep>>>,
}

impl BatchWait {
    /// Waits for a batch of this many items.
    pub(super) fn new(table: Arc<str>, id: u64, ticket: InsertTicket, items: usize) -> Self {
        Self {
            table,
            id,
            ticket: Some(ticket),
            not_inserted: items,
            not_durable: items,
            flushing: None,
            retry_delay: None,
        }
    }

    /// The batch's table and id, for sorting.
    pub(super) fn sort_key(&self) -> (&str, u64) {
        (&self.table, self.id)
    }

    /// Withdraws the items that are not inserted. Returns the final status, or `None` if `Done` was returned before.
    /// The status counts inserted items as durable; the caller must wait until they are.
    pub(super) fn withdraw(self) -> Option<BatchProgress> {
        let status = match self.ticket?.withdraw() {
            0 => BatchStatus::Done(Ok(())),
            left => BatchStatus::Durable(left),
        };
        Some((self.table, self.id, status))
    }
}

impl Stream for BatchWait {
    type Item = BatchProgress;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BatchProgress>> {
        let this = self.get_mut();
        let Some(ticket) = &mut this.ticket else {
            return Poll::Ready(None);
        };
        let status = 'status: {
            if let Some(delay) = &mut this.retry_delay {
                ready!(delay.as_mut().poll(context));
                this.retry_delay = None;
            }
            match ticket.poll_unpin(context) {
                // All items are inserted, but cannot be made durable now.
                Poll::Ready(Err(error)) if ticket.is_applied() => {
                    if this.not_inserted > 0 {
                        this.not_inserted = 0;
                        break 'status BatchStatus::Inserted(0);
                    }
                    this.retry_delay = Some(Box::pin(sleep(DURABILITY_RETRY_DELAY)));
                    break 'status BatchStatus::StorageError(error);
                }
                Poll::Ready(outcome) => {
                    this.ticket = None;
                    break 'status BatchStatus::Done(outcome);
                }
                Poll::Pending => {}
            }
            let left = ticket.items_left();
            if this.flushing.is_none() && left < this.not_durable && !ticket.is_applied() {
                this.flushing = Some((left, ticket.table().until_durable()));
            }
            let flushing = this.flushing.as_mut();
            let flushed = flushing.map(|(_, until_durable)| until_durable.poll_unpin(context));
            if let Some(Poll::Ready(Ok(()))) = flushed
                && let Some((left, _)) = this.flushing.take()
            {
                this.not_durable = left;
                this.not_inserted = this.not_inserted.min(left);
                break 'status BatchStatus::Durable(left);
            }
            if left < this.not_inserted {
                this.not_inserted = left;
                break 'status BatchStatus::Inserted(left);
            }
            if let Some(Poll::Ready(Err(error))) = flushed {
                this.retry_delay = Some(Box::pin(sleep(DURABILITY_RETRY_DELAY)));
                break 'status BatchStatus::StorageError(error);
            }
            return Poll::Pending;
        };
        Poll::Ready(Some((Arc::clone(&this.table), this.id, status)))
    }
}
