//! Stores whose directory is used by another process, fails or is damaged.

use std::sync::Arc;
use std::time::Duration;

use engram_core::{DeferredDrops, NewItem};

use super::power_loss_directory::PowerLossDirectory;
use super::random_workload::{
    OPTIONS, create_table, insert, open_store, read_back, sizes, wait_until_durable,
};
use crate::disk::directory::{Directory as _, ReadableDirectory as _};
use crate::disk::file_names::{checkpoint_name, log_name};
use crate::disk::journal::{Durability, NOT_LOCKED};
use crate::disk::recover::recover;
use crate::disk::recovery_error::RecoveryError;
use crate::disk::storage::{Opened, Storage, StorageOptions};

/// Opens a new store with a table of one item.
fn new_store(files: &PowerLossDirectory) -> Opened {
    let mut opened = open_store(files, 1).unwrap();
    create_table(&mut opened, 1);
    insert(opened.tables.get_mut(&1).unwrap(), 1);
    wait_until_durable(&opened, 1).unwrap();
    opened
}

/// Inserts an item into the table and waits until that is durable.
fn insert_durably(opened: &mut Opened, key: u64) -> engram_core::Result<()> {
    insert(opened.tables.get_mut(&1).unwrap(), key);
    wait_until_durable(opened, 1)
}

#[test]
fn a_store_writes_nothing_after_another_process_has_opened_its_directory() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut first = new_store(&files);
    // The lock is checked at most every 50 ms.
    std::thread::sleep(Duration::from_millis(60));
    let mut second = open_store(&files.in_other_process(), 1).unwrap();
    insert_durably(&mut second, 2).unwrap();
    let error = insert_durably(&mut first, 3).unwrap_err().to_string();
    assert!(error.ends_with(NOT_LOCKED), "{error}");
    drop(first);
    second.storage.close().unwrap();
    let recovered = read_back(&files).unwrap();
    assert_eq!(sizes(&recovered.tables), [(1, 2)]);
    assert_eq!(recovered.notes, [""; 0]);
}

#[test]
fn a_checkpoint_without_the_lock_ends_the_journal() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut first = new_store(&files);
    std::thread::sleep(Duration::from_millis(60));
    let second = open_store(&files.in_other_process(), 1).unwrap();
    assert!(!first.storage.sink(1).has_ended());
    let error = first.write_checkpoint().unwrap_err().to_string();
    assert!(error.ends_with(NOT_LOCKED), "{error}");
    // A server sends dm-reverb's clients a sample that removes items (`max_times_sampled`) only once the removal is
    // durable. If the journal did not end, it would hold such samples back until it stops.
    assert!(first.storage.sink(1).has_ended());
    drop(first);
    second.storage.close().unwrap();
}

#[test]
fn a_checkpoint_succeeds_after_a_sync_of_the_directory_failed() {
    let mut failures = 0;
    for syncs in 0..3 {
        let case = format!("after {syncs} syncs");
        let files = PowerLossDirectory::from_files(&[]);
        let mut opened = new_store(&files);
        files.fail_directory_sync(syncs);
        failures += usize::from(opened.write_checkpoint().is_err());
        insert_durably(&mut opened, 2).unwrap();
        let written = opened.write_checkpoint();
        written.unwrap_or_else(|error| panic!("{case}: {error}"));
        insert_durably(&mut opened, 3).unwrap();
        opened.storage.close().unwrap();
        drop(opened);
        let recovered = read_back(&files).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(sizes(&recovered.tables), [(1, 3)], "{case}");
        assert_eq!(recovered.notes, [""; 0], "{case}");
    }
    assert!(failures >= 2, "{failures}");
}

#[test]
fn a_problem_is_reported_without_access_to_the_file_system() {
    let files = PowerLossDirectory::from_files(&[]);
    let opened = new_store(&files);
    let sink = opened.storage.sink(1);
    files.remove(&log_name(1)).unwrap();
    assert_eq!(sink.problem(), None);
    opened.storage.check_files();
    let problem = "power-loss: log-0000000001 was removed or replaced; the next checkpoint stores everything again";
    assert_eq!(sink.problem().as_deref(), Some(problem));
}

