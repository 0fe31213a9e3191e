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
const GLANCE: Duration = Duration::from_millis(50);

/// How long to wait before what could not be made safe is asked for again.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// A batch's table, its id, and how it stands.
pub(super) type Progress = (Arc<str>, u64, Standing);

/// How a batch stands.
#[derive(Debug)]
pub(super) enum Standing {
    Ended(Result<()>),
    /// So many of its items are not in yet; the others are not safe yet.
    Out(usize),
    /// So many of its items are not in yet; the others are safe.
    Left(usize),
    /// Why those that are in cannot be made safe now.
    Unsafe(Error),
}

/// A batch that waits. As a stream: how it stands, each time that more of it is in, and how it ends.
#[derive(Debug)]
pub(super) struct Wait {
    table: Arc<str>,
    id: u64,
    /// None once it has ended.
    ticket: Option<InsertTicket>,
    /// Items that were not in yet, as was told last.
    out: usize,
    /// Items that were not in yet when others were safe, as was told last.
    left: usize,
    /// Fewer are by now; that is told once those that are in are safe.
    news: Option<(usize, UntilDurable)>,
    /// When to ask again where items expire: that removes them, which may make room.
    glances: Option<Interval>,
    /// After which to ask again whether it is safe.
    again: Option<Pin<Box<Sleep>>>,
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
            out: left,
            left,
            news: None,
            glances,
            again: None,
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
            if let Some(again) = &mut this.again {
                ready!(again.as_mut().poll(context));
                this.again = None;
            }
            match ticket.poll_unpin(context) {
                Poll::Ready(Err(error)) if ticket.is_applied() => {
                    if this.out > 0 {
                        this.out = 0;
                        break Standing::Out(0);
                    }
                    this.again = Some(Box::pin(sleep(AGAIN)));
                    break Standing::Unsafe(error);
                }
                Poll::Ready(outcome) => {
                    this.ticket = None;
                    break Standing::Ended(outcome);
                }
                Poll::Pending => {}
            }
            let out = ticket.items_left();
            if this.news.is_none() && out < this.left && !ticket.is_applied() {
                this.news = Some((out, ticket.table().until_durable()));
            }
            let safe = this.news.as_mut().map(|(_, safe)| safe.poll_unpin(context));
            if let Some(Poll::Ready(Ok(()))) = safe
                && let Some((left, _)) = this.news.take()
            {
                this.left = left;
                this.out = this.out.min(left);
                break Standing::Left(left);
            }
            if out < this.out {
                this.out = out;
                break Standing::Out(out);
            }
            if let Some(Poll::Ready(Err(error))) = safe {
                this.again = Some(Box::pin(sleep(AGAIN)));
                break Standing::Unsafe(error);
            }
            match &mut this.glances {
                Some(glances) => ready!(glances.poll_tick(context)),
                None => return Poll::Pending,
            };
        };
        Poll::Ready(Some((Arc::clone(&this.table), this.id, standing)))
    }
}
