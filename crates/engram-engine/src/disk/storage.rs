//! A directory that a store lives in: opened by one process at a time, written by its log and its checkpoints.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use engram_core::{
    DeferredDrops, Error, OpSink, Result, Snapshot, TableOptions, TableState, Volatile,
};
use parking_lot::Mutex;

use super::checkpoint_writer::{self, CheckpointHeader, TableView};
use super::chunk_log::ChunkLog;
use super::directory_lock::{DirectoryLock, lock, unusable};
use super::file_names::{LOST, Name, checkpoint_name, log_name};
use super::file_system::{FileSystem, OsDirectory};
use super::journal::{Durability, Journal, JournalStart, LogPosition};
use super::log;
use super::log_writer::LogWriter;
use super::record_reader::RecordReader;
use super::recover::{ClockReading, ReadProgress, Recovered, recover};
use super::serial_ranges::SerialRanges;

/// How a store lives on disk.
#[derive(Clone, Copy, Debug)]
pub struct StorageOptions {
    /// How safe a change is once it is acknowledged.
    pub durability: Durability,
    /// Checkpoints that are kept: the newest.
    pub keep: usize,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Storage {
    files: Arc<dyn FileSystem>,
    store: u64,
    options: StorageOptions,
    journal: Arc<Journal>,
    /// One checkpoint at a time.
    manifest: Mutex<Manifest>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Let go of when the store is closed.
    lock: Mutex<Option<DirectoryLock>>,
    closing: AtomicBool,
    /// Bytes of earlier logs since the last checkpoint.
    since: AtomicU64,
}

/// What is on disk.
#[derive(Debug)]
struct Manifest {
    /// The newest checkpoint's number.
    checkpoint: u64,
    /// The newest log's.
    log: u64,
    /// CheckpointHeader before this one are synced.
    unsynced: u64,
    /// Nothing is removed yet: files are to be set aside first.
    keeps_all: bool,
    /// Checkpoints that are good, and what they need.
    good: BTreeMap<u64, RequiredLogs>,
    /// Checkpoints that are there and were not read whole: they stay, with what they need.
    unread: BTreeMap<u64, RequiredLogs>,
}

/// CheckpointHeader that a checkpoint needs: all from `first` on, and some before.
#[derive(Clone, Debug)]
struct RequiredLogs {
    first: u64,
    before: Vec<u64>,
}

impl RequiredLogs {
    fn of(logs: &CheckpointHeader) -> Self {
        Self {
            first: logs.first,
            before: logs.needed.iter().map(|(log, _)| *log).collect(),
        }
    }
}

/// What a directory held when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) storage: Storage,
    /// By their number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    pub(crate) next_table: u64,
    /// Where the store's clock goes on.
    pub(crate) clock: u64,
    /// What was found damaged or unfinished, and what became of it.
    pub(crate) notes: Vec<String>,
}

/// What a checkpoint has.
#[derive(Debug)]
pub(crate) struct CheckpointView {
    /// Tables, by their number.
    pub(crate) tables: Vec<(u64, Arc<TableOptions>, Snapshot)>,
    pub(crate) next_table: u64,
}

/// A checkpoint that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its number.
    pub number: u64,
    /// Bytes that were written: its own file, and chunks that were in no log, or were moved.
    pub bytes: u64,
    /// Items that it has.
    pub items: u64,
}

fn failed(files: &dyn FileSystem, what: &str, error: &io::Error) -> Error {
    Error::Storage(format!("{}: {what}: {error}", files.path().display()))
}

impl Storage {
    /// Where a checkpoint's own file is.
    pub(crate) fn checkpoint_path(&self, number: u64) -> PathBuf {
        self.files.path().join(checkpoint_name(number))
    }

    /// Opens a directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Storage`] where it cannot be used: another process has it, it cannot be read or written,
    /// or something that was acknowledged is missing.
    pub(crate) fn open(
        path: &Path,
        options: StorageOptions,
        entropy: u64,
        repair: bool,
        progress: ReadProgress<'_>,
    ) -> Result<Opened> {
        make(path).map_err(|error| unusable(path, &error))?;
        let lock = lock(path)?;
        let files = Arc::new(OsDirectory::new(path.to_path_buf()));
        let found = recover(&*files, repair, progress)?;
        Self::begin(files, found, options, entropy, Some(lock))
    }

