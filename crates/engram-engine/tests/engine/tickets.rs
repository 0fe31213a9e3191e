//! Tickets: order of service, results, and how waiting ends.

use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use engram_core::{Error, RateLimits, TableOptions, Volatile};
use engram_engine::{BatchLease as _, Engine, SampleOptions};

use crate::support::{
    ManualClock, SECOND, WakeCounter, byte_item, error_text, insert_items, item, items, keys,
    new_engine, new_table, poll, queue_options, sample_keys, table_dropped_error, table_options,
    wait_ready,
};

/// Limits with one sample per insert.
fn ratio_limits(min_size: u64, min_diff: f64, max_diff: f64) -> RateLimits {
    RateLimits {
        kind: "SampleToInsertRatio".into(),
        samples_per_insert: 1.0,
        min_size,
        min_diff,
        max_diff,
    }
}

/// Waits until a condition holds; panics if it does not after 20 s.
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + 20 * SECOND;
    while !condition() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Options of a call that samples `n` items within a time.
fn within(seconds: f64, n: usize) -> SampleOptions {
    SampleOptions {
        n,
        at_least: n,
        lease: false,
        timeout: Some(seconds),
    }
}

#[test]
fn a_sample_collects_exactly_n_items_in_several_steps() {
    let table = new_table(TableOptions {
        max_times_sampled: 1,
        limits: ratio_limits(1, 0.0, 2.0),
        ..table_options("t")
    });
    let sample = table.sample(7, false).unwrap();
    // The limiter allows two items at a time; they are sampled before the next are inserted.
    let insert = table.insert(items(0..9)).unwrap();
    assert_eq!(keys(&wait_ready(sample).unwrap()), [0, 1, 2, 3, 4, 5, 6]);
    wait_ready(insert).unwrap();
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.hidden_items, stats.limiter.samples),
        (2, 0, 7)
    );
}

#[test]
fn large_requests_are_served_in_bounded_steps() {
    let table = new_table(TableOptions {
        max_size: 40_000,
        max_times_sampled: 2,
        ..table_options("t")
    });
    let mut insert = table.insert(items(0..30_000)).unwrap();
    // A call that needs more than one lock hold locks the table again by itself, without being polled.
    assert!(poll(&mut insert, &Arc::default()).is_ready());
    let sample = wait_ready(table.sample(60_000, false).unwrap()).unwrap();
    assert!(
        keys(&sample)
            .into_iter()
            .eq((0..30_000).flat_map(|key| [key, key]))
    );
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.deletes), (0, 30_000));
    insert_items(&table, items(0..20_000));
    drop(table.sample(40_000, true).unwrap());
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.hidden_items, stats.limiter.samples),
        (20_000, 0, 60_000)
    );
    assert_eq!(sample_keys(&table, 4), [0, 0, 1, 1]);
}

#[test]
fn an_insert_serves_a_waiting_sample_only_for_a_bounded_time() {
    let table = new_table(table_options("t"));
    let wakes = Arc::<WakeCounter>::default();
    let mut sample = table.sample(100_000, true).unwrap();
    assert!(poll(&mut sample, &wakes).is_pending());
    // One item makes all 100,000 samples possible: the waiting caller is woken to draw the rest.
    insert_items(&table, items(0..1));
    assert_eq!(wakes.count(), 1);
    assert!(table.info().stats.limiter.samples < 100_000);
    assert_eq!(wait_ready(sample).unwrap().draws.len(), 100_000);
}

#[test]
fn a_waiting_insert_is_served_without_being_polled_again() {
    let table = new_table(TableOptions {
        max_size: 100_000,
        limits: ratio_limits(1, 0.0, 1.0),
        ..table_options("t")
    });
    let mut insert = table.insert(items(0..50_000)).unwrap();
    // The ticket was polled once, and is not polled again.
    assert!(poll(&mut insert, &Arc::default()).is_pending());
    table.set_limits(RateLimits::min_size(1)).unwrap();
    assert_eq!(insert.items_left(), 0);
}

