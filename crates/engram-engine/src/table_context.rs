//! What the tables of an engine share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engram_core::text::count;

use crate::clock::Clock;
use crate::timer::Timer;

/// What the tables of an engine share.
#[derive(Debug)]
pub(crate) struct TableContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timer: Timer,
    /// Number of items in unfinished chunks of in-process writers.
    pub(crate) unsent_items: AtomicU64,
}

/// Returns a text which states that writers hold this many items, of all tables, in unfinished chunks: they can be why
/// a table has fewer items than were appended. `None` for 0 items.
#[must_use]
pub fn unsent_items_note(items: u64) -> Option<String> {
    (items > 0).then(|| {
        let them = if items == 1 { "it" } else { "them" };
        let items = count(items, "item");
        format!("writers hold {items} for this or other tables in unfinished chunks; call `flush` to send {them}")
    })
}