    /// Goes on with a directory that nobody else has.
    pub(crate) fn begin(
        files: Arc<dyn FileSystem>,
        mut found: Recovered,
        options: StorageOptions,
        entropy: u64,
        lock: Option<DirectoryLock>,
    ) -> Result<Opened> {
        settle(&*files, &found).map_err(|error| failed(&*files, "cannot be written", &error))?;
        let last = found.tables.values().map(|table| table.last_lsn().0).max();
        // A checkpoint may know of changes that were not written when the machine stopped.
        let next_change = found.next_change.max(last.unwrap_or_default() + 1);
        let has_gap = next_change > found.next_change;
        let aside = if found.repaired {
            unused(&*files, &found)
        } else {
            Ok(Vec::new())
        };
        let aside = aside.map_err(|error| failed(&*files, "cannot be listed", &error))?;
        let replayed = found.logs.iter().map(|log| log.usage());
        let replayed = replayed.filter(|log| found.replayed.contains(&log.log));
        let since: u64 = replayed.map(|log| log.bytes).sum();
        let store = found.store.unwrap_or(entropy | 1);
        let log = found.log + 1;
        let journal = Journal::new(
            Arc::clone(&files),
            options.durability,
            JournalStart {
                store,
                log,
                next_change,
                next_serial: found.next_serial,
                logs: std::mem::take(&mut found.logs),
                moment: ClockReading::new(found.resumed()),
            },
        );
        let file = log::begin(&*files, store, log)
            .map_err(|error| failed(&*files, "a log cannot be begun", &error))?;
        let writer = LogWriter::new(&journal, log, file);
        let thread = std::thread::Builder::new().name("engram-log".into());
        let thread = thread.spawn(|| writer.run());
        let thread = thread.map_err(|error| failed(&*files, "a thread cannot be begun", &error))?;
        let (good, unread): (Vec<_>, Vec<_>) =
            (found.needs.iter()).partition(|(number, _)| Some(*number) == found.from);
        // The others are set aside.
        let unread = if found.repaired { Vec::new() } else { unread };
        let needs = |checkpoints: Vec<&(u64, CheckpointHeader)>| {
            let needs = checkpoints
                .iter()
                .map(|(number, logs)| (*number, RequiredLogs::of(logs)));
            needs.collect()
        };
        let storage = Self {
            manifest: Mutex::new(Manifest {
                checkpoint: found.checkpoint,
                log,
                unsynced: log,
                keeps_all: found.repaired,
                good: needs(good),
                unread: needs(unread),
            }),
            files,
            store,
            options,
            journal,
            thread: Mutex::new(Some(thread)),
            lock: Mutex::new(lock),
            closing: AtomicBool::new(false),
            since: AtomicU64::new(since),
        };
        for (id, table) in &mut found.tables {
            table.set_sink(storage.sink(*id));
            if found.choosing.contains_key(id) {
                // The log ends with a choice that was not made: this is where the generator is.
                table.record_rng();
            }
            // Their readers are gone.
            table.end_leases(&mut DeferredDrops::default());
        }
        let mut opened = Opened {
            clock: found.resumed(),
            tables: found.tables,
            next_table: found.next_table,
            notes: found.notes,
            storage,
        };
        if has_gap || found.repaired {
            // Replay would look for the changes that are missing.
            opened.checkpoint_before_use()?;
        }
        let files = &*opened.storage.files;
        for name in aside {
            let set_aside = format!("{name}{LOST}");
            files
                .rename(&name, &set_aside)
                .map_err(|error| failed(files, "cannot be written", &error))?;
        }
        opened.storage.manifest.lock().keeps_all = false;
        Ok(opened)
    }

    /// Where a table's changes are told.
    pub(crate) fn sink(&self, table: u64) -> Arc<dyn OpSink> {
        match self.options.durability {
            Durability::None => Arc::new(Volatile),
            _ => self.journal.sink(table),
        }
    }

