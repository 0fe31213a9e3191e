//! Checkpoints with contents that the logs lack, in stores whose writes all fail from some write on.

use std::sync::Arc;

use engram_core::{DeferredDrops, Result, TableState, Volatile};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::power_loss_directory::PowerLossDirectory;
use super::random_workload::{
    create_table, insert, open_store, read_back, sizes, table_options, wait_until_durable,
};
use crate::disk::close_mark::CloseMark;
use crate::disk::directory::{Directory as _, ReadableDirectory as _};
use crate::disk::file_names::{checkpoint_name, log_name};
use crate::disk::recover::recover;
use crate::disk::storage::{CheckpointView, Opened};

/// Number of the table that is in no log.
const NEW_TABLE: u64 = 9;

/// Bytes of a log's file header and `begin` record.
const BYTES_TO_FIRST_CHANGE: u64 = 48 + 24 + 24;

/// Adds a table with one item that is in no log, as `Engine::add_tables` does.
fn add_table(opened: &mut Opened) -> Result<()> {
    let options = Arc::new(table_options(NEW_TABLE));
    let mut new_table = TableState::new(options, Arc::new(Volatile)).unwrap();
    insert(&mut new_table, 100);
    let sink = opened.storage.sink(NEW_TABLE);
    new_table.set_last_lsn(sink.last());
    new_table.set_sink(sink);
    let (tables, clock) = (&mut opened.tables, opened.clock);
    opened.storage.checkpoint(true, |start_log| {
        let position = start_log(clock);
        let tables = tables.iter_mut().chain([(&NEW_TABLE, &mut new_table)]);
        let view = CheckpointView {
            tables: tables
                .map(|(id, table)| (*id, Arc::clone(table.options()), *table.snapshot()))
                .collect(),
            next_table: NEW_TABLE + 1,
        };
        Ok((position, view))
    })?;
    opened.tables.insert(NEW_TABLE, new_table);
    Ok(())
}

/// The directory as a killed process leaves it (with everything written), and as a power loss leaves it.
fn remains(files: &PowerLossDirectory, rng: &mut Xoshiro256PlusPlus) -> [PowerLossDirectory; 2] {
    let killed = PowerLossDirectory::from_files(&files.files());
    [killed, files.after_power_loss(rng)]
}

/// Opens a store, inserts an item into each table and closes the store; returns the tables' sizes.
fn use_store(files: &PowerLossDirectory, case: &str) -> Vec<(u64, u64)> {
    let opened = open_store(files, 1);
    let mut opened = opened.unwrap_or_else(|error| panic!("{case}: {error}"));
    for table in opened.tables.values_mut() {
        insert(table, 1_000);
    }
    let used = sizes(&opened.tables);
    opened.storage.close().unwrap();
    drop(opened);
    let recovered = read_back(files).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(sizes(&recovered.tables), used, "{case}");
    used
}

/// Files of a closed store with a checkpoint, and with changes after it.
fn checkpointed_files() -> Vec<(String, Vec<u8>)> {
    let files = PowerLossDirectory::from_files(&[]);
    let mut opened = open_store(&files, 1).unwrap();
    create_table(&mut opened, 1);
    insert(opened.tables.get_mut(&1).unwrap(), 1);
    opened.write_checkpoint().unwrap();
    insert(opened.tables.get_mut(&1).unwrap(), 2);
    opened.storage.close().unwrap();
    drop(opened);
    files.files()
}

