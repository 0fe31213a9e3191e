//! An open directory of a store: its journal, its checkpoints, and which of its files are needed.
//!
//! ```text
//!  lock, recover,
//!  finish_recovery            close
//! ────────────────► OPEN ──────────────► CLOSED
//!                   │  ▲                   ▲
//!       write error │  │ retry succeeds    │ close
//!                   ▼  │                   │
//!                 RETRYING ────────────────┤
//!                                          │
//!       OPEN, RETRYING ── sync error, or LOCK was replaced ──► FAILED
//! ```
//!
//! * OPEN: changes are appended to the journal, whose thread writes them to the current log.
//! * RETRYING (for example, the disk is full): changes stay in memory, and writing is retried twice
//!   a second. Calls that wait for durability fail meanwhile.
//! * FAILED: earlier writes may be lost, or another process may have opened the directory. Nothing is
//!   written or acknowledged until the directory is reopened.
//! * CLOSED: pending changes were written, if possible, and the lock is released.
//!
//! If logs are removed or replaced (`Journal::add_missing_logs`), nothing is acknowledged until a checkpoint that
//! does not require them is written. If the directory is moved, the log is still written, but checkpoints fail: a
//! process that opens the store at its path would not find them.
//!
//! A checkpoint is written in its caller's thread while changes continue:
//!
//! 1. The journal switches to a new log: later changes are written to it, and replay will start with it.
//! 2. A snapshot of each table is taken. Chunks that are in no log, and the chunks in use of sparse logs
//!    (less than half of their bytes in use) and of missing logs, are written to a chunk log.
//! 3. All logs up to the new one are synced.
//! 4. The checkpoint is written, synced and renamed: now it is valid. An error before this point
//!    leaves earlier checkpoints as they were. Chunks that step 2 has written stay in the chunk log, if
//!    that was completed, and the next checkpoint uses them there.
//! 5. `Manifest::remove_unneeded` removes checkpoints beyond the newest `keep`, then logs that no remaining checkpoint
//!    requires. After step 2, no item of the snapshots refers to a chunk in a sparse log. Once nothing else uses its
//!    chunks, later checkpoints do not require the log; it is removed with the last checkpoint that does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use engram_core::{DeferredDrops, Error, OpSink, Result, Snapshot, TableOptions, TableState};
use parking_lot::Mutex;

use super::checkpoint_writer::{self, CheckpointHeader, TableView};
use super::chunk_log::ChunkLog;
use super::clock_reading::ClockReading;
use super::close_mark::CloseMark;
use super::directory::Directory;
use super::directory_lock::check_not_file;
use super::directory_reader::{ReadProgress, Recovered};
use super::directory_setup::{create_directory, finish_recovery, unused_files};
use super::errors::failed;
use super::file_names::{CLOSE_MARK_NAME, checkpoint_name, free_lost_name, log_name};
use super::journal::{
    Durability, Journal, NEXT_CHECKPOINT_NOTE, NOT_LOCKED, describe_sync_failure,
};
use super::log;
use super::log_writer::{LogEnd, LogWriter};
use super::manifest::{Manifest, RequiredLogs, is_log_missing};
use super::os_directory::OsDirectory;
use super::ownership::check_new_store;
use super::pending_log::{JournalStart, LogPosition};
use super::recover::recover;
use super::serial_ranges::SerialRanges;

/// How a store is stored on disk.
#[derive(Clone, Copy, Debug)]
pub struct StorageOptions {
    /// What a change survives once it is acknowledged.
    pub durability: Durability,
    /// Number of valid checkpoints to keep: the newest ones; 0 counts as 1.
    pub keep: usize,
}

/// An open store's directory.
#[derive(Debug)]
pub(crate) struct Storage {
    files: Arc<dyn Directory>,
    /// Random id of the store.
    store: u64,
    options: StorageOptions,
    journal: Arc<Journal>,
    /// Locked while a checkpoint is written: one at a time.
    manifest: Mutex<Manifest>,
    /// The log writer's thread; `None` once it was joined.
    thread: Mutex<Option<JoinHandle<LogEnd>>>,
    /// True once closing has begun: a checkpoint in progress is aborted unless all its chunks are written.
    closing: AtomicBool,
    /// Bytes logged since the last checkpoint, without those in the current log.
    earlier_log_bytes: AtomicU64,
}

