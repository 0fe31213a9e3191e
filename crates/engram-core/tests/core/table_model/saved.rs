//! Saves and restores the content of a table, like a checkpoint.

use std::sync::Arc;

use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{
    NewItem, OpSink, SelectorKind, SessionNumber, Snapshot, TableOptions, TableState, Volatile,
};
use engram_testkit::table_options;

use crate::table_model::record::{chunks, trajectory};

/// The content of a table that a checkpoint would store.
pub(crate) struct Saved {
    counters: Counters,
    items: Vec<SavedItem>,
    /// The orders of the sampler and the remover.
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
            update_number: item.update_number,
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

#[test]
fn corrupt_checkpoints_are_rejected() {
    let options = Arc::new(TableOptions {
        max_size: 6,
        sampler: SelectorKind::Uniform,
        ..table_options("t")
    });
    let mut table = TableState::new(Arc::clone(&options), Arc::new(Volatile)).unwrap();
    let mut counters = table.snapshot().counters.clone();
    counters.next_seq += 1;
    counters.next_update_number += 1;
    let restore = |counters: &Counters| {
        Restore::new(Arc::clone(&options), Arc::new(Volatile), counters.clone())
    };
    let saved_item = |key, seq, leases| SavedItem {
        item: NewItem {
            key,
            trajectory: trajectory(&chunks(), 0, 0),
            priority: 1.0,
        },
        seq,
        update_number: counters.next_update_number - 1,
        times_sampled: 0,
        leases,
        inserted_at: 0,
    };
    let seq = counters.first_seq;

    let mut inconsistent = counters.clone();
    inconsistent.first_seq = inconsistent.next_seq + 1;
    assert_eq!(
        restore(&inconsistent).unwrap_err().to_string(),
        "the checkpoint's counters of table `t` are inconsistent; the checkpoint is corrupt"
    );
    let item_error = |item| {
        let mut restore = restore(&counters).unwrap();
        restore.add_item(saved_item(4, seq, 0)).unwrap();
        restore.add_item(item).unwrap_err().to_string()
    };
    assert_eq!(
        item_error(saved_item(4, seq, 0)),
        "item 4 of table `t` is in the checkpoint twice; the checkpoint is corrupt"
    );
    assert_eq!(
        item_error(saved_item(5, counters.next_seq, 0)),
        "item 5 of table `t` has an insertion or update number outside the range of the table's counters; the checkpoint is corrupt"
    );
    assert_eq!(
        item_error(saved_item(5, seq, 1)),
        "item 5 of table `t` has more open leases than its samples or the table's counters allow; the checkpoint is \
         corrupt"
    );

    let hidden = 1 << 31;
    for leases in [0, hidden] {
        let mut same_seq = restore(&counters).unwrap();
        same_seq.add_item(saved_item(4, seq, 0)).unwrap();
        same_seq.add_item(saved_item(5, seq, leases)).unwrap();
        assert_eq!(
            same_seq.finish().unwrap_err().to_string(),
            "two items of table `t` have the same insertion number; the checkpoint is corrupt"
        );
    }
    let mut wrong_order = restore(&counters).unwrap();
    wrong_order.add_item(saved_item(4, seq, 0)).unwrap();
    wrong_order.set_order(true, vec![0, 0]);
    assert_eq!(
        wrong_order.finish().unwrap_err().to_string(),
        "the checkpoint's selector of table `t` lists 2 items (1 distinct); expected each of the 1 visible \
         items once; the checkpoint is corrupt"
    );
}
