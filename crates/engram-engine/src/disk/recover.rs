//! Recovery: reading a directory back.
//!
//! ```text
//! newest checkpoint ── verify: all records intact? ── all chunks it needs in the logs? ── read tables
//!        │ no: note the reason, try the next older one; none left: DataLost
//!        ▼
//! replay the logs from the checkpoint's first change on (without a checkpoint: from change 1)
//!        │ up to the first invalid record; a later log must continue with the next change
//!        ▼
//! Recovered ── Storage::start: cut off the torn tail, sync the logs, begin a new log, end all leases
//! ```
//!
//! If acknowledged data is missing, recovery fails. With `repair`, it runs again and continues without
//! the missing parts: items whose chunks are missing are left out, and the replay ends at the first
//! change that cannot be made.
//!
//! * `recover.rs`: choice of the checkpoint, the overall sequence, errors
//! * `checkpoint_reader.rs`: verifies and reads one checkpoint
//! * `chunk_loader.rs`: loads chunks from logs
//! * `replay.rs`: makes the changes of logs again

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engram_core::chunk::Chunk;
use engram_core::selector::TableRng;
use engram_core::{Error, Result, TableState};
use rustix::io::Errno;

use crate::clock::FIRST_READING;

use super::byte_codec::CorruptRecord;
use super::checkpoint_reader::{read_first_record, read_tables, verify};
use super::checkpoint_writer::CheckpointHeader;
use super::chunk_checkers::ChunkCheckers;
use super::chunk_loader::{LoadedLog, UnloadedChunk};
use super::directory_lock::{lock_shared, unusable};
use super::file_format::{FileHeader, FileKind, HeaderError, VERSION};
use super::file_names::{FileName, checkpoint_name, log_name};
use super::file_system::{FileSystem, OsDirectory};
use super::log::Log;
use super::record_reader::RecordReader;
use super::serial_ranges::SerialRanges;

/// Callback for progress: receives bytes read and total bytes.
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
    /// The system's clock now, with this reading of the store's clock.
    pub(crate) fn now(store: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let system = since.map_or(0, |since| since.as_secs());
        Self { store, system }
    }

    /// Reading at which the store's clock continues: the time that has passed since this reading by
    /// the system's clock counts, unless the system's clock was set back. The default reading stands
    /// for a new store.
    fn resumed(self) -> u64 {
        if self == Self::default() {
            return FIRST_READING;
        }
        let passed = Self::now(0).system.saturating_sub(self.system);
        let passed = u64::try_from(Duration::from_secs(passed).as_nanos()).unwrap_or(0);
        self.store.saturating_add(passed)
    }
}

/// Separates a checkpoint's name from the reason in a note. An inspection searches for it.
pub(super) const NOT_USED: &str = " is not used: ";

/// Content of a directory.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Random id of the store; `None` if the directory is empty.
    pub(crate) store: Option<u64>,
    /// Number of the checkpoint that was read.
    pub(crate) from: Option<u64>,
    /// Header of every checkpoint whose first record can be read, without serials.
    pub(crate) checkpoint_headers: Vec<(u64, CheckpointHeader)>,
    /// Logs that were replayed.
    pub(crate) replayed: Vec<u64>,
    /// The log that ends with an invalid record, and the record's offset.
    pub(crate) torn: Option<(u64, u64)>,
    /// Number of intact records after that. If there are any, they are set aside.
    pub(crate) intact_after_tear: u64,
    /// Acknowledged data is missing: files that were not used must be set aside.
    pub(crate) repaired: bool,
    /// Tables by number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    /// Random generators, by table, that have made choices for a change that is not in the log.
    pub(crate) unfinished_choices: HashMap<u64, TableRng>,
    pub(crate) next_table: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
    /// Largest number of any checkpoint file.
    pub(crate) checkpoint: u64,
    /// Largest number of any log file.
    pub(crate) log: u64,
    /// Logs that contain chunks.
    pub(crate) logs: Vec<Arc<Log>>,
    /// The store's clock at the last change, in nanoseconds.
    pub(crate) clock: u64,
    /// Last record of both clocks.
    pub(crate) clock_reading: ClockReading,
    /// What was damaged or unfinished, and how it was handled.
    pub(crate) notes: Vec<String>,
}

