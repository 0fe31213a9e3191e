//! The items of insert streams that are queued for their tables or not durable yet.

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
use tokio::sync::watch;
use tokio::time::sleep;

/// Pause before waiting again until an item is durable, after the journal could not be written.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Number of pending items of a stream, over all tables, at which it stops reading.
const MAX_ITEMS: usize = 10_000;

/// Number of bytes at which a stream stops reading: those that its pending items keep alive. Shared chunks count for
/// each item, and an item that only updates a priority counts as 0.
const MAX_BYTES: usize = 256 << 20;

/// Maximum number of pending items of all streams that have ended; the items of further streams are
/// dropped.
const MAX_ORPHANS: usize = 100_000;

/// Maximum number of bytes of such items, counted as in [`MAX_BYTES`].
const MAX_ORPHAN_BYTES: usize = 1 << 30;

/// A pending item that was inserted or failed.
struct Completed {
    /// Address of its table.
    table: usize,
    /// Bytes of the item, counted as for [`MAX_BYTES`].
    bytes: usize,
    /// The item's key as the writer sent it, or why the item failed.
    key: Result<u64>,
}

/// Completes once an item is inserted and durable, or has failed.
type PendingItem = Pin<Box<dyn Future<Output = Completed> + Send>>;

/// The pending items of one stream.
#[derive(Default)]
pub(super) struct PendingItems {
    items: FuturesUnordered<PendingItem>,
    /// Bytes of the items, counted as for [`MAX_BYTES`].
    bytes: usize,
    /// The tables of the items, by address.
    tables: HashMap<usize, PendingTable>,
    /// Address of the last item's table; 0 before the first item.
    last_table: usize,
}

/// A table that has pending items.
struct PendingTable {
    table: Arc<Table>,
    /// Number of its pending items.
    items: usize,
}

impl PendingItems {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// True if the stream may read more. The last item's table may have as many pending items as
    /// dm-reverb allows; items of other tables count only towards the limits of the stream.
    pub(super) fn has_room(&self) -> bool {
        let last = self.tables.get(&self.last_table);
        let is_below = last.is_none_or(|last| last.items < max_pending(&last.table));
        is_below && self.items.len() < MAX_ITEMS && self.bytes < MAX_BYTES
    }

    /// Adds an item that is queued for its table.
    pub(super) fn add(&mut self, key: u64, bytes: usize, ticket: InsertTicket) {
        let table = self.count(ticket.table(), bytes);
        self.items.push(Box::pin(async move {
            let key = until_inserted(ticket).await.map(|()| key);
            Completed { table, bytes, key }
        }));
    }

    /// Adds an item that existed and got a new priority, which is not durable yet.
    pub(super) fn add_update(&mut self, table: &Arc<Table>, key: u64) {
        let address = self.count(table, 0);
        let table = Arc::clone(table);
        self.items.push(Box::pin(async move {
            while table.until_durable().await.is_err() {
                retry_delay().await;
            }
            Completed {
                table: address,
                bytes: 0,
                key: Ok(key),
            }
        }));
    }

    /// Counts a new item of a table; returns the table's address.
    fn count(&mut self, table: &Arc<Table>, bytes: usize) -> usize {
        self.bytes += bytes;
        self.last_table = Arc::as_ptr(table).addr();
        let pending = self
            .tables
            .entry(self.last_table)
            .or_insert_with(|| PendingTable {
                table: Arc::clone(table),
                items: 0,
            });
        pending.items += 1;
        self.last_table
    }

    /// Waits until an item is inserted and durable or has failed; returns its key or the error. `None` if none is
    /// pending.
    pub(super) async fn next(&mut self) -> Option<Result<u64>> {
        let completed = self.items.next().await?;
        self.bytes -= completed.bytes;
        if let Entry::Occupied(mut pending) = self.tables.entry(completed.table) {
            pending.get_mut().items -= 1;
            if pending.get().items == 0 {
                pending.remove();
            }
        }
        Some(completed.key)
    }

    /// Like [`Self::next`], but does not wait: also `None` if no item is done now.
    pub(super) fn next_now(&mut self) -> Option<Result<u64>> {
        self.next().now_or_never().flatten()
    }
}

/// Number of queued items of a table at which dm-reverb blocks the streams that insert into it.
fn max_pending(table: &Table) -> usize {
    let max = (table.options().max_size / 10).clamp(1, 1000);
    usize::try_from(max).unwrap_or(1)
}

/// Waits until an item is inserted and durable, or has failed.
async fn until_inserted(mut ticket: InsertTicket) -> Result<()> {
    loop {
        match (&mut ticket).await {
            // Inserted, but not durable yet.
            Err(_) if ticket.is_applied() => retry_delay().await,
            outcome => return outcome,
        }
    }
}

/// Pauses after the journal could not be written.
pub(super) async fn retry_delay() {
    sleep(RETRY_DELAY).await;
}

/// Counts the pending items of streams that have ended, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct OrphanedItems {
    items: AtomicUsize,
    bytes: AtomicUsize,
}

impl OrphanedItems {
    /// Waits in a new task until the pending items of a stream that ends are inserted. Drops these items instead if the
    /// streams that have ended have too many, or once the server is `stopped`.
    pub(super) fn adopt(
        self: &Arc<Self>,
        mut stopped: watch::Receiver<bool>,
        mut pending: PendingItems,
    ) {
        let (items, bytes) = (pending.items.len(), pending.bytes);
        if items == 0 {
            return;
        }
        let total = self.items.fetch_add(items, Ordering::Relaxed) + items;
        let total_bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let orphans = Arc::clone(self);
        let keep = total <= MAX_ORPHANS && total_bytes <= MAX_ORPHAN_BYTES;
        tokio::spawn(async move {
            if keep {
                tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                    () = async { while pending.next().await.is_some() {} } => {}
                }
            }
            drop(pending);
            orphans.items.fetch_sub(items, Ordering::Relaxed);
            orphans.bytes.fetch_sub(bytes, Ordering::Relaxed);
        });
    }
}
