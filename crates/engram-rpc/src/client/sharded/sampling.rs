//! One sample: its requests to the shards, and what happens if a shard has too few items or cannot be reached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::gather::Columns;
use engram_core::text::count;
use engram_core::{Error, Result};
use engram_engine::{Batch, SampleOptions};
use futures_util::future::{BoxFuture, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use super::draws::{ShardDraws, divide};
use super::lease::ShardedLease;
use super::{MAX_TOTALS_AGE, ShardedTables, deadline, merge};
use crate::client::pending_sample::BatchRequest;
use crate::client::sample_requests::{LeasedBatch, SampleRequests};

/// First wait for shards that block, before the totals are checked again; doubled after each check.
const FIRST_CHECK: Duration = Duration::from_millis(50);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// What the error of a shard that had too few items states about those that it had.
const RETURNED: &str = "; they were returned to it";

/// How long a sample that has enough items waits for the rest.
const REST_TIMEOUT: Duration = Duration::from_millis(5);

/// Extra time after the deadline for the replies of servers.
const REPLY_GRACE: Duration = Duration::from_millis(750);

/// A batch whose items are from several shards.
pub type ShardedBatch = LeasedBatch<ShardedLease>;

/// The reply of one shard.
type Reply = (ShardDraws, Result<LeasedBatch>);

/// A sample that is not complete.
pub(super) struct ShardedSample {
    tables: Arc<ShardedTables>,
    /// One per shard.
    requests: Vec<SampleRequests>,
    request: BatchRequest,
    deadline: Option<Instant>,
    parts: Vec<(ShardDraws, LeasedBatch)>,
    /// Number of items of `parts`.
    items: usize,
    turn: Turn,
}

/// The place of a sample among those that keep the order of a table: it begins when the previous one has ended.
#[derive(Debug, Default)]
pub(super) struct Turn {
    previous: Option<oneshot::Receiver<()>>,
    /// Dropped at the end of the sample.
    own: Option<oneshot::Sender<()>>,
}

impl Turn {
    /// Returns the turn after that of `last`, which is updated.
    pub(super) fn after(last: &mut Option<oneshot::Receiver<()>>) -> Self {
        let (own, next) = oneshot::channel();
        Self {
            previous: last.replace(next),
            own: Some(own),
        }
    }
}

impl ShardedSample {
    pub(super) fn new(
        tables: Arc<ShardedTables>,
        requests: Vec<SampleRequests>,
        request: BatchRequest,
        turn: Turn,
    ) -> Self {
        Self {
            turn,
            tables,
            requests,
            deadline: deadline(&request),
            request,
            parts: Vec::new(),
            items: 0,
        }
    }

    /// Samples items from the shards, in proportion to their weights. If a shard cannot be reached, its share is drawn
    /// from the others.
    ///
    /// # Errors
    /// Those of a shard, whose text names it; all items return to their tables.
    pub(super) async fn run(mut self) -> Result<ShardedBatch> {
        let Turn { previous, own } = std::mem::take(&mut self.turn);
        if let Some(previous) = previous {
            // An error, because the sender was dropped.
            let _ = previous.await;
        }
        let sampled = self.collect().await;
        drop(own);
        sampled?;
        self.finish()
    }

    /// Receives parts with enough items.
    async fn collect(&mut self) -> Result<()> {
        let mut max_age = MAX_TOTALS_AGE;
        // The error of a shard that had too few items in time.
        let mut late = None;
        while !self.is_complete() {
            self.refresh(max_age).await?;
            self.check_size()?;
            let draws = self.divide();
            max_age = Duration::ZERO;
            if draws.is_empty() {
                match late {
                    Some(error) => return Err(error),
                    None => self.wait_for_items().await?,
                }
                continue;
            }
            match self.draw(draws).await? {
                Some(error) if late.is_some() && !self.is_complete() => return Err(error),
                // Another shard may have items that were not known.
                Some(error) => late = Some(error),
                None => max_age = MAX_TOTALS_AGE,
            }
        }
        Ok(())
    }

    /// Checks that the items of full tables may be sampled so often.
    fn check_size(&self) -> Result<()> {
        let (table, at_least) = (&self.request.table, self.request.options.at_least);
        let most = self
            .tables
            .with_totals(table, |totals| totals.most_samples());
        if most.is_none_or(|most| at_least as u64 <= most) {
            return Ok(());
        }
        Err(Error::Unsatisfiable(format!(
            "table `{table}` can never yield {} at once: all shards together allow {}, `max_size` times \
             `max_times_sampled`",
            count(at_least, "sample"),
            most.unwrap_or(0)
        )))
    }

    /// Adds the items of other shards to the error of one that had too few in time.
    fn late_error(&self, text: &str) -> Error {
        let SampleOptions {
            n,
            at_least,
            timeout,
            ..
        } = self.request.options;
        let text = text.replace(RETURNED, "");
        let reason = text.find("; ").map_or("", |end| &text[end..]);
        let had = text
            .split_once(" had ")
            .and_then(|(_, had)| had.split(' ').next());
        let had = self.items + had.and_then(|had| had.parse().ok()).unwrap_or(0);
        let minimum = if at_least < n {
            format!(" (at least {at_least} needed)")
        } else {
            String::new()
        };
        let returned = if had > 0 { RETURNED } else { "" };
        Error::DeadlineExceeded(format!(
            "table `{}` had {had} of {} available within {} s{minimum}{returned}{reason}",
            self.request.table,
            count(n, "sample"),
            timeout.unwrap_or(f64::INFINITY)
        ))
    }

    fn is_complete(&self) -> bool {
        self.items >= self.request.options.at_least
    }

    /// Refreshes the totals of the table.
    async fn refresh(&self, max_age: Duration) -> Result<()> {
        let refresh = self.tables.refresh(&self.request.table, max_age);
        let Some(deadline) = self.deadline else {
            return refresh.await;
        };
        let reply_by = tokio::time::Instant::from_std(deadline + REPLY_GRACE);
        let began = Instant::now();
        let refreshed = tokio::time::timeout_at(reply_by, refresh).await;
        refreshed.unwrap_or_else(|_| {
            let max_age = max_age + began.elapsed();
            Err(self.tables.no_reply(&self.request, max_age))
        })
    }

    fn divide(&self) -> Vec<ShardDraws> {
        let n = self.request.options.n - self.items;
        let tables = &self.tables;
        tables.with_totals(&self.request.table, |totals| {
            for shard in 0..totals.shards.len() {
                if !tables.is_reachable(shard) {
                    totals.set_unreachable(shard);
                }
            }
            divide(totals, n, tables.items_per_request, || tables.random())
        })
    }

    /// The request of this many items from a shard.
    fn request_for(&self, items: usize, at_least: usize, lease: bool) -> BatchRequest {
        let remaining = self.deadline.map(|deadline| {
            let remaining = deadline.saturating_duration_since(Instant::now());
            remaining.as_secs_f64()
        });
        let given = self.request.options.timeout;
        BatchRequest {
            options: SampleOptions {
                n: items,
                at_least,
                lease,
                // The text of an error contains the timeout: the first requests have it as given.
                timeout: remaining.map(|remaining| match given {
                    Some(given) if given - remaining < 0.05 => given,
                    _ => remaining,
                }),
            },
            ..self.request.clone()
        }
    }

    /// Draws items. Returns the error of a shard that had too few of them in time.
    async fn draw(&mut self, draws: Vec<ShardDraws>) -> Result<Option<Error>> {
        let options = self.request.options;
        let is_partial = options.at_least < options.n;
        let mut replies = FuturesUnordered::new();
        let mut pending = Vec::new();
        for draw in draws {
            let at_least = if is_partial { 1 } else { draw.items };
            let request = self.request_for(draw.items, at_least, options.lease || is_partial);
            let ticket = self.requests[draw.shard].send(request);
            let (cancel, cancelled) = oneshot::channel::<()>();
            pending.push((draw.shard, cancel));
            replies.push(async move {
                tokio::select! {
                    biased;
                    reply = ticket => Some((draw, reply)),
                    _ = cancelled => None,
                }
            });
        }
        let (mut late, mut check_in) = (None, FIRST_CHECK);
        loop {
            let wait = if self.is_complete() {
                REST_TIMEOUT
            } else {
                check_in
            };
            match tokio::time::timeout(wait, replies.next()).await {
                Ok(Some(Some((draw, reply)))) => {
                    pending.retain(|(shard, _)| *shard != draw.shard);
                    late = self.handle((draw, reply))?.or(late);
                }
                Ok(Some(None)) => {}
                Ok(None) => return Ok(late),
                Err(_) if self.is_complete() => return Ok(late),
                Err(_) => {
                    check_in = MAX_CHECK_INTERVAL.min(check_in * 2);
                    self.cancel_empty(&mut pending).await?;
                }
            }
        }
    }

    /// Handles the reply of a shard; returns its error if it had too few items in time.
    fn handle(&mut self, (draw, reply): Reply) -> Result<Option<Error>> {
        let table = &self.request.table;
        match reply {
            Ok(batch) => {
                (self.tables).with_totals(table, |totals| {
                    totals.set_from_batch(draw.shard, &batch.batch.infos);
                });
                self.items += batch.batch.infos.len();
                self.parts.push((draw, batch));
                Ok(None)
            }
            Err(Error::Unavailable(_)) => {
                self.tables.note_unreachable(draw.shard);
                Ok(None)
            }
            Err(Error::DeadlineExceeded(text)) => Ok(Some(self.late_error(&text))),
            Err(error) => Err(self.tables.of_shard(draw.shard, &error)),
        }
    }

    /// Cancels the requests to shards that have no items any more, or cannot be reached: others may have some.
    async fn cancel_empty(&self, pending: &mut Vec<(usize, oneshot::Sender<()>)>) -> Result<()> {
        let table = &self.request.table;
        // Not of shards that do not respond: their requests fail by themselves.
        let responding = tokio::time::timeout(
            MAX_CHECK_INTERVAL,
            self.tables.refresh(table, MAX_TOTALS_AGE),
        );
        if let Ok(refreshed) = responding.await {
            refreshed?;
        }
        let weights = self.tables.with_totals(table, |totals| totals.weights());
        if weights.iter().any(|weight| *weight > 0.0) {
            pending.retain(|(shard, _)| weights[*shard] > 0.0);
        }
        Ok(())
    }

    /// Waits until a shard has an item that can be sampled, without sampling it.
    ///
    /// # Errors
    /// [`Error::DeadlineExceeded`] if no shard has one in time.
    async fn wait_for_items(&self) -> Result<()> {
        let shards = (0..self.requests.len()).filter(|shard| self.tables.is_reachable(*shard));
        let requests = shards.map(
            |shard| -> BoxFuture<'static, (usize, Result<LeasedBatch>)> {
                let request = self.request_for(self.request.options.n, 1, true);
                let ticket = self.requests[shard].send(request);
                Box::pin(async move { (shard, ticket.await) })
            },
        );
        let mut requests: Vec<_> = requests.collect();
        let mut outcome = Ok(());
        while !requests.is_empty() {
            let ((shard, reply), _, others) = select_all(requests).await;
            outcome = match reply {
                // Dropping the leases returns the items.
                Ok(_) => return Ok(()),
                Err(Error::Unavailable(_)) => {
                    self.tables.note_unreachable(shard);
                    outcome
                }
                Err(Error::DeadlineExceeded(text)) => Err(self.late_error(&text)),
                Err(error) => return Err(self.tables.of_shard(shard, &error)),
            };
            requests = others;
        }
        outcome
    }

    /// Merges the parts.
    fn finish(self) -> Result<ShardedBatch> {
        let Self {
            tables,
            request,
            mut parts,
            ..
        } = self;
        parts.sort_by_key(|(draw, _)| draw.shard);
        let (size, distribution) = tables.with_totals(&request.table, |totals| {
            let distribution = totals.is_weighted().then(|| totals.distribution());
            (totals.size(), distribution)
        });
        let received = parts.iter().map(|(_, part)| part.received).min();
        let mut columns: Vec<(Columns, usize)> = Vec::with_capacity(parts.len());
        let mut infos = Vec::with_capacity(request.options.n);
        let mut leases = Vec::with_capacity(parts.len());
        for (draw, part) in parts {
            let items = part.batch.infos.len();
            infos.extend(part.batch.infos.into_iter().map(|mut info| {
                info.probability *= draw.share;
                info.table_size = size;
                info.distribution = distribution.unwrap_or(info.distribution);
                info
            }));
            columns.push((part.batch.columns, items));
            leases.push((items, part.lease));
        }
        let columns = merge::merge(columns, request.length_policy, tables.clients[0].pool())?;
        Ok(ShardedBatch {
            batch: Batch { columns, infos },
            lease: ShardedLease(leases),
            received: received.unwrap_or_else(Instant::now),
        })
    }
}
