//! Runs that are stopped or killed, what is refused, and memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engram_core::{RateLimits, TableOptions};
use engram_testkit::{byte_item, table_options};

use super::{Folder, error_text, insert, open, run_reshard};
use crate::disk::file_names::CLOSE_MARK_NAME;
use crate::disk::os_directory::OsDirectory;
use crate::disk::resharding::reshard;

#[test]
fn a_stopped_run_leaves_nothing_and_a_killed_one_is_repeated() {
    let folder = Folder::new();
    let (source, output) = (folder.path("source"), folder.path("out"));
    let engine = open(&source, vec![table_options("t")], 1);
    let table = engine.table("t").unwrap();
    insert(
        &table,
        (0..9).map(|key| byte_item(key, 1.0, 9)).collect(),
        None,
    );
    engine.close().unwrap();
    let mut calls = 0;
    let stopped = reshard(std::slice::from_ref(&source), 2, &output, 1, &mut |_, _| {
        calls += 1;
        calls < 2
    });
    assert_eq!(error_text(stopped), "the resharding was stopped");
    assert_eq!(folder.names(), BTreeSet::from(["source".to_owned()]));
    // What a killed process leaves.
    let left = folder.path("out.tmp").join("shard-7");
    fs::create_dir_all(&left).unwrap();
    for name in [
        "log-0000000001",
        "checkpoint-0000000001.tmp",
        CLOSE_MARK_NAME,
    ] {
        fs::write(left.join(name), "torn").unwrap();
    }
    let mut reports = Vec::new();
    fs::create_dir(&output).unwrap();
    let resharded = reshard(
        std::slice::from_ref(&source),
        2,
        &output,
        1,
        &mut |done, total| {
            reports.push((done, total));
            true
        },
    );
    assert_eq!(resharded.unwrap().tables[0].1.iter().sum::<u64>(), 9);
    let names = BTreeSet::from(["out".to_owned(), "source".to_owned()]);
    assert_eq!(folder.names(), names);
    assert!(reports.is_sorted());
    assert!(reports.iter().all(|(_, total)| *total == reports[0].1));
    assert_eq!(reports.last().map(|(done, _)| *done), Some(reports[0].1));
}

#[test]
fn files_of_others_are_not_removed() {
    let folder = Folder::new();
    let source = folder.path("source");
    open(&source, vec![table_options("t")], 1).close().unwrap();
    for name in ["out.tmp/notes", "out.tmp/shard-0/notes"] {
        let path = folder.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "text").unwrap();
        let text = error_text(run_reshard(
            std::slice::from_ref(&source),
            2,
            &folder.path("out"),
        ));
        let shown = path.display();
        let staging = folder.path("out.tmp");
        assert_eq!(
            text,
            format!(
                "{shown} is not a file of a resharding that was stopped; remove {}, or give another `output`",
                staging.display()
            )
        );
        fs::remove_file(&path).unwrap();
    }
    let staging = folder.path("out.tmp");
    let lock = OsDirectory::open(&staging).unwrap();
    assert!(lock.lock_handle(&mut || true));
    let text = error_text(run_reshard(
        std::slice::from_ref(&source),
        2,
        &folder.path("out"),
    ));
    assert_eq!(
        text,
        format!(
            "{} is in use by another resharding; wait until it ends, or give another `output`",
            staging.display()
        )
    );
    drop(lock);
    assert!(run_reshard(&[source], 2, &folder.path("out")).is_ok());
}

/// Two stores, and a path for their output.
struct TwoStores {
    folder: Folder,
    one: PathBuf,
    two: PathBuf,
    both: [PathBuf; 2],
    output: PathBuf,
}

impl TwoStores {
    /// Both have a table `t` with one item.
    fn new() -> Self {
        let folder = Folder::new();
        let (one, two) = (folder.path("one"), folder.path("two"));
        let stores = Self {
            both: [one.clone(), two.clone()],
            output: folder.path("out"),
            folder,
            one,
            two,
        };
        stores.create(&stores.one, vec![table_options("t")], &[1]);
        stores.create(&stores.two, vec![table_options("t")], &[2]);
        stores
    }

