//! Items that come again after a lost connection: each is applied once, in order.

use std::sync::Arc;

use engram_core::TableOptions;
use engram_core::table::SESSION_IDLE;
use engram_engine::{Engine, InsertTicket, Session, Table};

use crate::support::{
    Bell, Hand, Log, engine, fifo, items, poll, put, queue, served, table, take, text,
};

const ID: u64 = 77;

/// Items whose keys are their numbers.
fn send(table: &Arc<Table>, first: u64, count: u64) -> InsertTicket {
    let session = Session { id: ID, first };
    let items = items(first..first + count);
    table.insert_numbered(items, Some(session)).unwrap()
}

fn deliver(table: &Arc<Table>, first: u64, count: u64) {
    served(send(table, first, count)).unwrap();
}

/// Takes as many one by one: more than the table holds at once.
fn drain(table: &Arc<Table>, n: usize) -> Vec<u64> {
    (0..n).flat_map(|_| take(table, 1)).collect()
}

/// A table, and the hand on its clock.
fn timed(options: TableOptions) -> (Arc<Table>, Arc<Hand>) {
    let clock = Arc::new(Hand::default());
    let name = options.name.clone();
    let log = Arc::new(engram_core::Volatile);
    let engine = Engine::with_clock_and_sink(vec![options], 1, clock.clone(), log).unwrap();
    (engine.table(&name).unwrap(), clock)
}

#[test]
fn a_retry_applies_what_is_new_whatever_became_of_the_rest() {
    let table = table(queue("t", 100));
    deliver(&table, 1, 4);
    assert_eq!(take(&table, 2), [1, 2]);
    table.delete(&[3]).unwrap();
    // The answer was lost: the same again, and two more.
    deliver(&table, 1, 6);
    assert_eq!(take(&table, 3), [4, 5, 6]);
    deliver(&table, 1, 6);
    deliver(&table, 4, 2);
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.inserts), (0, 6));
    // Other sessions, and items of none, have nothing to do with it.
    let other = Session { id: 78, first: 1 };
    served(table.insert_numbered(items(1..3), Some(other)).unwrap()).unwrap();
    put(&table, items(3..4));
    put(&table, items(4..5));
    assert_eq!(drain(&table, 4), [1, 2, 3, 4]);
}

#[test]
fn each_table_counts_for_itself() {
    let engine = engine(vec![fifo("a"), fifo("b")]);
    let (a, b) = (engine.table("a").unwrap(), engine.table("b").unwrap());
    deliver(&a, 1, 3);
    deliver(&b, 1, 2);
    assert_eq!((a.info().stats.size, b.info().stats.size), (3, 2));
}

#[test]
fn what_was_applied_is_acknowledged_without_waiting_its_turn() {
    let table = table(queue("t", 3));
    deliver(&table, 1, 3);
    let bell = Arc::<Bell>::default();
    let mut blocked = table.insert(items(50..51)).unwrap();
    assert!(poll(&mut blocked, &bell).is_pending());
    assert!(poll(&mut send(&table, 1, 3), &bell).is_ready());
    assert!(poll(&mut send(&table, 4, 0), &bell).is_ready());
    // The new one among them waits behind the other.
    let mut retry = send(&table, 1, 4);
    assert!(poll(&mut retry, &bell).is_pending());
    assert_eq!(drain(&table, 5), [1, 2, 3, 50, 4]);
    assert!(poll(&mut retry, &bell).is_ready());
}

#[test]
fn a_retry_is_acknowledged_once_the_first_try_is_durable() {
    let log = Arc::new(Log::default());
    let clock = Arc::new(Hand::default());
    let engine = Engine::with_clock_and_sink(vec![fifo("t")], 1, clock, log.clone()).unwrap();
    let table = engine.table("t").unwrap();
    let bell = Arc::<Bell>::default();
    drop(send(&table, 1, 3));
    let mut retry = send(&table, 1, 3);
    assert!(poll(&mut retry, &bell).is_pending());
    assert_eq!(log.appended(), 3);
    log.settle(3);
    assert!(poll(&mut retry, &bell).is_ready());
}

