//! The checkpoints and logs of an open store's directory, and which of them are still needed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::checkpoint_writer::CheckpointHeader;
use super::directory::Directory;
use super::file_names::{FileName, checkpoint_name};
use super::record_reader::RecordReader;

/// Numbers of the newest checkpoint and log, and the logs that each checkpoint requires.
#[derive(Debug)]
pub(super) struct Manifest {
    /// Largest number that was given to a checkpoint, also to one that could not be written.
    pub(super) newest_checkpoint: u64,
    /// Largest number that was given to a log, also to one that has no file.
    pub(super) newest_log: u64,
    /// Logs below this number are synced.
    pub(super) synced_below: u64,
    /// True during a repair until unused files are set aside: until then, no file is removed.
    pub(super) keep_all: bool,
    /// Valid checkpoints, with the logs that they require.
    pub(super) valid: BTreeMap<u64, RequiredLogs>,
    /// Checkpoints that were not verified or can no longer be used, with the logs that they require.
    /// Each is kept until there are `StorageOptions::keep` newer valid ones.
    pub(super) unverified: BTreeMap<u64, RequiredLogs>,
}

/// Logs that a checkpoint requires: all from `first` on, and some earlier ones.
#[derive(Clone, Debug)]
pub(super) struct RequiredLogs {
    first: u64,
    earlier: Vec<u64>,
}

impl RequiredLogs {
    pub(super) fn from_header(header: &CheckpointHeader) -> Self {
        Self {
            first: header.first_log,
            earlier: header.earlier_logs.iter().map(|(log, _)| *log).collect(),
        }
    }

    fn contains(&self, log: u64) -> bool {
        log >= self.first || self.earlier.contains(&log)
    }
}

impl Manifest {
    /// Adds a checkpoint that was written. Earlier ones no longer count as valid if they or logs that they
    /// require are missing.
    pub(super) fn add_checkpoint(
        &mut self,
        files: &dyn Directory,
        number: u64,
        header: &CheckpointHeader,
        missing_logs: &BTreeSet<u64>,
    ) {
        let is_usable = |number: u64, logs: &RequiredLogs| {
            !missing_logs.iter().any(|log| logs.contains(*log))
                && !matches!(files.id(&checkpoint_name(number)), Err(error) if is_missing(&error))
        };
        for (number, logs) in std::mem::take(&mut self.valid) {
            if is_usable(number, &logs) {
                self.valid.insert(number, logs);
            } else {
                self.unverified.insert(number, logs);
            }
        }
        self.valid.insert(number, RequiredLogs::from_header(header));
    }

    /// Removes checkpoints and logs of this store that are not needed. Errors are not reported: the next call
    /// tries again.
    pub(super) fn remove_unneeded(&mut self, files: &dyn Directory, store: u64, keep: usize) {
        if self.keep_all {
            return;
        }
        let keep = keep.max(1);
        while self.valid.len() > keep {
            let Some((oldest, _)) = self.valid.first_key_value() else {
                break;
            };
            let oldest = *oldest;
            if !remove(files, &checkpoint_name(oldest)) {
                return;
            }
            self.valid.remove(&oldest);
        }
        // Older, unverified checkpoints are not needed once there are enough valid ones.
        let oldest = self.valid.first_key_value();
        let oldest = oldest.map_or(0, |(number, _)| *number);
        if self.valid.len() >= keep {
            self.unverified.retain(|number, _| {
                *number >= oldest || files.id(&checkpoint_name(*number)).is_ok()
            });
            for name in files.list().unwrap_or_default() {
                if let Some(FileName::Checkpoint(number)) = FileName::parse(&name)
                    && number < oldest
                    && belongs_to(files, &name, store)
                    && remove(files, &name)
                {
                    self.unverified.remove(&number);
                }
            }
        }
        // A checkpoint's removal must be durable before the logs that it requires are removed.
        if files.sync_directory().is_err() {
            return;
        }
        let required = self.valid.values().chain(self.unverified.values());
        let required: Vec<&RequiredLogs> = required.collect();
        let is_required = |log: u64| required.iter().any(|logs| logs.contains(log));
        for name in files.list().unwrap_or_default() {
            if let Some(FileName::Log(log)) = FileName::parse(&name)
                && !is_required(log)
                && belongs_to(files, &name, store)
            {
                let _ = files.remove(&name);
            }
        }
    }
}

/// Removes a file; true if it no longer exists.
fn remove(files: &dyn Directory, name: &str) -> bool {
    match files.remove(name) {
        Ok(()) => true,
        Err(error) => is_missing(&error),
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// True if a file belongs to this store, or is empty. False if its header cannot be used: it may be another store's,
/// or of another format version.
fn belongs_to(files: &dyn Directory, name: &str, store: u64) -> bool {
    match files.open(name).and_then(RecordReader::new) {
        Ok(Ok(file_reader)) => file_reader.header.store == store,
        Ok(Err(_)) => files
            .open(name)
            .and_then(|file| file.len())
            .is_ok_and(|len| len == 0),
        Err(_) => false,
    }
}

/// True if this store has no file of this name any more: the file is missing, is a link, pipe, socket, device or
/// directory, belongs to another store, or its header cannot be used.
pub(super) fn is_log_missing(files: &dyn Directory, name: &str, store: u64) -> bool {
    match files.open(name).and_then(RecordReader::new) {
        Ok(Ok(file_reader)) => file_reader.header.store != store,
        Ok(Err(_)) => true,
        // `open` returns `InvalidInput` for a link, pipe, socket or device.
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::os_directory::OsDirectory;

    #[test]
    fn a_log_that_was_replaced_by_a_subdirectory_is_missing() {
        let path = std::env::temp_dir().join(format!("engram-replaced-{}", std::process::id()));
        std::fs::create_dir_all(path.join("log-0000000001")).unwrap();
        let files = OsDirectory::open(&path).unwrap();
        assert!(is_log_missing(&files, "log-0000000001", 1));
        std::fs::remove_dir_all(path).unwrap();
    }
}
