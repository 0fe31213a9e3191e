//! Acknowledgements wait for the log, and equal calls give equal data.

use std::sync::Arc;

use engram_core::SelectorKind;
use engram_engine::{Engine, SystemClock};

use crate::support::{Bell, Log, engine, fifo, item, items, poll, put, served, take};

#[test]
fn an_insert_is_acknowledged_once_it_is_durable() {
    let log = Arc::new(Log::default());
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::with_clock_and_sink(vec![fifo("t")], 1, clock, log.clone()).unwrap();
    let table = engine.table("t").unwrap();
    let bell = Arc::new(Bell::default());
    let mut ticket = table.insert(items(0..3)).unwrap();
    assert!(poll(&mut ticket, &bell).is_pending());
    assert_eq!((table.info().stats.size, log.appended()), (3, 3));
    log.settle(2);
    assert_eq!(bell.rings(), 1);
    assert!(poll(&mut ticket, &bell).is_pending());
    log.settle(3);
    assert_eq!(bell.rings(), 2);
    assert!(poll(&mut ticket, &bell).is_ready());
    // Applied items stay, whether or not anybody waited for them.
    drop(table.insert(items(3..4)).unwrap());
    assert_eq!(table.info().stats.size, 4);
    log.settle(u64::MAX);
    assert_eq!(take(&table, 1), [0]);
}

#[test]
fn equal_seeds_and_calls_give_equal_data() {
    let run = |seed, sampler| {
        let options = engram_core::TableOptions {
            seed,
            sampler,
            remover: SelectorKind::Uniform,
            max_size: 50,
            ..fifo("t")
        };
        let table = engine(vec![options]).table("t").unwrap();
        let mut seen = Vec::new();
        for round in 0..20 {
            let batch = (0..10_u32).map(|i| item(u64::from(round * 10 + i), f64::from(i)));
            put(&table, batch.collect());
            let keys = take(&table, 16);
            table
                .update_priorities(&keys[..4], &[0.5, 3.0, 0.1, 9.0])
                .unwrap();
            seen.extend(keys);
            let leased = served(table.sample(3, true).unwrap()).unwrap();
            seen.extend(leased.draws.iter().map(|draw| draw.key));
        }
        seen
    };
    for sampler in [
        SelectorKind::Uniform,
        SelectorKind::Prioritized { exponent: 0.6 },
    ] {
        assert_eq!(run(3, sampler), run(3, sampler));
        assert_ne!(run(3, sampler), run(4, sampler));
    }
}
