//! Reading a directory back: the newest good checkpoint, then the changes since.

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
use super::checkpoint_reader::{check, first_logs, tables};
use super::checkpoint_writer::CheckpointHeader;
use super::chunk_checkers::ChunkCheckers;
use super::chunk_loader::{LoadedLog, UnloadedChunk};
use super::directory_lock::{lock_to_read, unusable};
use super::file_format::{FileHeader, HeaderError, Kind, VERSION};
use super::file_names::{Name, checkpoint_name, log_name};
use super::file_system::{FileSystem, OsDirectory};
use super::log::Log;
use super::record_reader::RecordReader;
use super::serial_ranges::SerialRanges;

/// Is told bytes read, and bytes in all, now and then.
pub type ReadProgress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Bytes between two words of progress.
const STEP: u64 = 4 << 20;

/// A reading of the store's clock, in nanoseconds since it was created, and of the system's, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClockReading {
    pub(crate) clock: u64,
    pub(crate) system: u64,
}

impl ClockReading {
    pub(crate) fn new(clock: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let system = since.map_or(0, |since| since.as_secs());
        Self { clock, system }
    }

    /// Where the store's clock goes on: what passed while nobody had it open counts, unless the system's clock
    /// went back. That of a new store begins where it says.
    fn resumed(self) -> u64 {
        if self == Self::default() {
            return FIRST_READING;
        }
        let passed = Self::new(0).system.saturating_sub(self.system);
        let passed = u64::try_from(Duration::from_secs(passed).as_nanos()).unwrap_or(0);
        self.clock.saturating_add(passed)
    }
}

/// Stands between the name of a checkpoint and what is wrong with it.
pub(super) const NOT_USED: &str = " is not used: ";

/// What a directory held.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Random number of the store; `None` where the directory is empty.
    pub(crate) store: Option<u64>,
    /// The checkpoint that it came from, and what every checkpoint there says that it needs, as far as it can be read.
    pub(crate) from: Option<u64>,
    pub(crate) needs: Vec<(u64, CheckpointHeader)>,
    /// CheckpointHeader that were replayed, and which of them is to be cut off where.
    pub(crate) replayed: Vec<u64>,
    pub(crate) torn: Option<(u64, u64)>,
    /// Whole records after that, which are set aside.
    pub(crate) torn_whole: u64,
    /// Something is lost: files that were not used are to be set aside.
    pub(crate) repaired: bool,
    /// By their number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    /// Generators that have made choices whose change is missing: it was not made then.
    pub(crate) choosing: HashMap<u64, TableRng>,
    pub(crate) next_table: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
    /// The newest of each that there is a file of.
    pub(crate) checkpoint: u64,
    pub(crate) log: u64,
    /// CheckpointHeader that hold chunks.
    pub(crate) logs: Vec<Arc<Log>>,
    /// Nanoseconds since the store was created, at the last change.
    pub(crate) clock: u64,
    pub(crate) moment: ClockReading,
    /// What was found damaged or unfinished, and what became of it.
    pub(crate) notes: Vec<String>,
}

impl Recovered {
    /// Where the store's clock goes on.
    pub(crate) fn resumed(&self) -> u64 {
        self.clock.max(self.moment.resumed())
    }
}

/// A directory being read.
pub(super) struct DirectoryReader<'a> {
    pub(super) files: &'a dyn FileSystem,
    pub(super) out: Recovered,
    /// Chunks that the checkpoint's items refer to.
    pub(super) chunks: HashMap<u64, Arc<Chunk>>,
    /// The others: where they are, and whether they are in use.
    pub(super) others: HashMap<u64, UnloadedChunk>,
    pub(super) logs: BTreeMap<u64, LoadedLog>,
    /// The log that a chunk was read from last: the next is likely there, too, and not all may be open at once.
    pub(super) at_hand: Option<(u64, RecordReader)>,
    pub(super) checkers: ChunkCheckers,
    /// Why a log could not be opened that a change needs.
    pub(super) refused: Option<CorruptRecord>,
    /// Goes on without what is lost.
    pub(super) repair: bool,
    progress: ReadProgress<'a>,
    done: u64,
    told: u64,
    total: u64,
}

fn failed(files: &dyn FileSystem, what: &str, error: &io::Error) -> Error {
    Error::Storage(format!("{}: {what}: {error}", files.path().display()))
}