impl Recovered {
    /// Reading at which the store's clock continues.
    pub(crate) fn resumed(&self) -> u64 {
        self.clock.max(self.clock_reading.resumed())
    }
}

/// Reads a directory from one checkpoint on.
pub(super) struct DirectoryReader<'a> {
    pub(super) files: &'a dyn FileSystem,
    /// The result so far.
    pub(super) out: Recovered,
    /// Chunks that the checkpoint's items refer to.
    pub(super) chunks: HashMap<u64, Arc<Chunk>>,
    /// All other chunks.
    pub(super) unloaded_chunks: HashMap<u64, UnloadedChunk>,
    pub(super) logs: BTreeMap<u64, LoadedLog>,
    /// The log from which a chunk was read last. Only one is kept open: there may be more logs than
    /// the process can have open files.
    pub(super) open_log: Option<(u64, RecordReader)>,
    pub(super) checkers: ChunkCheckers,
    /// Why a log with a chunk that a change refers to cannot be opened.
    pub(super) refused: Option<CorruptRecord>,
    /// Go on without missing data.
    pub(super) repair: bool,
    progress: ReadProgress<'a>,
    bytes_read: u64,
    /// Value of `bytes_read` at the last call of `progress`.
    bytes_reported: u64,
    bytes_total: u64,
}

