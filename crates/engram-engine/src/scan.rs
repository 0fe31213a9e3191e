//! Scans: read the items of a table once, as they are when the scan begins.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::gather::batchable_prefix;
use engram_core::pool::Pool;
use engram_core::table::{MAX_KEYS_PER_LOOKUP, ScanItems, ScanOrder, SnapshotParts};
use engram_core::{Draw, Error, Result};

use crate::peek::{Peek, PeekOptions, peek};
use crate::table::Table;
use crate::unreadable::UnreadableItems;

/// Parts of the error's text for one and for several unreadable items.
const ONE_LEFT_OUT: &str = " cannot be read, and the scan leaves it out";
const SEVERAL_LEFT_OUT: &str = " cannot be read, and the scan leaves them out";

/// Which items a scan reads, and in which order.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// The order of the items.
    pub order: ScanOrder,
    /// Only the items with these keys; unknown keys are ignored. `None`: all items.
    pub keys: Option<Vec<u64>>,
    /// Only the first items in an order of their own, of those with `keys` if there are any; then `order` is not used.
    pub peek: Option<PeekOptions>,
}

/// The items of a table at one moment. Reading them changes nothing.
///
/// Holds the memory of the items that were not returned yet, also of those that the table removes meanwhile.
#[derive(Debug)]
pub struct Scan {
    table: Arc<Table>,
    num_items: u64,
    peek: Option<Peek>,
    items: ScanItems,
    /// The next items, before those of `items`.
    next: Vec<Draw>,
    /// The error of a table that was closed before all items were returned.
    closed: Option<Error>,
}

impl Scan {
    /// Begins a scan. Other calls can use the table meanwhile. Expired items are left out.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::InvalidArgument`] for a peek of too many items.
    pub fn begin(table: &Arc<Table>, options: &ScanOptions) -> Result<Self> {
        let mut scan = Self {
            table: Arc::clone(table),
            num_items: 0,
            peek: None,
            items: ScanItems::default(),
            next: Vec::new(),
            closed: None,
        };
        match (&options.peek, &options.keys) {
            (Some(peek_options), keys) => {
                let (found, items) = peek(table, peek_options, keys.as_deref())?;
                scan.peek = Some(found);
                scan.next = items;
            }
            (None, Some(keys)) if keys.len() <= MAX_KEYS_PER_LOOKUP => {
                scan.next = table.items_with_keys(keys, options.order)?;
            }
            (None, keys) => {
                let keys = keys.as_ref().map(|keys| keys.iter().copied().collect());
                let keys: Option<HashSet<u64>> = keys;
                table.expire()?;
                let snapshot = table.snapshot_of(SnapshotParts::Items)?;
                scan.items = ScanItems::new(snapshot, options.order, keys.as_ref());
            }
        }
        scan.num_items = (scan.items.len() + scan.next.len()) as u64;
        Ok(scan)
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Number of items that the scan reads in total.
    #[must_use]
    pub fn num_items(&self) -> u64 {
        self.num_items
    }

    /// What was found, if this is a peek.
    #[must_use]
    pub fn peek(&self) -> Option<&Peek> {
        self.peek.as_ref()
    }

    /// Returns the next items that can form a batch, from 1 to `n`; none at the end.
    ///
    /// # Errors
    /// [`Error::Closed`] if the table was closed. The memory of the remaining items is then released.
    pub fn next_items(&mut self, n: usize) -> Result<Vec<Draw>> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        if self.next.is_empty() && self.items.is_empty() {
            return Ok(Vec::new());
        }
        if let Err(error) = self.table.check_open() {
            self.next = Vec::new();
            self.items = ScanItems::default();
            self.closed = Some(error.clone());
            return Err(error);
        }
        if let Some(missing) = n.checked_sub(self.next.len()) {
            self.items.take(missing, &mut self.next);
        }
        let first = &self.next[..n.min(self.next.len())];
        let rest = self.next.split_off(batchable_prefix(first));
        Ok(std::mem::replace(&mut self.next, rest))
    }

    /// Handles the error of items that [`Self::next_items`] has returned and that could not be gathered; returns the
    /// error to report. After an [`Error::Payload`], the scan leaves out the items that cannot be read, and the
    /// returned error names them. `next_items` returns all the other items again.
    #[must_use]
    pub fn leave_out_unreadable(
        &mut self,
        mut items: Vec<Draw>,
        error: Error,
        pool: &Arc<Pool>,
    ) -> Error {
        let unreadable = match error {
            Error::Payload(_) => UnreadableItems::find(&items, pool),
            _ => None,
        };
        let reported = unreadable.map_or(error, |unreadable| {
            let name = &self.table.options().name;
            let text = unreadable.describe(name, &items, ONE_LEFT_OUT, SEVERAL_LEFT_OUT);
            let mut is_unreadable = unreadable.flags();
            items.retain(|_| !is_unreadable.next().unwrap_or(false));
            Error::Payload(text)
        });
        items.append(&mut self.next);
        self.next = items;
        reported
    }
}
