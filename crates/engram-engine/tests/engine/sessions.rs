//! Items with numbers in a session: items that are sent again are applied once, in order.

use std::sync::Arc;

use engram_core::TableOptions;
use engram_core::table::SESSION_IDLE;
use engram_engine::{Engine, InsertTicket, SessionRun, Table};

use crate::support::{
    ManualClock, ManualLog, WakeCounter, error_text, insert_items, items, new_engine, new_table,
    poll, queue_options, sample_keys, table_options, wait_ready,
};

const SESSION_ID: u64 = 77;

/// Inserts `count` items whose keys are their numbers in the session, from `first` on.
fn send(table: &Arc<Table>, first: u64, count: u64) -> InsertTicket {
    let run = SessionRun {
        session: SESSION_ID,
        first_number: first,
    };
    let items = items(first..first + count);
    table.insert_numbered(items, Some(run)).unwrap()
}

fn send_and_wait(table: &Arc<Table>, first: u64, count: u64) {
    wait_ready(send(table, first, count)).unwrap();
}

/// Samples `n` items one by one, so that waiting inserts can proceed in between; returns their keys.
fn sample_one_by_one(table: &Arc<Table>, n: usize) -> Vec<u64> {
    (0..n).flat_map(|_| sample_keys(table, 1)).collect()
}

fn table_with_manual_clock(options: TableOptions) -> (Arc<Table>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let name = options.name.clone();
    let log = Arc::new(engram_core::Volatile);
    let engine = Engine::with_clock_and_sink(vec![options], 1, clock.clone(), log).unwrap();
    (engine.table(&name).unwrap(), clock)
}

#[test]
fn a_retry_applies_only_new_items() {
    let table = new_table(queue_options("t", 100));
    send_and_wait(&table, 1, 4);
    assert_eq!(sample_keys(&table, 2), [1, 2]);
    table.delete(&[3]).unwrap();
    // The response was lost: the same items again, and two more.
    send_and_wait(&table, 1, 6);
    assert_eq!(sample_keys(&table, 3), [4, 5, 6]);
    send_and_wait(&table, 1, 6);
    send_and_wait(&table, 4, 2);
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.inserts), (0, 6));
    // Items of other sessions, or without a session, are independent.
    let other = SessionRun {
        session: 78,
        first_number: 1,
    };
    wait_ready(table.insert_numbered(items(1..3), Some(other)).unwrap()).unwrap();
    insert_items(&table, items(3..4));
    insert_items(&table, items(4..5));
    assert_eq!(sample_one_by_one(&table, 4), [1, 2, 3, 4]);
}

#[test]
fn a_session_numbers_the_items_of_each_table_separately() {
    let engine = new_engine(vec![table_options("a"), table_options("b")]);
    let (a, b) = (engine.table("a").unwrap(), engine.table("b").unwrap());
    send_and_wait(&a, 1, 3);
    send_and_wait(&b, 1, 2);
    assert_eq!((a.info().stats.size, b.info().stats.size), (3, 2));
}

#[test]
fn applied_items_are_acknowledged_without_queueing() {
    let table = new_table(queue_options("t", 3));
    send_and_wait(&table, 1, 3);
    let wakes = Arc::<WakeCounter>::default();
    let mut blocked = table.insert(items(50..51)).unwrap();
    assert!(poll(&mut blocked, &wakes).is_pending());
    assert!(poll(&mut send(&table, 1, 3), &wakes).is_ready());
    assert!(poll(&mut send(&table, 4, 0), &wakes).is_ready());
    // The new item waits behind the other insert.
    let mut retry = send(&table, 1, 4);
    assert!(poll(&mut retry, &wakes).is_pending());
    assert_eq!(sample_one_by_one(&table, 5), [1, 2, 3, 50, 4]);
    assert!(poll(&mut retry, &wakes).is_ready());
}

#[test]
fn a_retry_is_acknowledged_once_the_first_try_is_durable() {
    let log = Arc::new(ManualLog::default());
    let clock = Arc::new(ManualClock::default());
    let engine =
        Engine::with_clock_and_sink(vec![table_options("t")], 1, clock, log.clone()).unwrap();
    let table = engine.table("t").unwrap();
    let wakes = Arc::<WakeCounter>::default();
    drop(send(&table, 1, 3));
    let mut retry = send(&table, 1, 3);
    assert!(poll(&mut retry, &wakes).is_pending());
    assert_eq!(log.appended(), 3);
    log.make_durable(3);
    assert!(poll(&mut retry, &wakes).is_ready());
}

