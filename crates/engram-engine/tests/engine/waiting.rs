//! Tickets: who is served, when, with what, and how waiting ends.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use engram_core::{Error, RateLimits, TableOptions, Volatile};
use engram_engine::{Engine, WaitOutcome};

use crate::support::{
    Bell, Hand, SECOND, dropped, engine, fifo, item, item_of, items, keys, poll, put, queue,
    served, table, take, text, wait_for,
};

fn ratio(min_size: u64, min_diff: f64, max_diff: f64) -> RateLimits {
    RateLimits {
        kind: "SampleToInsertRatio".into(),
        samples_per_insert: 1.0,
        min_size,
        min_diff,
        max_diff,
    }
}

#[test]
fn exactly_n_are_collected_over_several_grants() {
    let table = table(TableOptions {
        max_times_sampled: 1,
        limits: ratio(1, 0.0, 2.0),
        ..fifo("t")
    });
    let sample = table.sample(7, false).unwrap();
    // Two at a time are let in, and each is handed over before the next.
    let insert = table.insert(items(0..9)).unwrap();
    assert_eq!(keys(&served(sample).unwrap()), [0, 1, 2, 3, 4, 5, 6]);
    served(insert).unwrap();
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.hidden, stats.limiter.samples), (2, 0, 7));
}

#[test]
fn large_requests_are_served_in_bounded_steps() {
    let table = table(TableOptions {
        max_size: 40_000,
        max_times_sampled: 2,
        ..fifo("t")
    });
    let mut insert = table.insert(items(0..30_000)).unwrap();
    // Whoever runs out of time under the lock comes back, without being asked.
    assert!(poll(&mut insert, &Arc::default()).is_ready());
    let sample = served(table.sample(60_000, false).unwrap()).unwrap();
    assert!(
        keys(&sample)
            .into_iter()
            .eq((0..30_000).flat_map(|key| [key, key]))
    );
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.deletes), (0, 30_000));
    put(&table, items(0..20_000));
    drop(table.sample(40_000, true).unwrap());
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.hidden, stats.limiter.samples),
        (20_000, 0, 60_000)
    );
    assert_eq!(take(&table, 4), [0, 0, 1, 1]);
}

#[test]
fn nobody_serves_another_for_long() {
    let table = table(fifo("t"));
    let bell = Arc::<Bell>::default();
    let mut sample = table.sample(100_000, true).unwrap();
    assert!(poll(&mut sample, &bell).is_pending());
    // One item makes all of them possible: the waiting caller is woken to see to the rest itself.
    put(&table, items(0..1));
    assert_eq!(bell.rings(), 1);
    assert!(table.info().stats.limiter.samples < 100_000);
    assert_eq!(served(sample).unwrap().draws.len(), 100_000);
}

#[test]
fn what_nobody_waits_for_is_served_all_the_same() {
    let table = table(TableOptions {
        max_size: 100_000,
        limits: ratio(1, 0.0, 1.0),
        ..fifo("t")
    });
    let mut insert = table.insert(items(0..50_000)).unwrap();
    // Its writer has looked, and will not look again soon.
    assert!(poll(&mut insert, &Arc::default()).is_pending());
    table.set_limits(RateLimits::min_size(1)).unwrap();
    assert_eq!(insert.items_left(), 0);
}

#[test]
fn at_the_deadline_everything_goes_back() {
    let table = table(queue("replay", 256));
    put(&table, items(0..37));
    for leased in [false, true] {
        let mut ticket = table.sample(256, leased).unwrap();
        let late = wait_for(&mut ticket, Duration::from_millis(20));
        assert!(matches!(late, WaitOutcome::TimedOut));
        let error = ticket.cancel(0.02).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded(_)));
        assert_eq!(
            error.to_string(),
            "table `replay` yielded 37 of 256 samples within 0.02 s; `replay`: sampling waits: the \
             learner has caught up with the writers, the limit of Queue (37 inserted, 37 sampled)"
        );
        let stats = table.info().stats;
        assert_eq!((stats.size, stats.hidden), (37, 0));
        assert_eq!((stats.limiter.samples, stats.num_unique_samples), (0, 0));
    }
    assert!(take(&table, 37).into_iter().eq(0..37));
}

