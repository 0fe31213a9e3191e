//! Leases: samples are acknowledged or returned.

use std::sync::Arc;

use engram_core::{SelectorKind, SessionNumber, TableOptions};
use engram_engine::BatchLease as _;

use crate::support::{
    WakeCounter, insert_items, item, items, keys, new_table, poll, queue_options, sample_keys,
    table_options, wait_ready,
};

#[test]
fn inserts_into_a_queue_wait_while_all_its_items_are_leased() {
    let table = new_table(queue_options("t", 4));
    insert_items(&table, items(0..4));
    let leased = wait_ready(table.sample(4, true).unwrap()).unwrap();
    let wakes = Arc::new(WakeCounter::default());
    let mut insert = table.insert(items(4..5)).unwrap();
    assert!(poll(&mut insert, &wakes).is_pending());
    let info = table.info();
    assert_eq!((info.stats.size, info.stats.hidden_items), (4, 4));
    assert_eq!(
        info.inserting_blocked.unwrap(),
        "`t`: inserting waits: the table is full, and readers still hold 4 of 4 items; continue to \
         read from their datasets or close them"
    );
    leased.lease.unwrap().acknowledge();
    assert_eq!(wakes.count(), 1);
    wait_ready(insert).unwrap();
    assert_eq!(sample_keys(&table, 1), [4]);
}

#[test]
fn the_number_of_an_acknowledgement_is_remembered() {
    let table = new_table(queue_options("t", 4));
    insert_items(&table, items(0..2));
    let number = |number| SessionNumber { session: 7, number };
    let is_handled = |at| table.until_acknowledged(number(at)).is_some();
    let leased = wait_ready(table.sample(1, true).unwrap()).unwrap();
    assert!(!is_handled(3));
    let lease = leased.lease.unwrap();
    let _ = lease.acknowledge_first_numbered(usize::MAX, Some(number(3)));
    assert_eq!([2, 3, 4].map(is_handled), [true, true, false]);
}

#[test]
fn items_whose_lease_has_ended_are_leased_again() {
    let table = new_table(queue_options("t", 4));
    insert_items(&table, items(0..3));
    drop(wait_ready(table.sample(3, true).unwrap()).unwrap());
    let other = wait_ready(table.sample(1, true).unwrap()).unwrap();
    // Another reader has item 0; there is no item 9.
    let lease = table.lease_again(&[2, 0, 9, 2]);
    assert_eq!((lease.len(), table.info().stats.leased), (1, 2));
    lease.acknowledge();
    drop(other);
    assert_eq!(table.info().stats.limiter.samples, 1);
    assert_eq!(sample_keys(&table, 2), [0, 1]);
}

#[test]
fn a_queue_does_not_evict_items_while_others_are_leased() {
    let table = new_table(queue_options("t", 4));
    insert_items(&table, items(0..4));
    let leased = wait_ready(table.sample(2, true).unwrap()).unwrap();
    let mut insert = table.insert(items(4..6)).unwrap();
    assert!(poll(&mut insert, &Arc::default()).is_pending());
    assert_eq!(table.info().stats.limiter.deletes, 0);
    leased.lease.unwrap().acknowledge();
    wait_ready(insert).unwrap();
    assert_eq!(sample_keys(&table, 4), [2, 3, 4, 5]);
}

#[test]
fn a_full_queue_states_how_many_items_were_removed_even_if_others_are_leased() {
    let table = new_table(TableOptions {
        max_size: 8,
        ..queue_options("t", 4)
    });
    insert_items(&table, items(0..4));
    let leased = wait_ready(table.sample(1, true).unwrap()).unwrap();
    insert_items(&table, items(4..5));
    let blocked = || table.info().inserting_blocked.unwrap();
    let full = "`t`: inserting waits: Queue(4) is full: 4 inserted items are not sampled yet";
    assert_eq!(blocked(), full);
    assert_eq!(table.delete(&[4]).unwrap(), 1);
    let removed = "; 1 of them was removed, but counts until the table is reset";
    assert_eq!(blocked(), format!("{full}{removed}"));
    leased.lease.unwrap().acknowledge();
    assert_eq!(blocked(), format!("{full}{removed}"));
}

#[test]
fn a_replay_table_evicts_items_that_are_not_leased() {
    let table = new_table(TableOptions {
        max_size: 4,
        max_times_sampled: 1,
        ..table_options("t")
    });
    insert_items(&table, items(0..4));
    let leased = wait_ready(table.sample(2, true).unwrap()).unwrap();
    insert_items(&table, items(4..6));
    assert_eq!(table.info().stats.size, 4);
    drop(leased);
    assert_eq!(sample_keys(&table, 4), [0, 1, 4, 5]);
}

#[test]
fn a_replay_table_evicts_leased_items_if_there_are_no_others() {
    for max_times_sampled in 1..=3 {
        let table = new_table(TableOptions {
            max_size: 4,
            max_times_sampled,
            ..table_options("t")
        });
        insert_items(&table, items(0..4));
        let n = 4 * max_times_sampled as usize;
        let leased = wait_ready(table.sample(n, true).unwrap()).unwrap();
        assert!(!table.can_sample(1) && table.can_insert(9));
        insert_items(&table, items(4..13));
        let stats = table.info().stats;
        assert_eq!(
            (stats.size, stats.hidden_items, stats.limiter.deletes),
            (4, 3, 9)
        );
        leased.lease.unwrap().acknowledge();
        assert_eq!(table.info().stats.size, 1);
        assert_eq!(sample_keys(&table, 1), [12]);
    }
}

