//! The requests of a stream that wait for their table, and those that are served and wait to be gathered.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;

use engram_core::gather::LengthPolicy;
use engram_core::{Error, Result};
use engram_engine::{Engine, Sample, SampleOptions, SampleTicket, Table};
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use crate::server::table_names;
use crate::{MAX_ITEMS_PER_BATCH, pb};

/// A request that was served or has failed.
#[derive(Debug)]
pub(super) struct ServedRequest {
    pub(super) id: u64,
    pub(super) outcome: Result<Sample>,
    pub(super) length_policy: LengthPolicy,
    /// The table of the items; `None` for a request that failed before it was passed to a table.
    table: Option<Arc<Table>>,
}

/// The requests of a stream that wait for their table or to be gathered. The *position* of a request is its number in
/// the order of arrival.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    next_position: u64,
    /// Position of each request, by id.
    positions: HashMap<u64, u64>,
    /// Requests that wait for their table, by position.
    waiting: BTreeMap<u64, WaitingRequest>,
    /// A future per waiting request, which completes once the request is served; empty while the requests are
    /// suspended.
    waits: FuturesUnordered<Abortable<WaitFuture>>,
    /// True while the waiting requests are withdrawn from their tables.
    is_suspended: bool,
    /// Requests that were served or have failed, by position.
    served: BTreeMap<u64, ServedRequest>,
    /// Before this, nothing is drawn from tables from which sampling removes items.
    opens_at: Option<Instant>,
}

#[derive(Debug)]
struct WaitingRequest {
    request: pb::BatchRequest,
    table: Arc<Table>,
    abort: AbortHandle,
}

/// Completes with the position of a request once it is served.
type WaitFuture = Pin<Box<dyn Future<Output = (u64, Result<Sample>)> + Send>>;

impl RequestQueue {
    pub(super) fn opening_at(opens_at: Option<Instant>) -> Self {
        Self {
            opens_at,
            ..Self::default()
        }
    }

    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Number of items of the requests that wait for a table.
    pub(super) fn items_waiting_for(&self, table: &Arc<Table>) -> u64 {
        let waiting = self.waiting.values();
        let requests = waiting.filter(|waiting| Arc::ptr_eq(&waiting.table, table));
        requests.map(|waiting| u64::from(waiting.request.n)).sum()
    }

    /// The ids of all requests, in order of arrival.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> + use<> {
        let ids = self.positions.iter().map(|(id, position)| (*position, *id));
        ids.collect::<BTreeMap<_, _>>().into_values()
    }

    /// Adds a request and passes it to its table. Returns false, and adds nothing, if there is one with the same id.
    pub(super) fn add(&mut self, engine: &Arc<Engine>, request: &pb::BatchRequest) -> bool {
        let (id, position) = (request.id, self.next_position);
        match self.positions.entry(id) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(position),
        };
        self.next_position += 1;
        self.start(engine, position, request.clone());
        true
    }

    /// Passes a request to its table.
    fn start(&mut self, engine: &Arc<Engine>, position: u64, request: pb::BatchRequest) {
        if let Some(opens_at) = self.opens_at.filter(|at| *at > Instant::now())
            && let Ok(table) = engine.table(&request.table)
            && table.options().max_times_sampled > 0
        {
            let (engine, later) = (Arc::clone(engine), request.clone());
            let sampled = async move {
                sleep_until(opens_at).await;
                start_sampling(&engine, &later)?.await
            };
            self.wait_for(position, request, table, sampled);
            return;
        }
        match start_sampling(engine, &request) {
            Ok(ticket) => {
                let table = Arc::clone(ticket.table());
                self.wait_for(position, request, table, ticket);
            }
            Err(error) => {
                self.served
                    .insert(position, served_request(&request, Err(error), None));
            }
        }
    }

    fn wait_for(
        &mut self,
        position: u64,
        request: pb::BatchRequest,
        table: Arc<Table>,
        sampled: impl Future<Output = Result<Sample>> + Send + 'static,
    ) {
        let (abort, registration) = AbortHandle::new_pair();
        let waiting = WaitingRequest {
            request,
            table,
            abort,
        };
        self.waiting.insert(position, waiting);
        let wait: WaitFuture = Box::pin(async move { (position, sampled.await) });
        self.waits.push(Abortable::new(wait, registration));
    }

    /// Withdraws all waiting requests from their tables until [`Self::resume`], because the reader is silent and would
    /// not use the items. Items that they have drawn are returned.
    pub(super) fn suspend(&mut self) {
        self.is_suspended = true;
        // Dropping the futures withdraws their tickets.
        self.waits.clear();
    }

    /// Passes the requests that [`Self::suspend`] withdrew to their tables again. Their timeouts start again.
    pub(super) fn resume(&mut self, engine: &Arc<Engine>) {
        if std::mem::take(&mut self.is_suspended) {
            for (position, waiting) in std::mem::take(&mut self.waiting) {
                self.start(engine, position, waiting.request);
            }
        }
    }

    /// Withdraws a request; items that it has drawn are returned.
    pub(super) fn cancel(&mut self, id: u64) {
        let Some(position) = self.positions.remove(&id) else {
            return;
        };
        if let Some(waiting) = self.waiting.remove(&position) {
            waiting.abort.abort();
        }
        self.served.remove(&position);
    }

    /// Waits until a request is served or a cancelled one has ended; then [`Self::next_served`] may return one. Does
    /// not return if no request is waiting, or the requests are suspended.
    pub(super) async fn progress(&mut self) {
        match self.waits.next().await {
            Some(Ok((position, outcome))) => {
                // The request may have been cancelled.
                if let Some(WaitingRequest { request, table, .. }) = self.waiting.remove(&position)
                {
                    let served = served_request(&request, outcome, Some(table));
                    self.served.insert(position, served);
                }
            }
            Some(Err(_aborted)) => {}
            None => std::future::pending().await,
        }
    }

    /// Removes the next request to answer; `None` if there is none yet. Requests of one table may be served in another
    /// order than that of arrival, so a served request is held up while an earlier one of its table waits. A failed
    /// request is not held up.
    pub(super) fn next_served(&mut self) -> Option<ServedRequest> {
        let position = self.served.iter().find_map(|(position, served)| {
            let is_held_up = served.outcome.is_ok()
                && (self.waiting.range(..position)).any(|(_, earlier)| {
                    let table = served.table.as_ref();
                    table.is_some_and(|table| Arc::ptr_eq(table, &earlier.table))
                });
            (!is_held_up).then_some(*position)
        });
        let served = self.served.remove(&position?)?;
        self.positions.remove(&served.id);
        Some(served)
    }
}