#[test]
fn a_sample_that_completes_at_the_last_moment_is_kept() {
    let table = table(queue("t", 9));
    let mut ticket = table.sample(2, false).unwrap();
    assert!(matches!(
        wait_for(&mut ticket, Duration::ZERO),
        WaitOutcome::TimedOut
    ));
    put(&table, items(0..2));
    assert_eq!(keys(&ticket.cancel(0.0).unwrap()), [0, 1]);
    assert_eq!(table.info().stats.size, 0);
}

#[test]
fn a_partial_sample_is_final() {
    let table = table(queue("t", 9));
    put(&table, items(0..3));
    let ticket = table.sample(8, false).unwrap();
    assert_eq!(keys(&ticket.take_partial()), [0, 1, 2]);
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.samples), (0, 3));
}

#[test]
fn tickets_are_served_in_order() {
    let table = table(queue("t", 4));
    let bells: [Arc<Bell>; 2] = Default::default();
    let mut first = table.sample(3, false).unwrap();
    let mut second = table.sample(1, false).unwrap();
    assert!(poll(&mut first, &bells[0]).is_pending());
    assert!(poll(&mut second, &bells[1]).is_pending());
    put(&table, items(0..2));
    assert!(
        poll(&mut second, &bells[1]).is_pending(),
        "the first comes first"
    );
    put(&table, items(2..4));
    assert_eq!((bells[0].rings(), bells[1].rings()), (1, 1));
    assert_eq!(keys(&served(first).unwrap()), [0, 1, 2]);
    assert_eq!(keys(&served(second).unwrap()), [3]);

    let inserts = [0..3, 3..6, 6..7].map(|keys| table.insert(items(keys)).unwrap());
    assert!(take(&table, 4).into_iter().eq(0..4));
    assert!(take(&table, 3).into_iter().eq(4..7));
    for insert in inserts {
        served(insert).unwrap();
    }
}

#[test]
fn an_empty_insert_does_not_hold_up_the_next() {
    let table = table(queue("t", 1));
    put(&table, items(0..1));
    let bells: [Arc<Bell>; 3] = Default::default();
    let mut first = table.insert(items(1..2)).unwrap();
    let mut empty = table.insert(Vec::new()).unwrap();
    let mut third = table.insert(items(2..3)).unwrap();
    assert!(poll(&mut first, &bells[0]).is_pending());
    assert!(poll(&mut empty, &bells[1]).is_pending());
    assert!(poll(&mut third, &bells[2]).is_pending());
    let mut sample = table.sample(1, false).unwrap();
    assert!(poll(&mut sample, &Arc::default()).is_ready());
    assert_eq!(
        (bells[0].rings(), bells[1].rings(), bells[2].rings()),
        (1, 1, 0)
    );
    table.set_limits(RateLimits::min_size(1)).unwrap();
    assert_eq!(bells[2].rings(), 1);
    // Both at once: the empty one leaves, and the one behind it follows in the same hold.
    table.set_limits(RateLimits::queue(1)).unwrap();
    let mut blocked = table.insert(items(3..4)).unwrap();
    let empty = table.insert(Vec::new()).unwrap();
    let mut last = table.insert(items(4..5)).unwrap();
    assert!(poll(&mut blocked, &bells[0]).is_pending());
    assert!(poll(&mut last, &bells[2]).is_pending());
    table.set_limits(RateLimits::min_size(1)).unwrap();
    assert_eq!((bells[0].rings(), bells[2].rings()), (2, 2));
    served(empty).unwrap();
}

#[test]
fn a_dropped_ticket_withdraws() {
    let table = table(queue("t", 3));
    put(&table, items(0..2));
    let first = table.sample(3, false).unwrap();
    let second = table.sample(2, false).unwrap();
    drop(first);
    assert_eq!(
        keys(&served(second).unwrap()),
        [0, 1],
        "what comes back is first again"
    );
    put(&table, items(2..3));
    drop(table.sample(1, true).unwrap());
    assert_eq!(
        table.info().stats.hidden,
        0,
        "served at once, and never asked for"
    );

    let insert = table.insert(items(3..9)).unwrap();
    assert_eq!(insert.withdraw(), 4);
    drop(table.insert(items(9..12)).unwrap());
    assert_eq!(table.info().waiting_inserts, 0);
    assert_eq!(take(&table, 3), [2, 3, 4]);
}

