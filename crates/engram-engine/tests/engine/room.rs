//! Room in a queue that items have left unsampled.

use std::sync::Arc;

use engram_core::{TableOptions, Volatile};
use engram_engine::Engine;

use crate::support::{Hand, items, put, queue};

#[test]
fn what_expires_unsampled_takes_room_until_a_reset() {
    let clock = Arc::new(Hand::default());
    let fleeting = TableOptions {
        ttl: Some(10),
        ..queue("t", 3)
    };
    let engine =
        Engine::with_clock_and_sink(vec![fleeting], 1, clock.clone(), Arc::new(Volatile)).unwrap();
    let table = engine.table("t").unwrap();
    put(&table, items(0..3));
    clock.set(20);
    // Room for one is always there.
    put(&table, items(3..4));
    assert_eq!(table.info().stats.size, 1);
    assert!(!table.can_insert(1));
    table.reset().unwrap();
    assert!(table.can_insert(3));
}