/// An opened directory and the tables that it contains.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) storage: Storage,
    /// Tables by number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    /// Number that the next table gets.
    pub(crate) next_table: u64,
    /// Reading at which the store's clock continues, in nanoseconds.
    pub(crate) clock: u64,
    /// What was damaged or unfinished, and how it was handled.
    pub(crate) notes: Vec<String>,
}

/// The tables that a checkpoint contains.
#[derive(Debug)]
pub(crate) struct CheckpointView {
    /// Number, options and snapshot of each table.
    pub(crate) tables: Vec<(u64, Arc<TableOptions>, Snapshot)>,
    /// Number that the next table gets.
    pub(crate) next_table: u64,
}

/// A written checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The checkpoint's number.
    pub number: u64,
    /// Bytes written: its own file, and the chunks written to a chunk log for it.
    pub bytes: u64,
    /// Number of items of all its tables.
    pub items: u64,
}

/// The error for a failed operation in the directory; `problem` states which.
fn storage_error(files: &dyn Directory, problem: &str, error: &io::Error) -> Error {
    Error::Storage(format!("{}: {problem}: {error}", files.path().display()))
}

impl Storage {
    /// Path of a checkpoint's file.
    pub(crate) fn checkpoint_path(&self, number: u64) -> PathBuf {
        self.files.path().join(checkpoint_name(number))
    }

    /// Opens a directory; creates it if necessary.
    ///
    /// # Errors
    /// [`Error::Storage`] if a process (also this one) has it open, it cannot be read or written, or
    /// acknowledged data is missing. [`Error::InvalidArgument`] for an empty path.
    pub(crate) fn open(
        path: &Path,
        options: StorageOptions,
        entropy: u64,
        repair: bool,
        progress: ReadProgress<'_>,
    ) -> Result<Opened> {
        check_not_file(path)?;
        check_new_store(path)?;
        let opened = create_directory(path).and_then(|()| OsDirectory::open(path));
        let files = Arc::new(opened.map_err(|error| failed(path, "used", &error))?);
        files.lock()?;
        let recovered = recover(&*files, repair, progress)
            .map_err(|error| error.into_error_with_advice(&*files, repair))?;
        Self::start(files, recovered, options, entropy)
    }

