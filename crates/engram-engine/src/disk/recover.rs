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
//! * `recovery_error.rs`: errors and their texts
//! * `checkpoint_reader.rs`: verifies and reads one checkpoint
//! * `chunk_loader.rs`: loads chunks from logs; `chunk_checkers.rs` checks large ones in threads
//! * `replay.rs`: applies the changes in logs

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engram_core::chunk::Chunk;
use engram_core::selector::TableRng;
use engram_core::text::count;
use engram_core::{Error, Result, TableState};

use crate::clock::FIRST_READING;

use super::byte_codec::UnusableData;
use super::checkpoint_reader::{read_first_record, read_tables, verify};
use super::checkpoint_writer::CheckpointHeader;
use super::chunk_checkers::ChunkCheckers;
use super::chunk_loader::{LoadedLog, UnloadedChunk};
use super::close_mark::CloseMark;
use super::directory::Directory;
use super::directory_lock::{check_not_file, lock_shared, unusable};
use super::file_format::{FileKind, HeaderError, VERSION};
use super::file_names::{FileName, checkpoint_name, log_name};
use super::log::Log;
use super::os_directory::OsDirectory;
use super::record_reader::RecordReader;
use super::recovery_error::{
    RecoveryError, missing_chunks, no_usable_checkpoint, problem_of_checkpoint, read_error,
};
use super::serial_ranges::SerialRanges;

/// Callback for progress: receives the number of bytes of logs read so far and the total number. A log that is replayed
/// is read twice, and counts twice. Each new attempt, from an older checkpoint or with a repair, begins at 0 again.
pub type ReadProgress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Bytes read between two calls of a [`ReadProgress`].
const PROGRESS_INTERVAL: u64 = 4 << 20;

/// Readings of both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClockReading {
    /// The store's clock, in nanoseconds.
    pub(crate) store: u64,
    /// The system's clock, in seconds since 1970.
    pub(crate) system: u64,
}

impl ClockReading {
    /// Reads the system's clock; `store` is the reading of the store's clock.
    pub(crate) fn now(store: u64) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let system = since_epoch.map_or(0, |since_epoch| since_epoch.as_secs());
        Self { store, system }
    }

    /// Reading at which the store's clock continues: this reading plus the time that has passed since then by the
    /// system's clock (0 if that was set back). For the default value, which means a new store, the first reading.
    fn resumed_clock(self) -> u64 {
        if self == Self::default() {
            return FIRST_READING;
        }
        let passed = Self::now(0).system.saturating_sub(self.system);
        let passed = u64::try_from(Duration::from_secs(passed).as_nanos()).unwrap_or(0);
        self.store.saturating_add(passed)
    }
}

/// In a note about a checkpoint that is not used, this is between its name and the reason. `inspect.rs` searches notes
/// for it.
pub(super) const NOT_USED: &str = " is not used: ";

/// Content of a directory, as recovered.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Random id of the store; `None` if the directory has no checkpoints and no logs.
    pub(crate) store: Option<u64>,
    /// Number of the checkpoint that was read; `None` if only logs were read.
    pub(crate) checkpoint_read: Option<u64>,
    /// Number and header of every checkpoint whose first record can be read; empty if only logs were read. The headers
    /// lack the serials.
    pub(crate) checkpoint_headers: Vec<(u64, CheckpointHeader)>,
    /// True if the checkpoint that was read has contents that the logs lack, and no `unlogged` record in the logs
    /// states it yet.
    pub(crate) has_unlogged: bool,
    /// Numbers of the logs that were replayed.
    pub(crate) replayed_logs: Vec<u64>,
    /// The log at whose first invalid record the replay ended: its number, and the record's offset. `None` if there is
    /// none, or if a later log continues with the next change.
    pub(crate) torn: Option<(u64, u64)>,
    /// Number of intact records found after that invalid record. If there are any, the log's tail is copied to a
    /// `.lost` file.
    pub(crate) intact_after_tear: u64,
    /// True if acknowledged data is missing: files that were not used must be set aside.
    pub(crate) repaired: bool,
    /// Tables by number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    /// By table number: the state of the table's random generator after choices with which the log ends, although
    /// the change that they were made for is missing.
    pub(crate) unfinished_choices: HashMap<u64, TableRng>,
    /// Number that the next table gets in the store's files.
    pub(crate) next_table: u64,
    /// Number that the next change gets.
    pub(crate) next_change: u64,
    /// Serial that the next chunk gets: its number in the store.
    pub(crate) next_serial: u64,
    /// Largest number of any checkpoint file.
    pub(crate) newest_checkpoint: u64,
    /// Largest number of any log file.
    pub(crate) newest_log: u64,
    /// Logs that were read for their chunks.
    pub(crate) logs: Vec<Arc<Log>>,
    /// Latest reading of the store's clock in the checkpoint, in `begin` records and in changes, in nanoseconds.
    pub(crate) clock: u64,
    /// Reading of both clocks at the start of the last log that was replayed; without one, the checkpoint's.
    pub(crate) clock_reading: ClockReading,
    /// What was damaged or unfinished, and how it was handled.
    pub(crate) notes: Vec<String>,
}

