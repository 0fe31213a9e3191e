//! The tables of one stream, and how far their rate limiters let the writer go. A client counts items beyond the
//! reported number as waiting, so it sends without waiting for responses while a limiter is open.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use engram_engine::Table;

/// A table that a stream inserts into.
#[derive(Debug)]
struct UsedTable {
    /// Weak, so that a dropped table's memory is freed while the stream is open.
    table: Weak<Table>,
    /// Number of the last item that was passed to the table.
    last_number: u64,
    /// The last number that was reported as allowed; `None` before the first report.
    allowed: Option<u64>,
}

/// The tables that a stream inserts into, by name.
#[derive(Debug, Default)]
pub(super) struct UsedTables(HashMap<Arc<str>, UsedTable>);

impl UsedTables {
    /// Records that items up to a number were passed to a table.
    pub(super) fn record(&mut self, name: &str, table: &Arc<Table>, last_number: u64) {
        if let Some(used) = self.0.get_mut(name) {
            used.last_number = last_number;
            if !std::ptr::eq(used.table.as_ptr(), Arc::as_ptr(table)) {
                // The table was dropped, and another was created with its name.
                used.table = Arc::downgrade(table);
                used.allowed = None;
            }
        } else {
            self.0.retain(|_, used| used.table.strong_count() > 0);
            let used = UsedTable {
                table: Arc::downgrade(table),
                last_number,
                allowed: None,
            };
            self.0.insert(name.into(), used);
        }
    }

    /// Returns the number up to which a table's rate limiter allows items; `None` if it has not changed since the last
    /// call, or the table was dropped. `before_wait` is the number of the last item before the first that waits, which
    /// is then the result. If no item waits, `before_wait` is `None`, and the result is the number of the last item
    /// that was passed to the table plus the number of items that the table could insert now.
    pub(super) fn next_allowed(&mut self, name: &str, before_wait: Option<u64>) -> Option<u64> {
        let used = self.0.get_mut(name)?;
        let allowed = match before_wait {
            Some(number) => number,
            None => used
                .last_number
                .saturating_add(used.table.upgrade()?.inserts_allowed()),
        };
        (used.allowed.replace(allowed) != Some(allowed)).then_some(allowed)
    }
}
