//! Saves and restores the content of a table, like a checkpoint.

use std::sync::Arc;

use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{NewItem, OpSink, SessionNumber, Snapshot, TableOptions, TableState};

/// The content of a table that a checkpoint would store.
pub(crate) struct Saved {
    counters: Counters,
    items: Vec<SavedItem>,
    orders: [Option<Vec<u32>>; 2],
    sessions: Vec<(SessionNumber, u64)>,
}

impl Saved {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let items = snapshot.items().map(|item| SavedItem {
            item: NewItem {
                key: item.key,
                trajectory: item.trajectory.clone(),
                priority: item.priority,
            },
            seq: item.seq,
            touched: item.touched,
            times_sampled: item.times_sampled,
            leases: item.leases,
            inserted_at: item.inserted_at.unwrap_or_default(),
        });
        let mut sessions: Vec<_> = snapshot.sessions().collect();
        sessions.sort_unstable_by_key(|(_, used)| *used);
        Self {
            counters: snapshot.counters.clone(),
            items: items.collect(),
            orders: snapshot.orders(),
            sessions,
        }
    }

    /// Restores the table.
    pub(crate) fn restore(self, options: Arc<TableOptions>, sink: Arc<dyn OpSink>) -> TableState {
        let mut restore = Restore::new(options, sink, self.counters).unwrap();
        for item in self.items {
            restore.add_item(item).unwrap();
        }
        for (order, of_sampler) in self.orders.into_iter().zip([true, false]) {
            if let Some(order) = order {
                restore.set_order(of_sampler, order);
            }
        }
        for (number, used) in self.sessions {
            restore.add_session(number, used);
        }
        restore.finish().unwrap()
    }
}
