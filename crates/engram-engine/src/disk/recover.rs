//! Recovery: reading a store back from its directory.
//!
//! ```text
//! newest checkpoint ── verify: all records intact? ── all its chunks in the logs? ── read tables
//!        │ no: note the reason, try the next older one; if none is left: the error `NothingLeft`
//!        ▼
//! replay the logs from the checkpoint's first change on (without a checkpoint: from change 1)
//!        │ up to the first invalid record; a later log must continue with the next change
//!        ▼
//! Recovered ── Storage::start: truncate the torn log, sync the logs, create a new log, end all leases
//! ```
//!
//! If acknowledged data is missing, recovery fails. With `repair`, it runs again and continues without
//! the missing parts: items whose chunks are missing are left out, the replay ends at the first
//! change that cannot be applied, and if no checkpoint is usable, all logs are replayed from change 1.
//!
//! * `recover.rs`: the sequence of steps, and the choice of the checkpoint
//! * `directory_reader.rs`: what was read so far
//! * `recovery_error.rs`: errors and their texts
//! * `checkpoint_reader.rs`: verifies and reads one checkpoint
//! * `chunk_loader.rs`: loads chunks from logs; `chunk_checkers.rs` checks large ones in threads
//! * `replay.rs`: applies the changes in logs

use std::fs::File;
use std::path::Path;

use engram_core::text::count;
use engram_core::{Error, Result};

use super::byte_codec::UnusableData;
use super::checkpoint_reader::{read_first_record, read_tables, verify};
use super::checkpoint_writer::CheckpointHeader;
use super::close_mark::CloseMark;
use super::directory::ReadableDirectory;
use super::directory_lock::{check_not_file, lock_shared};
use super::directory_reader::{DirectoryContents, DirectoryReader, ReadProgress, Recovered};
use super::errors::failed;
use super::file_format::FileKind;
use super::file_names::{FileName, checkpoint_name};
use super::os_directory::OsDirectory;
use super::record_reader::RecordReader;
use super::recovery_error::{
    RecoveryError, missing_chunks, no_usable_checkpoint, problem_of_checkpoint,
};
use super::serial_ranges::SerialRanges;

/// In a note about a checkpoint that is not used, this is between its name and the reason. `inspect.rs` searches notes
/// for it.
pub(super) const NOT_USED: &str = " is not used: ";

/// A directory that no process has open. Until this is dropped, none can open it.
#[derive(Debug)]
pub(crate) struct ClosedDirectory {
    pub(super) files: OsDirectory,
    /// `None` if the directory has no `LOCK` file.
    _lock: Option<File>,
}

impl ClosedDirectory {
    /// # Errors
    /// [`Error::Storage`] if it cannot be opened, or a process (also this one) has it open.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        check_not_file(path)?;
        let files = OsDirectory::open(path).map_err(|error| failed(path, "used", &error))?;
        let lock = lock_shared(&files)?;
        Ok(Self { files, _lock: lock })
    }

    /// Reads the directory without changing it. With `skip_payloads`, chunks are read without their payloads.
    ///
    /// # Errors
    /// Those of [`recover`]; [`Error::Storage`] if it contains no store.
    pub(crate) fn read(
        &self,
        repair: bool,
        skip_payloads: bool,
        progress: ReadProgress<'_>,
    ) -> Result<Recovered> {
        let files = &self.files;
        let recovered = recover_with(files, repair, skip_payloads, progress)
            .map_err(|error| error.into_error_with_advice(files, repair))?;
        if recovered.store.is_none() {
            let text = format!("{} contains no store", files.path().display());
            return Err(Error::Storage(text));
        }
        Ok(recovered)
    }
}

/// Reads a directory. With `repair`, continues without acknowledged data that is missing.
///
/// # Errors
/// The directory cannot be read, or acknowledged data is missing.
pub(crate) fn recover(
    files: &dyn ReadableDirectory,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    recover_with(files, repair, false, progress)
}

