//! Items whose stored bytes cannot be read, in samples and streams.

use std::sync::Arc;
use std::time::Instant;

use engram_core::codec::Codec;
use engram_core::gather::LengthPolicy;
use engram_core::pool::Pool;
use engram_core::{
    AlignedBytes, CellSpec, Chunk, DType, Error, Extent, Layout, NewItem, Origin, Result, Schema,
    SelectorKind, TableOptions, Trajectory,
};
use engram_engine::{BatchLease, BatchStream, Sample, Stream, StreamOptions, Table, WaitOptions};
use smallvec::smallvec;

use crate::support::{
    SECOND, byte_item, error_text, insert_items, keys, new_table, queue_options, table_options,
    wait_ready,
};

const CAUSE: &str = "column `obs` is corrupt: its LZ4 block cannot be decompressed to 100 bytes";

/// An item of one column, whose LZ4 block cannot be decompressed to its 100 bytes.
fn corrupt_item(key: u64) -> NewItem {
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::new(["obs".into()]),
            structure: r#"{"d":[["obs",0]]}"#.into(),
        }),
        cells: Box::new([CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![100],
        }]),
    };
    let extent = Extent {
        offset: 0,
        stored: 20,
        rows: 1,
        codec: Codec::Lz4,
    };
    let origin = Origin {
        key,
        episodes: smallvec![key],
        first_step: 0,
        steps: 1,
    };
    let payload = AlignedBytes::zeroed(20).unwrap();
    let chunk = Chunk::from_parts(origin, Arc::new(schema), smallvec![extent], payload).unwrap();
    NewItem {
        key,
        trajectory: Trajectory::Rows {
            chunk: Arc::new(chunk),
            offset: 0,
            len: 1,
            squeeze: true,
        },
        priority: 1.0,
    }
}

/// Intact items of the same column.
fn items(keys: impl IntoIterator<Item = u64>) -> Vec<NewItem> {
    let keys = keys.into_iter();
    keys.map(|key| byte_item(key, 1.0, 100)).collect()
}

fn gather(sample: Sample) -> Result<Vec<u64>> {
    let (batch, lease) = sample.gather(LengthPolicy::Ragged, &Arc::default())?;
    drop(lease.map(BatchLease::acknowledge));
    Ok(batch.infos.iter().map(|info| info.key).collect())
}

/// Samples `n` items of a table and gathers them.
fn read(table: &Arc<Table>, n: usize) -> Result<Vec<u64>> {
    let leased = table.options().max_times_sampled > 0;
    gather(wait_ready(table.sample(n, leased).unwrap()).unwrap())
}

#[test]
fn a_queue_continues_after_unreadable_items() {
    let table = new_table(queue_options("q", 20));
    let mut inserted = items([0, 1, 2, 3]);
    inserted.insert(1, corrupt_item(10));
    inserted.insert(3, corrupt_item(11));
    insert_items(&table, inserted);
    assert_eq!(
        error_text(read(&table, 3)),
        format!("item 10 of table `q` cannot be read and was removed: {CAUSE}")
    );
    let info = table.info();
    assert_eq!((info.unreadable_items, info.stats.size), (1, 5));
    // The other items of the failed batch are sampled again, in the same order.
    assert_eq!(read(&table, 2), Ok(vec![0, 1]));
    assert!(matches!(read(&table, 1), Err(Error::Payload(_))));
    assert_eq!(read(&table, 2), Ok(vec![2, 3]));
    let stats = table.info().stats;
    assert_eq!((stats.size, stats.limiter.deletes), (0, 6));
    table.reset().unwrap();
    assert_eq!(table.info().unreadable_items, 0);
}

#[test]
fn the_rate_limiter_of_a_queue_counts_unreadable_items_as_sampled() {
    let table = new_table(queue_options("q", 2));
    for key in [0, 2, 4] {
        insert_items(&table, vec![corrupt_item(key), corrupt_item(key + 1)]);
        assert_eq!(
            error_text(read(&table, 2)),
            format!(
                "items {key}, {} of table `q` cannot be read and were removed; item {key}: {CAUSE}",
                key + 1
            )
        );
    }
    assert_eq!(table.info().unreadable_items, 6);
}

