//! Stores whose logs are removed or cut, while the store is open or after it was closed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::power_loss_directory::PowerLossDirectory;
use super::random_workload::{History, open_store, read_back};
use crate::disk::close_mark::CloseMark;
use crate::disk::directory::{Directory as _, ReadableDirectory as _};
use crate::disk::file_names::{FileName, log_name};

/// Removes about half of the logs; returns how many.
fn remove_logs(files: &PowerLossDirectory, rng: &mut Xoshiro256PlusPlus) -> usize {
    let mut names = files.list().unwrap();
    names.retain(|name| {
        matches!(FileName::parse(name), Some(FileName::Log(_))) && rng.next_u64().is_multiple_of(2)
    });
    for name in &names {
        files.remove(name).unwrap();
    }
    names.len()
}

#[test]
fn a_checkpoint_after_logs_were_removed_stores_everything_again() {
    let (mut removed_logs, mut failed_checkpoints) = (0, 0);
    for seed in 0..150 {
        let case = format!("seed {seed}");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let files = PowerLossDirectory::from_files(&[]);
        let mut history = History::default();
        let mut opened = open_store(&files, seed).unwrap();
        for _ in 0..3 {
            history.run(&mut opened, &mut rng);
            removed_logs += remove_logs(&files, &mut rng);
            history.run(&mut opened, &mut rng);
        }
        removed_logs += remove_logs(&files, &mut rng);
        let mut attempts = 1;
        while let Err(error) = opened.write_checkpoint() {
            let text = error.to_string();
            assert!(
                text.ends_with("removed or replaced; the next checkpoint stores everything again"),
                "{case}: {text}"
            );
            failed_checkpoints += 1;
            attempts += 1;
            assert!(attempts < 4, "{case}: {text}");
        }
        opened.storage.check_files();
        assert_eq!(opened.storage.problem(), None, "{case}");
        history.run(&mut opened, &mut rng);
        let last_changes: Vec<_> = (opened.tables.iter())
            .map(|(id, table)| (*id, table.last_lsn()))
            .collect();
        opened.storage.close().unwrap();
        drop(opened);
        let mut recovered = read_back(&files).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(recovered.notes, [""; 0], "{case}");
        let recovered_changes: Vec<_> = (recovered.tables.iter())
            .map(|(id, table)| (*id, table.last_lsn()))
            .collect();
        assert_eq!(recovered_changes, last_changes, "{case}");
        history.check_recovered(&mut recovered.tables, false, &case);
    }
    assert!(
        removed_logs > 150 && failed_checkpoints > 20,
        "{removed_logs} logs removed, {failed_checkpoints} failed checkpoints"
    );
}

#[test]
fn a_log_that_is_cut_between_records_after_the_close_is_reported() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut history = History::default();
    let mut opened = open_store(&files, 1).unwrap();
    history.run(&mut opened, &mut Xoshiro256PlusPlus::seed_from_u64(1));
    drop(opened);
    assert_eq!(read_back(&files).unwrap().notes, [""; 0]);
    let mark = CloseMark::read(&files, &files.list().unwrap());
    let mark = mark.unwrap().unwrap();
    let (name, bytes) = (log_name(mark.log), mark.bytes);
    assert_eq!(files.open(&name).unwrap().len().unwrap(), bytes);
    // Only the file header is left.
    files.truncate(&name, 48).unwrap();
    let cause = "acknowledged changes are lost because of a power failure (which cannot cause this with \
                 `durability=\"disk\"`), or because the file was damaged after the store was closed";
    let note = format!("{name} has 48 bytes, but had {bytes} when the store was closed: {cause}");
    let notes = read_back(&files).map(|recovered| recovered.notes);
    assert_eq!(notes.unwrap_or_default().last(), Some(&note));
}