#[test]
fn closing_ends_waiting_calls_with_the_reason() {
    let engine = Arc::new(engine(vec![queue("a", 2), queue("b", 2)]));
    let both = ["a", "b"].map(|name| {
        let table = engine.table(name).unwrap();
        let sampler = {
            let ticket = table.sample(2, false).unwrap();
            thread::spawn(move || served(ticket).unwrap_err())
        };
        let full = engine.table(name).unwrap();
        let inserter = thread::spawn(move || {
            let ticket = full.insert(items(0..1)).unwrap();
            served(ticket).unwrap();
            served(full.sample(2, true).unwrap()).unwrap_err()
        });
        (table, sampler, inserter)
    });
    thread::sleep(Duration::from_millis(30));
    engine.drop_table("a").unwrap();
    engine.close().unwrap();
    engine.close().unwrap();
    let reasons = [dropped("a"), Error::Closed("the store is closed".into())];
    for ((table, sampler, inserter), reason) in both.into_iter().zip(reasons) {
        assert_eq!(sampler.join().unwrap(), reason);
        assert_eq!(inserter.join().unwrap(), reason);
        assert_eq!(text(table.insert(items(1..2))), reason.to_string());
        assert_eq!(text(table.sample(1, false)), reason.to_string());
        assert_eq!(
            text(table.update_priorities(&[1], &[1.0])),
            reason.to_string()
        );
        assert_eq!(text(table.reset()), reason.to_string());
    }
    assert_eq!(text(engine.table("a")), "the store is closed");
    assert_eq!(text(engine.create_table(fifo("c"))), "the store is closed");
}

#[test]
fn an_insert_ends_when_its_table_is_dropped() {
    let engine = engine(vec![queue("a", 2)]);
    let table = engine.table("a").unwrap();
    let bell = Arc::new(Bell::default());
    let mut ticket = table.insert(items(0..5)).unwrap();
    assert!(poll(&mut ticket, &bell).is_pending());
    engine.drop_table("a").unwrap();
    assert_eq!(bell.rings(), 1);
    assert_eq!(served(ticket).unwrap_err(), dropped("a"));
    assert_eq!(text(engine.table("a")), "no table `a`; known tables: none");
    assert_eq!(
        text(engine.drop_table("a")),
        "no table `a`; known tables: none"
    );
}

#[test]
fn a_changed_limiter_wakes_who_waits() {
    let table = table(TableOptions {
        limits: RateLimits::min_size(100),
        ..fifo("t")
    });
    put(&table, items(0..5));
    assert_eq!(
        table.info().sampling_blocked.unwrap(),
        "`t`: sampling waits: the table has 5 of the 100 items it needs (MinSize)"
    );
    let bell = Arc::new(Bell::default());
    let mut ticket = table.sample(3, false).unwrap();
    assert!(poll(&mut ticket, &bell).is_pending());
    table.set_limits(RateLimits::min_size(5)).unwrap();
    assert_eq!(bell.rings(), 1);
    assert_eq!(keys(&served(ticket).unwrap()), [0, 0, 0]);
    assert_eq!(table.info().sampling_blocked, None);
    let refused = text(table.set_limits(RateLimits::min_size(0)));
    assert!(refused.contains("min_size is 0"), "{refused}");
}

#[test]
fn a_blocked_table_stalls_no_other() {
    let engine = engine(vec![queue("blocked", 1), queue("free", 1)]);
    let blocked = engine.table("blocked").unwrap();
    let sample = blocked.sample(1, false).unwrap();
    let waiting = thread::spawn(move || keys(&served(sample).unwrap()));
    let free = engine.table("free").unwrap();
    for key in 0..100 {
        put(&free, items(key..=key));
        assert_eq!(take(&free, 1), [key]);
    }
    assert!(!waiting.is_finished());
    put(&blocked, items(5..6));
    assert_eq!(waiting.join().unwrap(), [5]);
}

#[test]
fn what_can_never_be_served_is_refused_at_once() {
    let table = table(queue("t", 8));
    assert_eq!(
        table.sample(0, false).unwrap_err(),
        Error::InvalidArgument("`n` must be at least 1, got 0 samples from table `t`".into())
    );
    assert_eq!(
        table.sample(9, false).unwrap_err(),
        Error::Unsatisfiable(
            "table `t` can never yield 9 samples at once: it has at most 8 items, each \
             sampled at most 1 times"
                .into()
        )
    );
    assert_eq!(table.info().waiting_samples, 0);
}

