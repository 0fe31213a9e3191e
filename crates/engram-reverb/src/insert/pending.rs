//! Items that wait for their table, or to be safe there.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engram_core::Result;
use engram_engine::{InsertTicket, Table};
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::sleep;

use crate::service::Shared;

/// How often items that wait look for others that have expired meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// How long to wait before what could not be made safe is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// Bytes of chunks that may wait before no more is read. Chunks that several items have count for each.
const MAX_BYTES: usize = 256 << 20;

/// Items of streams that have ended, over all of them, that still go in. The others are given up.
const MAX_ORPHANS: usize = 100_000;

/// Their bytes, counted in the same way.
const MAX_ORPHAN_BYTES: usize = 1 << 30;

/// An item's key and bytes, once it is in and safe.
type Wait = Pin<Box<dyn Future<Output = (usize, Result<u64>)> + Send>>;

/// What one stream waits for.
pub(super) struct Pending {
    waits: FuturesUnordered<Wait>,
    bytes: usize,
    /// How many may wait before no more is read, by the last item's table.
    most: usize,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            waits: FuturesUnordered::new(),
            bytes: 0,
            most: 1,
        }
    }
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// May more be read? As many items may wait as dm-reverb lets.
    pub(super) fn has_room(&self) -> bool {
        self.is_empty() || self.waits.len() < self.most && self.bytes < MAX_BYTES
    }

    /// An item on its way into its table.
    pub(super) fn add(&mut self, key: u64, bytes: usize, ticket: InsertTicket) {
        self.most = most(ticket.table());
        self.bytes += bytes;
        let wait = async move { (bytes, insert(ticket).await.map(|()| key)) };
        self.waits.push(Box::pin(wait));
    }

    /// An item that was there.
    pub(super) fn add_update(&mut self, table: &Arc<Table>, key: u64) {
        self.most = most(table);
        let table = Arc::clone(table);
        self.waits.push(Box::pin(async move {
            while table.safe().await.is_err() {
                again().await;
            }
            (0, Ok(key))
        }));
    }

    /// The next item that is in, or what it failed with.
    pub(super) async fn next(&mut self) -> Option<Result<u64>> {
        let (bytes, done) = self.waits.next().await?;
        self.bytes -= bytes;
        Some(done)
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
    let expires = ticket.table().options().ttl.is_some();
    loop {
        tokio::select! {
            biased;
            outcome = &mut ticket => match outcome {
                // In, and not safe now.
                Err(_) if ticket.is_applied() => again().await,
                outcome => return outcome,
            },
            // Asking again removes what has expired, which may make room.
            () = sleep(GLANCE), if expires => {}
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
