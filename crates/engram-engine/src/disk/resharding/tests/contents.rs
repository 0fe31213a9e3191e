//! The contents of the new directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use engram_core::table::SnapshotItem;
use engram_core::{
    NewItem, RateLimits, SelectorKind, Slice, SpanColumn, Spans, TableOptions, Trajectory,
    WindowShape,
};
use engram_testkit::{byte_chunk, byte_item, table_options};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::{Folder, insert, open, run_reshard, wait_ready};
use crate::disk::file_names::CLOSE_MARK_NAME;
use crate::disk::recover::ClosedDirectory;
use crate::engine::Engine;

/// The tables of the random stores: a prioritized one, and a queue whose items expire.
fn options() -> Vec<TableOptions> {
    let prioritized = TableOptions {
        sampler: SelectorKind::Prioritized { exponent: 0.5 },
        remover: SelectorKind::MinHeap,
        max_size: 90,
        max_bytes: Some(100_000),
        limits: RateLimits {
            kind: "SampleToInsertRatio".into(),
            samples_per_insert: 2.0,
            min_size: 5,
            min_diff: -1_000.0,
            max_diff: 1_000.0,
        },
        note: Some("text".into()),
        ..table_options("p")
    };
    let expiring = TableOptions {
        max_times_sampled: 3,
        ttl: Some(3_600_000_000_000),
        ..table_options("q")
    };
    vec![prioritized, expiring]
}

/// Items of chunks that neighbouring items share, in the three forms of trajectories.
fn shared_items(rng: &mut Xoshiro256PlusPlus, count: u64) -> Vec<NewItem> {
    let mut chunk = byte_chunk(rng.next_u64() >> 1, 6, 5);
    let items = (0..count).map(|_| {
        let previous = Arc::clone(&chunk);
        if rng.next_u64().is_multiple_of(4) {
            chunk = byte_chunk(rng.next_u64() >> 1, 6, 5);
        }
        let slice = |index, offset| Slice {
            chunk: index,
            column: 0,
            offset,
            len: 2,
        };
        let column = |len| SpanColumn {
            first_slice: 0,
            len,
            squeeze: false,
        };
        let layout = Arc::clone(&chunk.schema().layout);
        let trajectory = match rng.next_u64() % 3 {
            0 => Trajectory::Rows {
                chunk: Arc::clone(&chunk),
                offset: 2,
                len: 3,
                squeeze: false,
            },
            1 => Trajectory::Window {
                chunk: Arc::clone(&chunk),
                offset: 1,
                shape: Arc::new(WindowShape {
                    layout,
                    columns: Box::new([column(2)]),
                    slices: Box::new([slice(0, 1)]),
                }),
            },
            _ if Arc::ptr_eq(&previous, &chunk) => Trajectory::Rows {
                chunk: previous,
                offset: 0,
                len: 1,
                squeeze: true,
            },
            _ => Trajectory::Spans(Arc::new(Spans {
                layout,
                chunks: [previous, Arc::clone(&chunk)].into(),
                columns: Arc::new([column(4)]),
                slices: Box::new([slice(0, 4), slice(1, 0)]),
            })),
        };
        NewItem {
            key: rng.next_u64() >> 1,
            priority: f64::from(u8::try_from(rng.next_u64() % 7).unwrap()),
            trajectory,
        }
    });
    items.collect()
}

/// Uses the tables of a store at random. Its files have a checkpoint and changes after it.
fn use_randomly(engine: &Engine, rng: &mut Xoshiro256PlusPlus, session: u64) {
    for round in 0..3 {
        for name in ["p", "q"] {
            let table = engine.table(name).unwrap();
            let count = 10 + rng.next_u64() % 30;
            let items = shared_items(rng, count);
            let keys: Vec<u64> = items.iter().map(|item| item.key).collect();
            insert(&table, items, Some((session, 1 + 100 * round)));
            let sample = wait_ready(table.sample(7, false).unwrap());
            drop(sample);
            // A lease that its reader never acknowledges.
            let lease = wait_ready(table.sample(2, true).unwrap());
            std::mem::forget(lease);
            table.delete(&keys[..2]).unwrap();
            let priorities: Vec<f64> = (0..3).map(f64::from).collect();
            table.update_priorities(&keys[4..7], &priorities).unwrap();
        }
        if round == 1 {
            engine.checkpoint().unwrap();
        }
    }
}

