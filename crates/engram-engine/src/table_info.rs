//! Statistics of a table.

use std::sync::Arc;

use engram_core::{DrawDistribution, TableOptions, TableStats};

use crate::rejected_calls::RejectionReason;
use crate::table_user::TableUserInfo;

/// A table's options, counters and rates at one moment.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// Options that the table was created with. Its limits may have changed since: see `stats`.
    pub options: Arc<TableOptions>,
    /// Sizes and counters.
    pub stats: TableStats,
    /// The distribution of the next draw.
    pub distribution: DrawDistribution,
    /// Inserts per second over the last few seconds.
    pub inserts_per_s: f64,
    /// Samples per second over the last few seconds.
    pub samples_per_s: f64,
    /// Number of items removed because they could not be read, since the table was created, opened or
    /// reset.
    pub unreadable_items: u64,
    /// Number of writers and insert calls whose items wait: an outbox or session counts once.
    pub waiting_inserts: usize,
    /// Number of waiting sample calls.
    pub waiting_samples: usize,
    /// Why inserts are blocked now; `None` if they are not.
    pub inserting_blocked: Option<String>,
    /// Why samples are blocked now; `None` if they are not.
    pub sampling_blocked: Option<String>,
    /// Why changes are not stored durably now, as far as is known (see
    /// [`Engine::check_storage`](crate::Engine::check_storage)); `None` if they are, or for a store in memory.
    pub storage_problem: Option<String>,
    /// The writers and readers that use the table over the network, at most 1,000: the most recently active one first.
    pub users: Vec<TableUserInfo>,
    /// How many calls were rejected for which reason, since the table was created, opened or reset.
    pub rejected_calls: Vec<(RejectionReason, u64)>,
}
