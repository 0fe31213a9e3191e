//! Queues: items that expire before they are sampled.

use std::sync::Arc;

use engram_core::{TableOptions, Volatile};
use engram_engine::Engine;

use crate::support::{ManualClock, insert_items, items, queue_options};

#[test]
fn expired_unsampled_items_count_for_the_limit_of_a_queue_until_a_reset() {
    let clock = Arc::new(ManualClock::default());
    let options = TableOptions {
        ttl: Some(10),
        ..queue_options("t", 3)
    };
    let engine =
        Engine::with_clock_and_sink(vec![options], 1, clock.clone(), Arc::new(Volatile)).unwrap();
    let table = engine.table("t").unwrap();
    insert_items(&table, items(0..3));
    clock.set(20);
    // An empty queue accepts one item in any case.
    insert_items(&table, items(3..4));
    assert_eq!(table.info().stats.size, 1);
    assert!(!table.can_insert(1));
    table.reset().unwrap();
    assert!(table.can_insert(3));
}