/// Every field of an item that resharding keeps, its cells' bytes included; its age in seconds is apart.
type Contents = (u64, u32, String, Vec<(u64, Vec<u8>)>);

fn contents(item: &SnapshotItem<'_>) -> Contents {
    let chunks = item.trajectory.chunks().iter();
    let chunks = chunks.map(|chunk| (chunk.origin().key, chunk.payload().to_vec()));
    let form = match item.trajectory {
        Trajectory::Rows {
            offset,
            len,
            squeeze,
            ..
        } => format!("{offset} {len} {squeeze}"),
        Trajectory::Window { offset, shape, .. } => format!("{offset} {shape:?}"),
        Trajectory::Spans(spans) => format!("{:?} {:?}", spans.columns, spans.slices),
    };
    (
        item.priority.to_bits(),
        item.times_sampled,
        form,
        chunks.collect(),
    )
}

/// What the shards of a table contain together.
#[derive(Debug, Default, PartialEq)]
struct Whole {
    items: BTreeMap<u64, Contents>,
    /// Inserts, samples and deletes of the limiter, deleted episodes, and items sampled at least once.
    counts: [u64; 5],
    sessions: BTreeMap<u64, u64>,
}

/// A shard's table: its keys in insertion order, in the order of updates, and their ages in nanoseconds.
#[derive(Debug)]
struct Shard {
    keys: Vec<u64>,
    updated: Vec<u64>,
    ages: BTreeMap<u64, u64>,
    options: TableOptions,
}

fn read(directories: &[PathBuf], name: &str) -> (Whole, Vec<Shard>) {
    let mut whole = Whole::default();
    let mut shards = Vec::new();
    for path in directories {
        let directory = ClosedDirectory::open(path).unwrap();
        let recovered = directory.read(false, false, &mut |_, _| {}).unwrap();
        assert_eq!(recovered.notes, Vec::<String>::new());
        let clock = recovered.resumed_clock();
        let mut tables = recovered.tables.into_values();
        let mut table = tables.find(|table| table.options().name == name).unwrap();
        table.end_leases(&mut engram_core::DeferredDrops::default());
        let options = TableOptions::clone(table.options());
        let snapshot = table.snapshot();
        let counters = &snapshot.counters;
        let counts = [
            counters.limiter.inserts,
            counters.limiter.samples,
            counters.limiter.deletes,
            counters.num_deleted_episodes,
            counters.num_unique_samples,
        ];
        for (sum, count) in whole.counts.iter_mut().zip(counts) {
            *sum += count;
        }
        for (number, _) in snapshot.sessions() {
            whole.sessions.insert(number.session, number.number);
        }
        let mut items: Vec<SnapshotItem<'_>> = snapshot.items().collect();
        assert_eq!(counters.limiter.size(), items.len() as u64);
        for item in &items {
            let other = whole.items.insert(item.key, contents(item));
            assert!(other.is_none(), "item {} is there twice", item.key);
        }
        let age = |item: &SnapshotItem<'_>| clock - item.inserted_at.unwrap_or(clock);
        let ages = items.iter().map(|item| (item.key, age(item))).collect();
        items.sort_by_key(|item| item.seq);
        let keys = items.iter().map(|item| item.key).collect();
        items.sort_by_key(|item| item.update_number);
        let updated = items.iter().map(|item| item.key).collect();
        shards.push(Shard {
            keys,
            updated,
            ages,
            options,
        });
    }
    (whole, shards)
}

/// Checks that the items of each source are in the same order in each shard, and that no age has changed by 30 s.
fn check_orders(sources: &[Shard], shards: &[Shard]) {
    for (source, shard) in sources
        .iter()
        .flat_map(|source| shards.iter().map(move |shard| (source, shard)))
    {
        for keys in [
            |shard: &Shard| shard.keys.clone(),
            |shard: &Shard| shard.updated.clone(),
        ] {
            let (mut before, mut after) = (keys(source), keys(shard));
            before.retain(|key| after.contains(key));
            after.retain(|key| before.contains(key));
            assert_eq!(before, after);
        }
        for (key, age) in &shard.ages {
            if let Some(before) = source.ages.get(key) {
                // The clock of the system may be set back a little between two runs.
                let ages = before.saturating_sub(1_000_000_000)..before + 30_000_000_000;
                assert!(ages.contains(age), "{before} -> {age}");
            }
        }
    }
}

