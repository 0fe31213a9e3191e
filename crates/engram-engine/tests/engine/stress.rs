//! Many concurrent calls of all kinds: none blocks forever, and the counts are consistent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::table::ITEM_OVERHEAD;
use engram_core::{Error, RateLimits, SelectorKind, TableOptions};
use engram_engine::{
    BatchLease, BatchStream, SampleOptions, Stream, StreamOptions, Table, WaitOptions, WaitOutcome,
};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::support::{SECOND, item, new_table, queue_options, table_options, wait_for};

/// How long each test runs.
const RUN_TIME: Duration = Duration::from_millis(400);

/// Keys are below this.
const KEY_COUNT: u64 = 300;

/// Makes one call; its kind depends on `number`, the caller's number.
fn make_call(table: &Arc<Table>, number: u64, rng: &mut SplitMix64) {
    let timeout = Duration::from_micros(rng.next_u64() % 3_000);
    let keys: Vec<u64> = (0..rng.next_u64() % 20)
        .map(|_| rng.next_u64() % KEY_COUNT)
        .collect();
    let n = 1 + usize::try_from(rng.next_u64() % 12).unwrap();
    match number % 7 {
        0 | 1 => {
            let items = keys
                .iter()
                .map(|key| item(*key, [1.0, 2.0, 7.0][usize::try_from(key % 3).unwrap()]));
            let mut ticket = table.insert(items.collect()).unwrap();
            let _ = wait_for(&mut ticket, timeout);
        }
        2 | 3 => {
            let leased = number % 7 == 3;
            let at_least = if rng.next_u64().is_multiple_of(2) {
                n
            } else {
                1
            };
            let limit = rng.next_u64().is_multiple_of(2);
            let mut ticket = table
                .sample_with(SampleOptions {
                    n,
                    at_least,
                    lease: leased,
                    timeout: limit.then_some(timeout.as_secs_f64()),
                })
                .unwrap();
            // With a limit, the ticket ends by itself.
            let wait = if limit { 20 * SECOND } else { timeout };
            match wait_for(&mut ticket, wait) {
                WaitOutcome::Ready(Ok(sample)) => {
                    assert!((at_least..=n).contains(&sample.draws.len()));
                    if rng.next_u64().is_multiple_of(3) {
                        drop(sample.lease.map(BatchLease::acknowledge));
                    }
                }
                WaitOutcome::Ready(Err(error)) => {
                    assert!(
                        limit && matches!(error, Error::DeadlineExceeded(_)),
                        "{error}"
                    );
                }
                _ => assert!(!limit, "the deadline has passed"),
            }
        }
        4 => {
            let priorities = vec![2.5; keys.len()];
            table.update_priorities(&keys, &priorities).unwrap();
            table.delete(&keys[..keys.len() / 4]).unwrap();
        }
        5 => {
            let options = StreamOptions {
                batch_size: n,
                at_least: n,
                prefetch: 2,
                max_batches: Some(4),
                max_items: None,
                length_policy: LengthPolicy::Ragged,
                hold: false,
            };
            let mut stream = Stream::open(Arc::clone(table), Arc::default(), options).unwrap();
            let mut options = WaitOptions {
                deadline: Some(Instant::now() + timeout),
                interrupted: &mut || false,
            };
            stream.next(&mut options).unwrap();
            if rng.next_u64().is_multiple_of(2) {
                stream.deliver(n as u64);
            }
        }
        _ => {
            let limits = table.options().limits.clone();
            match rng.next_u64() % 8 {
                0 => table.reset().unwrap(),
                1 => table.set_limits(RateLimits::min_size(3)).unwrap(),
                2 => table.set_limits(limits).unwrap(),
                _ => check_counts(table, false),
            }
            thread::sleep(timeout);
        }
    }
}

/// Checks that the table's counts are consistent; `is_idle` is true if no call uses it.
fn check_counts(table: &Arc<Table>, is_idle: bool) {
    let info = table.info();
    let stats = &info.stats;
    assert_eq!(stats.limiter.inserts - stats.limiter.deletes, stats.size);
    assert!(stats.hidden_items <= stats.size && stats.num_episodes <= stats.size);
    // An eviction that takes several lock holds leaves one item too many in between.
    assert!(
        stats.size <= info.options.max_size + 1,
        "{} items",
        stats.size
    );
    if !is_idle {
        return;
    }
    assert_eq!(
        (
            info.waiting_inserts,
            info.waiting_samples,
            stats.hidden_items
        ),
        (0, 0, 0)
    );
    let snapshot = table.snapshot().unwrap();
    let bytes: u64 = snapshot
        .items()
        .flat_map(|item| item.trajectory.chunks())
        .map(|chunk| chunk.footprint() as u64 + ITEM_OVERHEAD)
        .sum();
    assert_eq!(
        (snapshot.items().count() as u64, bytes),
        (stats.size, stats.bytes)
    );
    // Each item has an episode of its own.
    assert_eq!(stats.num_episodes, stats.size);
}

fn run_callers(options: TableOptions) {
    let table = new_table(options);
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..14_u64)
        .map(|number| {
            let (table, stop) = (Arc::clone(&table), Arc::clone(&stop));
            thread::spawn(move || {
                let mut rng = SplitMix64::seed_from_u64(number);
                while !stop.load(Ordering::Relaxed) {
                    make_call(&table, number, &mut rng);
                }
            })
        })
        .collect();
    thread::sleep(RUN_TIME);
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().unwrap();
    }
    check_counts(&table, true);
}

/// Panics if the work has not ended after 60 s.
fn assert_ends(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match ended.recv_timeout(60 * SECOND) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not ended after 60 s"),
        _ => worker.join().unwrap(),
    }
}

#[test]
fn a_queue_survives_concurrent_calls() {
    assert_ends(|| run_callers(queue_options("t", 40)));
}

#[test]
fn a_replay_table_survives_concurrent_calls() {
    assert_ends(|| {
        run_callers(TableOptions {
            max_size: 100,
            max_times_sampled: 3,
            max_bytes: Some(30_000),
            ttl: Some(50_000_000),
            sampler: SelectorKind::Prioritized { exponent: 0.6 },
            remover: SelectorKind::MinHeap,
            ..table_options("t")
        });
    });
}

#[test]
fn a_uniform_table_survives_concurrent_calls() {
    assert_ends(|| {
        run_callers(TableOptions {
            max_size: 100,
            sampler: SelectorKind::Uniform,
            remover: SelectorKind::Lifo,
            limits: RateLimits {
                kind: "SampleToInsertRatio".into(),
                samples_per_insert: 4.0,
                min_size: 5,
                min_diff: -20.0,
                max_diff: 60.0,
            },
            ..table_options("t")
        });
    });
}
