//! A stream's items on their way into tables, and what of them is settled.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use engram_core::{Chunk, Error, NewItem};
use engram_engine::{InsertTicket, JournalSpace};
use futures_util::stream::SelectAll;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::sleep;

use super::backlog::{Backlog, Load};
use super::news::{News, TEXT, refusal, weight};
use super::waits::{AGAIN, Progress, Standing, Wait};
use crate::pb;

/// News that may wait for their reader; then no more items are read.
const MAX_NEWS: usize = 1024;

/// What a writer hears of its items.
type Outcome = Result<(), pb::Error>;

/// Items that travel together.
#[derive(Debug)]
pub(super) struct Batch {
    /// Of the last of them.
    number: u64,
    load: Load,
    /// Of its items, those that its writer has not heard to be in.
    untold: usize,
    /// Of its items, those that were not in, or not safe there, when it was last looked at.
    left: usize,
    /// Those that were not in.
    out: usize,
    outcome: Option<Outcome>,
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
            untold: load.items,
            left: load.items,
            out: load.items,
            load,
            outcome: None,
            id: 0,
        }
    }

    /// The number up to which items are in, unless that has been told, or its end will say so.
    fn news(&mut self) -> Option<u64> {
        let is_news = (1..self.untold).contains(&self.left);
        self.untold = self.untold.min(self.left);
        is_news.then(|| self.number - self.left as u64)
    }
}

/// A table's batches, in order.
#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Batch>,
    /// Batches at the front that are in, and wait to be safe there.
    inside: usize,
    /// The last number that was told to be in.
    taken: u64,
}

impl Queue {
    fn find(&mut self, id: u64) -> Option<&mut Batch> {
        let at = self.batches.binary_search_by_key(&id, |batch| batch.id);
        self.batches.get_mut(at.ok()?)
    }

    /// The number up to which items are in, unless that has been told.
    fn taken(&mut self) -> Option<u64> {
        let is_in = |batch: &Batch| batch.out == 0 || batch.outcome.is_some();
        while self.batches.get(self.inside).is_some_and(is_in) {
            self.inside += 1;
        }
        let some = self.batches.get(self.inside);
        let some = some.filter(|batch| batch.out < batch.load.items);
        let last = match some {
            Some(batch) => batch.number - batch.out as u64,
            None => self.batches.get(self.inside.checked_sub(1)?)?.number,
        };
        if last <= self.taken {
            return None;
        }
        self.taken = last;
        Some(last)
    }

    /// The same, where up to `settled` is told anyway.
    fn taken_beyond(&mut self, settled: Option<u64>) -> Option<u64> {
        self.taken = self.taken.max(settled.unwrap_or_default());
        self.taken()
    }

    /// The first batch, if it has ended, and how.
    fn next_ended(&mut self) -> Option<(Batch, Outcome)> {
        let outcome = self.batches.front_mut()?.outcome.take()?;
        self.inside = self.inside.saturating_sub(1);
        Some((self.batches.pop_front()?, outcome))
    }
}

/// What waits, table by table, in order; and what its writer has yet to hear.
#[derive(Default)]
pub(super) struct Lanes {
    queues: HashMap<Arc<str>, Queue>,
    waits: SelectAll<Wait>,
    backlog: Backlog,
    news: News,
    next_id: u64,
    /// Too much waits to be written.
    room: Option<JournalSpace>,
}

impl Lanes {
    /// May more items be read?
    pub(super) fn have_room(&self) -> bool {
        self.backlog.has_room() && self.news.len() < MAX_NEWS && self.room.is_none()
    }

    /// Takes note of items that are in a table's queue.
    pub(super) fn add(&mut self, table: &str, mut batch: Batch, mut ticket: InsertTicket) {
        // Most are served at once.
        let outcome = (&mut ticket).now_or_never();
        // What is in and cannot be made safe now may be later.
        let is_final = |outcome: &Outcome| outcome.is_ok() || !ticket.is_applied();
        batch.outcome = outcome.map(outcome_out).filter(is_final);
        self.room = ticket.table().journal_space();
        let (id, left) = (self.next_id, batch.left);
        if let Some(table) = self.push(table, batch) {
            let mut wait = Wait::new(table, id, ticket, left);
            // Some of them may be in.
            let standing = wait.next().now_or_never().flatten();
            self.waits.push(wait);
            if let Some(done) = standing {
                self.note(done);
            }
        }
    }

    /// Takes note of items up to a number that their table will not have.
    pub(super) fn refuse(&mut self, table: &str, number: u64, error: pb::Error) {
        let mut batch = Batch::new(number, &[]);
        batch.load.own = weight(&error);
        batch.outcome = Some(Err(error));
        self.push(table, batch);
    }