impl Recovered {
    /// Reading at which the store's clock continues.
    pub(crate) fn resumed_clock(&self) -> u64 {
        self.clock.max(self.clock_reading.resumed_clock())
    }
}

/// Reads a checkpoint and the logs after it, or, without a checkpoint, all logs.
pub(super) struct DirectoryReader<'a> {
    pub(super) files: &'a dyn Directory,
    /// The result so far.
    pub(super) out: Recovered,
    /// Chunks that the checkpoint's items refer to, by serial.
    pub(super) chunks: HashMap<u64, Arc<Chunk>>,
    /// All other chunks, by serial.
    pub(super) unloaded_chunks: HashMap<u64, UnloadedChunk>,
    /// Logs that were read for their chunks, by number.
    pub(super) logs: BTreeMap<u64, LoadedLog>,
    /// The log from which a chunk was read last. Only one is kept open: there may be more logs than
    /// the process can have open files.
    pub(super) open_log: Option<(u64, RecordReader)>,
    pub(super) checkers: ChunkCheckers,
    /// Why the log with a chunk that a replayed change refers to cannot be read now; `None` if it can be
    /// read.
    pub(super) unreadable_log: Option<UnusableData>,
    /// The mark of the last close; `None` if there is no valid one.
    pub(super) close_mark: Option<CloseMark>,
    /// Describes where the last torn log ends, until a log that continues with the next change is replayed.
    pub(super) last_tear: Option<String>,
    /// True if recovery continues although data is missing or corrupt.
    pub(super) repair: bool,
    progress: ReadProgress<'a>,
    /// Bytes of logs read so far, counted as for [`ReadProgress`].
    bytes_read: u64,
    /// Value of `bytes_read` when `progress` was last called.
    bytes_reported: u64,
    /// Final value of `bytes_read`, as computed from the sizes of the logs.
    bytes_total: u64,
}