    /// Bytes of the log since the last checkpoint.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.since.load(Ordering::Relaxed) + self.journal.log_bytes()
    }

    /// Leaves out the number of a change: a checkpoint from before cannot be gone on from without what only the next has.
    pub(crate) fn skip_change_number(&self) {
        self.journal.skip_change_number();
    }

    /// Tells that a table was created.
    pub(crate) fn record_table_created(&self, table: u64, options: &TableOptions) {
        if self.options.durability != Durability::None {
            self.journal.record_table_created(table, options);
        }
    }

    /// Tells that a table was dropped.
    pub(crate) fn record_table_dropped(&self, table: u64) {
        if self.options.durability != Durability::None {
            self.journal.record_table_dropped(table);
        }
    }

    /// Writes a checkpoint, once others that were begun before are written. `look` is called when it
    /// begins, and makes what it has: changes from then on are replayed after it.
    ///
    /// # Errors
    /// [`Error::Storage`] where it cannot be written: the ones before are still good. What `look` fails with.
    pub(crate) fn checkpoint(
        &self,
        look: impl FnOnce(
            Box<dyn FnOnce(u64) -> LogPosition + '_>,
        ) -> Result<(LogPosition, CheckpointView)>,
    ) -> Result<Checkpoint> {
        let files = &*self.files;
        let mut manifest = self.manifest.lock();
        self.check_open()?;
        // Made before anybody is held up.
        manifest.log += 1;
        let log = manifest.log;
        let file = log::begin(files, self.store, log)
            .map_err(|error| failed(files, "a log cannot be begun", &error))?;
        let (mark, look) = look(Box::new(|clock| {
            self.journal.next_log(log, file, ClockReading::new(clock))
        }))?;
        let CheckpointView { tables, next_table } = look;
        let ended = mark.needed.last().map_or(0, |log| log.bytes);
        self.since.fetch_add(ended, Ordering::Relaxed);
        let sparse = mark.needed.iter().filter(|usage| usage.is_sparse());
        let sparse: Vec<u64> = sparse.map(|usage| usage.log).collect();
        manifest.log += 1;
        let mut chunks = ChunkLog::new(files, &self.journal, manifest.log, sparse);
        let no_chunks = |error: io::Error| failed(files, "chunks cannot be written", &error);
        let mut serials = Vec::new();
        let mut items = 0;
        for (_, _, snapshot) in &tables {
            for item in snapshot.items() {
                items += 1;
                self.check_open()?;
                for chunk in item.trajectory.chunks() {
                    serials.push(chunks.keep(chunk).map_err(no_chunks)?);
                }
            }
        }
        let chunk_bytes = chunks.finish().map_err(no_chunks)?;
        self.sync_logs(&mut manifest, mark.log)?;
        let number = manifest.checkpoint + 1;
        let logs = CheckpointHeader {
            first: mark.log,
            first_change: mark.first_change,
            moment: mark.moment,
            next_serial: self.journal.next_serial(),
            next_table,
            needed: mark
                .needed
                .iter()
                .map(|usage| (usage.log, usage.bytes))
                .collect(),
            serials: SerialRanges::from_serials(serials),
        };
        let saved = tables.iter().map(|(id, options, snapshot)| TableView {
            id: *id,
            options,
            snapshot,
        });
        let bytes = checkpoint_writer::write(files, (self.store, number), &logs, saved)
            .map_err(|error| failed(files, "a checkpoint cannot be written", &error))?;
        manifest.checkpoint = number;
        manifest.good.insert(number, RequiredLogs::of(&logs));
        self.since.store(0, Ordering::Relaxed);
        self.retire(&mut manifest);
        Ok(Checkpoint {
            number,
            bytes: bytes + chunk_bytes,
            items,
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(Error::Closed("the store is closed".into()));
        }
        Ok(())
    }

    /// Makes safe what logs have so far, whatever the durability, while changes go on.
    fn sync_logs(&self, manifest: &mut Manifest, current: u64) -> Result<()> {
        self.journal.write_all()?;
        for log in manifest.unsynced..=current {
            match self.files.sync(&log_name(log)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    // UnloadedChunk errors come before anything is tried, such as too many open files.
                    if is_lost(&error) {
                        self.journal.give_up(&error);
                    }
                    return Err(failed(&*self.files, "changes cannot be synced", &error));
                }
                Ok(()) => {}
            }
        }
        manifest.unsynced = current;
        Ok(())
    }

    /// Removes what no checkpoint that is kept needs. Where that fails, the next does it.
    fn retire(&self, manifest: &mut Manifest) {
        if manifest.keeps_all {
            return;
        }
        while manifest.good.len() > self.options.keep.max(1) {
            let Some((oldest, _)) = manifest.good.first_key_value() else {
                break;
            };
            let oldest = *oldest;
            if !self.remove(&checkpoint_name(oldest)) {
                return;
            }
            manifest.good.remove(&oldest);
        }
        // Older ones that nobody has read whole since are not needed once there are as many good ones.
        let oldest = manifest
            .good
            .first_key_value()
            .map_or(0, |(number, _)| *number);
        if manifest.good.len() >= self.options.keep.max(1) {
            for name in self.files.list().unwrap_or_default() {
                if let Some(Name::Checkpoint(number)) = Name::of(&name)
                    && number < oldest
                    && self.is_ours(&name)
                    && self.remove(&name)
                {
                    manifest.unread.remove(&number);
                }
            }
        }
        // What a checkpoint needs goes after it.
        if self.files.sync_directory().is_err() {
            return;
        }
        let kept: Vec<&RequiredLogs> = manifest
            .good
            .values()
            .chain(manifest.unread.values())
            .collect();
        let is_needed =
            |log: u64| (kept.iter()).any(|needs| log >= needs.first || needs.before.contains(&log));
        for name in self.files.list().unwrap_or_default() {
            if let Some(Name::Log(log)) = Name::of(&name)
                && !is_needed(log)
                && self.is_ours(&name)
            {
                let _ = self.files.remove(&name);
            }
        }
    }

    /// Removes a file; whether it is gone.
    fn remove(&self, name: &str) -> bool {
        match self.files.remove(name) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Whether a file is of this store, or of none.
    fn is_ours(&self, name: &str) -> bool {
        match self.files.open(name).and_then(RecordReader::new) {
            Ok(Ok(scan)) => scan.head.store == self.store,
            Ok(Err(_)) => true,
            Err(_) => false,
        }
    }

    /// Writes what was told, and ends; a checkpoint under way is given up, if it is not about to be finished.
    /// Does nothing when called again.
    ///
    /// # Errors
    /// [`Error::Storage`] where something could not be written that should be.
    pub(crate) fn close(&self) -> Result<()> {
        self.closing.store(true, Ordering::Relaxed);
        self.journal.stop();
        let mut ended = Ok(());
        if let Some(thread) = self.thread.lock().take() {
            let joined = thread.join();
            ended = self.journal.ended(joined.is_ok());
        }
        let _books = self.manifest.lock();
        if let Some(lock) = self.lock.lock().take() {
            lock.release();
        }
        ended
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Nobody is left to hear of it.
        let _ = self.close();
    }
}