#[test]
fn a_sample_returns_its_items_at_its_deadline() {
    let table = new_table(queue_options("replay", 256));
    insert_items(&table, items(0..37));
    for leased in [false, true] {
        let options = SampleOptions {
            lease: leased,
            ..within(0.02, 256)
        };
        let error = wait_ready(table.sample_with(options).unwrap()).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded(_)));
        assert_eq!(
            error.to_string(),
            "table `replay` had 37 of 256 samples available within 0.02 s; they were returned to it; `replay`: sampling waits: the \
             learner has caught up with the writers, which is as far as Queue allows (37 inserted x 1 sample per \
             insert - 37 sampled = 0)"
        );
        let stats = table.info().stats;
        assert_eq!((stats.size, stats.hidden_items), (37, 0));
        assert_eq!((stats.limiter.samples, stats.num_unique_samples), (0, 0));
    }
    assert!(sample_keys(&table, 37).into_iter().eq(0..37));
}

#[test]
fn a_sample_that_has_drawn_all_items_does_not_blame_others() {
    let table = new_table(TableOptions {
        max_times_sampled: 1,
        ..table_options("t")
    });
    insert_items(&table, items(0..2));
    let none_left = "table `t` had 2 of 4 samples available within 0.01 s; they were returned to it; the table has no other \
                     item to sample: insert more, or sample fewer at once";
    assert_eq!(
        error_text(wait_ready(table.sample_with(within(0.01, 4)).unwrap())),
        none_left
    );
    // If others have drawn all items, the error names them.
    let held = table.sample(2, true).unwrap();
    let error = error_text(wait_ready(table.sample_with(within(0.01, 4)).unwrap()));
    let others = "table `t` had 0 of 4 samples available within 0.01 s; `t`: sampling waits: all 2 items have reached";
    assert!(error.starts_with(others), "{error}");
    drop(held);
    assert_eq!(sample_keys(&table, 2), [0, 1]);
}

#[test]
fn a_sample_that_is_complete_at_its_deadline_is_returned() {
    let table = new_table(queue_options("t", 9));
    let mut ticket = table.sample_with(within(0.01, 2)).unwrap();
    assert!(poll(&mut ticket, &Arc::default()).is_pending());
    insert_items(&table, items(0..2));
    thread::sleep(Duration::from_millis(20));
    let sample = wait_ready(ticket).unwrap();
    assert_eq!(keys(&sample), [0, 1]);
    sample.lease.unwrap().acknowledge();
    assert_eq!(table.info().stats.size, 0);
}

#[test]
fn a_deadline_wakes_the_task_that_polled_last() {
    let table = new_table(table_options("t"));
    let wakes: [Arc<WakeCounter>; 2] = Default::default();
    let mut ticket = table.sample_with(within(0.05, 2)).unwrap();
    assert!(poll(&mut ticket, &wakes[0]).is_pending());
    assert!(poll(&mut ticket, &wakes[1]).is_pending());
    wait_until(|| wakes[1].count() > 0);
    assert_eq!(wakes[0].count(), 0);
    let error = "table `t` had 0 of 2 samples available within 0.05 s; `t`: sampling waits: the table is empty (MinSize)";
    let Poll::Ready(outcome) = poll(&mut ticket, &wakes[1]) else {
        panic!("the deadline has passed");
    };
    assert_eq!(error_text(outcome), error);
    // At a deadline that has passed already, the items that are available are enough.
    insert_items(&table, items(0..1));
    let ended = table.sample_with(within(0.0, 2)).unwrap();
    assert_eq!(keys(&wait_ready(ended).unwrap()), [0, 0]);
}

#[test]
fn tickets_are_served_in_order() {
    let table = new_table(queue_options("t", 4));
    let wakes: [Arc<WakeCounter>; 2] = Default::default();
    let mut first = table.sample(3, false).unwrap();
    let mut second = table.sample(1, false).unwrap();
    assert!(poll(&mut first, &wakes[0]).is_pending());
    assert!(poll(&mut second, &wakes[1]).is_pending());
    insert_items(&table, items(0..2));
    assert!(
        poll(&mut second, &wakes[1]).is_pending(),
        "the first ticket is served first"
    );
    insert_items(&table, items(2..4));
    assert_eq!((wakes[0].count(), wakes[1].count()), (1, 1));
    assert_eq!(keys(&wait_ready(first).unwrap()), [0, 1, 2]);
    assert_eq!(keys(&wait_ready(second).unwrap()), [3]);

    let inserts = [0..3, 3..6, 6..7].map(|keys| table.insert(items(keys)).unwrap());
    assert!(sample_keys(&table, 4).into_iter().eq(0..4));
    assert!(sample_keys(&table, 3).into_iter().eq(4..7));
    for insert in inserts {
        wait_ready(insert).unwrap();
    }
}

