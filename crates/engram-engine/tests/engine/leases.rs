//! Samples that may come back.

use std::sync::Arc;

use engram_core::{SelectorKind, TableOptions};

use crate::support::{Bell, fifo, item, items, keys, poll, put, queue, served, table, take};

#[test]
fn inserts_wait_where_only_leases_would_make_room() {
    let table = table(queue("t", 4));
    put(&table, items(0..4));
    let leased = served(table.sample(4, true).unwrap()).unwrap();
    let bell = Arc::new(Bell::default());
    let mut insert = table.insert(items(4..5)).unwrap();
    assert!(poll(&mut insert, &bell).is_pending());
    let info = table.info();
    assert_eq!((info.stats.size, info.stats.hidden), (4, 4));
    assert_eq!(
        info.inserting_blocked.unwrap(),
        "`t`: inserting waits: 4 of 4 items are leased for the last time; acknowledging them makes room"
    );
    leased.lease.unwrap().acknowledge();
    assert_eq!(bell.rings(), 1);
    served(insert).unwrap();
    assert_eq!(take(&table, 1), [4]);
}

#[test]
fn a_queue_never_evicts_for_what_is_on_lease() {
    let table = table(queue("t", 4));
    put(&table, items(0..4));
    let leased = served(table.sample(2, true).unwrap()).unwrap();
    let mut insert = table.insert(items(4..6)).unwrap();
    assert!(poll(&mut insert, &Arc::default()).is_pending());
    assert_eq!(table.info().stats.limiter.deletes, 0);
    leased.lease.unwrap().acknowledge();
    served(insert).unwrap();
    assert_eq!(take(&table, 4), [2, 3, 4, 5]);
}

#[test]
fn a_replay_table_evicts_beside_leases() {
    let table = table(TableOptions {
        max_size: 4,
        max_times_sampled: 1,
        ..fifo("t")
    });
    put(&table, items(0..4));
    let leased = served(table.sample(2, true).unwrap()).unwrap();
    put(&table, items(4..6));
    assert_eq!(table.info().stats.size, 4);
    drop(leased);
    assert_eq!(take(&table, 4), [0, 1, 4, 5]);
}

#[test]
fn what_comes_back_regains_its_place() {
    for (sampler, expected) in [
        (SelectorKind::Fifo, [0, 1, 2, 3, 4, 5]),
        (SelectorKind::Lifo, [5, 4, 3, 2, 1, 0]),
        (SelectorKind::MaxHeap, [0, 3, 1, 4, 2, 5]),
        (SelectorKind::MinHeap, [2, 5, 1, 4, 0, 3]),
    ] {
        let table = table(TableOptions {
            sampler,
            ..queue("t", 6)
        });
        // Equal priorities come in pairs: the older of a pair goes first.
        let priorities = [3.0, 2.0, 1.0, 3.0, 2.0, 1.0];
        put(
            &table,
            (0..).zip(priorities).map(|(key, p)| item(key, p)).collect(),
        );
        let first = served(table.sample(2, true).unwrap()).unwrap();
        let second = served(table.sample(3, true).unwrap()).unwrap();
        assert_eq!([keys(&first), keys(&second)].concat(), expected[..5]);
        drop(first);
        drop(second);
        assert_eq!(take(&table, 6), expected);
    }
}

#[test]
fn nothing_comes_back_after_a_delete_or_a_reset() {
    let table = table(queue("t", 6));
    put(&table, items(0..4));
    let leased = served(table.sample(2, true).unwrap()).unwrap();
    assert_eq!(table.delete(&[0, 99]).unwrap(), 1);
    drop(leased);
    assert_eq!(table.info().stats.size, 3);
    let leased = served(table.sample(3, true).unwrap()).unwrap();
    assert_eq!(keys(&leased), [1, 2, 3]);
    table.reset().unwrap();
    put(&table, items(1..2));
    drop(leased);
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.hidden, stats.limiter.samples), (1, 0, 0));
    assert_eq!(take(&table, 1), [1]);
}

#[test]
fn a_lease_outlives_updates_and_its_table() {
    let table = table(TableOptions {
        sampler: SelectorKind::MaxHeap,
        ..queue("t", 6)
    });
    put(&table, vec![item(0, 3.0), item(1, 2.0)]);
    let leased = served(table.sample(1, true).unwrap()).unwrap();
    assert_eq!(table.update_priorities(&[0], &[1.0]).unwrap(), 1);
    drop(leased);
    let leased = served(table.sample(2, true).unwrap()).unwrap();
    assert_eq!(keys(&leased), [1, 0]);
    table.close(crate::support::dropped("t"));
    drop(leased);
    assert_eq!(table.info().stats.hidden, 0);
}

#[test]
fn a_lease_ends_in_parts() {
    let table = table(queue("t", 4));
    put(&table, items(0..4));
    let mut lease = served(table.sample(4, true).unwrap())
        .unwrap()
        .lease
        .unwrap();
    lease.split_first(0).acknowledge();
    assert_eq!(table.info().stats.hidden, 4);
    lease.split_first(2).acknowledge();
    assert_eq!(table.info().stats.hidden, 2);
    drop(lease.split_first(1));
    assert_eq!(table.info().stats.hidden, 1);
    lease.split_first(9).acknowledge();
    drop(lease);
    assert_eq!(take(&table, 1), [2]);
    assert_eq!(table.info().stats.size, 0);
}