/// Reads a directory without changing it. It must not be open in any process.
///
/// # Errors
/// As [`recover`]; [`Error::Storage`] if another process has it open, or it contains no store.
pub(crate) fn read_directory(
    path: &Path,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered> {
    if !fs::metadata(path)
        .map_err(|error| unusable(path, &error))?
        .is_dir()
    {
        let text = format!("{} is a file; a store is a directory", path.display());
        return Err(Error::Storage(text));
    }
    let _lock = lock_shared(path)?;
    let files = OsDirectory::new(path.to_path_buf());
    let recovered = recover(&files, repair, progress).map_err(|error| error.with_advice(&files))?;
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
    files: &dyn FileSystem,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    let names = files.list().map_err(|error| {
        RecoveryError::Refused(CorruptRecord(format!("cannot be listed: {error}")))
    })?;
    let mut known: Vec<FileName> = names
        .iter()
        .filter_map(|name| FileName::parse(name))
        .collect();
    known.sort_unstable();
    let checkpoints = known.iter().filter_map(|name| match name {
        FileName::Checkpoint(number) => Some(*number),
        _ => None,
    });
    let checkpoints: Vec<u64> = checkpoints.collect();
    let logs = known.iter().filter_map(|name| match name {
        FileName::Log(number) => Some(*number),
        _ => None,
    });
    let logs: Vec<u64> = logs.collect();
    let mut recovered = attempt_or_repair(files, (&checkpoints, &logs), repair, progress)?;
    // No number is used again, not even that of an unfinished file or one that was set aside.
    for name in names
        .iter()
        .filter_map(|name| FileName::without_suffix(name))
    {
        match name {
            FileName::Checkpoint(number) => {
                recovered.checkpoint = recovered.checkpoint.max(number);
            }
            FileName::Log(number) => recovered.log = recovered.log.max(number),
            FileName::Unfinished => {}
        }
    }
    Ok(recovered)
}

fn attempt_or_repair(
    files: &dyn FileSystem,
    numbers: (&[u64], &[u64]),
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    match attempt(files, numbers, false, progress) {
        Err(
            RecoveryError::Corrupt(CorruptRecord(reason))
            | RecoveryError::DataLost(CorruptRecord(reason)),
        ) if repair => {
            let mut recovered = attempt(files, numbers, true, progress)?;
            recovered.notes.insert(0, reason);
            recovered.repaired = true;
            Ok(recovered)
        }
        outcome => outcome,
    }
}

fn attempt(
    files: &dyn FileSystem,
    (checkpoints, logs): (&[u64], &[u64]),
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered, RecoveryError> {
    let mut notes = Vec::new();
    for number in checkpoints.iter().rev() {
        let reader = DirectoryReader::new(files, checkpoints, logs, repair, progress);
        match reader.read_from(*number, logs) {
            Ok(mut recovered) => {
                notes.append(&mut recovered.notes);
                let mut reader = DirectoryReader::new(files, checkpoints, logs, repair, progress);
                reader.out.store = recovered.store;
                let mut checkpoint_headers = Vec::new();
                for number in checkpoints {
                    let name = checkpoint_name(*number);
                    if let Err(error) = files.open(&name)
                        && let RecoveryError::Refused(reason) = read_error(&name, &error)
                    {
                        // Otherwise, logs that only this checkpoint requires would be removed.
                        return Err(RecoveryError::Refused(reason));
                    }
                    let file_reader = reader.open(&name, FileKind::Checkpoint, *number);
                    let header = file_reader
                        .ok()
                        .and_then(|file| read_first_record(file).ok());
                    checkpoint_headers.extend(header.map(|header| (*number, header)));
                }
                return Ok(Recovered {
                    checkpoint_headers,
                    notes,
                    ..recovered
                });
            }
            Err(RecoveryError::Corrupt(CorruptRecord(reason))) => {
                notes.push(format!("{}{NOT_USED}{reason}", checkpoint_name(*number)));
            }
            Err(error) => return Err(error),
        }
    }
    if !checkpoints.is_empty() {
        let (count, notes) = (checkpoints.len(), notes.join("; "));
        let text = format!("none of {count} checkpoints can be used: {notes}");
        return Err(RecoveryError::DataLost(CorruptRecord(text)));
    }
    let reader = DirectoryReader::new(files, checkpoints, logs, repair, progress);
    if logs.is_empty() {
        return Ok(reader.finish());
    }
    reader.read_all_logs(logs)
}

/// Why a directory cannot be read.
#[derive(Debug)]
pub(crate) enum RecoveryError {
    /// A file is damaged. An older checkpoint may be usable.
    Corrupt(CorruptRecord),
    /// Acknowledged data is missing, whatever the checkpoint.
    DataLost(CorruptRecord),
    /// A file cannot be read now, which does not mean that it is damaged. Nothing may be changed.
    Refused(CorruptRecord),
}

/// Classifies an error of reading a file: missing permission or too many open files is not damage.
pub(super) fn read_error(name: &str, error: &io::Error) -> RecoveryError {
    let reason = CorruptRecord(format!("{name} cannot be read: {error}"));
    let temporary = [
        Errno::ACCESS,
        Errno::AGAIN,
        Errno::INTR,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::PERM,
    ];
    match Errno::from_io_error(error) {
        Some(code) if temporary.contains(&code) => RecoveryError::Refused(reason),
        _ => RecoveryError::Corrupt(reason),
    }
}

impl RecoveryError {
    pub(super) fn into_error(self, files: &dyn FileSystem) -> Error {
        let CorruptRecord(reason) = self.into();
        Error::Storage(format!("{}: {reason}", files.path().display()))
    }

    /// As `into_error`, with advice if a repair may help.
    pub(super) fn with_advice(self, files: &dyn FileSystem) -> Error {
        let advice = match self {
            Self::Corrupt(_) | Self::DataLost(_) => "; `repair=True` opens what is left",
            Self::Refused(_) => "",
        };
        let CorruptRecord(reason) = self.into();
        Error::Storage(format!("{}: {reason}{advice}", files.path().display()))
    }
}

impl From<RecoveryError> for CorruptRecord {
    fn from(error: RecoveryError) -> Self {
        let (RecoveryError::Corrupt(reason)
        | RecoveryError::DataLost(reason)
        | RecoveryError::Refused(reason)) = error;
        reason
    }
}

impl From<CorruptRecord> for RecoveryError {
    fn from(error: CorruptRecord) -> Self {
        Self::Corrupt(error)
    }
}

impl From<Error> for RecoveryError {
    fn from(error: Error) -> Self {
        Self::Corrupt(error.into())
    }
}

impl<'a> DirectoryReader<'a> {
    fn new(
        files: &'a dyn FileSystem,
        checkpoints: &[u64],
        logs: &[u64],
        repair: bool,
        progress: ReadProgress<'a>,
    ) -> Self {
        let out = Recovered {
            store: None,
            from: None,
            checkpoint_headers: Vec::new(),
            replayed: Vec::new(),
            torn: None,
            intact_after_tear: 0,
            repaired: false,
            tables: BTreeMap::new(),
            unfinished_choices: HashMap::new(),
            next_table: 1,
            next_change: 1,
            next_serial: 1,
            checkpoint: checkpoints.last().copied().unwrap_or_default(),
            log: logs.last().copied().unwrap_or_default(),
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
            refused: None,
            repair,
            progress,
            bytes_read: 0,
            bytes_reported: 0,
            bytes_total: 0,
        }
    }

    pub(super) fn open(
        &mut self,
        name: &str,
        kind: FileKind,
        number: u64,
    ) -> Result<RecordReader, RecoveryError> {
        let opened = self.files.open(name).and_then(RecordReader::new);
        let opened = opened.map_err(|error| read_error(name, &error))?;
        let file_reader = opened.map_err(|error| match error {
            HeaderError::Corrupt(CorruptRecord(reason)) => {
                CorruptRecord(format!("{name}: {reason}")).into()
            }
            HeaderError::UnsupportedVersion(version) => {
                RecoveryError::Refused(CorruptRecord(format!(
                    "{name} has format version {version}, but this release reads only version {VERSION}"
                )))
            }
        })?;
        let FileHeader { kind: found, .. } = file_reader.header;
        if found != kind || file_reader.header.number != number {
            return Err(CorruptRecord(format!(
                "{name} is another file, renamed or copied to this name"
            ))
            .into());
        }
        let store = *self.out.store.get_or_insert(file_reader.header.store);
        if file_reader.header.store != store {
            return Err(CorruptRecord(format!("{name} belongs to another store")).into());
        }
        Ok(file_reader)
    }

    /// Reads a checkpoint and replays the logs after it.
    fn read_from(mut self, number: u64, logs: &[u64]) -> Result<Recovered, RecoveryError> {
        let (file_reader, header) = self.verify(number)?;
        let since: Vec<u64> = logs
            .iter()
            .copied()
            .filter(|log| *log >= header.first_log)
            .collect();
        let earlier: Vec<u64> = header.earlier_logs.iter().map(|(log, _)| *log).collect();
        self.bytes_total = self.bytes(&earlier) + 2 * self.bytes(&since);
        for log in earlier.iter().chain(&since) {
            match self.load_chunks(*log, &header.serials) {
                // Missing chunks are reported below.
                Err(RecoveryError::Corrupt(CorruptRecord(reason))) if self.repair => {
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
            return Err(CorruptRecord(format!(
                "{missing} of {} chunks that its items refer to are missing",
                header.serials.len()
            ))
            .into());
        }
        self.out.from = Some(number);
        self.out.clock = header.clock.store;
        self.out.clock_reading = header.clock;
        self.out.next_serial = self.out.next_serial.max(header.next_serial);
        self.out.next_table = header.next_table;
        let chunks = &self.chunks;
        let mut chunk = |serial| {
            let chunk = chunks.get(&serial).cloned();
            chunk.ok_or_else(|| CorruptRecord(format!("chunk {serial} is missing")))
        };
        let (tables, lost) = read_tables(file_reader, self.repair, &mut chunk)?;
        self.out.tables = tables;
        for (table, items) in lost {
            let note = format!("table `{table}` has lost {items} items, whose chunks are missing");
            self.out.notes.push(note);
        }
        self.replay(&since, header.first_log, header.first_change)?;
        Ok(self.finish())
    }

    /// Replays all logs of a directory without checkpoints.
    fn read_all_logs(mut self, logs: &[u64]) -> Result<Recovered, RecoveryError> {
        self.bytes_total = 2 * self.bytes(logs);
        for log in logs {
            match self.load_chunks(*log, &SerialRanges::default()) {
                // The replay ends at the damage.
                Err(RecoveryError::Corrupt(_)) if self.repair => {}
                outcome => outcome?,
            }
        }
        let first = logs.first().copied().unwrap_or_default();
        self.replay(logs, first, 1)?;
        Ok(self.finish())
    }

    /// Total size of these logs.
    fn bytes(&self, logs: &[u64]) -> u64 {
        let lens = logs
            .iter()
            .map(|log| self.files.open(&log_name(*log))?.len());
        lens.filter_map(io::Result::ok).sum()
    }

    /// Counts bytes that were read, and reports progress.
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

    fn finish(mut self) -> Recovered {
        (self.progress)(self.bytes_total, self.bytes_total);
        self.out.logs = self.logs.into_values().map(|loaded| loaded.log).collect();
        self.out
    }
}