#[test]
fn an_empty_insert_does_not_block_later_inserts() {
    let table = new_table(queue_options("t", 1));
    insert_items(&table, items(0..1));
    let wakes: [Arc<WakeCounter>; 3] = Default::default();
    let mut first = table.insert(items(1..2)).unwrap();
    let mut empty = table.insert(Vec::new()).unwrap();
    let mut third = table.insert(items(2..3)).unwrap();
    assert!(poll(&mut first, &wakes[0]).is_pending());
    assert!(poll(&mut empty, &wakes[1]).is_pending());
    assert!(poll(&mut third, &wakes[2]).is_pending());
    let mut sample = table.sample(1, false).unwrap();
    assert!(poll(&mut sample, &Arc::default()).is_ready());
    assert_eq!(
        (wakes[0].count(), wakes[1].count(), wakes[2].count()),
        (1, 1, 0)
    );
    table.set_limits(RateLimits::min_size(1)).unwrap();
    assert_eq!(wakes[2].count(), 1);
    // The empty insert is removed, and the next one is served in the same lock hold.
    table.set_limits(RateLimits::queue(1)).unwrap();
    let mut blocked = table.insert(items(3..4)).unwrap();
    let empty = table.insert(Vec::new()).unwrap();
    let mut last = table.insert(items(4..5)).unwrap();
    assert!(poll(&mut blocked, &wakes[0]).is_pending());
    assert!(poll(&mut last, &wakes[2]).is_pending());
    table.set_limits(RateLimits::min_size(1)).unwrap();
    assert_eq!((wakes[0].count(), wakes[2].count()), (2, 2));
    wait_ready(empty).unwrap();
}

#[test]
fn dropping_a_ticket_withdraws_the_call() {
    let table = new_table(queue_options("t", 3));
    insert_items(&table, items(0..2));
    let first = table.sample(3, false).unwrap();
    let second = table.sample(2, false).unwrap();
    drop(first);
    assert_eq!(
        keys(&wait_ready(second).unwrap()),
        [0, 1],
        "returned items are sampled first again"
    );
    insert_items(&table, items(2..3));
    drop(table.sample(1, true).unwrap());
    assert_eq!(
        table.info().stats.hidden_items,
        0,
        "the dropped sample was complete from the start, but never polled"
    );

    let insert = table.insert(items(3..9)).unwrap();
    assert_eq!(insert.withdraw(), 4);
    drop(table.insert(items(9..12)).unwrap());
    assert_eq!(table.info().waiting_inserts, 0);
    assert_eq!(sample_keys(&table, 3), [2, 3, 4]);
}

#[test]
fn closing_ends_waiting_samples_with_the_reason() {
    let engine = Arc::new(new_engine(vec![
        queue_options("a", 2),
        queue_options("b", 2),
    ]));
    let waiting_calls = ["a", "b"].map(|name| {
        let table = engine.table(name).unwrap();
        let ticket = table.sample(2, false).unwrap();
        let first = thread::spawn(move || wait_ready(ticket).unwrap_err());
        let same_table = engine.table(name).unwrap();
        let second = thread::spawn(move || {
            insert_items(&same_table, items(0..1));
            wait_ready(same_table.sample(2, true).unwrap()).unwrap_err()
        });
        (table, first, second)
    });
    thread::sleep(Duration::from_millis(30));
    engine.drop_table("a").unwrap();
    engine.close().unwrap();
    engine.close().unwrap();
    let reasons = [
        table_dropped_error("a"),
        Error::Closed("the store is closed".into()),
    ];
    for ((table, first, second), reason) in waiting_calls.into_iter().zip(reasons) {
        assert_eq!(first.join().unwrap(), reason);
        assert_eq!(second.join().unwrap(), reason);
        assert_eq!(error_text(table.insert(items(1..2))), reason.to_string());
        assert_eq!(error_text(table.sample(1, false)), reason.to_string());
        assert_eq!(
            error_text(table.update_priorities(&[1], &[1.0])),
            reason.to_string()
        );
        assert_eq!(error_text(table.reset()), reason.to_string());
    }
    assert_eq!(error_text(engine.table("a")), "the store is closed");
    assert_eq!(
        error_text(engine.create_table(table_options("c"))),
        "the store is closed"
    );
}