#[test]
fn a_store_opens_after_adding_a_table_failed_at_any_write() {
    let before = checkpointed_files();
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(1);
    let (mut refused, mut added_count) = (0, 0);
    for writes in 0.. {
        let files = PowerLossDirectory::from_files(&before);
        let mut opened = open_store(&files, 1).unwrap();
        files.set_writes_left(writes);
        let is_added = add_table(&mut opened).is_ok();
        drop(opened);
        for (index, left) in remains(&files, rng).into_iter().enumerate() {
            let case = format!("{writes} writes, case {index}");
            let sizes = use_store(&left, &case);
            assert_eq!(sizes[0], (1, 3), "{case}");
            let is_found = sizes.contains(&(NEW_TABLE, 2));
            assert!(is_found || !is_added, "{case}: {sizes:?}");
            added_count += usize::from(is_found);
            if !is_found {
                continue;
            }
            // Neither the older checkpoint nor the logs contain the added table, which was acknowledged.
            left.remove(&checkpoint_name(2)).unwrap();
            let error = read_back(&left).unwrap_err().to_string();
            let expected = "checkpoint-0000000002 is missing or cannot be used, and only it contains the changes \
                            before those of log-";
            assert!(error.contains(expected), "{case}: {error}");
            let repaired = recover(&left, true, &mut |_, _| {}).unwrap();
            assert!(repaired.tables.contains_key(&1), "{case}");
            refused += 1;
        }
        if files.writes_left() > 0 {
            break;
        }
    }
    assert!(refused > 2 && added_count > 2, "{refused} {added_count}");
}

#[test]
fn a_store_continues_after_adding_a_table_failed_at_any_write() {
    let before = checkpointed_files();
    let mut continued = 0;
    for writes in 0.. {
        let case = format!("{writes} writes");
        let files = PowerLossDirectory::from_files(&before);
        let mut opened = open_store(&files, 1).unwrap();
        files.set_writes_left(writes);
        let is_added = add_table(&mut opened).is_ok();
        let ends = files.writes_left() > 0;
        files.set_writes_left(u64::MAX);
        insert(opened.tables.get_mut(&1).unwrap(), 3);
        let is_durable = wait_until_durable(&opened, 1).is_ok();
        continued += usize::from(is_durable && !is_added);
        drop(opened);
        let recovered = read_back(&files).unwrap_or_else(|error| panic!("{case}: {error}"));
        let expected = if is_durable { 3 } else { 2 };
        assert!(recovered.tables[&1].stats().size >= expected, "{case}");
        if ends {
            break;
        }
    }
    assert!(continued > 2, "{continued}");
}

/// The log lost changes that the checkpoint contains, and the process ends while it opens the store.
#[test]
fn a_store_opens_after_opening_it_failed_at_any_write() {
    let files = PowerLossDirectory::from_files(&checkpointed_files());
    let mut opened = open_store(&files, 1).unwrap();
    let (tables, clock) = (&mut opened.tables, opened.clock);
    let view = |start_log: Box<dyn FnOnce(u64) -> _ + '_>| {
        let position = start_log(clock);
        let table = tables.get_mut(&1).unwrap();
        table.delete(&[1], &mut DeferredDrops::default());
        table.update([(2, 3.0)].into_iter());
        let snapshot = (1, Arc::clone(table.options()), *table.snapshot());
        let view = CheckpointView {
            tables: vec![snapshot],
            next_table: 2,
        };
        Ok((position, view))
    };
    opened.storage.checkpoint(false, view).unwrap();
    opened.storage.close().unwrap();
    drop(opened);
    let mark = CloseMark::read(&files, &files.list().unwrap());
    let mark = mark.unwrap().unwrap();
    files
        .truncate(&log_name(mark.log), BYTES_TO_FIRST_CHANGE)
        .unwrap();
    let before = files.files();
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(1);
    for writes in 0.. {
        let files = PowerLossDirectory::from_files(&before);
        files.set_writes_left(writes);
        drop(open_store(&files, 1));
        for (index, left) in remains(&files, rng).into_iter().enumerate() {
            let case = format!("{writes} writes, case {index}");
            assert_eq!(use_store(&left, &case), [(1, 2)], "{case}");
            left.remove(&checkpoint_name(2)).unwrap();
            assert!(read_back(&left).is_err(), "{case}");
        }
        if files.writes_left() > 0 {
            break;
        }
    }
}
