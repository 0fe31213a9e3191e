//! Snapshots of a table.

use engram_core::Lsn;
use engram_core::table::Counters;
use pyo3::prelude::*;

use crate::gil::{ForkGuard, detached};

/// A table's items at one moment.
#[pyclass(frozen, name = "Snapshot", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct TableSnapshot(ForkGuard<engram_core::Snapshot>);

impl TableSnapshot {
    pub(crate) fn new(snapshot: engram_core::Snapshot) -> Self {
        Self(ForkGuard::new("snapshot", snapshot))
    }
}

#[pymethods]
impl TableSnapshot {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let snapshot = self.0.get(py)?;
        detached(py, || Ok(snapshot.items().count()))
    }

    /// Describes the table's counters and orders, and of each item the insertion number, priority and counts. Instead
    /// of an item's data, gives the sum of the bytes of its first chunk. Leaves out keys, insert times, sessions,
    /// options and the position of the table's last change. For tests.
    fn describe(&self, py: Python<'_>) -> PyResult<String> {
        let snapshot = self.0.get(py)?;
        detached(py, || {
            let items = snapshot.items().map(|item| {
                let chunk = &item.trajectory.chunks()[0];
                let content: u64 = chunk.payload().iter().copied().map(u64::from).sum();
                let counts = (item.update_number, item.times_sampled, item.leases);
                (item.seq, item.priority.to_bits(), counts, content)
            });
            let mut items: Vec<_> = items.collect();
            let seqs: Vec<u64> = items.iter().map(|item| item.0).collect();
            let orders = snapshot.orders().map(|order| {
                let order = order.unwrap_or_default();
                order
                    .iter()
                    .map(|index| seqs[*index as usize])
                    .collect::<Vec<_>>()
            });
            // The order of items in memory is not part of the state.
            items.sort_unstable();
            let counters = Counters {
                last_lsn: Lsn(0),
                ..snapshot.counters.clone()
            };
            Ok(format!("{counters:?} {items:?} {orders:?}"))
        })
    }
}