#[test]
fn returned_leases_of_evicted_items_are_not_counted() {
    let table = new_table(TableOptions {
        max_size: 2,
        max_times_sampled: 1,
        ..table_options("t")
    });
    insert_items(&table, items(0..2));
    let leased = wait_ready(table.sample(2, true).unwrap()).unwrap();
    insert_items(&table, items(2..3));
    drop(leased);
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.hidden_items, stats.limiter.samples),
        (2, 0, 0)
    );
}

#[test]
fn a_table_reports_what_it_can_insert_and_sample() {
    let table = new_table(queue_options("t", 4));
    insert_items(&table, items(0..4));
    let leased = wait_ready(table.sample(4, true).unwrap()).unwrap();
    assert!(!table.can_insert(1) && !table.can_sample(1));
    leased.lease.unwrap().acknowledge_first(3);
    assert!(table.can_insert(3) && !table.can_insert(4));
    assert!(table.can_sample(1) && !table.can_sample(2));
    let replay = new_table(TableOptions {
        max_size: 8,
        max_times_sampled: 1,
        ..table_options("t")
    });
    insert_items(&replay, items(0..3));
    let leased = wait_ready(replay.sample(3, true).unwrap()).unwrap();
    assert!(!replay.can_sample(3), "no item is left");
    drop(leased);
    assert!(replay.can_sample(3));
}

#[test]
fn returned_items_regain_their_position() {
    for (sampler, expected) in [
        (SelectorKind::Fifo, [0, 1, 2, 3, 4, 5]),
        (SelectorKind::Lifo, [5, 4, 3, 2, 1, 0]),
        (SelectorKind::MaxHeap, [0, 3, 1, 4, 2, 5]),
        (SelectorKind::MinHeap, [2, 5, 1, 4, 0, 3]),
    ] {
        let table = new_table(TableOptions {
            sampler,
            ..queue_options("t", 6)
        });
        // There are two items of each priority: the older one is sampled first.
        let priorities = [3.0, 2.0, 1.0, 3.0, 2.0, 1.0];
        insert_items(
            &table,
            (0..).zip(priorities).map(|(key, p)| item(key, p)).collect(),
        );
        let first = wait_ready(table.sample(2, true).unwrap()).unwrap();
        let second = wait_ready(table.sample(3, true).unwrap()).unwrap();
        assert_eq!([keys(&first), keys(&second)].concat(), expected[..5]);
        drop(first);
        drop(second);
        assert_eq!(sample_keys(&table, 6), expected);
    }
}

#[test]
fn deleted_items_are_not_returned() {
    let table = new_table(queue_options("t", 6));
    insert_items(&table, items(0..4));
    let leased = wait_ready(table.sample(2, true).unwrap()).unwrap();
    assert_eq!(table.delete(&[0, 99]).unwrap(), 1);
    drop(leased);
    assert_eq!(table.info().stats.size, 3);
    let leased = wait_ready(table.sample(3, true).unwrap()).unwrap();
    assert_eq!(keys(&leased), [1, 2, 3]);
    table.reset().unwrap();
    insert_items(&table, items(1..2));
    drop(leased);
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.hidden_items, stats.limiter.samples),
        (1, 0, 0)
    );
    assert_eq!(sample_keys(&table, 1), [1]);
}

#[test]
fn a_lease_can_be_dropped_after_an_update_and_after_the_table_is_closed() {
    let table = new_table(TableOptions {
        sampler: SelectorKind::MaxHeap,
        ..queue_options("t", 6)
    });
    insert_items(&table, vec![item(0, 3.0), item(1, 2.0)]);
    let leased = wait_ready(table.sample(1, true).unwrap()).unwrap();
    assert_eq!(table.update_priorities(&[0], &[1.0]).unwrap(), 1);
    drop(leased);
    let leased = wait_ready(table.sample(2, true).unwrap()).unwrap();
    assert_eq!(keys(&leased), [1, 0]);
    table.close(crate::support::table_dropped_error("t"));
    drop(leased);
    assert_eq!(table.info().stats.hidden_items, 0);
}

#[test]
fn parts_of_a_lease_are_acknowledged_or_returned_separately() {
    let table = new_table(queue_options("t", 4));
    insert_items(&table, items(0..4));
    let mut lease = wait_ready(table.sample(4, true).unwrap())
        .unwrap()
        .lease
        .unwrap();
    lease.split_first(0).acknowledge();
    assert_eq!(table.info().stats.hidden_items, 4);
    lease.split_first(2).acknowledge();
    assert_eq!(table.info().stats.hidden_items, 2);
    drop(lease.split_first(1));
    assert_eq!(table.info().stats.hidden_items, 1);
    lease.split_first(9).acknowledge();
    drop(lease);
    assert_eq!(sample_keys(&table, 1), [2]);
    assert_eq!(table.info().stats.size, 0);
}