#[test]
fn tickets_that_overlap_apply_each_number_once_and_in_order() {
    let table = table(queue("t", 2));
    let bell = Arc::<Bell>::default();
    let mut old = send(&table, 1, 6);
    let mut retry = send(&table, 1, 8);
    assert!(poll(&mut old, &bell).is_pending());
    assert!(poll(&mut retry, &bell).is_pending());
    assert_eq!((old.items_left(), retry.items_left()), (4, 8));
    assert_eq!(drain(&table, 4), [1, 2, 3, 4]);
    assert!(poll(&mut old, &bell).is_ready());
    assert_eq!(retry.items_left(), 2);
    assert_eq!(drain(&table, 4), [5, 6, 7, 8]);
    assert!(poll(&mut retry, &bell).is_ready());
    assert_eq!(table.info().stats.limiter.inserts, 8);
}

#[test]
fn what_is_withdrawn_may_come_again() {
    let table = table(queue("t", 2));
    let old = send(&table, 1, 5);
    assert_eq!(old.withdraw(), 3);
    let retry = send(&table, 1, 5);
    assert_eq!(drain(&table, 5), [1, 2, 3, 4, 5]);
    served(retry).unwrap();

    // The same while the retry stands behind it already.
    let old = send(&table, 6, 5);
    let retry = send(&table, 6, 5);
    drop(old);
    assert_eq!(drain(&table, 5), [6, 7, 8, 9, 10]);
    served(retry).unwrap();
    assert_eq!(table.info().stats.limiter.inserts, 10);
}

#[test]
fn a_number_whose_key_was_there_is_applied() {
    let table = table(fifo("t"));
    put(&table, items(1..2));
    deliver(&table, 1, 2);
    table.delete(&[1]).unwrap();
    deliver(&table, 1, 2);
    assert_eq!(table.info().stats.size, 1);
    assert_eq!(take(&table, 1), [2]);
}

#[test]
fn a_reset_does_not_bring_back_what_was_sent_before() {
    let table = table(queue("t", 3));
    deliver(&table, 1, 2);
    // One enters, one waits; after the reset that one is still its caller's.
    let waiting = send(&table, 3, 2);
    table.reset().unwrap();
    served(waiting).unwrap();
    deliver(&table, 1, 4);
    assert_eq!(take(&table, 1), [4]);
    assert_eq!(table.info().stats.size, 0);
}

#[test]
fn sessions_that_send_nothing_are_forgotten() {
    let (table, clock) = timed(fifo("t"));
    deliver(&table, 1, 2);
    clock.set(SESSION_IDLE - 1);
    table.delete(&[1, 2]).unwrap();
    deliver(&table, 1, 2);
    assert_eq!(table.info().stats.size, 0);
    // A retry that brought nothing new is no sign of life.
    clock.set(SESSION_IDLE);
    deliver(&table, 1, 2);
    assert_eq!(table.info().stats.size, 2);
    clock.set(SESSION_IDLE * 2 - 1);
    deliver(&table, 3, 1);
    clock.set(SESSION_IDLE * 3 - 2);
    deliver(&table, 2, 2);
    assert_eq!(table.info().stats.limiter.inserts, 5);
}

#[test]
fn a_session_that_waits_is_not_idle() {
    let (table, clock) = timed(queue("t", 2));
    let waiting = send(&table, 1, 4);
    // An hour of no samples, and then the connection is lost.
    clock.set(6 * SESSION_IDLE);
    assert_eq!(waiting.items_left(), 2);
    drop(waiting);
    clock.set(7 * SESSION_IDLE - 1);
    let retry = send(&table, 1, 4);
    clock.set(14 * SESSION_IDLE);
    assert_eq!(drain(&table, 4), [1, 2, 3, 4]);
    served(retry).unwrap();
    // What it waited for was applied just now.
    deliver(&table, 1, 4);
    assert_eq!(table.info().stats.limiter.inserts, 4);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let table = table(fifo("t"));
    let refused = |first| {
        let session = Session { id: ID, first };
        text(table.insert_numbered(items(0..2), Some(session)))
    };
    assert_eq!(
        refused(0),
        "2 items for table `t` have sequence numbers from 0 on; a session's sequence numbers must \
         be at least 1 and below 2^64"
    );
    assert!(refused(u64::MAX - 1).contains("sequence numbers from 18446744073709551614 on"));
    assert_eq!(table.info().stats.size, 0);
}
