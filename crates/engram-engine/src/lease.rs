//! Leases: sampled items that are not yet acknowledged.
//!
//! ```text
//!                     ┌─ acknowledge ──► the sample is final
//! sample ──► leased ──┤
//!                     └─ drop ─────────► the item is available again, as if it had not been sampled
//! ```
//!
//! `table.rs` states why it, `ticket.rs` and this file import each other.

use std::sync::Arc;

use engram_core::gather::{Columns, Estimate, LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{Draw, Error, Handle, Result, SampledItemInfo, SessionNumber};

use crate::table::Table;
use crate::ticket::UntilDurable;
use crate::unreadable::UnreadableItems;

/// Items as columns.
#[derive(Debug)]
pub struct Batch {
    /// Data of the items.
    pub columns: Columns,
    /// Key, priority and sampling information of each item.
    pub infos: Vec<SampledItemInfo>,
}

/// Result of a sampling call.
#[derive(Debug)]
pub struct Sample {
    /// The table of the items.
    pub table: Arc<Table>,
    /// The drawn items: as many as requested, or fewer if the call has a smaller minimum.
    pub draws: Vec<Draw>,
    /// Their lease, if one was requested.
    pub lease: Option<Lease>,
}

impl Sample {
    /// Copies the items into a batch; also returns the lease.
    ///
    /// # Errors
    /// Those of [`gather`], as converted by [`Self::remove_unreadable`]. The items that it did not remove are as if they had
    /// not been sampled.
    pub fn gather(
        self,
        length_policy: LengthPolicy,
        pool: &Arc<Pool>,
    ) -> Result<(Batch, Option<Lease>)> {
        let columns = gather(&self.draws, length_policy, pool);
        let (columns, sample) = self.with_columns(columns, pool)?;
        let infos = sample.draws.iter().map(Draw::info).collect();
        Ok((Batch { columns, infos }, sample.lease))
    }

    /// Copies the items into columns, like [`Self::gather`], for draws whose batch was estimated. `estimate` must be
    /// that of these draws.
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
    /// again and again. The draws of these items are final; all others are undone.
    ///
    /// Returns the error to report: if items were removed, it names the table and these items, otherwise it is
    /// `error`.
    #[must_use]
    pub fn remove_unreadable(mut self, error: Error, pool: &Arc<Pool>) -> Error {
        let unreadable = matches!(error, Error::Payload(_))
            .then(|| UnreadableItems::find(&self.draws, pool))
            .flatten();
        let Some(unreadable) = unreadable else {
            self.undo();
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
        } else {
            let draws = std::mem::take(&mut self.draws);
            let readable = draws.into_iter().zip(unreadable.flags());
            self.draws = readable
                .filter_map(|(draw, is_unreadable)| (!is_unreadable).then_some(draw))
                .collect();
            self.undo();
        }
        Error::Payload(text)
    }

    /// Undoes the draws: the items are as if they had not been sampled.
    pub fn undo(self) {
        // Dropping a lease returns its items.
        if self.lease.is_none() {
            let handles: Vec<_> = self.draws.iter().map(|draw| draw.handle).collect();
            self.table.undo_samples(&handles);
        }
    }
}

/// A lease on the items of a batch, in this process or on a server. Dropping it returns them to their table.
pub trait BatchLease {
    /// A future that is ready once an acknowledgement is durable, and all earlier ones.
    type Durable: Future<Output = Result<()>> + Send + Unpin;

    /// Makes the first `n` samples final (or all, if there are fewer) and returns the other items to the table. Returns
    /// a future if the acknowledgement must be durable: it removes items from a durable store, and after a restart these
    /// items must not be sampled again.
    fn acknowledge_first(self, n: usize) -> Option<Self::Durable>;

    /// Makes all samples final. The result is that of [`Self::acknowledge_first`].
    fn acknowledge(self) -> Option<Self::Durable>
    where
        Self: Sized,
    {
        self.acknowledge_first(usize::MAX)
    }
}

/// Leased draws. Acknowledging them makes the samples final; dropping the lease returns the items to
/// their table.
#[derive(Debug)]
pub struct Lease {
    table: Arc<Table>,
    handles: Vec<Handle>,
}

impl Lease {
    pub(crate) fn new(table: &Arc<Table>, draws: &[Draw]) -> Self {
        Self::of(table, draws.iter().map(|draw| draw.handle).collect())
    }

    pub(crate) fn of(table: &Arc<Table>, handles: Vec<Handle>) -> Self {
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
        self.table.removes_durably()
    }

    /// Does what [`BatchLease::acknowledge_first`] does, and marks the number of the reader's acknowledgement as applied:
    /// see [`Table::until_acknowledged`].
    #[must_use]
    pub fn acknowledge_first_numbered(
        mut self,
        n: usize,
        number: Option<SessionNumber>,
    ) -> Option<UntilDurable> {
        // Dropping the lease returns the others.
        let acknowledged = std::mem::take(&mut self.split_first(n).handles);
        // Where sampling removes nothing, a lost acknowledgement changes only counters.
        let number = number.filter(|_| self.table.options().max_times_sampled > 0);
        self.table.acknowledge(&acknowledged, number);
        self.needs_durable_acknowledgement()
            .then(|| self.table.until_durable())
    }

    /// Number of draws.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// True if no draws are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Makes the samples final for which `is_final` yields true, and returns the other items to the table.
    fn acknowledge_each(mut self, mut is_final: impl Iterator<Item = bool>) {
        let handles = std::mem::take(&mut self.handles);
        let (acknowledged, returned): (Vec<_>, Vec<_>) = handles
            .into_iter()
            .partition(|_| is_final.next().unwrap_or(false));
        self.handles = returned;
        self.table.acknowledge(&acknowledged, None);
    }
}

impl BatchLease for Lease {
    type Durable = UntilDurable;

    fn acknowledge_first(self, n: usize) -> Option<UntilDurable> {
        self.acknowledge_first_numbered(n, None)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            self.table.return_leases(&self.handles);
        }
    }
}
