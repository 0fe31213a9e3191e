//! Leases: sampled items that are not yet acknowledged.
//!
//! ```text
//!                     ┌─ acknowledge ──► the sample is final
//! sample ──► leased ──┤
//!                     └─ drop ─────────► the item is available again, as if it had not been sampled
//! ```

use std::sync::Arc;

use engram_core::gather::{Columns, Estimate, LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{Draw, Error, Result};

use crate::table::Table;
use crate::ticket::UntilDurable;
use crate::unreadable::UnreadableItems;

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

    /// Like [`Self::gather`], for draws whose batch was estimated. `estimate` must be that of these draws.
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
    /// again and again. The draws of these items are final; the other items of a lease return to the table.
    ///
    /// Returns the error to report: if items were removed, it names the table and these items, otherwise it is
    /// `error`.
    #[must_use]
    pub fn remove_unreadable(mut self, error: Error, pool: &Arc<Pool>) -> Error {
        if !matches!(error, Error::Payload(_)) {
            return error;
        }
        let Some(unreadable) = UnreadableItems::find(&self.draws, pool) else {
            return error;
        };
        let name = &self.table.options().name;
        let handles = self.draws.iter().zip(unreadable.flags());
        let handles =
            handles.filter_map(|(draw, is_unreadable)| is_unreadable.then_some(draw.handle));
        let handles: Vec<_> = handles.collect();
        let text = unreadable.describe(
            name,
            &self.draws,
            " cannot be read and was removed",
            " cannot be read and were removed",
        );
        self.table.remove_unreadable(&handles);
        if let Some(lease) = self.lease.take() {
            lease.acknowledge_each(unreadable.flags());
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

    /// True if the acknowledgement must be durable: it may remove items from a durable store, and after a
    /// restart these items must not be sampled again.
    #[must_use]
    pub fn needs_durable_acknowledgement(&self) -> bool {
        self.table.options().max_times_sampled > 0 && self.table.sink.is_durable()
    }

    /// Makes all samples final. Returns a future that is ready once that is durable, if it must be:
    /// see [`Self::needs_durable_acknowledgement`].
    #[expect(
        clippy::must_use_candidate,
        reason = "not every caller waits until it is durable"
    )]
    pub fn acknowledge(mut self) -> Option<UntilDurable> {
        let handles = std::mem::take(&mut self.handles);
        self.table.acknowledge(&handles);
        self.needs_durable_acknowledgement()
            .then(|| self.table.until_durable())
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