#[test]
fn waiting_inserts_end_with_the_reason() {
    let engine = new_engine(vec![queue_options("a", 2), queue_options("b", 2)]);
    let other = engine.table("b").unwrap();
    let mut other_ticket = other.insert(items(0..5)).unwrap();
    assert!(poll(&mut other_ticket, &Arc::default()).is_pending());
    let table = engine.table("a").unwrap();
    let wakes = Arc::new(WakeCounter::default());
    let mut ticket = table.insert(items(0..5)).unwrap();
    assert!(poll(&mut ticket, &wakes).is_pending());
    engine.drop_table("a").unwrap();
    assert_eq!(wakes.count(), 1);
    assert_eq!(wait_ready(ticket).unwrap_err(), table_dropped_error("a"));
    assert_eq!(
        error_text(engine.table("a")),
        "no table `a`; known tables: `b`"
    );
    assert_eq!(
        error_text(engine.drop_table("a")),
        "no table `a`; known tables: `b`"
    );
    engine.close().unwrap();
    assert_eq!(
        wait_ready(other_ticket).unwrap_err(),
        Error::Closed("the store is closed".into())
    );
}

#[test]
fn changed_limits_wake_waiting_calls() {
    let table = new_table(TableOptions {
        limits: RateLimits::min_size(100),
        ..table_options("t")
    });
    insert_items(&table, items(0..5));
    assert_eq!(
        table.info().sampling_blocked.unwrap(),
        "`t`: sampling waits: the table has 5 of the 100 items it needs (MinSize)"
    );
    let wakes = Arc::new(WakeCounter::default());
    let mut ticket = table.sample(3, false).unwrap();
    assert!(poll(&mut ticket, &wakes).is_pending());
    table.set_limits(RateLimits::min_size(5)).unwrap();
    assert_eq!(wakes.count(), 1);
    assert_eq!(keys(&wait_ready(ticket).unwrap()), [0, 0, 0]);
    assert_eq!(table.info().sampling_blocked, None);
    let error = error_text(table.set_limits(RateLimits::min_size(0)));
    assert!(
        error.contains("`min_size` must be at least 1; got 0"),
        "{error}"
    );
}

#[test]
fn a_blocked_table_does_not_block_others() {
    let engine = new_engine(vec![queue_options("blocked", 1), queue_options("free", 1)]);
    let blocked = engine.table("blocked").unwrap();
    let sample = blocked.sample(1, false).unwrap();
    let waiting = thread::spawn(move || keys(&wait_ready(sample).unwrap()));
    let free = engine.table("free").unwrap();
    for key in 0..100 {
        insert_items(&free, items(key..=key));
        assert_eq!(sample_keys(&free, 1), [key]);
    }
    assert!(!waiting.is_finished());
    insert_items(&blocked, items(5..6));
    assert_eq!(waiting.join().unwrap(), [5]);
}

#[test]
fn samples_that_can_never_be_drawn_fail_at_once() {
    let table = new_table(queue_options("t", 8));
    assert_eq!(
        table.sample(0, false).unwrap_err(),
        Error::InvalidArgument(
            "`n` must be at least 1; got 0 (a request for samples of table `t`)".into()
        )
    );
    assert_eq!(
        table.sample(9, false).unwrap_err(),
        Error::Unsatisfiable(
            "table `t` can never yield 9 samples at once: it has at most 8 items, each \
             sampled at most 1 time"
                .into()
        )
    );
    assert_eq!(table.info().waiting_samples, 0);
}

#[test]
fn expired_items_are_never_sampled() {
    let clock = Arc::new(ManualClock::default());
    let options = TableOptions {
        ttl: Some(10),
        max_size: 5_000,
        limits: RateLimits::min_size(2),
        ..table_options("t")
    };
    let engine =
        Engine::with_clock_and_sink(vec![options], 1, clock.clone(), Arc::new(Volatile)).unwrap();
    let table = engine.table("t").unwrap();
    insert_items(&table, items(0..1));
    let mut ticket = table.sample(1, false).unwrap();
    assert!(poll(&mut ticket, &Arc::default()).is_pending());
    clock.set(10);
    insert_items(&table, items(1..2));
    assert!(
        poll(&mut ticket, &Arc::default()).is_pending(),
        "the first item has expired"
    );
    insert_items(&table, items(2..3));
    assert_eq!(keys(&wait_ready(ticket).unwrap()), [1]);
    clock.set(15);
    insert_items(&table, items(10..4_000));
    clock.set(24);
    assert_eq!(sample_keys(&table, 1), [10]);
    clock.set(25);
    assert_eq!(table.info().stats.size, 0);
    assert_eq!(table.delete(&[10, 11]).unwrap(), 0);
}