fn served_request(
    request: &pb::BatchRequest,
    outcome: Result<Sample>,
    table: Option<Arc<Table>>,
) -> ServedRequest {
    ServedRequest {
        id: request.id,
        outcome,
        length_policy: if request.pad {
            LengthPolicy::Pad
        } else {
            LengthPolicy::Ragged
        },
        table,
    }
}

fn start_sampling(engine: &Engine, request: &pb::BatchRequest) -> Result<SampleTicket> {
    if let Some(timeout) = request
        .timeout_s
        .filter(|timeout| timeout.is_nan() || *timeout < 0.0)
    {
        return Err(Error::InvalidArgument(format!(
            "`timeout` must be at least 0, or None to wait without limit; got {timeout} s"
        )));
    }
    let table = table_names::find_table(engine, &request.table)?;
    if request.n > MAX_ITEMS_PER_BATCH {
        return Err(Error::InvalidArgument(format!(
            "a batch of table `{}` from a server has at most {MAX_ITEMS_PER_BATCH} items; got {} (`n` or \
             `batch_size`)",
            request.table, request.n
        )));
    }
    let at_least = match request.at_least {
        0 => request.n,
        least => least,
    };
    table.sample_with(SampleOptions {
        n: request.n as usize,
        at_least: at_least as usize,
        lease: request.lease,
        timeout: request.timeout_s,
    })
}

#[cfg(test)]
mod tests {
    use engram_core::{RateLimits, SelectorKind, TableOptions};

    use super::*;

    fn table(name: &str) -> TableOptions {
        TableOptions {
            name: name.into(),
            max_size: 10,
            max_bytes: None,
            max_times_sampled: 0,
            ttl: None,
            sampler: SelectorKind::Fifo,
            remover: SelectorKind::Fifo,
            limits: RateLimits {
                kind: "MinSize".into(),
                samples_per_insert: 1.0,
                min_size: 1,
                min_diff: f64::MIN,
                max_diff: f64::MAX,
            },
            signature: None,
            seed: 1,
            note: None,
        }
    }

    #[test]
    fn a_batch_does_not_overtake_another_of_its_table() {
        let engine = Arc::new(Engine::new(vec![table("a"), table("b")], 1).unwrap());
        let mut queue = RequestQueue::default();
        for (id, name) in [(9, "a"), (8, "a"), (7, "b"), (6, "a")] {
            let (table, n) = (name.into(), 1);
            assert!(queue.add(
                &engine,
                &pb::BatchRequest {
                    id,
                    table,
                    n,
                    ..pb::BatchRequest::default()
                }
            ));
        }
        // Positions 1 to 3 are served before position 0.
        let finish = |queue: &mut RequestQueue, position: u64, outcome| {
            let WaitingRequest { request, table, .. } = queue.waiting.remove(&position).unwrap();
            queue
                .served
                .insert(position, served_request(&request, outcome, Some(table)));
        };
        let served_sample = || {
            Ok(Sample {
                table: engine.table("a").unwrap(),
                draws: vec![],
                lease: None,
            })
        };
        let next = |queue: &mut RequestQueue| queue.next_served().map(|served| served.id);
        finish(&mut queue, 1, served_sample());
        assert_eq!(next(&mut queue), None);
        finish(&mut queue, 2, served_sample());
        finish(&mut queue, 3, Err(Error::DeadlineExceeded("late".into())));
        assert_eq!((next(&mut queue), next(&mut queue)), (Some(7), Some(6)));
        finish(&mut queue, 0, served_sample());
        assert_eq!((next(&mut queue), next(&mut queue)), (Some(9), Some(8)));
        assert_eq!((next(&mut queue), queue.len()), (None, 0));
    }
}
