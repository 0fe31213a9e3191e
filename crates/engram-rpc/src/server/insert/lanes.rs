//! A stream's items on their way into tables, and what of them is settled.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engram_core::{Chunk, Error, NewItem, Result};
use engram_engine::InsertTicket;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};

use super::backlog::{Backlog, Load};
use super::news::News;
use crate::pb;

/// How often items that wait look for others that have expired meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// News that may wait for their reader; then no more items are read.
const MAX_NEWS: usize = 1024;

/// Items that travel together.
#[derive(Debug)]
pub(super) struct Batch {
    /// Of the last of them.
    number: u64,
    load: Load,
    outcome: Option<Result<()>>,
    /// Tells batches apart.
    id: u64,
}

impl Batch {
    pub(super) fn new(number: u64, items: &[NewItem]) -> Self {
        let mut load = Load {
            items: items.len(),
            ..Load::default()
        };
        for item in items {
            load.own += item.trajectory.footprint();
            for chunk in item.trajectory.chunks() {
                let last = load.chunks.last();
                if !last.is_some_and(|last: &Arc<Chunk>| Arc::ptr_eq(last, chunk)) {
                    load.chunks.push(Arc::clone(chunk));
                }
            }
        }
        Self {
            number,
            load,
            outcome: None,
            id: 0,
        }
    }
}

/// A batch's table, its id, and how it stands.
type Done = (Arc<str>, u64, Standing);

/// How a batch stands.
enum Standing {
    Ended(Result<()>),
    /// So many of its items are not in yet.
    Left(usize, InsertTicket),
}

/// What waits, table by table, in order; and what its writer has yet to hear.
#[derive(Default)]
pub(super) struct Lanes {
    queues: HashMap<Arc<str>, VecDeque<Batch>>,
    waits: FuturesUnordered<BoxFuture<'static, Done>>,
    backlog: Backlog,
    news: News,
    next_id: u64,
}

impl Lanes {
    /// May more items be read?
    pub(super) fn have_room(&self) -> bool {
        self.backlog.has_room() && self.news.len() < MAX_NEWS
    }

    /// Takes note of items that are in a table's queue.
    pub(super) fn add(&mut self, table: &str, mut batch: Batch, mut ticket: InsertTicket) {
        // Most are served at once.
        batch.outcome = (&mut ticket).now_or_never();
        batch.id = self.next_id;
        self.next_id += 1;
        let (id, items) = (batch.id, batch.load.items);
        if let Some(table) = self.push(table, batch) {
            match ticket.items_left() {
                left if left < items => self.note((table, id, Standing::Left(left, ticket))),
                left => self.wait_for(table, id, ticket, left),
            }
        }
    }

    fn wait_for(&mut self, table: Arc<str>, id: u64, ticket: InsertTicket, left: usize) {
        let wait = async move {
            let standing = wait(ticket, left).await;
            (table, id, standing)
        };
        self.waits.push(wait.boxed());
    }

    /// Takes note of items up to a number that their table will not have.
    pub(super) fn refuse(&mut self, table: &str, number: u64, error: Error) {
        let mut batch = Batch::new(number, &[]);
        batch.outcome = Some(Err(error));
        self.push(table, batch);
    }

    /// Puts a batch behind those of its table; returns the table where it has to be waited for.
    fn push(&mut self, table: &str, batch: Batch) -> Option<Arc<str>> {
        let name = match self.queues.get_key_value(table) {
            Some((name, _)) => Arc::clone(name),
            None if batch.outcome.is_some() => {
                self.tell(table, batch.number, batch.outcome?);
                return None;
            }
            None => Arc::from(table),
        };
        let waits = batch.outcome.is_none();
        self.backlog.add(&batch.load);
        self.queues
            .entry(Arc::clone(&name))
            .or_default()
            .push_back(batch);
        waits.then_some(name)
    }

    /// Waits until some items are settled, or for ever.
    pub(super) async fn progress(&mut self) {
        let Some(done) = self.waits.next().await else {
            return std::future::pending().await;
        };
        self.note(done);
        while let Some(Some(done)) = self.waits.next().now_or_never() {
            self.note(done);
            if self.news.len() >= MAX_NEWS {
                break;
            }
        }
    }

    fn note(&mut self, (table, id, standing): Done) {
        match standing {
            Standing::Ended(outcome) => self.settle(&table, id, outcome),
            Standing::Left(left, ticket) => {
                // Those behind the first batch are settled after it.
                let first = self.queues.get(&table).and_then(VecDeque::front);
                if let Some(number) = first.filter(|first| first.id == id).map(|b| b.number) {
                    self.news.add(&table, number - left as u64, Ok(()));
                }
                self.wait_for(table, id, ticket, left);
            }
        }
    }

    fn settle(&mut self, table: &Arc<str>, id: u64, outcome: Result<()>) {
        let Some(mut queue) = self.queues.remove(table) else {
            return;
        };
        if let Some(batch) = queue
            .iter_mut()
            .find(|batch| batch.id == id && batch.outcome.is_none())
        {
            batch.outcome = Some(outcome);
        }
        while let Some(batch) = queue.pop_front() {
            let Some(outcome) = batch.outcome else {
                queue.push_front(batch);
                break;
            };
            self.backlog.remove(&batch.load);
            self.tell(table, batch.number, outcome);
        }
        if !queue.is_empty() {
            self.queues.insert(Arc::clone(table), queue);
        }
    }

    fn tell(&mut self, table: &str, number: u64, outcome: Result<()>) {
        self.news.add(table, number, outcome);
    }

    /// True when there is something to tell.
    pub(super) fn has_reply(&self) -> bool {
        self.news.len() > 0
    }

    pub(super) fn next_reply(&mut self) -> Option<pb::InsertReply> {
        self.news.next_reply()
    }

    /// Takes what waits out of its tables; what is left is to be told.
    pub(super) fn withdraw(self) -> News {
        self.news
    }
}

/// Waits until a batch ends, or fewer than `left` of its items are.
async fn wait(mut ticket: InsertTicket, left: usize) -> Standing {
    let expires = ticket.table().options().ttl.is_some();
    loop {
        let looked = std::future::poll_fn(|context| match ticket.poll_unpin(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if ticket.items_left() < left => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        tokio::select! {
            biased;
            outcome = looked => return match outcome {
                Some(outcome) => Standing::Ended(outcome),
                None => Standing::Left(ticket.items_left(), ticket),
            },
            // Asking again removes what has expired, which may make room.
            () = tokio::time::sleep(GLANCE), if expires => {}
        }
    }
}
