//! Prefetching streams.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use engram_core::gather::{ColumnData, LengthPolicy};
use engram_core::{RateLimits, SelectorKind, TableOptions};
use engram_engine::{Batch, BatchStream, Stream, StreamOptions, Table, WaitOptions};

use crate::support::{
    SECOND, error_text, insert_items, item, items, new_engine, new_table, queue_options,
    sample_keys, table_dropped_error, wait_ready,
};

fn open_stream(
    table: &Arc<Table>,
    batch_size: usize,
    prefetch: usize,
    max_batches: Option<u64>,
) -> Stream {
    let options = StreamOptions {
        batch_size,
        at_least: batch_size,
        prefetch,
        max_batches,
        max_items: None,
        length_policy: LengthPolicy::Ragged,
        hold: false,
    };
    Stream::open(Arc::clone(table), Arc::default(), options).unwrap()
}

/// Returns the next batch. `None` after `timeout` or at the end.
fn next(stream: &mut Stream, timeout: Duration) -> Option<Batch> {
    let mut options = WaitOptions {
        deadline: Some(Instant::now() + timeout),
        interrupted: &mut || false,
    };
    stream.next(&mut options).unwrap()
}

fn close(stream: &mut Stream) {
    let mut options = WaitOptions {
        deadline: None,
        interrupted: &mut || false,
    };
    let _ = stream.close(Duration::ZERO, &mut options);
}

/// Keys of a batch's items; checks that the data belongs to these items.
fn keys(batch: &Batch) -> Vec<u64> {
    let keys: Vec<u64> = batch.infos.iter().map(|info| info.key).collect();
    let ColumnData::Bytes(bytes) = &batch.columns.columns[0].data else {
        panic!("no bytes");
    };
    let lowest = keys.iter().map(|key| key.to_le_bytes()[0]);
    assert!(
        lowest.eq(bytes.iter().copied()),
        "the data matches the keys"
    );
    keys
}