#[test]
fn expired_items_are_never_handed_out() {
    let clock = Arc::new(Hand::default());
    let options = TableOptions {
        ttl: Some(10),
        max_size: 5_000,
        limits: RateLimits::min_size(2),
        ..fifo("t")
    };
    let engine =
        Engine::with_clock_and_sink(vec![options], 1, clock.clone(), Arc::new(Volatile)).unwrap();
    let table = engine.table("t").unwrap();
    put(&table, items(0..1));
    let mut ticket = table.sample(1, false).unwrap();
    assert!(poll(&mut ticket, &Arc::default()).is_pending());
    clock.set(10);
    put(&table, items(1..2));
    assert!(
        poll(&mut ticket, &Arc::default()).is_pending(),
        "the first has expired"
    );
    put(&table, items(2..3));
    assert_eq!(keys(&served(ticket).unwrap()), [1]);
    clock.set(15);
    put(&table, items(10..4_000));
    clock.set(24);
    assert_eq!(take(&table, 1), [10]);
    clock.set(25);
    assert_eq!(table.info().stats.size, 0);
    assert_eq!(table.delete(&[10, 11]).unwrap(), 0);
}

#[test]
fn a_reset_takes_back_what_waiting_calls_had_drawn() {
    let table = table(queue("t", 5));
    put(&table, items(0..3));
    let mut ticket = table.sample(4, false).unwrap();
    assert!(poll(&mut ticket, &Arc::default()).is_pending());
    let complete = {
        put(&table, items(3..4));
        ticket
    };
    table.reset().unwrap();
    let insert = table.insert(items(10..15)).unwrap();
    assert_eq!(keys(&served(complete).unwrap()), [10, 11, 12, 13]);
    served(insert).unwrap();
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.limiter.samples, stats.num_unique_samples),
        (1, 4, 4)
    );
}

#[test]
fn bytes_held_by_leases_do_not_spin() {
    let small = item_of(1, 1.0, 30_000);
    let table = table(TableOptions {
        max_bytes: Some(100_000),
        max_times_sampled: 1,
        ..fifo("t")
    });
    put(&table, vec![item_of(0, 1.0, 60_000)]);
    let lease = served(table.sample(1, true).unwrap()).unwrap();
    put(&table, vec![small]);
    put(&table, vec![item_of(2, 1.0, 90_000)]);
    let mut waiting = table.insert(vec![item_of(3, 1.0, 50_000)]).unwrap();
    assert!(matches!(
        wait_for(&mut waiting, SECOND / 20),
        WaitOutcome::TimedOut
    ));
    assert_eq!(
        table.info().inserting_blocked.unwrap(),
        "`t`: inserting waits: 1 of 2 items are leased for the last time; acknowledging them makes room"
    );
    lease.lease.unwrap().acknowledge();
    served(waiting).unwrap();
    assert_eq!(take(&table, 1), [3]);
}

#[test]
fn a_snapshot_changes_nothing_but_the_steps() {
    let table = table(TableOptions {
        max_size: 5_000,
        ..fifo("t")
    });
    put(&table, items(0..5_000));
    let snapshot = table.snapshot().unwrap();
    let all: Vec<u64> = (0..5_000).collect();
    let priorities = vec![9.0; all.len()];
    assert_eq!(table.update_priorities(&all, &priorities).unwrap(), 5_000);
    let second = table.snapshot().unwrap();
    assert_eq!(take(&table, 600), vec![0; 600]);
    assert_eq!(table.delete(&all[..3_000]).unwrap(), 3_000);
    put(&table, items(5_000..9_000));
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
    assert_eq!(take(&table, 1), [4_000]);
}

#[test]
fn an_item_that_finds_its_key_gives_it_its_priority_if_it_is_to() {
    for (updates, priority) in [(true, 7.0), (false, 1.0)] {
        let table = table(TableOptions {
            limits: ratio(1, f64::MIN, 1.0),
            ..fifo("t")
        });
        put(&table, items(0..1));
        // Both wait: the second finds what the first brings.
        let first = table.insert(items(5..6)).unwrap();
        let again = vec![item(5, 7.0)];
        let second = if updates {
            table.insert_or_update(again)
        } else {
            table.insert(again)
        };
        let second = second.unwrap();
        assert_eq!(table.info().waiting_inserts, 2);
        take(&table, 1);
        served(first).unwrap();
        // An update needs no room.
        assert_eq!(table.info().waiting_inserts, usize::from(!updates));
        take(&table, 1);
        served(second).unwrap();
        table.delete(&[0]).unwrap();
        let sample = served(table.sample(1, false).unwrap()).unwrap();
        assert_eq!(sample.draws[0].key, 5);
        assert!((sample.draws[0].priority - priority).abs() < 1e-9);
    }
}