#[test]
fn samples_without_a_lease_that_fail_are_undone_except_those_of_unreadable_items() {
    let table = new_table(TableOptions {
        sampler: SelectorKind::Uniform,
        ..table_options("t")
    });
    insert_items(&table, items([0, 1]));
    let leased = wait_ready(table.sample(2, true).unwrap()).unwrap();
    assert_eq!(read(&table, 3).unwrap().len(), 3);
    let counts = |table: &Table| {
        let all = table.snapshot().unwrap();
        let times: Vec<u32> = all.items().map(|item| item.times_sampled).collect();
        (
            table.info().stats.limiter.samples,
            table.info().stats.leased,
            times,
        )
    };
    let before = counts(&table);
    // Columns of other lengths cannot be stacked.
    insert_items(&table, vec![byte_item(2, 1.0, 50)]);
    assert!(matches!(read(&table, 100), Err(Error::Signature(_))));
    table.delete(&[2]).unwrap();
    assert_eq!(counts(&table), before);
    insert_items(&table, vec![corrupt_item(3)]);
    let sample = wait_ready(table.sample(100, false).unwrap()).unwrap();
    let unreadable = keys(&sample).iter().filter(|key| **key == 3).count() as u64;
    assert!(matches!(gather(sample), Err(Error::Payload(_))));
    assert_eq!(counts(&table), (before.0 + unreadable, before.1, before.2));
    drop(leased);
    assert_eq!((counts(&table).0, counts(&table).1), (3 + unreadable, 0));
}

#[test]
fn a_replay_table_loses_only_the_unreadable_items() {
    let table = new_table(table_options("t"));
    let corrupt: Vec<_> = (0..13).map(corrupt_item).collect();
    insert_items(&table, corrupt);
    insert_items(&table, items([20]));
    let sample = Sample {
        draws: (0..13)
            .flat_map(|_| wait_ready(table.sample(1, false).unwrap()).unwrap().draws)
            .collect(),
        ..wait_ready(table.sample(1, false).unwrap()).unwrap()
    };
    // First in, first out: the same item each time.
    assert_eq!(keys(&sample), [0; 13]);
    assert_eq!(
        error_text(gather(sample)),
        format!("item 0 of table `t` cannot be read and was removed: {CAUSE}")
    );
    assert_eq!(table.info().unreadable_items, 1);
    let all = table.snapshot().unwrap();
    let draws = wait_ready(table.sample(1, false).unwrap()).unwrap().draws;
    assert_eq!((all.items().count(), draws[0].key), (13, 1));
    for _ in 1..13 {
        read(&table, 1).unwrap_err();
    }
    assert_eq!(read(&table, 1), Ok(vec![20]));
}

#[test]
fn at_most_ten_keys_are_listed() {
    let table = new_table(queue_options("q", 20));
    insert_items(&table, (0..13).map(corrupt_item).collect());
    let text = error_text(read(&table, 13));
    let listed = "items 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 others of table `q` cannot be read and";
    assert!(text.starts_with(listed), "{text}");
    insert_items(&table, (0..11).map(corrupt_item).collect());
    let text = error_text(read(&table, 11));
    assert!(text.contains("8, 9 and 1 other of table `q`"), "{text}");
}

#[test]
fn a_stream_returns_the_error_once() {
    let table = new_table(queue_options("q", 20));
    let mut inserted = items([0, 1, 2]);
    inserted.insert(2, corrupt_item(10));
    insert_items(&table, inserted);
    let options = StreamOptions {
        batch_size: 1,
        at_least: 1,
        prefetch: 1,
        max_batches: None,
        max_items: None,
        length_policy: LengthPolicy::Ragged,
        hold: false,
    };
    let mut read = Vec::new();
    for _ in 0..2 {
        let mut stream = Stream::open(Arc::clone(&table), Arc::default(), options).unwrap();
        let mut delivered = 0;
        loop {
            let mut wait = WaitOptions {
                deadline: Some(Instant::now() + 20 * SECOND),
                interrupted: &mut || false,
            };
            match stream.next(&mut wait) {
                Ok(Some(batch)) => {
                    read.push(batch.infos[0].key.to_string());
                    delivered += 1;
                    assert!(stream.deliver(delivered));
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    read.push(error.to_string());
                    break;
                }
            }
            if read.len() == 4 {
                break;
            }
        }
    }
    let error = format!("item 10 of table `q` cannot be read and was removed: {CAUSE}");
    assert_eq!(read, ["0", "1", &error, "2"]);
}

#[test]
fn an_item_that_is_too_large_for_a_batch_stays() {
    let table = new_table(queue_options("q", 20));
    insert_items(&table, items([5]));
    let sample = wait_ready(table.sample(1, true).unwrap()).unwrap();
    let failed = sample.gather(LengthPolicy::Ragged, &Arc::new(Pool::with_max_batch(99)));
    let text = "a batch of 1 item takes at least 100 bytes, but at most 99 are allowed; sample fewer items at once";
    assert_eq!(error_text(failed.map(|_| ())), text);
    assert_eq!(table.info().unreadable_items, 0);
    assert_eq!(read(&table, 1), Ok(vec![5]));
}