#[test]
fn waiting_calls_are_served_when_items_expire() {
    let table = new_table(TableOptions {
        ttl: Some(10_000_000),
        ..queue_options("t", 1)
    });
    let wakes = Arc::<WakeCounter>::default();
    let mut insert = table.insert(items(0..4)).unwrap();
    // The ticket is polled once: the expiries of the first three items let the last one in.
    assert!(poll(&mut insert, &wakes).is_pending());
    wait_until(|| wakes.count() > 0);
    wait_ready(insert).unwrap();
    assert_eq!(table.info().stats.limiter.inserts, 4);
}

#[test]
fn a_reset_discards_the_draws_of_waiting_calls() {
    let table = new_table(queue_options("t", 5));
    insert_items(&table, items(0..3));
    let mut ticket = table.sample(4, false).unwrap();
    assert!(poll(&mut ticket, &Arc::default()).is_pending());
    // The ticket has all its draws, but has not returned them.
    insert_items(&table, items(3..4));
    table.reset().unwrap();
    let insert = table.insert(items(10..15)).unwrap();
    assert_eq!(keys(&wait_ready(ticket).unwrap()), [10, 11, 12, 13]);
    wait_ready(insert).unwrap();
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.limiter.samples, stats.num_unique_samples),
        (1, 4, 4)
    );
}

#[test]
fn an_insert_evicts_leased_items_that_exceed_max_bytes() {
    let small = byte_item(1, 1.0, 30_000);
    let table = new_table(TableOptions {
        max_bytes: Some(100_000),
        max_times_sampled: 1,
        ..table_options("t")
    });
    insert_items(&table, vec![byte_item(0, 1.0, 60_000)]);
    let lease = wait_ready(table.sample(1, true).unwrap()).unwrap();
    insert_items(&table, vec![small]);
    insert_items(&table, vec![byte_item(2, 1.0, 90_000)]);
    insert_items(&table, vec![byte_item(3, 1.0, 50_000)]);
    let info = table.info();
    assert_eq!((info.stats.size, info.stats.hidden_items), (1, 0));
    lease.lease.unwrap().acknowledge();
    assert_eq!(sample_keys(&table, 1), [3]);
}

#[test]
fn a_snapshot_is_not_affected_by_later_changes() {
    let table = new_table(TableOptions {
        max_size: 5_000,
        ..table_options("t")
    });
    insert_items(&table, items(0..5_000));
    let snapshot = table.snapshot().unwrap();
    let all: Vec<u64> = (0..5_000).collect();
    let priorities = vec![9.0; all.len()];
    assert_eq!(table.update_priorities(&all, &priorities).unwrap(), 5_000);
    let second = table.snapshot().unwrap();
    assert_eq!(sample_keys(&table, 600), vec![0; 600]);
    assert_eq!(table.delete(&all[..3_000]).unwrap(), 3_000);
    insert_items(&table, items(5_000..9_000));
    assert!(
        snapshot
            .items()
            .all(|item| item.priority < 9.0 && item.times_sampled == 0)
    );
    assert!(
        second
            .items()
            .all(|item| item.priority > 8.0 && item.times_sampled == 0)
    );
    assert!(second.items().map(|item| item.key).eq(0..5_000));
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.samples), (5_000, 600));
    assert_eq!(sample_keys(&table, 1), [4_000]);
}

#[test]
fn insert_or_update_updates_the_priority_of_an_existing_key() {
    for (updates, priority) in [(true, 7.0), (false, 1.0)] {
        let table = new_table(TableOptions {
            limits: ratio_limits(1, f64::MIN, 1.0),
            ..table_options("t")
        });
        insert_items(&table, items(0..1));
        // Both wait; the second has the key of the first.
        let first = table.insert(items(5..6)).unwrap();
        let same_key = vec![item(5, 7.0)];
        let second = if updates {
            table.insert_or_update(same_key)
        } else {
            table.insert(same_key)
        };
        let second = second.unwrap();
        assert_eq!(table.info().waiting_inserts, 2);
        sample_keys(&table, 1);
        wait_ready(first).unwrap();
        // An update does not wait for the limiter.
        assert_eq!(table.info().waiting_inserts, usize::from(!updates));
        sample_keys(&table, 1);
        wait_ready(second).unwrap();
        table.delete(&[0]).unwrap();
        let sample = wait_ready(table.sample(1, false).unwrap()).unwrap();
        assert_eq!(sample.draws[0].key, 5);
        assert!((sample.draws[0].priority - priority).abs() < 1e-9);
    }
}