#[test]
fn a_repair_uses_complete_logs_if_every_checkpoint_is_damaged() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut opened = new_store(&files);
    for key in [2, 3] {
        opened.write_checkpoint().unwrap();
        insert_durably(&mut opened, key).unwrap();
    }
    opened.storage.close().unwrap();
    drop(opened);
    for checkpoint in [1, 2] {
        files.truncate(&checkpoint_name(checkpoint), 60).unwrap();
    }
    let advice = |files: &PowerLossDirectory| {
        let error = recover(files, false, &mut |_, _| {}).unwrap_err();
        let text = error.into_error_with_advice(files, false).to_string();
        text.split_once("; `").map(|(_, advice)| advice.to_owned())
    };
    let expected = "engram.Store.open(path, repair=True)` opens what can still be read (an empty store if nothing can)";
    assert_eq!(advice(&files).as_deref(), Some(expected));
    let repaired = recover(&files, true, &mut |_, _| {}).unwrap();
    assert!(repaired.repaired);
    assert_eq!(sizes(&repaired.tables), [(1, 3)]);
    files.remove(&log_name(1)).unwrap();
    let expected = "engram.Store.open(path, repair=True)` would find nothing to open; replace the directory with a backup";
    assert_eq!(advice(&files).as_deref(), Some(expected));
    assert!(recover(&files, true, &mut |_, _| {}).is_err());
}

