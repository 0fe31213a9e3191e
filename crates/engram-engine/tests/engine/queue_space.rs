//! Space in a queue after items have expired unsampled.

use std::sync::Arc;

use engram_core::{TableOptions, Volatile};
use engram_engine::Engine;

use crate::support::{ManualClock, insert_items, items, queue};

#[test]
fn items_that_expire_unsampled_take_space_until_a_reset() {
    let clock = Arc::new(ManualClock::default());
    let short_lived = TableOptions {
        ttl: Some(10),
        ..queue("t", 3)
    };
    let engine =
        Engine::with_clock_and_sink(vec![short_lived], 1, clock.clone(), Arc::new(Volatile))
            .unwrap();
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
