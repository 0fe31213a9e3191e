//! Evictions of hidden items: items drawn for the last allowed time, whose leases are still open.

use std::sync::Arc;

use engram_core::{DeferredDrops, TableOptions, TableState, Volatile};
use engram_testkit::{byte_item, table_options};

/// The few hidden items are far apart: a call that evicts all of them would search most slots.
#[test]
fn one_call_searches_a_bounded_number_of_slots_for_hidden_items() {
    const ITEMS: usize = 4096;
    const DISTANCE: usize = 512;
    let deferred = &mut DeferredDrops::default();
    let max_bytes = 8 << 20;
    let options = TableOptions {
        max_size: ITEMS as u64,
        max_bytes: Some(max_bytes),
        max_times_sampled: 1,
        ..table_options("t")
    };
    let mut table = TableState::new(Arc::new(options), Arc::new(Volatile)).unwrap();
    for key in 0..ITEMS as u64 {
        table.insert(byte_item(key, 1.0, 1024), 0, deferred);
    }
    let mut draws = Vec::new();
    while draws.len() < ITEMS {
        table.draw(ITEMS - draws.len(), true, &mut draws, deferred);
    }
    let acknowledged = draws.iter().enumerate();
    let acknowledged = acknowledged.filter(|(index, _)| index % DISTANCE != 0);
    table.acknowledge(acknowledged.map(|(_, draw)| draw.handle), deferred);
    assert_eq!(table.stats().size, (ITEMS / DISTANCE) as u64);
    // No other item fits into the table together with this one.
    let size = usize::try_from(max_bytes).unwrap() - 1024;
    table.insert(byte_item(ITEMS as u64, 1.0, size), 0, deferred);
    assert!(table.must_shrink());
    let mut calls = 1;
    while !table.shrink(deferred) {
        calls += 1;
    }
    assert_eq!(table.stats().size, 1);
    assert!((3..8).contains(&calls), "{calls}");
}