/// Reads a directory that stays as it is, while nobody has it open.
///
/// # Errors
/// As [`recover`]; [`Error::Storage`] where another process has it, or there is no store.
pub(crate) fn read_directory(
    path: &Path,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered> {
    if !fs::metadata(path)
        .map_err(|error| unusable(path, &error))?
        .is_dir()
    {
        let what = format!("{} is a file; a store lives in a directory", path.display());
        return Err(Error::Storage(what));
    }
    let _lock = lock_to_read(path)?;
    let found = recover(&OsDirectory::new(path.to_path_buf()), repair, progress)?;
    if found.store.is_none() {
        return Err(Error::Storage(format!("{} has no store", path.display())));
    }
    Ok(found)
}

/// Reads a directory; with `repair`, what is left of it where something is lost.
///
/// # Errors
/// [`Error::Storage`] where it cannot be read, or where something that was acknowledged is missing.
pub(crate) fn recover(
    files: &dyn FileSystem,
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered> {
    let names = files
        .list()
        .map_err(|error| failed(files, "cannot be listed", &error))?;
    let mut known: Vec<Name> = names.iter().filter_map(|name| Name::of(name)).collect();
    known.sort_unstable();
    let checkpoints = known.iter().filter_map(|name| match name {
        Name::Checkpoint(number) => Some(*number),
        _ => None,
    });
    let checkpoints: Vec<u64> = checkpoints.collect();
    let logs = known.iter().filter_map(|name| match name {
        Name::Log(number) => Some(*number),
        _ => None,
    });
    let logs: Vec<u64> = logs.collect();
    let there = (checkpoints.as_slice(), logs.as_slice());
    let mut found = read(files, there, repair, progress)?;
    // No number is given again, not even of a file that was not finished, or is set aside.
    for name in names.iter().filter_map(|name| Name::ever(name)) {
        match name {
            Name::Checkpoint(number) => found.checkpoint = found.checkpoint.max(number),
            Name::Log(number) => found.log = found.log.max(number),
            Name::Unfinished => {}
        }
    }
    Ok(found)
}

fn read(
    files: &dyn FileSystem,
    there: (&[u64], &[u64]),
    repair: bool,
    progress: ReadProgress<'_>,
) -> Result<Recovered> {
    match attempt(files, there, false, progress) {
        Err(
            RecoveryError::Corrupt(CorruptRecord(why))
            | RecoveryError::DataLost(CorruptRecord(why)),
        ) if repair => match attempt(files, there, true, progress) {
            Ok(mut found) => {
                found.notes.insert(0, why);
                found.repaired = true;
                Ok(found)
            }
            Err(trouble) => Err(trouble.told(files)),
        },
        outcome => outcome.map_err(|trouble| trouble.told(files)),
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
                let mut needs = Vec::new();
                for number in checkpoints {
                    let name = checkpoint_name(*number);
                    if let Err(error) = files.open(&name)
                        && let RecoveryError::Refused(why) = unreadable(&name, &error)
                    {
                        // What it needs is not to be taken for nobody's.
                        return Err(RecoveryError::Refused(why));
                    }
                    let scan = reader.open(&name, Kind::Checkpoint, *number);
                    let logs = scan.ok().and_then(|scan| first_logs(scan).ok());
                    needs.extend(logs.map(|logs| (*number, logs)));
                }
                return Ok(Recovered {
                    needs,
                    notes,
                    ..recovered
                });
            }
            Err(RecoveryError::Corrupt(CorruptRecord(why))) => {
                notes.push(format!("{}{NOT_USED}{why}", checkpoint_name(*number)));
            }
            Err(trouble) => return Err(trouble),
        }
    }
    if !checkpoints.is_empty() {
        let (count, notes) = (checkpoints.len(), notes.join("; "));
        let what = format!("none of {count} checkpoints can be used: {notes}");
        return Err(RecoveryError::DataLost(CorruptRecord(what)));
    }
    let reader = DirectoryReader::new(files, checkpoints, logs, repair, progress);
    if logs.is_empty() {
        return Ok(reader.finish());
    }
    reader.read_all(logs)
}

/// Why a directory cannot be read from some checkpoint on.
pub(super) enum RecoveryError {
    /// Another may do.
    Corrupt(CorruptRecord),
    /// No other would.
    DataLost(CorruptRecord),
    /// Nobody may touch it.
    Refused(CorruptRecord),
}

/// What it means that a file cannot be read. Whether it is damaged is another matter than that nobody may look now,
/// or that too many files are open.
pub(super) fn unreadable(name: &str, error: &io::Error) -> RecoveryError {
    let why = CorruptRecord(format!("{name} cannot be read: {error}"));
    let passing = [
        Errno::ACCESS,
        Errno::AGAIN,
        Errno::INTR,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::PERM,
    ];
    match Errno::from_io_error(error) {
        Some(code) if passing.contains(&code) => RecoveryError::Refused(why),
        _ => RecoveryError::Corrupt(why),
    }
}

impl RecoveryError {
    fn told(self, files: &dyn FileSystem) -> Error {
        let CorruptRecord(why) = self.into();
        Error::Storage(format!("{}: {why}", files.path().display()))
    }
}

impl From<RecoveryError> for CorruptRecord {
    fn from(trouble: RecoveryError) -> Self {
        let (RecoveryError::Corrupt(why)
        | RecoveryError::DataLost(why)
        | RecoveryError::Refused(why)) = trouble;
        why
    }
}