/// [`recover`]; with `skip_payloads`, chunks are read without their payloads.
fn recover_with(
    files: &dyn ReadableDirectory,
    repair: bool,
    skip_payloads: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    let names = files.list().map_err(|error| {
        RecoveryError::Unreadable(UnusableData(format!("cannot be listed: {error}")))
    })?;
    let mut engram_files: Vec<FileName> = names
        .iter()
        .filter_map(|name| FileName::parse(name))
        .collect();
    engram_files.sort_unstable();
    let checkpoints = engram_files.iter().filter_map(|name| match name {
        FileName::Checkpoint(number) => Some(*number),
        _ => None,
    });
    let checkpoints: Vec<u64> = checkpoints.collect();
    let logs = engram_files.iter().filter_map(|name| match name {
        FileName::Log(number) => Some(*number),
        _ => None,
    });
    let logs: Vec<u64> = logs.collect();
    let close_mark = CloseMark::read(files, &names)?;
    let contents = DirectoryContents {
        files,
        checkpoints: &checkpoints,
        logs: &logs,
        close_mark,
        skip_payloads,
    };
    let mut recovered = recover_or_repair(contents, repair, progress)?;
    if let Some(mark) = close_mark
        && recovered.store.is_none_or(|store| store == mark.store)
        // If the mark's log is torn, there is a note about it already.
        && recovered.torn.is_none_or(|(log, _)| log != mark.log)
    {
        recovered.notes.extend(mark.describe_loss(files));
    }
    // No file number is reused, not even that of an unfinished file or of a `.lost` file.
    for name in names
        .iter()
        .filter_map(|name| FileName::without_suffix(name))
    {
        match name {
            FileName::Checkpoint(number) => {
                recovered.newest_checkpoint = recovered.newest_checkpoint.max(number);
            }
            FileName::Log(number) => recovered.newest_log = recovered.newest_log.max(number),
            FileName::Unfinished => {}
        }
    }
    Ok(recovered)
}

/// Recovers without a repair. If that fails because of damaged or missing data, and `repair` is true, recovers
/// again with a repair. If `repair` is false, the error `NothingLeft` becomes `DataLost` if a repair would succeed.
fn recover_or_repair(
    contents: DirectoryContents<'_>,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    match try_recover(contents, false, progress) {
        Err(
            RecoveryError::Corrupt(UnusableData(reason))
            | RecoveryError::DataLost(UnusableData(reason))
            | RecoveryError::NothingLeft(UnusableData(reason)),
        ) if repair => {
            let mut recovered = try_recover(contents, true, progress)?;
            recovered.notes.insert(0, reason);
            recovered.repaired = true;
            Ok(recovered)
        }
        Err(RecoveryError::NothingLeft(reason))
            if try_recover(contents, true, &mut |_, _| {}).is_ok() =>
        {
            Err(RecoveryError::DataLost(reason))
        }
        outcome => outcome,
    }
}

/// Recovers from the newest usable checkpoint. If the directory has no checkpoints, or none is usable and `repair` is
/// true, recovers from the logs alone.
fn try_recover(
    contents: DirectoryContents<'_>,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    let DirectoryContents {
        checkpoints, logs, ..
    } = contents;
    let mut problems = Vec::new();
    for number in checkpoints.iter().rev() {
        match DirectoryReader::new(contents, repair, progress).read_from(*number, logs) {
            Ok(recovered) => {
                let mut reader = DirectoryReader::new(contents, repair, progress);
                reader.out.store = recovered.store;
                let checkpoint_headers = reader.read_headers(checkpoints)?;
                let notes = problems
                    .into_iter()
                    .map(|(name, problem)| format!("{name}{NOT_USED}{problem}"));
                return Ok(Recovered {
                    checkpoint_headers,
                    notes: notes.chain(recovered.notes).collect(),
                    ..recovered
                });
            }
            Err(RecoveryError::Corrupt(UnusableData(reason))) => {
                let name = checkpoint_name(*number);
                let problem = problem_of_checkpoint(&name, &reason);
                problems.push((name, problem));
            }
            Err(error) => return Err(error),
        }
    }
    if checkpoints.is_empty() && logs.is_empty() {
        return Ok(DirectoryReader::new(contents, repair, progress).finish());
    }
    if checkpoints.is_empty() || repair {
        let recovered = DirectoryReader::new(contents, repair, progress).read_all_logs(logs)?;
        // The logs of a store that logs no changes contain no tables.
        if checkpoints.is_empty() || !recovered.tables.is_empty() {
            return Ok(recovered);
        }
    }
    let text = no_usable_checkpoint(&problems);
    Err(RecoveryError::NothingLeft(UnusableData(text)))
}