/// Reads a directory without changing it. It must not be open in any process.
///
/// # Errors
/// Those of [`recover`]; [`Error::Storage`] if a process (also this one) has it open, or it contains no store.
pub(crate) fn read_directory(
    path: &Path,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered> {
    check_not_file(path)?;
    let files = OsDirectory::open(path).map_err(|error| unusable(path, &error))?;
    let _lock = lock_shared(&files)?;
    let recovered = recover(&files, repair, progress)
        .map_err(|error| error.into_error_with_advice(&files, repair))?;
    if recovered.store.is_none() {
        let text = format!("{} contains no store", path.display());
        return Err(Error::Storage(text));
    }
    Ok(recovered)
}

/// Reads a directory. With `repair`, continues without acknowledged data that is missing.
///
/// # Errors
/// The directory cannot be read, or acknowledged data is missing.
pub(crate) fn recover(
    files: &dyn Directory,
    repair: bool,
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

/// A directory's checkpoints, logs and mark of a close.
#[derive(Clone, Copy)]
struct DirectoryContents<'a> {
    files: &'a dyn Directory,
    /// Numbers of the checkpoints, ascending.
    checkpoints: &'a [u64],
    /// Numbers of the logs, ascending.
    logs: &'a [u64],
    close_mark: Option<CloseMark>,
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

impl<'a> DirectoryReader<'a> {
    fn new(contents: DirectoryContents<'a>, repair: bool, progress: ReadProgress<'a>) -> Self {
        let DirectoryContents {
            files,
            checkpoints,
            logs,
            close_mark,
        } = contents;
        let out = Recovered {
            store: None,
            checkpoint_read: None,
            has_unlogged: false,
            checkpoint_headers: Vec::new(),
            replayed_logs: Vec::new(),
            torn: None,
            intact_after_tear: 0,
            repaired: false,
            tables: BTreeMap::new(),
            unfinished_choices: HashMap::new(),
            next_table: 1,
            next_change: 1,
            next_serial: 1,
            newest_checkpoint: checkpoints.last().copied().unwrap_or_default(),
            newest_log: logs.last().copied().unwrap_or_default(),
            logs: Vec::new(),
            clock: 0,
            clock_reading: ClockReading::default(),
            notes: Vec::new(),
        };
        Self {
            files,
            out,
            chunks: HashMap::new(),
            unloaded_chunks: HashMap::new(),
            logs: BTreeMap::new(),
            open_log: None,
            checkers: ChunkCheckers::default(),
            unreadable_log: None,
            close_mark,
            last_tear: None,
            repair,
            progress,
            bytes_read: 0,
            bytes_reported: 0,
            bytes_total: 0,
        }
    }

    /// Opens a file and checks its header. The first file determines the store's id.
    pub(super) fn open(
        &mut self,
        name: &str,
        kind: FileKind,
        number: u64,
    ) -> Result<RecordReader, RecoveryError> {
        let opened = self.files.open(name).and_then(RecordReader::new);
        let opened = opened.map_err(|error| read_error(name, &error))?;
        let file_reader = opened.map_err(|error| match error {
            HeaderError::Corrupt(UnusableData(reason)) => {
                UnusableData(format!("{name} is damaged: {reason}")).into()
            }
            HeaderError::UnsupportedVersion(version) => {
                RecoveryError::Unreadable(UnusableData(format!(
                    "{name} has format version {version}, but this release reads only version {VERSION}"
                )))
            }
        })?;
        let header = file_reader.header;
        if (header.kind, header.number) != (kind, number) {
            return Err(UnusableData(format!(
                "{name} is another file, renamed or copied to this name"
            ))
            .into());
        }
        let store = *self.out.store.get_or_insert(header.store);
        if header.store != store {
            return Err(UnusableData(format!("{name} belongs to another store")).into());
        }
        Ok(file_reader)
    }

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

    /// Total size of these logs in bytes.
    fn log_bytes(&self, logs: &[u64]) -> u64 {
        let lengths = logs
            .iter()
            .map(|log| self.files.open(&log_name(*log))?.len());
        lengths.filter_map(io::Result::ok).sum()
    }

    /// Adds bytes that were read, and reports progress every `PROGRESS_INTERVAL` bytes.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.bytes_read += bytes;
        if self.bytes_read >= self.bytes_reported + PROGRESS_INTERVAL {
            self.bytes_reported = self.bytes_read;
            (self.progress)(self.bytes_read.min(self.bytes_total), self.bytes_total);
        }
    }

    /// Verifies a checkpoint; returns a reader at its beginning and its header.
    fn verify(&mut self, number: u64) -> Result<(RecordReader, CheckpointHeader), RecoveryError> {
        let name = checkpoint_name(number);
        let file_reader = self.open(&name, FileKind::Checkpoint, number)?;
        let header = verify(file_reader)?;
        Ok((self.open(&name, FileKind::Checkpoint, number)?, header))
    }

    /// Reports that everything was read; returns the result.
    fn finish(mut self) -> Recovered {
        (self.progress)(self.bytes_total, self.bytes_total);
        self.out.logs = self.logs.into_values().map(|loaded| loaded.log).collect();
        self.out
    }
}