    /// Creates one of the stores again, with items with these keys in each table.
    fn create(&self, path: &Path, tables: Vec<TableOptions>, keys: &[u64]) {
        let _ = fs::remove_dir_all(path);
        let names: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
        let engine = open(path, tables, 2 * u64::from(path == self.one));
        for name in names {
            let items = keys.iter().map(|key| byte_item(*key, 1.0, 3));
            insert(&engine.table(&name).unwrap(), items.collect(), None);
        }
        engine.close().unwrap();
    }

    /// The text of the error, in which `F` stands for the folder.
    fn refused(&self, directories: &[PathBuf], into: u32, output: &Path) -> String {
        let text = error_text(run_reshard(directories, into, output));
        let shown = self.folder.0.display().to_string();
        text.replace(&shown, "F")
    }

    fn refuse_both(&self) -> String {
        self.refused(&self.both, 1, &self.output)
    }
}

#[test]
fn unsuitable_numbers_and_sources_are_refused() {
    let stores = TwoStores::new();
    let TwoStores {
        folder,
        one,
        two,
        both,
        output,
        ..
    } = &stores;
    for into in [0, 1024] {
        assert_eq!(
            stores.refused(both, into, output),
            format!("`into` must be from 1 to 1023; got {into}")
        );
    }
    assert_eq!(
        stores.refused(&[], 1, output),
        "`directories` must have at least one directory of a store; got none"
    );
    assert_eq!(
        stores.refused(&[one.clone(), folder.path("one/../one")], 1, output),
        "`directories`: F/one and F/one/../one are the same directory; give each source once"
    );
    let text = stores.refused(&[folder.path("none")], 1, output);
    assert!(text.starts_with("F/none cannot be used: "), "{text}");
    fs::create_dir(folder.path("empty")).unwrap();
    assert_eq!(
        stores.refused(&[folder.path("empty")], 1, output),
        "F/empty contains no store"
    );
    let engine = open(two, Vec::new(), 3);
    let text = stores.refuse_both();
    assert!(
        text.starts_with("F/two is in use by this process"),
        "{text}"
    );
    engine.close().unwrap();
}

#[test]
fn unsuitable_outputs_are_refused() {
    let stores = TwoStores::new();
    let TwoStores { one, both, .. } = &stores;
    assert_eq!(
        stores.refused(both, 1, one),
        "`output`: F/one exists and is not empty; give a directory that does not exist yet, or an empty one"
    );
    let file = one.join(CLOSE_MARK_NAME);
    assert_eq!(
        stores.refused(both, 1, &file),
        "`output`: F/one/CLOSED is a file; give a directory"
    );
    assert_eq!(
        stores.refused(both, 1, Path::new("")),
        "`output`: the path is empty; give a directory that does not exist yet, or an empty one"
    );
}

#[test]
fn sources_in_the_unfinished_output_are_not_removed() {
    let stores = TwoStores::new();
    let first = run_reshard(&stores.both, 2, &stores.output).unwrap();
    assert_eq!(first.directories.len(), 2);
    // None of them has a file `LOCK`, because no store has opened them.
    let moved = stores.folder.path("out.tmp");
    fs::rename(&stores.output, &moved).unwrap();
    let sources = [moved.join("shard-0"), moved.join("shard-1")];
    assert_eq!(
        stores.refused(&sources, 3, &stores.output),
        "`output`: F/out.tmp/shard-0 is in F/out.tmp, which a resharding to F/out removes; give another `output`"
    );
    assert!(run_reshard(&sources, 3, &stores.folder.path("other")).is_ok());
}

#[test]
fn outputs_in_a_source_and_links_to_nothing_are_refused() {
    let stores = TwoStores::new();
    let inside = stores.one.join("parent/out");
    assert_eq!(
        stores.refused(&stores.both, 1, &inside),
        "`output`: F/one/parent/out is in the source F/one; give a directory outside the sources"
    );
    assert!(!stores.one.join("parent").exists());
    std::os::unix::fs::symlink(stores.folder.path("nowhere"), &stores.output).unwrap();
    assert_eq!(
        stores.refuse_both(),
        "`output`: F/out is a symbolic link to a path that does not exist; give a directory that does not exist yet, or \
         an empty one"
    );
}

