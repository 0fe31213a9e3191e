use engram_core::{RateLimits, TableOptions};
use engram_engine::{Engine, Table};
use engram_testkit::{byte_item, table_options};

use super::*;

/// Returns a table `t` with a rate limiter that accepts two items more than are sampled.
fn queue_table() -> Arc<Table> {
    let options = TableOptions {
        max_times_sampled: 1,
        limits: RateLimits::queue(2),
        ..table_options("t")
    };
    let engine = Engine::new(vec![options], 1).unwrap();
    engine.table("t").unwrap()
}

/// Samples `n` items, which must be available.
fn sample(table: &Arc<Table>, n: usize) {
    let sampled = table.sample(n, false).unwrap().now_or_never();
    assert_eq!(sampled.unwrap().unwrap().draws.len(), n);
}

/// Inserts items numbered `first..=last`.
fn insert(queues: &mut InsertQueues, table: &Arc<Table>, first: u64, last: u64) {
    let items: Vec<_> = (first..=last).map(|key| byte_item(key, 1.0, 4)).collect();
    let batch = InsertBatch::new(last, &items);
    queues.add("t", batch, table.insert(items).unwrap());
}

/// Returns the number of each completed acknowledgement, and whether it has an error.
fn acknowledged(reply: Option<pb::InsertResponse>) -> Vec<(u64, bool)> {
    let completed = reply.map(|reply| reply.completed).unwrap_or_default();
    let acknowledged = completed
        .iter()
        .map(|ack| (ack.number, ack.error.is_some()));
    acknowledged.collect()
}

#[test]
fn items_inserted_since_the_last_poll_are_acknowledged() {
    for sampled in 0..=4 {
        let table = queue_table();
        let mut queues = InsertQueues::default();
        insert(&mut queues, &table, 1, 4);
        insert(&mut queues, &table, 5, 6);
        assert_eq!(acknowledged(queues.next_reply()), [(2, false)]);
        // Each sample allows one insert; the tickets are not polled.
        for _ in 0..sampled {
            sample(&table, 1);
        }
        let mut acks = queues.withdraw();
        let expected = (sampled > 0).then_some((2 + sampled, false));
        assert_eq!(
            acknowledged(acks.next_reply()),
            Vec::from_iter(expected),
            "{sampled}"
        );
        let info = table.info();
        assert_eq!(info.stats.limiter.inserts, 2 + sampled);
        assert_eq!(info.waiting_inserts, 0);
    }
}

#[test]
fn inserted_items_of_a_batch_are_acknowledged_once_it_is_the_first() {
    let table = queue_table();
    let mut queues = InsertQueues::default();
    insert(&mut queues, &table, 1, 3);
    assert_eq!(acknowledged(queues.next_reply()), [(2, false)]);
    sample(&table, 2);
    // The third item is inserted, but its ticket was not polled: the fourth is inserted after it.
    insert(&mut queues, &table, 4, 6);
    assert_eq!(table.info().stats.limiter.inserts, 4);
    assert_eq!(acknowledged(queues.next_reply()), []);
    queues.progress().now_or_never();
    assert_eq!(acknowledged(queues.next_reply()), [(4, false)]);
}

#[test]
fn rejections_behind_a_waiting_batch_count_as_memory() {
    let table = queue_table();
    let mut queues = InsertQueues::default();
    insert(&mut queues, &table, 1, 3);
    assert_eq!(acknowledged(queues.next_reply()), [(2, false)]);
    let error = bounded_error(&Error::Priority("too low".into()), MAX_ERROR_BYTES);
    let mut number = 3;
    while queues.has_room() {
        number += 1;
        assert!(number < 200_000, "rejections are not counted");
        queues.reject("t", number, error.clone());
    }
    assert!(number > 100_000, "{number} rejections are too many");
    assert_eq!(acknowledged(queues.next_reply()), []);
    // The waiting item is inserted, and all are acknowledged.
    sample(&table, 1);
    queues.progress().now_or_never();
    let mut next = 3;
    while let Some(reply) = queues.next_reply() {
        for ack in acknowledged(Some(reply)) {
            assert_eq!(ack, (next, next > 3));
            next += 1;
        }
    }
    assert_eq!(next, number + 1);
    assert!(queues.has_room());
}
