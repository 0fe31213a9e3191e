//! Checkpoints of dm-reverb: one that the real one has made (`make.py`), ones that are damaged, and old ones.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

mod files;

use std::path::Path;

use engram_core::gather::{Data, Uneven, gather};
use engram_core::{CellSpec, DType, Draw, Error, SelectorKind};
use engram_engine::{Durability, Engine, Opening, StorageOptions};
use engram_reverb::pb::chunk_data::Data as Tensors;
use engram_reverb::pb::key_distribution_options::Distribution;
use engram_reverb::{Imported, compress, import, pb};
use files::{Directory, plain, unzipped, zipped};
use futures_util::FutureExt as _;
use prost::Message as _;

/// By dm-reverb 0.14.0.
fn real() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/checkpoint/dm-reverb-0.14"
    ))
}

fn engine() -> Engine {
    Engine::new(vec![], 1).unwrap()
}

fn draw(engine: &Engine, table: &str) -> Draw {
    let mut ticket = engine.table(table).unwrap().sample(1, false).unwrap();
    let sample = (&mut ticket).now_or_never().unwrap().unwrap();
    sample.draws.into_iter().next().unwrap()
}

/// The bytes of a draw's columns.
fn columns(engine: &Engine, draw: &Draw) -> Vec<Vec<u8>> {
    let one = std::slice::from_ref(draw);
    let batch = gather(one, Uneven::Ragged, engine.pool()).unwrap();
    let columns = batch.columns.into_iter().map(|column| match column.data {
        Data::Bytes(bytes) => bytes.to_vec(),
        Data::Strings(strings) => strings,
    });
    columns.collect()
}

