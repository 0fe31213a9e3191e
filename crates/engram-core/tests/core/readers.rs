//! Readers that continue after the end of their store.

use std::sync::Arc;

use engram_core::{DeferredDrops, TableState, Volatile};
use engram_testkit::{byte_item, table_options};

#[test]
fn readers_may_return_to_a_table_that_had_leases() {
    let deferred = &mut DeferredDrops::default();
    let options = Arc::new(table_options("t"));
    let mut table = TableState::new(options, Arc::new(Volatile)).unwrap();
    table.insert(byte_item(1, 1.0, 8), 0, deferred);
    let mut may_return = || {
        table.end_leases(deferred);
        let may_return = table.may_have_readers(1);
        table.draw(1, true, &mut Vec::new(), deferred);
        may_return
    };
    assert_eq!([may_return(), may_return()], [false, true]);
}