#[test]
fn contents_stay_the_same_from_three_to_five_to_two() {
    for seed in 0..6 {
        let folder = Folder::new();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let sources: Vec<PathBuf> = (0..3).map(|i| folder.path(&format!("s{i}"))).collect();
        for (number, path) in (0..).zip(&sources) {
            let engine = open(path, options(), 100 * seed + 2 * number);
            use_randomly(&engine, rng, 40 + number);
            engine.close().unwrap();
            // Of the last one, only the files remain that a killed process leaves.
            if number == 2 {
                fs::remove_file(path.join("LOCK")).unwrap();
                fs::remove_file(path.join(CLOSE_MARK_NAME)).unwrap();
            }
        }
        let five = run_reshard(&sources, 5, &folder.path("five")).unwrap();
        let two = run_reshard(&five.directories, 2, &folder.path("two")).unwrap();
        let names: BTreeSet<String> = ["s0", "s1", "s2", "five", "two"].map(String::from).into();
        assert_eq!(folder.names(), names);
        for (name, index) in [("p", 0), ("q", 1)] {
            let (expected, before) = read(&sources, name);
            let (whole, shards) = read(&five.directories, name);
            assert_eq!(whole, expected);
            check_orders(&before, &shards);
            let sizes: Vec<u64> = shards.iter().map(|shard| shard.keys.len() as u64).collect();
            assert_eq!(five.tables[index], (name.to_owned(), sizes.clone()));
            let largest_lead = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
            let mean = sizes.iter().sum::<u64>() / 5;
            assert!(largest_lead <= mean.isqrt().max(1), "{sizes:?}");
            let (whole, last) = read(&two.directories, name);
            assert_eq!(whole, expected);
            check_orders(&shards, &last);
            assert_ne!(last[0].options.seed, last[1].options.seed);
        }
        let (_, shards) = read(&two.directories, "p");
        let TableOptions {
            max_size,
            limits,
            note,
            sampler,
            ..
        } = &shards[1].options;
        // 90 * 3 / 5 = 54; 54 * 5 / 2 = 135.
        assert_eq!((*max_size, limits.min_size), (135, 8));
        assert_eq!((limits.min_diff, limits.max_diff), (-1_500.0, 1_500.0));
        assert_eq!((note, sampler), (&options()[0].note, &options()[0].sampler));
    }
}

#[test]
fn a_resharded_store_is_used_like_any_other() {
    let folder = Folder::new();
    let source = folder.path("source");
    let engine = open(&source, vec![table_options("t")], 1);
    let table = engine.table("t").unwrap();
    insert(
        &table,
        (0..20).map(|key| byte_item(key, 1.0, 9)).collect(),
        None,
    );
    engine.close().unwrap();
    let resharded = run_reshard(&[source], 2, &folder.path("out")).unwrap();
    let path = &resharded.directories[1];
    for round in 0..3 {
        // Options that are not given stay; opening it checks its files.
        let engine = open(path, Vec::new(), 50 + round);
        let table = engine.table("t").unwrap();
        assert_eq!(table.info().stats.size, 10 + round);
        assert_eq!(table.options().max_size, 500);
        insert(&table, vec![byte_item(100 + round, 1.0, 9)], None);
        if round == 1 {
            engine.checkpoint().unwrap();
        }
        engine.close().unwrap();
    }
    let again = run_reshard(&resharded.directories, 1, &folder.path("again")).unwrap();
    assert_eq!(again.tables, [("t".to_owned(), vec![23])]);
}