    /// Starts to write to a recovered directory, which the caller has locked.
    pub(crate) fn start(
        files: Arc<dyn Directory>,
        mut recovered: Recovered,
        options: StorageOptions,
        entropy: u64,
    ) -> Result<Opened> {
        finish_recovery(&*files, &recovered)
            .map_err(|error| storage_error(&*files, "cannot be written", &error))?;
        // The logs may end before changes that the checkpoint contains, after damage. The next change then needs a
        // higher number than these, and a replay from an older checkpoint must not skip them: see `checkpoint`.
        let last_changes = recovered.tables.values().map(|table| table.last_lsn().0);
        let min_next_change = last_changes.max().unwrap_or_default() + 1;
        let has_unlogged = recovered.has_unlogged || min_next_change > recovered.next_change;
        let set_aside = if recovered.repaired {
            unused_files(&*files, &recovered)
        } else {
            Ok(Vec::new())
        };
        let set_aside =
            set_aside.map_err(|error| storage_error(&*files, "cannot be listed", &error))?;
        let usages = recovered.logs.iter().map(|log| log.usage());
        let replayed = usages.filter(|usage| recovered.replayed_logs.contains(&usage.log));
        let replayed_bytes: u64 = replayed.map(|usage| usage.bytes).sum();
        // A new store's id is odd, so never 0.
        let store = recovered.store.unwrap_or(entropy | 1);
        let log = recovered.newest_log + 1;
        let journal = Journal::new(
            Arc::clone(&files),
            options.durability,
            JournalStart {
                store,
                log,
                next_change: recovered.next_change,
                next_serial: recovered.next_serial,
                logs: std::mem::take(&mut recovered.logs),
                clock: ClockReading::now(recovered.resumed_clock()),
            },
        );
        if let Some(checkpoint) = recovered.checkpoint_read.filter(|_| has_unlogged) {
            journal.record_unlogged(checkpoint, min_next_change);
        }
        let file = log::create(&*files, store, log)
            .map_err(|error| storage_error(&*files, "a log cannot be created", &error))?;
        // The mark of the last close is outdated now.
        let _ = files.remove(CLOSE_MARK_NAME);
        let writer = LogWriter::new(&journal, log, file);
        let thread = std::thread::Builder::new().name("engram-log".into());
        let thread = thread
            .spawn(|| writer.run())
            .map_err(|error| storage_error(&*files, "the log writer cannot be started", &error))?;
        let (valid, unverified): (Vec<_>, Vec<_>) = (recovered.checkpoint_headers.iter())
            .partition(|(number, _)| Some(*number) == recovered.checkpoint_read);
        // A repair sets the other checkpoints aside.
        let unverified = if recovered.repaired {
            Vec::new()
        } else {
            unverified
        };
        let required_logs = |checkpoints: Vec<&(u64, CheckpointHeader)>| {
            let required = checkpoints
                .iter()
                .map(|(number, header)| (*number, RequiredLogs::from_header(header)));
            required.collect()
        };
        let storage = Self {
            manifest: Mutex::new(Manifest {
                newest_checkpoint: recovered.newest_checkpoint,
                newest_log: log,
                synced_below: log,
                keep_all: recovered.repaired,
                valid: required_logs(valid),
                unverified: required_logs(unverified),
            }),
            files,
            store,
            options,
            journal,
            thread: Mutex::new(Some(thread)),
            closing: AtomicBool::new(false),
            earlier_log_bytes: AtomicU64::new(replayed_bytes),
        };
        for (id, table) in &mut recovered.tables {
            table.set_sink(storage.sink(*id));
            if recovered.unfinished_choices.contains_key(id) {
                // The log ends with random choices that were not applied, because the change that they were
                // made for is missing. Log the generator's actual state.
                table.record_rng();
            }
            // The readers with these leases no longer exist.
            table.end_leases(&mut DeferredDrops::default());
        }
        let mut opened = Opened {
            clock: recovered.resumed_clock(),
            tables: recovered.tables,
            next_table: recovered.next_table,
            notes: recovered.notes,
            storage,
        };
        if recovered.repaired {
            // Otherwise, the next replay would stop at the missing changes.
            opened.write_checkpoint()?;
        }
        let files = &*opened.storage.files;
        let failed = |error: io::Error| storage_error(files, "cannot be written", &error);
        for name in set_aside {
            let new_name = free_lost_name(&files.list().map_err(failed)?, &name);
            files.rename(&name, &new_name).map_err(failed)?;
        }
        opened.storage.manifest.lock().keep_all = false;
        Ok(opened)
    }

    /// The sink for a table's changes.
    pub(crate) fn sink(&self, table: u64) -> Arc<dyn OpSink> {
        self.journal.sink(table)
    }

    /// Checks whether the directory was moved or the current log was removed, for `problem`. May block.
    pub(crate) fn check_files(&self) {
        self.journal.check_files();
    }

    /// Why changes are not stored durably now, as far as is known; `None` if they are.
    pub(crate) fn problem(&self) -> Option<String> {
        self.journal.problem()
    }

