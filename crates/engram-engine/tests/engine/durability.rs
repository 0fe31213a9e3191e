//! Inserts and leases with a log, tables that are added to a store on disk, and the same samples for the same seed.

use std::sync::Arc;
use std::time::Duration;

use engram_core::selector::Selector;
use engram_core::{SelectorKind, TableState, Volatile};
use engram_engine::{Durability, Engine, MonotonicClock, OpenOptions, StorageOptions};

use crate::support::{
    ManualLog, WakeCounter, insert_items, item, items, new_engine, poll, queue_options,
    sample_keys, table_options, wait_ready,
};

#[test]
fn an_insert_is_acknowledged_once_it_is_durable() {
    let log = Arc::new(ManualLog::default());
    let clock = Arc::new(MonotonicClock::default());
    let engine =
        Engine::with_clock_and_sink(vec![table_options("t")], 1, clock, log.clone()).unwrap();
    let table = engine.table("t").unwrap();
    let wakes = Arc::new(WakeCounter::default());
    let mut ticket = table.insert(items(0..3)).unwrap();
    assert!(poll(&mut ticket, &wakes).is_pending());
    assert_eq!((table.info().stats.size, log.appended()), (3, 3));
    log.make_durable(2);
    assert_eq!(wakes.count(), 1);
    assert!(poll(&mut ticket, &wakes).is_pending());
    log.make_durable(3);
    assert_eq!(wakes.count(), 2);
    assert!(poll(&mut ticket, &wakes).is_ready());
    // Items stay in the table even if the ticket is dropped before they are durable.
    drop(table.insert(items(3..4)).unwrap());
    assert_eq!(table.info().stats.size, 4);
    log.make_durable(u64::MAX);
    assert_eq!(sample_keys(&table, 1), [0]);
}

#[test]
fn the_same_seed_and_calls_give_the_same_samples() {
    let sampled_keys = |seed, sampler| {
        let options = engram_core::TableOptions {
            seed,
            sampler,
            remover: SelectorKind::Uniform,
            max_size: 50,
            ..table_options("t")
        };
        let table = new_engine(vec![options]).table("t").unwrap();
        let mut all_keys = Vec::new();
        for round in 0..20 {
            let batch = (0..10_u32).map(|i| item(u64::from(round * 10 + i), f64::from(i)));
            insert_items(&table, batch.collect());
            let keys = sample_keys(&table, 16);
            table
                .update_priorities(&keys[..4], &[0.5, 3.0, 0.1, 9.0])
                .unwrap();
            all_keys.extend(keys);
            let leased = wait_ready(table.sample(3, true).unwrap()).unwrap();
            all_keys.extend(leased.draws.iter().map(|draw| draw.key));
        }
        all_keys
    };
    for &sampler in SelectorKind::ALL {
        assert_eq!(sampled_keys(3, sampler), sampled_keys(3, sampler));
        if Selector::new(sampler).is_random() {
            assert_ne!(sampled_keys(3, sampler), sampled_keys(4, sampler));
        }
    }
}

#[test]
fn only_a_store_that_logs_changes_acknowledges_durably() {
    for (durability, is_durable) in [(Durability::None, false), (Durability::Process, true)] {
        let path = std::env::temp_dir().join(format!("engram-acknowledge-{}", std::process::id()));
        let storage_options = StorageOptions {
            durability,
            keep: 1,
        };
        let opened = Engine::open(
            &path,
            storage_options,
            &OpenOptions::default(),
            vec![queue_options("t", 10)],
            1,
            &mut |_, _| {},
        );
        let (engine, _) = opened.unwrap();
        let table = engine.table("t").unwrap();
        insert_items(&table, items(0..1));
        let sample = wait_ready(table.sample(1, true).unwrap()).unwrap();
        assert_eq!(
            sample.lease.unwrap().needs_durable_acknowledgement(),
            is_durable
        );
        engine.close().unwrap();
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn added_tables_are_stored_if_and_only_if_adding_them_succeeds() {
    let path = std::env::temp_dir().join(format!("engram-add-tables-{}", std::process::id()));
    let open = || {
        let storage_options = StorageOptions {
            durability: Durability::Disk {
                interval: Duration::ZERO,
            },
            keep: 1,
        };
        let options = OpenOptions::default();
        Engine::open(
            &path,
            storage_options,
            &options,
            Vec::new(),
            1,
            &mut |_, _| {},
        )
        .unwrap()
        .0
    };
    for round in 0..20 {
        let engine = open();
        let state = TableState::new(Arc::new(table_options("t")), Arc::new(Volatile)).unwrap();
        let (outcome, created) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                // Wait until the checkpoint that contains the table is being written, or is finished.
                let checkpoint = path.join("checkpoint-0000000001");
                while !checkpoint.with_extension("tmp").exists() && !checkpoint.exists() {
                    std::thread::yield_now();
                }
                // Another table of the same name must not be created meanwhile.
                let created = (round % 2 == 1).then(|| engine.create_table(table_options("t")));
                engine.close().unwrap();
                created.is_some_and(|created| created.is_ok())
            });
            (engine.add_tables(vec![state]), other.join().unwrap())
        });
        let engine = open();
        assert_eq!(
            engine.tables().unwrap().len(),
            usize::from(outcome.is_ok()) + usize::from(created),
            "{round}: {outcome:?}, {created}"
        );
        engine.close().unwrap();
        std::fs::remove_dir_all(&path).unwrap();
    }
}