#[test]
fn overlapping_tickets_apply_each_number_once_and_in_order() {
    let table = new_table(queue_options("t", 2));
    let wakes = Arc::<WakeCounter>::default();
    let mut first_try = send(&table, 1, 6);
    let mut retry = send(&table, 1, 8);
    assert!(poll(&mut first_try, &wakes).is_pending());
    assert!(poll(&mut retry, &wakes).is_pending());
    assert_eq!((first_try.items_left(), retry.items_left()), (4, 8));
    assert_eq!(sample_one_by_one(&table, 4), [1, 2, 3, 4]);
    assert!(poll(&mut first_try, &wakes).is_ready());
    assert_eq!(retry.items_left(), 2);
    assert_eq!(sample_one_by_one(&table, 4), [5, 6, 7, 8]);
    assert!(poll(&mut retry, &wakes).is_ready());
    assert_eq!(table.info().stats.limiter.inserts, 8);
}

#[test]
fn withdrawn_items_can_be_sent_again() {
    let table = new_table(queue_options("t", 2));
    let first_try = send(&table, 1, 5);
    assert_eq!(first_try.withdraw(), 3);
    let retry = send(&table, 1, 5);
    assert_eq!(sample_one_by_one(&table, 5), [1, 2, 3, 4, 5]);
    wait_ready(retry).unwrap();

    // Now the retry is already queued when the first try is withdrawn.
    let first_try = send(&table, 6, 5);
    let retry = send(&table, 6, 5);
    drop(first_try);
    assert_eq!(sample_one_by_one(&table, 5), [6, 7, 8, 9, 10]);
    wait_ready(retry).unwrap();
    assert_eq!(table.info().stats.limiter.inserts, 10);
}

#[test]
fn an_item_whose_key_exists_counts_as_applied() {
    let table = new_table(table_options("t"));
    insert_items(&table, items(1..2));
    send_and_wait(&table, 1, 2);
    table.delete(&[1]).unwrap();
    send_and_wait(&table, 1, 2);
    assert_eq!(table.info().stats.size, 1);
    assert_eq!(sample_keys(&table, 1), [2]);
}

#[test]
fn items_applied_before_a_reset_are_not_applied_again() {
    let table = new_table(queue_options("t", 3));
    send_and_wait(&table, 1, 2);
    // One item is inserted, one waits; after the reset, the waiting one is inserted.
    let waiting = send(&table, 3, 2);
    table.reset().unwrap();
    wait_ready(waiting).unwrap();
    send_and_wait(&table, 1, 4);
    assert_eq!(sample_keys(&table, 1), [4]);
    assert_eq!(table.info().stats.size, 0);
}

#[test]
fn sessions_that_send_nothing_are_forgotten() {
    let (table, clock) = table_with_manual_clock(table_options("t"));
    send_and_wait(&table, 1, 2);
    clock.set(SESSION_IDLE - 1);
    table.delete(&[1, 2]).unwrap();
    send_and_wait(&table, 1, 2);
    assert_eq!(table.info().stats.size, 0);
    // A retry without new items does not count as activity.
    clock.set(SESSION_IDLE);
    send_and_wait(&table, 1, 2);
    assert_eq!(table.info().stats.size, 2);
    clock.set(SESSION_IDLE * 2 - 1);
    send_and_wait(&table, 3, 1);
    clock.set(SESSION_IDLE * 3 - 2);
    send_and_wait(&table, 2, 2);
    assert_eq!(table.info().stats.limiter.inserts, 5);
}

#[test]
fn a_session_that_waits_is_not_idle() {
    let (table, clock) = table_with_manual_clock(queue_options("t", 2));
    let waiting = send(&table, 1, 4);
    // No samples for a long time, and then the connection is lost.
    clock.set(6 * SESSION_IDLE);
    assert_eq!(waiting.items_left(), 2);
    drop(waiting);
    clock.set(7 * SESSION_IDLE - 1);
    let retry = send(&table, 1, 4);
    clock.set(14 * SESSION_IDLE);
    assert_eq!(sample_one_by_one(&table, 4), [1, 2, 3, 4]);
    wait_ready(retry).unwrap();
    // Its items were applied just now, so it is not idle.
    send_and_wait(&table, 1, 4);
    assert_eq!(table.info().stats.limiter.inserts, 4);
}

#[test]
fn numbers_out_of_range_are_rejected() {
    let table = new_table(table_options("t"));
    let error_from = |first| {
        let run = SessionRun {
            session: SESSION_ID,
            first_number: first,
        };
        error_text(table.insert_numbered(items(0..2), Some(run)))
    };
    assert_eq!(
        error_from(0),
        "2 items for table `t` with numbers from 0 on; the number of an item in its session must be at least 1 \
         and below 2^64 - 1"
    );
    assert!(error_from(u64::MAX - 1).contains("with numbers from 18446744073709551614 on"));
    assert_eq!(table.info().stats.size, 0);
}
