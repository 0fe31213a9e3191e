//! Batches that wait for their table, and to be safe there: how far each of them is.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use engram_core::{Error, Result};
use engram_engine::{InsertTicket, UntilDurable};
use futures_util::{FutureExt as _, Stream};
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at, sleep};

/// How often items that wait look for others that have expired meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long to wait before what could not be made safe is asked for again.
pub(super) const DURABILITY_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A batch's table, its id, and how it stands.
pub(super) type BatchProgress = (Arc<str>, u64, BatchStatus);

/// How a batch stands.
#[derive(Debug)]
pub(super) enum BatchStatus {
    Done(Result<()>),
    /// So many of its items are not in yet; the others are not safe yet.
    NotApplied(usize),
    /// So many of its items are not in yet; the others are safe.
    NotDurable(usize),
    /// Why those that are in cannot be made safe now.
    StorageError(Error),
}

/// A batch that waits. As a stream: how it stands, each time that more of it is in, and how it ends.
#[derive(Debug)]
pub(super) struct BatchWait {
    table: Arc<str>,
    id: u64,
    /// None once it has ended.
    ticket: Option<InsertTicket>,
    /// Items that were not in yet, as was told last.
    not_applied: usize,
    /// Items that were not in yet when others were safe, as was told last.
    not_durable: usize,
    /// Fewer are by now; that is told once those that are in are safe.
    flushing: Option<(usize, UntilDurable)>,
    /// When to ask again where items expire: that removes them, which may make room.
    expiry_polls: Option<Interval>,
    /// After which to ask again whether it is safe.
    retry_delay: Option<Pin<Box<Sleep>>>,
}

impl BatchWait {
    /// A batch of `left` items.
    pub(super) fn new(table: Arc<str>, id: u64, ticket: InsertTicket, items: usize) -> Self {
        let expires = ticket.table().options().ttl.is_some();
        let expiry_polls = expires.then(|| {
            let mut expiry_polls = interval_at(Instant::now() + POLL_INTERVAL, POLL_INTERVAL);
            expiry_polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
            expiry_polls
        });
        Self {
            table,
            id,
            ticket: Some(ticket),
            not_applied: items,
            not_durable: items,
            flushing: None,
            expiry_polls,
            retry_delay: None,
        }
    }

    /// Its table, and its place among those that wait.
    pub(super) fn place(&self) -> (&str, u64) {
        (&self.table, self.id)
    }

    /// Takes what is left of it out of its table; how it stands then is how it stays.
    pub(super) fn withdraw(self) -> Option<BatchProgress> {
        let status = match self.ticket?.withdraw() {
            0 => BatchStatus::Done(Ok(())),
            left => BatchStatus::NotDurable(left),
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
        let status = loop {
            if let Some(delay) = &mut this.retry_delay {
                ready!(delay.as_mut().poll(context));
                this.retry_delay = None;
            }
            match ticket.poll_unpin(context) {
                Poll::Ready(Err(error)) if ticket.is_applied() => {
                    if this.not_applied > 0 {
                        this.not_applied = 0;
                        break BatchStatus::NotApplied(0);
                    }
                    this.retry_delay = Some(Box::pin(sleep(DURABILITY_RETRY_DELAY)));
                    break BatchStatus::StorageError(error);
                }
                Poll::Ready(outcome) => {
                    this.ticket = None;
                    break BatchStatus::Done(outcome);
                }
                Poll::Pending => {}
            }
            let out = ticket.items_left();
            if this.flushing.is_none() && out < this.not_durable && !ticket.is_applied() {
                this.flushing = Some((out, ticket.table().until_durable()));
            }
            let safe = this
                .flushing
                .as_mut()
                .map(|(_, safe)| safe.poll_unpin(context));
            if let Some(Poll::Ready(Ok(()))) = safe
                && let Some((left, _)) = this.flushing.take()
            {
                this.not_durable = left;
                this.not_applied = this.not_applied.min(left);
                break BatchStatus::NotDurable(left);
            }
            if out < this.not_applied {
                this.not_applied = out;
                break BatchStatus::NotApplied(out);
            }
            if let Some(Poll::Ready(Err(error))) = safe {
                this.retry_delay = Some(Box::pin(sleep(DURABILITY_RETRY_DELAY)));
                break BatchStatus::StorageError(error);
            }
            match &mut this.expiry_polls {
                Some(expiry_polls) => ready!(expiry_polls.poll_tick(context)),
                None => return Poll::Pending,
            };
        };
        Poll::Ready(Some((Arc::clone(&this.table), this.id, status)))
    }
}