/// Waits until this many items are hidden because they are leased.
fn wait_until_hidden(table: &Arc<Table>, hidden: u64) {
    let start = Instant::now();
    while table.info().stats.hidden_items != hidden {
        assert!(
            start.elapsed() < 20 * SECOND,
            "the table never had {hidden} hidden items"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn closing_returns_unacknowledged_items_in_order() {
    for (sampler, expected) in [
        (SelectorKind::Fifo, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (SelectorKind::MaxHeap, [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        (SelectorKind::Lifo, [8, 7, 6, 5, 4, 3, 2, 1, 0]),
    ] {
        let table = new_table(TableOptions {
            sampler,
            ..queue_options("t", 20)
        });
        let priority = [3.0, 2.0, 1.0].into_iter().cycle();
        insert_items(
            &table,
            (0..9).zip(priority).map(|(key, p)| item(key, p)).collect(),
        );
        let mut stream = open_stream(&table, 2, 2, None);
        assert_eq!(
            keys(&next(&mut stream, 20 * SECOND).unwrap()),
            expected[..2]
        );
        assert_eq!(
            keys(&next(&mut stream, 20 * SECOND).unwrap()),
            expected[2..4]
        );
        // Four items are read, and four are ready. The next batch is drawn once one is read.
        wait_until_hidden(&table, 8);
        assert!(stream.deliver(4));
        wait_until_hidden(&table, 4);
        close(&mut stream);
        assert!(!stream.deliver(6), "the stream is closed");
        let stats = table.info().stats;
        assert_eq!(
            (stats.size, stats.hidden_items, stats.limiter.samples),
            (5, 0, 4)
        );
        assert_eq!(table.info().waiting_samples, 0);
        assert_eq!(sample_keys(&table, 5), expected[4..]);
    }
}

#[test]
fn closing_returns_the_unacknowledged_part_of_a_batch() {
    for acknowledged in 0..=6 {
        let table = new_table(queue_options("t", 20));
        insert_items(&table, items(0..10));
        let mut stream = open_stream(&table, 3, 1, None);
        assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [0, 1, 2]);
        assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [3, 4, 5]);
        wait_until_hidden(&table, 9);
        assert!(stream.deliver(acknowledged));
        let complete = acknowledged / 3 * 3;
        assert_eq!(table.info().stats.size, 10 - complete);
        close(&mut stream);
        let stats = table.info().stats;
        assert_eq!(
            (stats.size, stats.hidden_items, stats.limiter.samples),
            (10 - acknowledged, 0, acknowledged)
        );
        let left = usize::try_from(10 - acknowledged).unwrap();
        assert!(sample_keys(&table, left).into_iter().eq(acknowledged..10));
    }
}

#[test]
fn returned_items_do_not_count_as_sampled() {
    let table = new_table(TableOptions {
        max_times_sampled: 0,
        limits: RateLimits::min_size(1),
        ..queue_options("t", 20)
    });
    insert_items(&table, items(0..1));
    let mut stream = open_stream(&table, 1, 4, None);
    for _ in 0..3 {
        next(&mut stream, 20 * SECOND).unwrap();
    }
    stream.deliver(2);
    close(&mut stream);
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.samples), (1, 2));
}

#[test]
fn delivered_items_are_acknowledged_at_once_or_with_hold_at_the_next_request() {
    for hold in [false, true] {
        let table = new_table(queue_options("t", 4));
        insert_items(&table, items(0..4));
        let options = StreamOptions {
            batch_size: 2,
            at_least: 2,
            prefetch: 1,
            max_batches: None,
            max_items: None,
            length_policy: LengthPolicy::Ragged,
            hold,
        };
        let mut stream = Stream::open(Arc::clone(&table), Arc::default(), options).unwrap();
        next(&mut stream, 20 * SECOND).unwrap();
        stream.deliver(2);
        wait_until_hidden(&table, if hold { 4 } else { 2 });
        let held = if hold { 2 } else { 0 };
        assert_eq!(table.info().stats.size, 2 + held);
        assert_eq!(
            (table.can_insert(2), table.can_insert(3)),
            (!hold, false),
            "two items are fetched ahead"
        );
        next(&mut stream, 20 * SECOND).unwrap();
        assert_eq!(table.info().stats.size, 2);
        stream.deliver(4);
        close(&mut stream);
        assert_eq!(table.info().stats.size, 0);
    }
}

#[test]
fn closing_returns_a_batch_that_is_being_drawn() {
    let table = new_table(queue_options("t", 20));
    insert_items(&table, items(0..7));
    let stream = open_stream(&table, 4, 3, None);
    wait_until_hidden(&table, 7);
    drop(stream);
    assert!(sample_keys(&table, 7).into_iter().eq(0..7));
}

#[test]
fn several_streams_on_one_queue_deliver_each_item_once() {
    const ITEMS: u64 = 4_000;
    let table = new_table(queue_options("t", 64));
    let delivered_keys = Arc::new(Mutex::new(Vec::new()));
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                for key in (writer..ITEMS).step_by(2) {
                    insert_items(&table, items(key..=key));
                }
            })
        })
        .collect();
    let readers: Vec<_> = (0..3_usize)
        .map(|reader| {
            let (table, delivered_keys) = (Arc::clone(&table), Arc::clone(&delivered_keys));
            thread::spawn(move || {
                let mut stops = 0;
                while delivered_keys.lock().unwrap().len() < usize::try_from(ITEMS).unwrap() {
                    // Each reader is closed repeatedly, each time with prefetched batches left.
                    let mut stream = open_stream(&table, 1 + reader, 3, None);
                    let mut delivered = 0;
                    for _ in 0..100 {
                        let Some(batch) = next(&mut stream, SECOND / 5) else {
                            break;
                        };
                        delivered += batch.infos.len() as u64;
                        stream.deliver(delivered);
                        delivered_keys.lock().unwrap().extend(keys(&batch));
                    }
                    stops += 1;
                    assert!(stops < 1_000, "some items were never delivered");
                }
            })
        })
        .collect();
    for thread in writers {
        thread.join().unwrap();
    }
    for thread in readers {
        thread.join().unwrap();
    }
    let delivered_keys = delivered_keys.lock().unwrap();
    assert_eq!(
        delivered_keys.len() as u64,
        ITEMS,
        "each item was delivered once"
    );
    assert!(
        delivered_keys
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .eq(0..ITEMS)
    );
    let stats = table.info().stats;
    assert_eq!(
        (stats.size, stats.limiter.inserts, stats.limiter.deletes),
        (0, ITEMS, ITEMS)
    );
}

