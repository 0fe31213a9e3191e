//! Items that wait for their table, or to be safe there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engram_core::Result;
use engram_engine::{InsertTicket, Table};
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::service::Shared;

/// How often items that wait look for others that have expired meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// How long to wait before what could not be made safe is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// Items of all tables that may wait before no more is read.
const MAX_ITEMS: usize = 10_000;

/// Their bytes, as far.
const MAX_BYTES: usize = 256 << 20;

/// Items of streams that have ended, over all of them, that still go in. The others are given up.
const MAX_ORPHANS: usize = 100_000;

/// Their bytes, counted in the same way.
const MAX_ORPHAN_BYTES: usize = 1 << 30;

/// What a wait was for, and how it ended.
struct Done {
    table: usize,
    bytes: usize,
    key: Result<u64>,
}

/// An item until it is in and safe.
type Wait = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What one stream waits for.
pub(super) struct Pending {
    waits: FuturesUnordered<Wait>,
    bytes: usize,
    /// The tables that they wait for, by where those lie.
    tables: HashMap<usize, Awaited>,
    /// The last item's table.
    last: usize,
    glance: Interval,
}

/// A table that items wait for.
struct Awaited {
    table: Arc<Table>,
    items: usize,
}

impl Default for Pending {
    fn default() -> Self {
        let mut glance = interval(GLANCE);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            waits: FuturesUnordered::new(),
            bytes: 0,
            tables: HashMap::new(),
            last: 0,
            glance,
        }
    }
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// May more be read? As many items may wait for a table as dm-reverb lets; those that wait for others do not hold
    /// it up until there are very many.
    pub(super) fn has_room(&self) -> bool {
        let last = self.tables.get(&self.last);
        let is_below = last.is_none_or(|last| last.items < most(&last.table));
        is_below && self.waits.len() < MAX_ITEMS && self.bytes < MAX_BYTES
    }

    /// An item on its way into its table.
    pub(super) fn add(&mut self, key: u64, bytes: usize, ticket: InsertTicket) {
        let table = self.count(ticket.table(), bytes);
        self.waits.push(Box::pin(async move {
            let key = insert(ticket).await.map(|()| key);
            Done { table, bytes, key }
        }));
    }

    /// An item that was there.
    pub(super) fn add_update(&mut self, table: &Arc<Table>, key: u64) {
        let number = self.count(table, 0);
        let table = Arc::clone(table);
        self.waits.push(Box::pin(async move {
            while table.until_durable().await.is_err() {
                again().await;
            }
            Done {
                table: number,
                bytes: 0,
                key: Ok(key),
            }
        }));
    }

    fn count(&mut self, table: &Arc<Table>, bytes: usize) -> usize {
        self.bytes += bytes;
        self.last = Arc::as_ptr(table).addr();
        let awaited = self.tables.entry(self.last).or_insert_with(|| Awaited {
            table: Arc::clone(table),
            items: 0,
        });
        awaited.items += 1;
        self.last
    }

    /// The next item that is in, or what it failed with.
    pub(super) async fn next(&mut self) -> Option<Result<u64>> {
        let done = loop {
            let expires = |awaited: &&Awaited| awaited.table.options().ttl.is_some();
            let expiring = self.tables.values().filter(expires);
            let some_expire = expiring.clone().next().is_some();
            tokio::select! {
                biased;
                done = self.waits.next() => break done?,
                // Asking removes what has expired, which may make room.
                _ = self.glance.tick(), if some_expire => {
                    for awaited in expiring {
                        let _ = awaited.table.can_insert(1);
                    }
                }
            }
        };
        self.bytes -= done.bytes;
        if let Entry::Occupied(mut awaited) = self.tables.entry(done.table) {
            awaited.get_mut().items -= 1;
            if awaited.get().items == 0 {
                awaited.remove();
            }
        }
        Some(done.key)
    }

    /// The same, if there is one now.
    pub(super) fn next_now(&mut self) -> Option<Result<u64>> {
        self.next().now_or_never().flatten()
    }
}

/// The length at which dm-reverb's queues of a table hold up the streams that fill them.
fn most(table: &Table) -> usize {
    let most = (table.options().max_size / 10).clamp(1, 1000);
    usize::try_from(most).unwrap_or(1)
}

async fn insert(mut ticket: InsertTicket) -> Result<()> {
    loop {
        match (&mut ticket).await {
            // In, and not safe now.
            Err(_) if ticket.is_applied() => again().await,
            outcome => return outcome,
        }
    }
}

/// Waits before what could not be written is asked for again.
pub(super) async fn again() {
    sleep(AGAIN).await;
}

/// Items whose streams have ended.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    items: AtomicUsize,
    bytes: AtomicUsize,
}

impl Orphans {
    /// Sees to it that what waits goes in, unless there is too much of it.
    pub(super) fn adopt(self: &Arc<Self>, shared: &Arc<Shared>, mut pending: Pending) {
        let (items, bytes) = (pending.waits.len(), pending.bytes);
        if items == 0 {
            return;
        }
        let all = self.items.fetch_add(items, Ordering::Relaxed) + items;
        let all_bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let (orphans, shared) = (Arc::clone(self), Arc::clone(shared));
        let is_taken = all <= MAX_ORPHANS && all_bytes <= MAX_ORPHAN_BYTES;
        tokio::spawn(async move {
            if is_taken {
                tokio::select! {
                    () = shared.stopping() => {}
                    () = async { while pending.next().await.is_some() {} } => {}
                }
            }
            drop(pending);
            orphans.items.fetch_sub(items, Ordering::Relaxed);
            orphans.bytes.fetch_sub(bytes, Ordering::Relaxed);
        });
    }
}
