//! Batches that wait for their table: how far each of them is.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use engram_core::Result;
use engram_engine::{InsertTicket, Safe};
use futures_util::{FutureExt as _, Stream};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How often items that wait look for others that have expired meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// A batch's table, its id, and how it stands.
pub(super) type Progress = (Arc<str>, u64, Standing);

/// How a batch stands.
#[derive(Debug)]
pub(super) enum Standing {
    Ended(Result<()>),
    /// So many of its items are not in yet.
    Left(usize),
}

/// A batch that waits. As a stream: how it stands, each time that more of it is in, and how it ends.
#[derive(Debug)]
pub(super) struct Wait {
    table: Arc<str>,
    id: u64,
    /// None once it has ended.
    ticket: Option<InsertTicket>,
    /// Items that were not in yet when it was last told of.
    left: usize,
    /// Fewer are by now; that is told once those that are in are safe.
    news: Option<(usize, Safe)>,
    /// When to ask again where items expire: that removes them, which may make room.
    glances: Option<Interval>,
}

impl Wait {
    /// A batch of `left` items.
    pub(super) fn new(table: Arc<str>, id: u64, ticket: InsertTicket, left: usize) -> Self {
        let expires = ticket.table().options().ttl.is_some();
        let glances = expires.then(|| {
            let mut glances = interval_at(Instant::now() + GLANCE, GLANCE);
            glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
            glances
        });
        Self {
            table,
            id,
            ticket: Some(ticket),
            left,
            news: None,
            glances,
        }
    }

    /// Its table, and its place among those that wait.
    pub(super) fn place(&self) -> (&str, u64) {
        (&self.table, self.id)
    }

    /// Takes what is left of it out of its table; how it stands then is how it stays.
    pub(super) fn withdraw(self) -> Option<Progress> {
        let standing = match self.ticket?.withdraw() {
            0 => Standing::Ended(Ok(())),
            left => Standing::Left(left),
        };
        Some((self.table, self.id, standing))
    }
}

impl Stream for Wait {
    type Item = Progress;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Progress>> {
        let this = self.get_mut();
        let Some(ticket) = &mut this.ticket else {
            return Poll::Ready(None);
        };
        let standing = loop {
            if let Poll::Ready(outcome) = ticket.poll_unpin(context) {
                this.ticket = None;
                break Standing::Ended(outcome);
            }
            if this.news.is_none() {
                let left = ticket.items_left();
                this.news = (left < this.left).then(|| (left, ticket.table().safe()));
            }
            if let Some((left, safe)) = &mut this.news {
                let left = *left;
                if let Err(error) = ready!(safe.poll_unpin(context)) {
                    this.ticket = None;
                    break Standing::Ended(Err(error));
                }
                this.left = left;
                this.news = None;
                break Standing::Left(left);
            }
            match &mut this.glances {
                Some(glances) => ready!(glances.poll_tick(context)),
                None => return Poll::Pending,
            };
        };
        Poll::Ready(Some((Arc::clone(&this.table), this.id, standing)))
    }
}