#[test]
fn a_read_that_fails_for_lack_of_memory_is_no_damage() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut opened = new_store(&files);
    for key in [2, 3] {
        opened.write_checkpoint().unwrap();
        insert_durably(&mut opened, key).unwrap();
    }
    opened.storage.close().unwrap();
    drop(opened);
    // The last log is torn, with an intact record after the tear.
    let log = files
        .list()
        .unwrap()
        .into_iter()
        .rfind(|name| name.starts_with("log-"));
    let log = log.unwrap();
    let mut contents = files.files();
    let (_, bytes) = contents.iter_mut().find(|(name, _)| *name == log).unwrap();
    // Damage the body of the second record. The `begin` record before it stays intact.
    bytes[48 + 24 + 24 + 30] ^= 1;
    let files = PowerLossDirectory::from_files(&contents);
    let expected = recover(&files, true, &mut |_, _| {}).unwrap();
    assert!(!expected.repaired && expected.intact_after_tear > 0);
    let mut failures = 0;
    for reads in 0.. {
        files.fail_read(reads);
        match recover(&files, true, &mut |_, _| {}) {
            Ok(recovered) => {
                assert!(!recovered.repaired, "{reads}: {:?}", recovered.notes);
                assert_eq!(sizes(&recovered.tables), sizes(&expected.tables));
                assert_eq!(recovered.checkpoint_read, expected.checkpoint_read);
                assert_eq!(recovered.intact_after_tear, expected.intact_after_tear);
                assert_eq!(recovered.checkpoint_headers.len(), 2);
                assert_eq!(recovered.notes, expected.notes, "{reads}");
            }
            Err(RecoveryError::Unreadable(_)) => failures += 1,
            Err(error) => panic!("{reads}: {error:?}"),
        }
        if files.has_pending_read_failure() {
            // Recovery made no more reads: each of them has failed once.
            break;
        }
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn a_repair_states_the_first_change_that_it_cannot_apply() {
    let files = PowerLossDirectory::from_files(&[]);
    // All changes after a checkpoint are in one record.
    let options = StorageOptions {
        durability: Durability::Disk {
            interval: Duration::from_secs(3_600),
        },
        ..OPTIONS
    };
    let recovered = read_back(&files).unwrap();
    let mut opened = Storage::start(Arc::new(files.clone()), recovered, options, 1).unwrap();
    create_table(&mut opened, 1);
    insert(opened.tables.get_mut(&1).unwrap(), 1);
    opened.write_checkpoint().unwrap();
    let table = opened.tables.get_mut(&1).unwrap();
    let item = table.snapshot().items().next().map(|item| NewItem {
        key: 4,
        priority: 1.0,
        trajectory: item.trajectory.clone(),
    });
    insert(table, 2);
    insert(table, 3);
    let last_change = table.last_lsn().0;
    // This item's chunk is in the first log, which is removed below.
    table.insert(item.unwrap(), 0, &mut DeferredDrops::default());
    insert(table, 5);
    insert(table, 6);
    opened.storage.close().unwrap();
    drop(opened);
    files.remove(&log_name(1)).unwrap();
    let repaired = recover(&files, true, &mut |_, _| {}).unwrap();
    assert_eq!(sizes(&repaired.tables), [(1, 2)]);
    assert_eq!(repaired.tables[&1].last_lsn().0, last_change);
    assert_eq!(repaired.next_change, last_change + 1);
    let note = format!(
        "all changes from change {} onward are lost: ",
        last_change + 1
    );
    let notes = &repaired.notes;
    assert!(
        notes.iter().any(|found| found.starts_with(&note)),
        "{notes:?}"
    );
}

#[test]
fn files_that_were_set_aside_before_are_kept() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut opened = new_store(&files);
    opened.write_checkpoint().unwrap();
    insert_durably(&mut opened, 2).unwrap();
    insert_durably(&mut opened, 3).unwrap();
    opened.storage.close().unwrap();
    drop(opened);
    let mut contents = files.files();
    // Make the body of the `begin` record invalid: intact records follow.
    let log = contents
        .iter_mut()
        .rfind(|(name, _)| name.starts_with("log-"));
    let (log, bytes) = log.unwrap();
    bytes[48 + 24] ^= 1;
    let (log, tail) = (log.clone(), bytes[48..].to_vec());
    let checkpoint = checkpoint_name(1);
    let lost = |name: &str, copy: &str| format!("{name}{copy}.lost");
    for name in [&log, &checkpoint] {
        contents.push((lost(name, ""), b"kept".to_vec()));
    }
    let check = |files: &PowerLossDirectory, name: &str, content: &[u8]| {
        for (name, expected) in [(lost(name, ""), &b"kept"[..]), (lost(name, ".2"), content)] {
            let files = files.files();
            let found = files.iter().find(|(found, _)| *found == name);
            assert!(found.is_some_and(|(_, bytes)| bytes == expected), "{name}");
        }
    };
    let files = PowerLossDirectory::from_files(&contents);
    open_store(&files, 1).unwrap().storage.close().unwrap();
    check(&files, &log, &tail);
    // A repair sets the damaged checkpoint aside.
    files.truncate(&checkpoint, 60).unwrap();
    let damaged = files
        .files()
        .into_iter()
        .find(|(name, _)| *name == checkpoint);
    let recovered = recover(&files, true, &mut |_, _| {}).unwrap();
    assert!(recovered.repaired);
    let opened = Storage::start(Arc::new(files.clone()), recovered, OPTIONS, 1).unwrap();
    opened.storage.close().unwrap();
    check(&files, &checkpoint, &damaged.unwrap().1);
}

#[test]
fn logs_that_may_belong_to_another_store_are_kept() {
    for (bytes, is_kept) in [(vec![], false), (vec![1], true), (vec![0; 1_000], true)] {
        let files = PowerLossDirectory::from_files(&[]);
        let mut opened = new_store(&files);
        let mut file = files.create(&log_name(0)).unwrap();
        file.append(&[&bytes]).unwrap();
        opened.write_checkpoint().unwrap();
        let exists = files.open(&log_name(0)).is_ok();
        assert_eq!(exists, is_kept, "{} bytes", bytes.len());
    }
}
