//! Leases: sampled items that are not yet acknowledged.
//!
//! ```text
//!                     ┌─ acknowledge ──► the sample is final
//! sample ──► leased ──┤
//!                     └─ drop ─────────► the item is available again, as if it had not been sampled
//! ```

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use engram_core::gather::{Columns, Estimate, LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::text::count;
use engram_core::{Draw, Error, Result};

use crate::table::Table;
use crate::ticket::UntilDurable;

/// Maximum number of keys in the error about unreadable items.
const MAX_LISTED_KEYS: usize = 10;

/// Result of a sampling call.
#[derive(Debug)]
pub struct Sample {
    /// The table of the items.
    pub table: Arc<Table>,
    /// The drawn items: as many as requested; fewer if the call has a smaller minimum; possibly none for
    /// [`SampleTicket::take_partial`](crate::SampleTicket::take_partial).
    pub draws: Vec<Draw>,
    /// Their lease, if one was requested.
    pub lease: Option<Lease>,
}

impl Sample {
    /// Copies the items into columns.
    ///
    /// # Errors
    /// Those of [`gather`], as converted by [`Self::remove_unreadable`]. The items that it did not remove return to
    /// the table if they were leased.
    pub fn gather(self, length_policy: LengthPolicy, pool: &Arc<Pool>) -> Result<(Columns, Self)> {
        let columns = gather(&self.draws, length_policy, pool);
        self.with_columns(columns, pool)
    }

    /// [`Self::gather`] with an estimate of the bytes of the batch of these draws.
    ///
    /// # Errors
    /// As [`Self::gather`].
    pub fn gather_estimated(
        self,
        estimate: &Estimate,
        pool: &Arc<Pool>,
    ) -> Result<(Columns, Self)> {
        let columns = estimate.gather(&self.draws, pool);
        self.with_columns(columns, pool)
    }

    fn with_columns(self, columns: Result<Columns>, pool: &Arc<Pool>) -> Result<(Columns, Self)> {
        match columns {
            Ok(columns) => Ok((columns, self)),
            Err(error) => Err(self.remove_unreadable(error, pool)),
        }
    }

    /// Handles the error of a sample that could not be gathered. If it is [`Error::Payload`], removes the
    /// items whose stored bytes are corrupt from their table: otherwise, a queue would return the same items
    /// again and again. Their samples are final; the other items of a lease return to the table.
    ///
    /// Returns the error to report, which names the table and the removed items.
    #[must_use]
    pub fn remove_unreadable(mut self, error: Error, pool: &Arc<Pool>) -> Error {
        if !matches!(error, Error::Payload(_)) {
            return error;
        }
        let cause = |draw: &Draw| {
            let gathered = gather(std::slice::from_ref(draw), LengthPolicy::Ragged, pool);
            match gathered {
                Err(Error::Payload(cause)) => Some(cause),
                _ => None,
            }
        };
        let causes: Vec<Option<String>> = self.draws.iter().map(cause).collect();
        let unreadable = self.draws.iter().zip(&causes);
        let unreadable: Vec<(&Draw, &String)> = unreadable
            .filter_map(|(draw, cause)| Some((draw, cause.as_ref()?)))
            .collect();
        let Some((first, cause)) = unreadable.first() else {
            return error;
        };
        // An item may have been drawn several times.
        let mut distinct = HashSet::new();
        let keys = unreadable.iter().map(|(draw, _)| draw.key);
        let keys: Vec<u64> = keys.filter(|key| distinct.insert(*key)).collect();
        let table = &self.table.options().name;
        let text = if let [key] = *keys {
            format!("item {key} of table `{table}` cannot be read and was removed: {cause}")
        } else {
            let listed = keys.iter().take(MAX_LISTED_KEYS).map(u64::to_string);
            let mut listed = listed.collect::<Vec<_>>().join(", ");
            let others = keys.len().saturating_sub(MAX_LISTED_KEYS);
            if others > 0 {
                let _ = write!(listed, " and {}", count(others, "other"));
            }
            format!(
                "items {listed} of table `{table}` cannot be read and were removed; item {}: {cause}",
                first.key
            )
        };
        let handles: Vec<_> = unreadable.iter().map(|(draw, _)| draw.handle).collect();
        self.table.remove_unreadable(&handles);
        if let Some(lease) = self.lease.take() {
            lease.acknowledge_each(causes.iter().map(Option::is_some));
        }
        Error::Payload(text)
    }
}

/// Leased draws. Acknowledging them makes the samples final; dropping the lease returns the items to
/// their table.
#[derive(Debug)]
pub struct Lease {
    table: Arc<Table>,
    handles: Vec<engram_core::Handle>,
}

impl Lease {
    pub(crate) fn new(table: &Arc<Table>, draws: &[Draw]) -> Self {
        let handles = draws.iter().map(|draw| draw.handle).collect();
        Self {
            table: Arc::clone(table),
            handles,
        }
    }

    /// Moves the first `n` draws (or all, if there are fewer) to a new lease.
    #[must_use]
    pub fn split_first(&mut self, n: usize) -> Self {
        let rest = self.handles.split_off(n.min(self.handles.len()));
        Self {
            table: Arc::clone(&self.table),
            handles: std::mem::replace(&mut self.handles, rest),
        }
    }

    /// True if the acknowledgement must be durable: it removes items from a durable store, and after a
    /// restart these items must not be sampled again.
    #[must_use]
    pub fn removes_durably(&self) -> bool {
        self.table.options().max_times_sampled > 0 && self.table.sink.is_durable()
    }

    /// Makes all samples final. Returns a future that is ready once that is durable, if it must be:
    /// see [`Self::removes_durably`].
    #[expect(
        clippy::must_use_candidate,
        reason = "not every caller waits until it is durable"
    )]
    pub fn acknowledge(mut self) -> Option<UntilDurable> {
        let handles = std::mem::take(&mut self.handles);
        self.table.acknowledge(&handles);
        self.removes_durably().then(|| self.table.until_durable())
    }

    /// Makes the samples final for which `is_final` yields true, and returns the other items to the table.
    fn acknowledge_each(mut self, mut is_final: impl Iterator<Item = bool>) {
        let handles = std::mem::take(&mut self.handles);
        let (acknowledged, returned): (Vec<_>, Vec<_>) = handles
            .into_iter()
            .partition(|_| is_final.next().unwrap_or(false));
        self.handles = returned;
        self.table.acknowledge(&acknowledged);
    }

    /// Makes the first `n` samples final (or all, if there are fewer) and returns the other items to the table.
    /// The result is that of [`Self::acknowledge`].
    #[expect(
        clippy::must_use_candidate,
        reason = "not every caller waits until it is durable"
    )]
    pub fn acknowledge_first(mut self, n: usize) -> Option<UntilDurable> {
        self.split_first(n).acknowledge()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            self.table.return_leases(&self.handles);
        }
    }
}