impl Opened {
    /// A checkpoint of tables that nobody uses yet.
    fn checkpoint_before_use(&mut self) -> Result<Checkpoint> {
        let tables = &mut self.tables;
        self.storage.checkpoint(|mark| {
            let tables = tables.iter_mut().map(|(id, table)| {
                let options = Arc::clone(table.options());
                (*id, options, *table.snapshot())
            });
            let look = CheckpointView {
                tables: tables.collect(),
                next_table: self.next_table,
            };
            Ok((mark(self.clock), look))
        })
    }
}

/// Cuts off what is torn, makes safe what was replayed, and removes what was not finished.
fn settle(files: &dyn FileSystem, found: &Recovered) -> io::Result<()> {
    for name in files.list()? {
        if Name::of(&name) == Some(Name::Unfinished) {
            files.remove(&name)?;
        }
    }
    if let (Some((log, torn)), false) = (found.torn, found.repaired) {
        if found.torn_whole > 0 {
            keep_rest(files, &log_name(log), torn)?;
        }
        files.cut(&log_name(log), torn)?;
    }
    for log in found.logs.iter().map(|log| log.usage().log) {
        files.sync(&log_name(log))?;
    }
    files.sync_directory()
}

/// Copies what is about to be cut off.
fn keep_rest(files: &dyn FileSystem, name: &str, from: u64) -> io::Result<()> {
    let file = files.open(name)?;
    let len = file.len()?;
    let mut out = files.create(&format!("{name}{LOST}"))?;
    let mut place = from;
    while place < len {
        let left = usize::try_from(len - place).unwrap_or(usize::MAX);
        let mut some = vec![0; left.min(1 << 20)];
        file.read_at(&mut some, place)?;
        out.append(&[&some])?;
        place += some.len() as u64;
    }
    out.sync()
}

/// Whether what was written may be gone.
fn is_lost(error: &io::Error) -> bool {
    let known = [
        rustix::io::Errno::IO,
        rustix::io::Errno::NOSPC,
        rustix::io::Errno::DQUOT,
    ];
    let known = known.map(rustix::io::Errno::raw_os_error);
    error
        .raw_os_error()
        .is_none_or(|code| known.contains(&code))
}

/// Makes a directory, whose name is safe then.
fn make(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(path)?;
    for made in missing {
        let parent = made.parent().filter(|parent| *parent != Path::new(""));
        // Where that may not be, the directory itself still is synced.
        let _ = File::open(parent.unwrap_or(Path::new("."))).and_then(|parent| parent.sync_all());
    }
    Ok(())
}

/// FileSystem that are not used any more, though they may hold what was acknowledged.
fn unused(files: &dyn FileSystem, found: &Recovered) -> io::Result<Vec<String>> {
    let holds_chunks = |log: u64| {
        let usages = found.logs.iter().map(|log| log.usage());
        usages
            .filter(|usage| usage.used > 0)
            .any(|usage| usage.log == log)
    };
    let from = found
        .needs
        .iter()
        .find(|(number, _)| Some(*number) == found.from);
    let needed = |log: u64| {
        from.is_some_and(|(_, logs)| logs.needed.iter().any(|(needed, _)| *needed == log))
    };
    let mut names = files.list()?;
    names.retain(|name| match Name::of(name) {
        Some(Name::Checkpoint(number)) => Some(number) != found.from,
        Some(Name::Log(log)) => {
            !(found.replayed.contains(&log) || holds_chunks(log) || needed(log))
        }
        _ => false,
    });
    Ok(names)
}