impl DirectoryReader<'_> {
    /// Reads the header of each checkpoint whose first record can be read.
    fn read_headers(
        mut self,
        checkpoints: &[u64],
    ) -> Result<Vec<(u64, CheckpointHeader)>, RecoveryError> {
        let mut headers = Vec::new();
        for number in checkpoints {
            let name = checkpoint_name(*number);
            let file_reader = self.open(&name, FileKind::Checkpoint, *number);
            match file_reader.and_then(read_first_record) {
                Ok(header) => headers.push((*number, header)),
                // Without the header, logs that only this checkpoint requires would be removed.
                Err(error @ RecoveryError::Unreadable(_)) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(headers)
    }

    /// Reads a checkpoint and replays the logs after it.
    fn read_from(mut self, number: u64, logs: &[u64]) -> Result<Recovered, RecoveryError> {
        let (file_reader, header) = self.verify(number)?;
        let replayed_logs: Vec<u64> = logs
            .iter()
            .copied()
            .filter(|log| *log >= header.first_log)
            .collect();
        let earlier_logs: Vec<u64> = header.earlier_logs.iter().map(|(log, _)| *log).collect();
        // Replayed logs are read twice: for their chunks and for their changes.
        self.bytes_total = self.log_bytes(&earlier_logs) + 2 * self.log_bytes(&replayed_logs);
        for log in earlier_logs.iter().chain(&replayed_logs) {
            match self.load_chunks(*log, &header.serials) {
                // Missing chunks are reported below.
                Err(RecoveryError::Corrupt(UnusableData(reason))) if self.repair => {
                    self.out.notes.push(reason);
                }
                outcome => outcome?,
            }
        }
        let missing = header
            .serials
            .len()
            .saturating_sub(self.chunks.len() as u64);
        if missing > 0 && !self.repair {
            let reason = missing_chunks(missing, header.serials.len());
            return Err(UnusableData(reason).into());
        }
        self.out.checkpoint_read = Some(number);
        self.out.has_unlogged = header.has_unlogged;
        self.out.clock = header.clock.store;
        self.out.clock_reading = header.clock;
        self.out.next_serial = self.out.next_serial.max(header.next_serial);
        self.out.next_table = header.next_table;
        let chunks = &self.chunks;
        let mut chunk = |serial| {
            let chunk = chunks.get(&serial).cloned();
            chunk.ok_or_else(|| UnusableData(format!("chunk {serial} is missing")))
        };
        let (tables, lost_items) = read_tables(file_reader, self.repair, &mut chunk)?;
        self.out.tables = tables;
        for (table, items) in lost_items {
            let note = format!(
                "table `{table}` has lost {}, whose chunks are missing",
                count(items, "item")
            );
            self.out.notes.push(note);
        }
        self.replay(&replayed_logs, header.first_log, header.first_change)?;
        Ok(self.finish())
    }

    /// Replays all logs, without a checkpoint.
    fn read_all_logs(mut self, logs: &[u64]) -> Result<Recovered, RecoveryError> {
        self.bytes_total = 2 * self.log_bytes(logs);
        for log in logs {
            match self.load_chunks(*log, &SerialRanges::default()) {
                // The replay will end at the damage, and report it.
                Err(RecoveryError::Corrupt(_)) if self.repair => {}
                outcome => outcome?,
            }
        }
        let first = logs.first().copied().unwrap_or_default();
        self.replay(logs, first, 1)?;
        Ok(self.finish())
    }

    /// Verifies a checkpoint; returns a reader at its beginning and its header.
    fn verify(&mut self, number: u64) -> Result<(RecordReader, CheckpointHeader), RecoveryError> {
        let name = checkpoint_name(number);
        let file_reader = self.open(&name, FileKind::Checkpoint, number)?;
        let header = verify(file_reader)?;
        Ok((self.open(&name, FileKind::Checkpoint, number)?, header))
    }
}