impl From<CorruptRecord> for RecoveryError {
    fn from(damage: CorruptRecord) -> Self {
        Self::Corrupt(damage)
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
            needs: Vec::new(),
            replayed: Vec::new(),
            torn: None,
            torn_whole: 0,
            repaired: false,
            tables: BTreeMap::new(),
            choosing: HashMap::new(),
            next_table: 1,
            next_change: 1,
            next_serial: 1,
            checkpoint: checkpoints.last().copied().unwrap_or_default(),
            log: logs.last().copied().unwrap_or_default(),
            logs: Vec::new(),
            clock: 0,
            moment: ClockReading::default(),
            notes: Vec::new(),
        };
        Self {
            files,
            out,
            chunks: HashMap::new(),
            others: HashMap::new(),
            logs: BTreeMap::new(),
            at_hand: None,
            checkers: ChunkCheckers::default(),
            refused: None,
            repair,
            progress,
            done: 0,
            told: 0,
            total: 0,
        }
    }

    pub(super) fn open(
        &mut self,
        name: &str,
        kind: Kind,
        number: u64,
    ) -> Result<RecordReader, RecoveryError> {
        let opened = self.files.open(name).and_then(RecordReader::new);
        let opened = opened.map_err(|error| unreadable(name, &error))?;
        let scan = opened.map_err(|why| match why {
            HeaderError::Corrupt(CorruptRecord(why)) => {
                CorruptRecord(format!("{name}: {why}")).into()
            }
            HeaderError::UnsupportedVersion(version) => {
                RecoveryError::Refused(CorruptRecord(format!(
                    "{name} is of format version {version}; this release reads version {VERSION}"
                )))
            }
        })?;
        let FileHeader { kind: found, .. } = scan.head;
        if found != kind || scan.head.number != number {
            return Err(CorruptRecord(format!("{name} is another file under its name")).into());
        }
        let store = *self.out.store.get_or_insert(scan.head.store);
        if scan.head.store != store {
            return Err(CorruptRecord(format!("{name} is of another store")).into());
        }
        Ok(scan)
    }

    /// Reads a checkpoint and what came after it.
    fn read_from(mut self, number: u64, logs: &[u64]) -> Result<Recovered, RecoveryError> {
        let (scan, said) = self.check(number)?;
        let since: Vec<u64> = logs
            .iter()
            .copied()
            .filter(|log| *log >= said.first)
            .collect();
        let needed: Vec<u64> = said.needed.iter().map(|(log, _)| *log).collect();
        self.total = self.bytes(&needed) + 2 * self.bytes(&since);
        for log in needed.iter().chain(&since) {
            match self.load_chunks(*log, &said.serials) {
                // What is missing is said below.
                Err(RecoveryError::Corrupt(CorruptRecord(why))) if self.repair => {
                    self.out.notes.push(why)
                }
                outcome => outcome?,
            }
        }
        let missing = said.serials.len().saturating_sub(self.chunks.len() as u64);
        if missing > 0 && !self.repair {
            return Err(CorruptRecord(format!(
                "{missing} of {} chunks that its items refer to are missing",
                said.serials.len()
            ))
            .into());
        }
        self.out.from = Some(number);
        self.out.clock = said.moment.clock;
        self.out.moment = said.moment;
        self.out.next_serial = self.out.next_serial.max(said.next_serial);
        self.out.next_table = said.next_table;
        let chunks = &self.chunks;
        let mut chunk = |serial| {
            let chunk = chunks.get(&serial).cloned();
            chunk.ok_or_else(|| CorruptRecord(format!("chunk {serial} is missing")))
        };
        let (tables, lost) = tables(scan, self.repair, &mut chunk)?;
        self.out.tables = tables;
        for (table, items) in lost {
            let what = format!("table `{table}` has lost {items} items, whose content is missing");
            self.out.notes.push(what);
        }
        self.replay(&since, said.first, said.first_change)?;
        Ok(self.finish())
    }

    /// Reads logs that nobody has made a checkpoint of.
    fn read_all(mut self, logs: &[u64]) -> Result<Recovered, RecoveryError> {
        self.total = 2 * self.bytes(logs);
        for log in logs {
            match self.load_chunks(*log, &SerialRanges::default()) {
                // Changes are made up to there.
                Err(RecoveryError::Corrupt(_)) if self.repair => {}
                outcome => outcome?,
            }
        }
        let first = logs.first().copied().unwrap_or_default();
        self.replay(logs, first, 1)?;
        Ok(self.finish())
    }

    /// Bytes of these logs.
    fn bytes(&self, logs: &[u64]) -> u64 {
        let lens = logs
            .iter()
            .map(|log| self.files.open(&log_name(*log))?.len());
        lens.filter_map(io::Result::ok).sum()
    }

    /// Takes note of bytes that were read.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if self.done >= self.told + STEP {
            self.told = self.done;
            (self.progress)(self.done.min(self.total), self.total);
        }
    }

    /// Looks whether a checkpoint is whole, from its first record to its last.
    fn check(&mut self, number: u64) -> Result<(RecordReader, CheckpointHeader), RecoveryError> {
        let name = checkpoint_name(number);
        let scan = self.open(&name, Kind::Checkpoint, number)?;
        let said = check(scan)?;
        Ok((self.open(&name, Kind::Checkpoint, number)?, said))
    }

    fn finish(mut self) -> Recovered {
        (self.progress)(self.total, self.total);
        self.out.logs = self.logs.into_values().map(|loaded| loaded.log).collect();
        self.out
    }
}