fn i32s(numbers: &[i32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

#[test]
fn all_of_a_real_one_comes_in() {
    let engine = engine();
    let mut imported = import(real(), &engine).unwrap();
    imported.sort_by(|a, b| a.name.cmp(&b.name));
    let all = [
        ("heap", 5),
        ("prioritized", 5),
        ("queue", 3),
        ("signature", 0),
        ("uniform", 4),
    ];
    let all = all.map(|(name, items)| Imported {
        name: name.into(),
        items,
    });
    assert_eq!(imported, all);
    let told: Vec<_> = engine
        .tables()
        .unwrap()
        .iter()
        .map(|table| {
            let info = table.info();
            let (stats, options) = (info.stats, table.options());
            assert_eq!(stats.size, stats.limiter.inserts - stats.limiter.deletes);
            (
                (
                    options.name.clone(),
                    options.sampler,
                    options.remover,
                    options.max_size,
                ),
                (options.max_times_sampled, stats.size, stats.num_episodes),
                (
                    stats.limiter.inserts,
                    stats.limiter.samples,
                    stats.num_unique_samples,
                ),
                (options.limits.min_size, options.limits.samples_per_insert),
                (options.limits.min_diff, options.limits.max_diff),
            )
        })
        .collect();
    let wide = (f64::MIN, f64::MAX);
    // As `make.py` says, which asked dm-reverb.
    let (fifo, lifo) = (SelectorKind::Fifo, SelectorKind::Lifo);
    let weighted = SelectorKind::Prioritized { exponent: 0.7 };
    let (low, high) = (SelectorKind::MinHeap, SelectorKind::MaxHeap);
    assert_eq!(
        told,
        [
            (
                ("heap".into(), high, low, 5),
                (0, 5, 1),
                (5, 4, 1),
                (3, 2.0),
                (0.0, 12.0)
            ),
            (
                ("prioritized".into(), weighted, lifo, 1000),
                (3, 5, 1),
                (5, 4, 3),
                (2, 1.0),
                wide
            ),
            (
                ("queue".into(), fifo, fifo, 10),
                (1, 3, 1),
                (4, 1, 1),
                (1, 1.0),
                (0.0, 10.0)
            ),
            (
                ("signature".into(), lifo, lifo, 3),
                (1, 0, 0),
                (0, 0, 0),
                (1, 1.0),
                (0.0, 3.0)
            ),
            (
                ("uniform".into(), SelectorKind::Uniform, fifo, 100),
                (0, 4, 1),
                (4, 2, 2),
                (1, 1.0),
                wide
            ),
        ]
    );
}

#[test]
fn what_a_real_one_holds_can_be_sampled() {
    let engine = engine();
    import(real(), &engine).unwrap();
    // The best was made the worst before the checkpoint.
    let best = draw(&engine, "heap");
    assert_eq!((best.priority, best.times_sampled), (6.0, 1));
    let [a, o] = &*columns(&engine, &best) else {
        panic!("two columns are due");
    };
    assert_eq!(*a, i32s(&[4, 5, 6]));
    let floats = [4_f32, 5.0, 6.0]
        .iter()
        .flat_map(|x| [x.to_le_bytes(); 3].concat());
    assert_eq!(*o, floats.collect::<Vec<u8>>());
    // Delta coding, over chunks: the first was sampled before the checkpoint.
    for (priority, steps) in [(4.0, 1..4), (5.0, 2..5), (6.0, 3..6)] {
        let next = draw(&engine, "queue");
        assert_eq!((next.priority, next.times_sampled), (priority, 1));
        let [wide, texts, even] = &*columns(&engine, &next) else {
            panic!("three columns are due");
        };
        let numbers = steps.clone().flat_map(|step: u8| [i64::from(step) * 7; 16]);
        assert_eq!(
            *wide,
            numbers.flat_map(i64::to_le_bytes).collect::<Vec<u8>>()
        );
        let encoded = steps
            .clone()
            .flat_map(|step| format!("\x06\0\0\0text {step}").into_bytes());
        assert_eq!(*texts, encoded.collect::<Vec<u8>>());
        assert_eq!(
            *even,
            steps
                .map(|step| u8::from(step % 2 == 0))
                .collect::<Vec<u8>>()
        );
    }
}

#[test]
fn what_comes_into_a_directory_stays() {
    let home = Directory::new();
    let open = || {
        let options = StorageOptions {
            durability: Durability::Process,
            keep: 2,
        };
        let opening = Opening::default();
        Engine::open(home.path(), options, &opening, vec![], 1, &mut |_, _| {})
            .unwrap()
            .0
    };
    let engine = open();
    import(real(), &engine).unwrap();
    engine.close().unwrap();
    drop(engine);
    let engine = open();
    let sizes = |engine: &Engine| {
        let tables = engine.tables().unwrap().into_iter();
        tables
            .map(|table| table.info().stats.size)
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(&engine), [5, 5, 3, 0, 4]);
    assert_eq!(
        columns(&engine, &draw(&engine, "heap"))[0],
        i32s(&[4, 5, 6])
    );
}

#[test]
fn a_real_signature_is_kept_in_the_note() {
    let engine = engine();
    import(real(), &engine).unwrap();
    let note = |table: &str| {
        let table = engine.table(table).unwrap();
        let note: serde_json::Value =
            serde_json::from_str(table.options().note.as_ref().unwrap()).unwrap();
        note
    };
    let plain = serde_json::json!({"reverb": {"max_times_sampled": -1, "signature": null}});
    assert_eq!(note("heap"), plain);
    let spec = |name: Option<&str>, dtype: &str, shape: serde_json::Value| serde_json::json!({"spec": {"name": name, "dtype": dtype, "shape": shape}});
    let bounded = |name: Option<&str>, dtype: &str, shape: &[i64], low: &str, high: &str| {
        let mut spec = spec(name, dtype, serde_json::json!(shape));
        spec["spec"]["minimum"] = serde_json::json!({"shape": shape, "data": low});
        spec["spec"]["maximum"] = serde_json::json!({"shape": [], "data": high});
        spec
    };
    let pair = serde_json::json!({"namedtuple": {"name": "Pair", "fields": [
        ["low", bounded(Some("low"), "float32", &[], "AADAvw==", "AAAAQA==")],
        ["high", bounded(None, "uint8", &[2], "AQI=", "CQ==")],
    ]}});
    let nest = serde_json::json!({"dict": {
        "a": spec(Some("a"), "int32", serde_json::json!([null])),
        "b": {"list": [pair, {"tuple": []}, {"list": []}]},
        "c": {"tuple": [spec(None, "string", serde_json::Value::Null)]},
    }});
    assert_eq!(
        note("signature"),
        serde_json::json!({"reverb": {"max_times_sampled": 1, "signature": nest}})
    );
}

#[test]
fn the_newest_of_a_directory_is_read_and_names_are_taken_once() {
    let root = Directory::new();
    for (name, whole) in [
        ("2026-01-01", false),
        ("2025-12-31", true),
        ("2025-01-01", true),
    ] {
        let one = root.below(name);
        one.write("tables.tfrecord", &zipped(&[table(name).encode_to_vec()]));
        one.write("items.tfrecord", &plain(&[]));
        one.write("chunks.tfrecord", &zipped(&[]));
        if whole {
            one.write("DONE", b"");
        }
    }
    let engine = engine();
    let imported = import(root.path(), &engine).unwrap();
    assert_eq!(imported[0].name, "2025-12-31");
    let again = import(root.path(), &engine).unwrap_err();
    assert_eq!(
        again,
        Error::InvalidArgument("table `2025-12-31` exists already; each name is taken once".into())
    );
    let empty = Directory::new();
    let none = import(empty.path(), &engine).unwrap_err().to_string();
    assert!(
        none.contains("no checkpoint of dm-reverb's; it is a directory with"),
        "{none}"
    );
}

fn table(name: &str) -> pb::PriorityTableCheckpoint {
    let fifo = pb::KeyDistributionOptions {
        distribution: Some(Distribution::Fifo(true)),
        is_deterministic: true,
    };
    pb::PriorityTableCheckpoint {
        table_name: name.into(),
        rate_limiter: Some(pb::RateLimiterCheckpoint {
            samples_per_insert: 1.0,
            min_diff: f64::MIN,
            max_diff: f64::MAX,
            min_size_to_sample: 1,
            sample_count: 0,
            insert_count: 1,
            delete_count: 0,
        }),
        sampler: Some(fifo),
        remover: Some(fifo),
        max_size: 10,
        ..pb::PriorityTableCheckpoint::default()
    }
}

/// A checkpoint of the oldest kind: items in their table's record, that are rows of all columns.
fn old(items: Vec<pb::PrioritizedItem>) -> Directory {
    let cell = CellSpec {
        dtype: DType::Int32,
        shape: smallvec::smallvec![],
    };
    let chunk = |key: u64, numbers: &[i32]| {
        let tensor = compress(&cell, numbers.len(), &i32s(numbers)).unwrap();
        let two = vec![tensor.clone(), tensor];
        let mut chunk = pb::ChunkData {
            chunk_key: key,
            ..pb::ChunkData::default()
        };
        if key.is_multiple_of(2) {
            chunk.data = Some(Tensors { tensors: two });
        } else {
            chunk.deprecated_data = two;
        }
        chunk.encode_to_vec()
    };
    let mut table = table("old");
    table.deprecated_items = items;
    let directory = Directory::new();
    directory.write("tables.tfrecord", &plain(&[table.encode_to_vec()]));
    directory.write("items.tfrecord", &plain(&[]));
    directory.write(
        "chunks.tfrecord",
        &plain(&[chunk(1, &[10, 11]), chunk(2, &[12, 13, 14])]),
    );
    directory.write("DONE", b"");
    directory
}

fn old_item(chunks: &[u64], offset: i32, length: i32) -> pb::PrioritizedItem {
    pb::PrioritizedItem {
        key: u64::MAX,
        table: "old".into(),
        deprecated_chunk_keys: chunks.to_vec(),
        deprecated_sequence_range: Some(pb::SliceRange { offset, length }),
        priority: 2.0,
        ..pb::PrioritizedItem::default()
    }
}

#[test]
fn old_ones_are_read() {
    let engine = engine();
    import(old(vec![old_item(&[1, 2], 1, 3)]).path(), &engine).unwrap();
    let item = draw(&engine, "old");
    assert_eq!(item.key, u64::MAX >> 1);
    assert_eq!(
        columns(&engine, &item),
        [i32s(&[11, 12, 13]), i32s(&[11, 12, 13])]
    );
}

#[test]
fn items_that_cannot_be_are_refused() {
    for (item, text) in [
        (
            old_item(&[1, 2], 1, 5),
            "old: item 18446744073709551615 has 5 rows, 1 more than its chunks",
        ),
        (
            old_item(&[1, 2], -1, 1),
            "begins at row -1 and has 1; neither is below 0",
        ),
        (
            old_item(&[3], 0, 1),
            "old: Could not find sequence chunk 3.",
        ),
        (
            old_item(&[1], 0, 0),
            "old: item has no cells of column `0`; each column needs at least one",
        ),
    ] {
        let engine = engine();
        let error = import(old(vec![item]).path(), &engine).unwrap_err();
        let Error::Payload(found) = &error else {
            panic!("{error:?}");
        };
        assert!(found.contains(text), "{found}");
        assert!(engine.tables().unwrap().is_empty());
    }
    let twice = old(vec![old_item(&[1], 0, 1), old_item(&[1], 1, 1)]);
    let error = import(twice.path(), &engine()).unwrap_err().to_string();
    assert!(error.contains("was saved twice"), "{error}");
}

#[test]
fn damage_is_found_wherever_it_is() {
    for name in ["tables.tfrecord", "items.tfrecord", "chunks.tfrecord"] {
        let whole = std::fs::read(real().join(name)).unwrap();
        let damaged = |bytes: &[u8]| {
            let directory = Directory::new();
            for other in [
                "tables.tfrecord",
                "items.tfrecord",
                "chunks.tfrecord",
                "DONE",
            ] {
                directory.write(other, &std::fs::read(real().join(other)).unwrap());
            }
            directory.write(name, bytes);
            let engine = engine();
            let outcome = import(directory.path(), &engine);
            (outcome, engine.tables().unwrap().len())
        };
        assert_eq!(damaged(&whole).1, 5);
        for at in (0..whole.len()).step_by(7) {
            let mut spoilt = whole.clone();
            spoilt[at] ^= 0x10;
            for bytes in [&spoilt[..], &whole[..at.max(1)]] {
                match damaged(bytes) {
                    (Err(Error::Payload(text)), 0) => assert!(text.contains(name), "{text}"),
                    // A distance to other bytes of the same text: nothing is lost.
                    (Ok(_), 5)
                        if bytes.len() == whole.len() && unzipped(bytes) == unzipped(&whole) => {}
                    other => panic!("{name} at {at}: {other:?}"),
                }
            }
        }
    }
    let directory = Directory::new();
    directory.write("DONE", b"");
    let error = import(directory.path(), &engine()).unwrap_err();
    assert!(
        matches!(&error, Error::Storage(text) if text.contains("tables.tfrecord")),
        "{error}"
    );
}