#[test]
fn a_full_table_loses_nothing() {
    let folder = Folder::new();
    let sources: Vec<PathBuf> = (0..2).map(|i| folder.path(&format!("s{i}"))).collect();
    let bounded = TableOptions {
        max_size: 10,
        max_bytes: Some(8_000),
        ..table_options("t")
    };
    // All items of a source share a chunk, which is copied to each of the new directories.
    for (number, path) in (0..).zip(&sources) {
        let engine = open(path, vec![bounded.clone()], 2 * number);
        let chunk = byte_chunk(number, 10, 500);
        let items = (0..10).map(|row| NewItem {
            key: 10 * number + u64::from(row),
            priority: 1.0,
            trajectory: Trajectory::Rows {
                chunk: Arc::clone(&chunk),
                offset: row,
                len: 1,
                squeeze: true,
            },
        });
        insert(&engine.table("t").unwrap(), items.collect(), None);
        engine.close().unwrap();
    }
    let (expected, _) = read(&sources, "t");
    assert_eq!(expected.items.len(), 20);
    let resharded = run_reshard(&sources, 6, &folder.path("out")).unwrap();
    let (whole, shards) = read(&resharded.directories, "t");
    assert_eq!(whole, expected);
    let used = shards.iter().map(|shard| shard.keys.len()).max();
    assert!(used.is_some_and(|used| used <= 4), "{shards:?}");
    for (path, shard) in resharded.directories.iter().zip(&shards) {
        assert_eq!(shard.options.max_size, 4);
        assert_eq!(shard.options.max_bytes, shards[0].options.max_bytes);
        let engine = open(path, Vec::new(), 9);
        let stats = engine.table("t").unwrap().info().stats;
        assert_eq!(stats.size, shard.keys.len() as u64);
        assert!(Some(stats.bytes) <= shard.options.max_bytes, "{stats:?}");
        engine.close().unwrap();
    }
}

#[test]
fn a_chunk_that_several_sources_have_is_stored_once() {
    let folder = Folder::new();
    let source = folder.path("source");
    let engine = open(&source, vec![table_options("t")], 1);
    let chunk = byte_chunk(5, 40, 3);
    let items = (0..40).map(|row| NewItem {
        key: u64::from(row),
        priority: 1.0,
        trajectory: Trajectory::Rows {
            chunk: Arc::clone(&chunk),
            offset: row,
            len: 1,
            squeeze: true,
        },
    });
    insert(&engine.table("t").unwrap(), items.collect(), None);
    engine.close().unwrap();
    let four = run_reshard(&[source], 4, &folder.path("four")).unwrap();
    let one = run_reshard(&four.directories, 1, &folder.path("one")).unwrap();
    let inspection = crate::inspect(&one.directories[0]).unwrap();
    assert_eq!(inspection.problems(), Vec::<String>::new());
    assert_eq!(inspection.checkpoints[0].chunks, 1);
}

#[test]
fn an_item_sent_again_to_any_shard_is_not_doubled() {
    let folder = Folder::new();
    let sources: Vec<PathBuf> = (0..2).map(|i| folder.path(&format!("s{i}"))).collect();
    let sent = |first: u64| -> Vec<NewItem> {
        let keys = first..first + 4;
        keys.map(|key| byte_item(1_000 + key, 1.0, 3)).collect()
    };
    for (number, path) in (0..).zip(&sources) {
        let engine = open(path, vec![table_options("t")], 2 * number);
        let table = engine.table("t").unwrap();
        if number == 1 {
            // The acknowledgement of these items is lost. One of them has left the table since.
            insert(&table, sent(1), Some((77, 1)));
            table.delete(&[1_002]).unwrap();
        } else {
            // The same writer had inserted other items here before it moved to the other shard.
            insert(&table, vec![byte_item(5, 1.0, 3)], Some((77, 1)));
        }
        engine.close().unwrap();
    }
    let resharded = run_reshard(&sources, 3, &folder.path("out")).unwrap();
    for path in &resharded.directories {
        let engine = open(path, Vec::new(), 3);
        let table = engine.table("t").unwrap();
        let before = table.info().stats.size;
        insert(&table, sent(1), Some((77, 1)));
        assert_eq!(table.info().stats.size, before, "{}", path.display());
        insert(&table, sent(5), Some((77, 5)));
        assert_eq!(table.info().stats.size, before + 4);
        engine.close().unwrap();
    }
}