    /// Puts a batch behind those of its table; returns the table where it has to be waited for.
    fn push(&mut self, table: &str, mut batch: Batch) -> Option<Arc<str>> {
        batch.id = self.next_id;
        self.next_id += 1;
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
            .batches
            .push_back(batch);
        waits.then_some(name)
    }

    /// Waits until some items are settled, or less waits to be written, or for ever.
    pub(super) async fn progress(&mut self) {
        let done = tokio::select! {
            Some(done) = self.waits.next() => done,
            () = less(&mut self.room), if self.room.is_some() => return,
            else => return std::future::pending().await,
        };
        self.note(done);
        while let Some(Some(done)) = self.waits.next().now_or_never() {
            self.note(done);
            if self.news.len() >= MAX_NEWS {
                break;
            }
        }
    }

    fn note(&mut self, (table, id, standing): Progress) {
        match standing {
            Standing::Ended(outcome) => self.settle(&table, id, outcome_out(outcome)),
            Standing::Left(left) => self.advance(&table, id, left),
            Standing::Out(out) => self.take(&table, id, out),
            Standing::Unsafe(error) => self.complain(&table, id, &error),
        }
    }

    /// Tells how much of a batch is in; one behind another that is not is told of after that.
    fn take(&mut self, table: &str, id: u64, out: usize) {
        let Some(queue) = self.queues.get_mut(table) else {
            return;
        };
        if let Some(batch) = queue.find(id) {
            batch.out = out;
        }
        if let Some(number) = queue.taken() {
            self.news.take(table, number, None);
        }
    }

    /// Tells why what is in is not safe: once for all that wait with it.
    fn complain(&mut self, table: &str, id: u64, error: &Error) {
        let queue = self.queues.get(table);
        let first = queue.and_then(|queue| queue.batches.front());
        if first.is_some_and(|batch| batch.id == id) {
            self.news.take(table, 0, Some(refusal(error, TEXT)));
        }
    }

    /// Tells how far a batch is; one behind the first of its table is told of after that.
    fn advance(&mut self, table: &str, id: u64, left: usize) {
        let Some(queue) = self.queues.get_mut(table) else {
            return;
        };
        if let Some(batch) = queue.find(id) {
            batch.left = left;
            batch.out = batch.out.min(left);
        }
        let settled = queue.batches.front_mut().and_then(Batch::news);
        let taken = queue.taken_beyond(settled);
        self.tell_both(table, settled, taken);
    }

    fn settle(&mut self, table: &Arc<str>, id: u64, outcome: Outcome) {
        let Some(mut queue) = self.queues.remove(table) else {
            return;
        };
        if let Some(batch) = queue.find(id).filter(|batch| batch.outcome.is_none()) {
            batch.outcome = Some(outcome);
        }
        while let Some((batch, outcome)) = queue.next_ended() {
            self.backlog.remove(&batch.load);
            queue.taken = queue.taken.max(batch.number);
            self.tell(table, batch.number, outcome);
        }
        // What was noted of the next while it was not the first.
        let settled = queue.batches.front_mut().and_then(Batch::news);
        let taken = queue.taken_beyond(settled);
        self.tell_both(table, settled, taken);
        if !queue.batches.is_empty() {
            self.queues.insert(Arc::clone(table), queue);
        }
    }

    fn tell_both(&mut self, table: &str, settled: Option<u64>, taken: Option<u64>) {
        if let Some(number) = settled {
            self.tell(table, number, Ok(()));
        }
        if let Some(number) = taken {
            self.news.take(table, number, None);
        }
    }

    fn tell(&mut self, table: &str, number: u64, outcome: Outcome) {
        self.news.add(table, number, outcome.err());
    }

    /// True when there is something to tell.
    pub(super) fn has_reply(&self) -> bool {
        self.news.len() > 0
    }

    pub(super) fn next_reply(&mut self) -> Option<pb::InsertResponse> {
        self.news.next_reply()
    }

    /// Takes what waits out of its tables; what is left is to be told: also of items that went in
    /// since anybody looked.
    pub(super) fn withdraw(mut self) -> News {
        let mut waits: Vec<Wait> = std::mem::take(&mut self.waits).into_iter().collect();
        // Of each table, the last first: none may go in past one that is withdrawn.
        waits.sort_unstable_by(|a, b| b.place().cmp(&a.place()));
        let ends: Vec<_> = waits.into_iter().filter_map(Wait::withdraw).collect();
        for end in ends.into_iter().rev() {
            self.note(end);
        }
        self.news
    }
}

/// Waits until there is room, or for a while where nothing can be written.
async fn less(room: &mut Option<JournalSpace>) {
    if let Some(wait) = room {
        match wait.await {
            Ok(()) => *room = None,
            Err(_) => sleep(AGAIN).await,
        }
    }
}

fn outcome_out(outcome: Result<(), Error>) -> Outcome {
    outcome.map_err(|error| refusal(&error, TEXT))
}

#[cfg(test)]
mod tests;