#[test]
fn tables_that_disagree_are_refused() {
    let stores = TwoStores::new();
    let two = &stores.two;
    stores.create(two, vec![table_options("t"), table_options("u")], &[2]);
    assert_eq!(
        stores.refuse_both(),
        "F/two has a table `u`, but F/one has none; all sources must have the same tables: create or drop the table"
    );
    let larger = TableOptions {
        max_size: 2_000,
        ..table_options("t")
    };
    stores.create(two, vec![larger], &[2]);
    assert_eq!(
        stores.refuse_both(),
        "table `t`: `max_size` is 1000 in F/one, but 2000 in F/two; open the stores with the same options, close them and \
         try again"
    );
    stores.create(two, vec![table_options("t")], &[2]);
    let engine = open(two, Vec::new(), 5);
    let limited = engine.table("t").unwrap().set_limits(RateLimits::queue(9));
    limited.unwrap();
    engine.close().unwrap();
    let text = stores.refuse_both();
    assert!(
        text.starts_with(
            "table `t`: the current rate limiter is MinSize(samples_per_insert=1, min_size="
        ),
        "{text}"
    );
    assert!(
        text.contains(
            "but Queue(samples_per_insert=1, min_size=1, min_diff=0, max_diff=9) in F/two; open both stores, set the same \
             limiter with `set_rate_limiter`, close them and try again"
        ),
        "{text}"
    );
    let expiring = TableOptions {
        ttl: Some(2_500_000_000),
        ..table_options("t")
    };
    stores.create(two, vec![expiring], &[2]);
    let text = stores.refuse_both();
    assert!(
        text.starts_with("table `t`: `ttl` is None in F/one, but 2.5 s in F/two; "),
        "{text}"
    );
    stores.create(two, vec![table_options("t")], &[3, 1]);
    assert_eq!(
        stores.refuse_both(),
        "table `t` has an item with key 1 both in F/one and in F/two; an item can be in one source only: delete it in the \
         other"
    );
}

#[test]
fn copies_damaged_files_and_newer_formats_are_refused() {
    let stores = TwoStores::new();
    let TwoStores {
        folder, one, two, ..
    } = &stores;
    fs::remove_dir_all(two).unwrap();
    fs::create_dir(two).unwrap();
    for name in fs::read_dir(one).unwrap() {
        let path = name.unwrap().path();
        fs::copy(&path, two.join(path.file_name().unwrap())).unwrap();
    }
    assert_eq!(
        stores.refuse_both(),
        "`directories`: F/one and F/two are copies of one store, so items would be in the result twice; give one of them"
    );

    let log = two.join("log-0000000001");
    let mut bytes = fs::read(&log).unwrap();
    bytes[8] = 2;
    let checksum = crc32c::crc32c(&bytes[..44]).to_le_bytes();
    bytes[44..48].copy_from_slice(&checksum);
    fs::write(&log, &bytes).unwrap();
    let text = stores.refuse_both();
    assert_eq!(
        text,
        "F/two: log-0000000001 has format version 2, but this release reads only version 1"
    );
    bytes[20] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let text = stores.refuse_both();
    assert!(
        text.starts_with("F/two: log-0000000001 is damaged"),
        "{text}"
    );
    let names: BTreeSet<String> = ["one", "two"].map(String::from).into();
    assert_eq!(folder.names(), names);
}

#[test]
fn memory_does_not_grow_with_the_payloads() {
    let folder = Folder::new();
    let source = folder.path("source");
    let engine = open(&source, vec![table_options("t")], 1);
    let table = engine.table("t").unwrap();
    for key in 0..96 {
        insert(&table, vec![byte_item(key, 1.0, 1 << 20)], None);
    }
    engine.close().unwrap();
    drop((engine, table));
    let output = folder.path("out");
    let run = || run_reshard(std::slice::from_ref(&source), 2, &output).unwrap();
    let (resharded, peak) = engram_testkit::measure_peak(run);
    assert_eq!(resharded.tables[0].1, [48, 48]);
    assert!(peak < 24 << 20, "{} MiB", peak >> 20);
}