#[test]
fn a_stream_ends_after_max_batches_or_at_the_deadline() {
    let table = new_table(queue_options("t", 20));
    insert_items(&table, items(0..8));
    let mut stream = open_stream(&table, 2, 3, Some(3));
    for batch in 0..3 {
        let read = keys(&next(&mut stream, 20 * SECOND).unwrap());
        assert_eq!(read, [2 * batch, 2 * batch + 1]);
        stream.deliver(2 * batch + 2);
    }
    assert!(next(&mut stream, 20 * SECOND).is_none());
    assert_eq!(table.info().stats.size, 2);
    drop(stream);
    let mut stream = open_stream(&table, 3, 1, None);
    let start = Instant::now();
    assert!(next(&mut stream, SECOND / 50).is_none());
    assert!(start.elapsed() < 5 * SECOND);
    insert_items(&table, items(8..9));
    assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [6, 7, 8]);
}

#[test]
fn a_reader_gets_the_error_that_ended_the_stream() {
    let engine = new_engine(vec![queue_options("t", 4)]);
    let table = engine.table("t").unwrap();
    insert_items(&table, items(0..2));
    let mut stream = open_stream(&table, 2, 2, None);
    assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [0, 1]);
    engine.drop_table("t").unwrap();
    let mut options = WaitOptions {
        deadline: None,
        interrupted: &mut || false,
    };
    assert_eq!(
        stream.next(&mut options).unwrap_err(),
        table_dropped_error("t")
    );

    let options = StreamOptions {
        batch_size: 5,
        at_least: 5,
        prefetch: 1,
        max_batches: None,
        max_items: None,
        length_policy: LengthPolicy::Ragged,
        hold: false,
    };
    let small = crate::support::new_table(queue_options("small", 4));
    let error = error_text(Stream::open(Arc::clone(&small), Arc::default(), options));
    assert!(
        error.starts_with("table `small` can never yield 5 samples"),
        "{error}"
    );
    let empty = StreamOptions {
        batch_size: 0,
        ..options
    };
    let error = error_text(Stream::open(Arc::clone(&small), Arc::default(), empty));
    assert_eq!(error, "`batch_size` must be at least 1; got 0");
    let no_items = StreamOptions {
        max_items: Some(0),
        ..options
    };
    let error = error_text(Stream::open(small, Arc::default(), no_items));
    assert_eq!(error, "`max_items` must be at least 1; got 0");
}

#[test]
fn a_reader_can_continue_after_an_interrupted_wait() {
    let table = new_table(queue_options("t", 4));
    let mut stream = open_stream(&table, 1, 1, None);
    let mut options = WaitOptions {
        deadline: None,
        interrupted: &mut || true,
    };
    assert!(stream.next(&mut options).unwrap().is_none());
    wait_ready(table.insert(items(0..1)).unwrap()).unwrap();
    assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [0]);
}

#[test]
fn return_last_returns_the_newest_batch() {
    let table = new_table(queue_options("t", 8));
    insert_items(&table, items(0..4));
    let mut stream = open_stream(&table, 1, 1, None);
    assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [0]);
    assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [1]);
    wait_until_hidden(&table, 3);
    stream.return_last();
    assert_eq!(keys(&next(&mut stream, 20 * SECOND).unwrap()), [2]);
    stream.deliver(1);
    close(&mut stream);
    assert_eq!(sample_keys(&table, 3), [1, 2, 3]);
}