    /// Bytes logged since the last checkpoint.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.earlier_log_bytes.load(Ordering::Relaxed) + self.journal.log_bytes()
    }

    pub(crate) fn record_table_created(&self, table: u64, options: &TableOptions) {
        if self.options.durability != Durability::None {
            self.journal.record_table_created(table, options);
        }
    }

    pub(crate) fn record_table_dropped(&self, table: u64) {
        if self.options.durability != Durability::None {
            self.journal.record_table_dropped(table);
        }
    }

    /// Writes a checkpoint; waits for one in progress first. `take_view` must first call its argument with the
    /// reading of the store's clock: that switches to a new log. It must then take the snapshots: a replay of this
    /// checkpoint begins with the new log, so a change made before the switch must be in the snapshots.
    ///
    /// `has_unlogged` is true for a checkpoint with contents that the logs lack, such as restored or imported tables.
    /// Once such a checkpoint is valid, an `unlogged` record is written to the current log: at this record, a replay
    /// from an older checkpoint fails instead of silently losing these contents. If the process ends before that, the
    /// record is written when the store is opened from this checkpoint.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be written (earlier checkpoints stay valid), if the directory is no longer
    /// at its path or no longer locked, or if this call is the first to detect that logs are missing: the next call
    /// then stores everything again. The errors of `take_view`. [`Error::Closed`] if the store is closed meanwhile.
    pub(crate) fn checkpoint(
        &self,
        has_unlogged: bool,
        take_view: impl FnOnce(
            Box<dyn FnOnce(u64) -> LogPosition + '_>,
        ) -> Result<(LogPosition, CheckpointView)>,
    ) -> Result<Checkpoint> {
        let files = &*self.files;
        let mut manifest = self.manifest.lock();
        self.check_open()?;
        let missing_logs = self.check_directory()?;
        // Created before `take_view` locks the tables.
        manifest.newest_log += 1;
        let log = manifest.newest_log;
        let file = log::create(files, self.store, log)
            .map_err(|error| storage_error(files, "a log cannot be created", &error))?;
        let (position, view) = take_view(Box::new(|clock| {
            let clock = ClockReading::now(clock);
            (self.journal).switch_log((log, file), clock)
        }))?;
        let CheckpointView { tables, next_table } = view;
        let previous_log_bytes = position.earlier_logs.last().map_or(0, |log| log.bytes);
        self.earlier_log_bytes
            .fetch_add(previous_log_bytes, Ordering::Relaxed);
        let sparse_logs = position.earlier_logs.iter();
        let sparse_logs = sparse_logs.filter(|usage| usage.is_sparse());
        let sparse_logs = sparse_logs.map(|usage| usage.log);
        let logs_to_copy = sparse_logs.chain(missing_logs.iter().copied()).collect();
        manifest.newest_log += 1;
        let mut chunk_log = ChunkLog::new(files, &self.journal, manifest.newest_log, logs_to_copy);
        let chunks_failed =
            |error: io::Error| storage_error(files, "chunks cannot be written", &error);
        let mut serials = Vec::new();
        let mut items = 0;
        for (_, _, snapshot) in &tables {
            for item in snapshot.items() {
                items += 1;
                self.check_open()?;
                for chunk in item.trajectory.chunks() {
                    serials.push(chunk_log.ensure_stored(chunk).map_err(chunks_failed)?);
                }
            }
        }
        let chunk_bytes = chunk_log.finish().map_err(chunks_failed)?;
        self.sync_logs(&mut manifest, position.log)?;
        if self.journal.missing_logs() != missing_logs {
            return Err(self.missing_logs_error());
        }
        // Even after a failed attempt, whose file may still exist, the next one has another number.
        manifest.newest_checkpoint += 1;
        let number = manifest.newest_checkpoint;
        let header = CheckpointHeader {
            first_log: position.log,
            first_change: position.first_change,
            clock: position.clock,
            next_serial: self.journal.next_serial(),
            next_table,
            earlier_logs: position
                .earlier_logs
                .iter()
                .filter(|usage| !missing_logs.contains(&usage.log))
                .map(|usage| (usage.log, usage.bytes))
                .collect(),
            has_unlogged,
            serials: SerialRanges::from_serials(serials),
        };
        let tables = tables.iter().map(|(table, options, snapshot)| TableView {
            number: *table,
            options,
            snapshot,
        });
        let bytes = checkpoint_writer::write(files, (self.store, number), &header, tables)
            .map_err(|error| storage_error(files, "a checkpoint cannot be written", &error))?;
        if has_unlogged {
            self.journal.record_unlogged(number, 0);
            // If this fails, no later change is acknowledged either: later changes follow the record in the log.
            let _ = self.journal.flush();
        }
        manifest.add_checkpoint(files, number, &header, &missing_logs);
        self.earlier_log_bytes.store(0, Ordering::Relaxed);
        manifest.remove_unneeded(files, self.store, self.options.keep);
        self.journal.resolve_missing_logs(&missing_logs);
        Ok(Checkpoint {
            number,
            bytes: bytes + chunk_bytes,
            items,
        })
    }

    /// Checks that a checkpoint can be written: the directory is at its path, and locked. Returns the numbers of the
    /// logs that were found missing since the store was opened.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be written, or if this call is the first to detect that logs are missing.
    fn check_directory(&self) -> Result<BTreeSet<u64>> {
        let files = &*self.files;
        let failed = |problem: &str| {
            let path = files.path().display();
            Err(Error::Storage(format!("{path}: {problem}")))
        };
        if let Err(problem) = files.check_path() {
            return failed(&problem);
        }
        if let Ok(false) = files.check_lock() {
            self.journal.fail_permanently(NOT_LOCKED.into());
            return failed(NOT_LOCKED);
        }
        let was_known = self.journal.missing_logs_problem().is_some();
        let mut missing = self.journal.required_logs();
        missing.retain(|log| is_log_missing(files, &log_name(*log), self.store));
        self.journal.add_missing_logs(&missing);
        if self.journal.missing_logs_problem().is_some() && !was_known {
            return Err(self.missing_logs_error());
        }
        Ok(self.journal.missing_logs())
    }

    /// The error of a checkpoint that detects missing logs.
    fn missing_logs_error(&self) -> Error {
        let missing = self.journal.missing_logs_problem().unwrap_or_default();
        let path = self.files.path().display();
        Error::Storage(format!("{path}: {missing}{NEXT_CHECKPOINT_NOTE}"))
    }

    fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(Error::Closed("the store is closed".into()));
        }
        Ok(())
    }

    /// Writes and syncs all logs up to `last`, even if the store's durability does not require it. Other calls
    /// continue meanwhile.
    fn sync_logs(&self, manifest: &mut Manifest, last: u64) -> Result<()> {
        self.journal.flush()?;
        for log in manifest.synced_below..=last {
            match self.files.sync(&log_name(log)) {
                // Not every number has a log, and a log may have been removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    // Other errors, such as too many open files, occur before the sync itself.
                    if may_have_lost_writes(&error) {
                        self.journal.fail_permanently(describe_sync_failure(&error));
                    }
                    return Err(storage_error(
                        &*self.files,
                        "changes cannot be synced",
                        &error,
                    ));
                }
                Ok(()) => {}
            }
        }
        // The last log is still being written.
        manifest.synced_below = last;
        Ok(())
    }

    /// Writes all pending changes, ends the log writer, writes the mark of a close if all changes are written, and
    /// releases the directory's lock. A checkpoint in progress is aborted, or finished if all its chunks are
    /// written. Calling it again does nothing.
    ///
    /// # Errors
    /// [`Error::Storage`] if changes that should have been written were not.
    pub(crate) fn close(&self) -> Result<()> {
        self.closing.store(true, Ordering::Relaxed);
        self.journal.stop();
        let mut outcome = Ok(());
        let mut log_end = None;
        if let Some(thread) = self.thread.lock().take() {
            log_end = thread.join().ok();
            outcome = self.journal.outcome(log_end.is_none());
        }
        // Wait for a checkpoint in progress.
        let manifest = self.manifest.lock();
        if let Some(end) = log_end
            && outcome.is_ok()
            && self.journal.missing_logs_problem().is_none()
        {
            let mark = CloseMark {
                store: self.store,
                log: end.log,
                bytes: end.bytes,
                newest_log: manifest.newest_log,
            };
            let sync = matches!(self.options.durability, Durability::Disk { .. });
            // Without the mark, opening the store detects less damage.
            let _ = mark.write(&*self.files, sync);
        }
        self.files.unlock();
        outcome
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // An error cannot be returned here: call `close` to get it.
        let _ = self.close();
    }
}

impl Opened {
    /// Writes a checkpoint of the tables, which no engine uses yet.
    pub(super) fn write_checkpoint(&mut self) -> Result<Checkpoint> {
        let tables = &mut self.tables;
        self.storage.checkpoint(false, |start_log| {
            let position = start_log(self.clock);
            let tables = tables.iter_mut().map(|(id, table)| {
                let options = Arc::clone(table.options());
                (*id, options, *table.snapshot())
            });
            let view = CheckpointView {
                tables: tables.collect(),
                next_table: self.next_table,
            };
            Ok((position, view))
        })
    }
}

/// True if, after this error of a sync, bytes that were written before may be lost.
fn may_have_lost_writes(error: &io::Error) -> bool {
    let codes = [
        rustix::io::Errno::IO,
        rustix::io::Errno::NOSPC,
        rustix::io::Errno::DQUOT,
    ];
    let codes = codes.map(rustix::io::Errno::raw_os_error);
    error
        .raw_os_error()
        .is_none_or(|code| codes.contains(&code))
}
