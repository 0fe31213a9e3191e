//! The journal: tables append their changes to it in memory, under their locks. The log writer's
//! thread writes them to logs.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use engram_core::{Error, Lsn, OpSink, Result, TableOp, TableOptions};
use parking_lot::{Condvar, Mutex};

use super::byte_codec::BodyWriter;
use super::clock_reading::ClockReading;
use super::directory::{Directory, WritableFile};
use super::file_names::log_name;
use super::kind;
use super::log::Log;
use super::options_codec::put_options;
use super::pending_log::{JournalStart, LogPosition, PendingLog};
use super::record_codec::DictionaryWriter as _;

/// What a change survives once it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: changes are not logged, and only the last checkpoint survives.
    None,
    /// The end of the process: a change is written to the log, but not synced, before it is acknowledged.
    Process,
    /// A power loss: a change is written and synced before it is acknowledged.
    Disk {
        /// Time between two syncs while changes are made. Syncs are more frequent if much is pending, or for a
        /// checkpoint.
        interval: Duration,
    },
}

/// Once at least this many bytes are pending, the log writer writes them without waiting for more.
pub(super) const WRITE_NOW_BYTES: usize = 1 << 20;

/// Calls wait before they make more changes while more bytes than this are appended and not written.
const MAX_PENDING_BYTES: u64 = 64 << 20;

/// The end of the text about a failure to write that may pass.
pub(super) const CHANGES_ARE_KEPT: &str =
    "; the changes are kept in memory, and writing is retried twice a second";

/// The same, for a call that needs space in the buffer of unwritten changes.
const BUFFER_IS_FULL: &str = "; earlier changes are kept in memory, and writing is retried twice a second; their buffer \
    is full: free disk space";

/// The journal of an open store.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) files: Arc<dyn Directory>,
    /// Random id of the store.
    pub(super) store: u64,
    pub(super) durability: Durability,
    pub(super) pending: Mutex<PendingLog>,
    /// Number of bytes appended so far. Changed only while `pending` is locked.
    appended_bytes: AtomicU64,
    /// Number of bytes written so far.
    written_bytes: AtomicU64,
    /// Notified when the log writer has work.
    pub(super) work: Condvar,
    pub(super) status: Mutex<WriteStatus>,
    /// Copy of `WriteStatus::durable_below`, readable without the lock. Not updated while logs are missing: changes do
    /// not count as durable then.
    durable_below: AtomicU64,
    /// Notified when `status` changes.
    status_changed: Condvar,
}

/// How much of the log is written, and whether writing works.
#[derive(Debug, Default)]
pub(super) struct WriteStatus {
    /// Changes below this number are as durable as the store promises, if `missing_logs` is empty.
    pub(super) durable_below: u64,
    /// Number of entries written so far.
    pub(super) written_entries: u64,
    /// Why writing fails now or has failed permanently; `None` while it works.
    pub(super) problem: Option<String>,
    /// Tasks that wait for a change of the status.
    wakers: Vec<Waker>,
    /// True once the log writer's thread writes nothing more.
    pub(super) ended: bool,
    /// True after a permanent failure, for example of a sync: the status no longer changes.
    failed: bool,
    /// The missing logs. While there are any, no further change counts as durable. A checkpoint that does not require
    /// them clears this.
    missing_logs: BTreeSet<u64>,
    /// What has happened to the directory, if it was not at its path when this was last checked.
    moved: Option<String>,
    /// The log that was being written when this was last checked, if it was missing.
    missing_current_log: Option<u64>,
}

impl WriteStatus {
    /// Describes the missing logs; `None` if there are none.
    fn missing_logs_problem(&self) -> Option<String> {
        (!self.missing_logs.is_empty()).then(|| describe_missing_logs(&self.missing_logs))
    }
}

impl Journal {
    /// A journal whose first log file exists.
    pub(crate) fn new(
        files: Arc<dyn Directory>,
        durability: Durability,
        start: JournalStart,
    ) -> Arc<Self> {
        let (store, durable_below) = (start.store, start.next_change);
        let pending = PendingLog::new(start);
        Arc::new(Self {
            files,
            store,
            durability,
            status: Mutex::new(WriteStatus {
                durable_below,
                ..WriteStatus::default()
            }),
            durable_below: AtomicU64::new(durable_below),
            appended_bytes: AtomicU64::new(pending.bytes as u64),
            written_bytes: AtomicU64::new(0),
            pending: Mutex::new(pending),
            work: Condvar::new(),
            status_changed: Condvar::new(),
        })
    }

    /// The sink for a table's changes.
    pub(crate) fn sink(self: &Arc<Self>, table: u64) -> Arc<dyn OpSink> {
        let journal = Arc::clone(self);
        if self.durability == Durability::None {
            return Arc::new(UnloggedSink(journal));
        }
        Arc::new(TableSink { journal, table })
    }

    /// Runs `work`, which adds entries. Then counts their bytes, and notifies the log writer if necessary.
    fn append<T>(&self, work: impl FnOnce(&mut PendingLog) -> T) -> T {
        let mut pending = self.pending.lock();
        let bytes_before = pending.bytes;
        let result = work(&mut pending);
        let added = (pending.bytes - bytes_before) as u64;
        let bytes = self.appended_bytes.load(Ordering::Relaxed) + added;
        self.appended_bytes.store(bytes, Ordering::Relaxed);
        if bytes_before == 0 || pending.bytes >= WRITE_NOW_BYTES {
            self.work.notify_one();
        }
        result
    }

    pub(crate) fn record_table_created(&self, table: u64, options: &TableOptions) -> Lsn {
        let mut body = Vec::new();
        put_options(&mut body, options);
        self.append_table_record(kind::TABLE_CREATED, table, &body)
    }

    pub(crate) fn record_table_dropped(&self, table: u64) -> Lsn {
        self.append_table_record(kind::TABLE_DROPPED, table, &[])
    }

    /// Appends a record of one change: the creation or the drop of a table.
    fn append_table_record(&self, kind: u32, table: u64, details: &[u8]) -> Lsn {
        self.append(|pending| {
            pending.close_record();
            let lsn = pending.new_lsn();
            let mut body = Vec::new();
            body.put_u64(lsn.0);
            body.put_u64(table);
            body.put(details);
            pending.write_record(kind, &body);
            lsn
        })
    }

    /// Adds an `unlogged` record: this checkpoint has contents that the logs lack, so a replay from an older one fails
    /// at the record. The next change gets at least the number `next_change`.
    pub(crate) fn record_unlogged(&self, checkpoint: u64, next_change: u64) {
        self.append(|pending| {
            pending.close_record();
            let previous = pending.next_change;
            pending.next_change = previous.max(next_change);
            let mut body = Vec::new();
            for number in [previous, pending.next_change, checkpoint] {
                body.put_u64(number);
            }
            pending.write_record(kind::UNLOGGED, &body);
        });
    }

    /// Switches to a new log, whose file exists: later changes are written to it.
    pub(crate) fn switch_log(
        &self,
        (number, file): (u64, Box<dyn WritableFile>),
        clock: ClockReading,
    ) -> LogPosition {
        self.append(|pending| {
            pending.close_record();
            pending.switch_log(number, file, clock)
        })
    }

    /// Bytes of the records of the current log, written or pending.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.pending.lock().log.usage().bytes
    }

    /// Adds a log, which a checkpoint has written, to the earlier logs.
    pub(crate) fn add_log(&self, log: Arc<Log>) {
        self.pending.lock().earlier_logs.push(log);
    }

    /// Returns a new chunk's serial.
    pub(crate) fn new_serial(&self) -> u64 {
        let mut pending = self.pending.lock();
        pending.next_serial += 1;
        pending.next_serial - 1
    }

    /// The serial that the next chunk gets.
    pub(crate) fn next_serial(&self) -> u64 {
        self.pending.lock().next_serial
    }

    /// Waits until everything appended so far is written.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be written; [`Error::Closed`] if the log writer has ended.
    pub(crate) fn flush(&self) -> Result<()> {
        let entry_count = {
            let mut pending = self.pending.lock();
            pending.close_record();
            pending.immediate = true;
            self.work.notify_one();
            pending.entry_count
        };
        let mut status = self.status.lock();
        loop {
            if status.written_entries >= entry_count {
                return Ok(());
            }
            self.check_writing(&status)?;
            self.status_changed.wait(&mut status);
        }
    }

    /// Notes that logs were removed or replaced: their changes and chunks are only in memory until a
    /// checkpoint that does not require these logs is written.
    pub(crate) fn add_missing_logs(&self, missing: &[u64]) {
        if missing.is_empty() {
            return;
        }
        self.pending.lock().missing_logs.extend(missing);
        self.update_status(0, |status| status.missing_logs.extend(missing));
    }

    /// The logs that were found missing since the store was opened.
    pub(crate) fn missing_logs(&self) -> BTreeSet<u64> {
        self.pending.lock().missing_logs.clone()
    }

    /// The logs that the next checkpoint would require.
    pub(crate) fn required_logs(&self) -> Vec<u64> {
        let pending = self.pending.lock();
        let earlier = pending.earlier_logs.iter().map(|log| log.usage());
        let earlier = earlier.filter(|usage| usage.used_bytes > 0);
        let mut logs: Vec<u64> = earlier.map(|usage| usage.log).collect();
        logs.push(pending.log.usage().log);
        logs.retain(|log| !pending.missing_logs.contains(log));
        logs
    }

    /// Describes the missing logs, if changes do not count as durable for this reason.
    pub(crate) fn missing_logs_problem(&self) -> Option<String> {
        self.status.lock().missing_logs_problem()
    }

    /// Notes that a checkpoint was written that does not require these missing logs: changes count as durable again.
    /// Has no effect if more logs were found missing in the meantime.
    pub(crate) fn resolve_missing_logs(&self, missing_logs: &BTreeSet<u64>) {
        {
            // Locked until `clear`: otherwise, a missing log that is added meanwhile would be forgotten.
            let pending = self.pending.lock();
            if missing_logs.is_empty() || pending.missing_logs != *missing_logs {
                return;
            }
            self.status.lock().missing_logs.clear();
        }
        self.update_status(0, |_| {});
    }

    /// Checks whether the directory was moved or the current log was removed, for `problem`. May block.
    pub(crate) fn check_files(&self) {
        let moved = self.files.check_path().err();
        // Only for `problem`: the log writer itself detects this when it writes the next change.
        let log = self.pending.lock().log.usage().log;
        let found = self.files.id(&log_name(log));
        let is_missing = matches!(&found, Err(error) if error.kind() == io::ErrorKind::NotFound);
        let mut status = self.status.lock();
        status.moved = moved;
        status.missing_current_log = is_missing.then_some(log);
    }

    /// Why changes are not stored durably now, as far as is known; `None` if they are. Does not access the
    /// file system.
    pub(crate) fn problem(&self) -> Option<String> {
        let log = self.pending.lock().log.usage().log;
        let status = self.status.lock();
        let is_missing = status.missing_current_log == Some(log);
        let current = is_missing.then(|| describe_missing_logs(&BTreeSet::from([log])));
        let missing = status.missing_logs_problem().or(current);
        let problem = (status.moved.clone())
            .or_else(|| status.problem.clone())
            .or_else(|| Some(format!("{}{NEXT_CHECKPOINT_NOTE}", missing?)))?;
        Some(format!("{}: {problem}", self.files.path().display()))
    }

    /// Fails if writing fails now or the log writer has ended.
    fn check_writing(&self, status: &WriteStatus) -> Result<()> {
        if let Some(problem) = &status.problem {
            return Err(self.write_error("cannot be written to", problem));
        }
        if status.ended {
            return Err(Error::Closed("the store is closed".into()));
        }
        Ok(())
    }

    fn write_error(&self, predicate: &str, problem: &str) -> Error {
        let path = self.files.path().display();
        Error::Storage(format!("changes {predicate} {path}: {problem}"))
    }

    /// Checks that the log writer, whose thread has ended, wrote everything; `panicked` is true if the thread panicked.
    ///
    /// # Errors
    /// [`Error::Storage`] if changes that should have been written were not.
    pub(crate) fn outcome(&self, panicked: bool) -> Result<()> {
        let panicked = panicked.then(|| "the log writer thread panicked".into());
        let status = self.status.lock();
        match panicked
            .or_else(|| status.problem.clone())
            .or_else(|| status.missing_logs_problem())
        {
            Some(problem) if self.durability != Durability::None => {
                Err(self.write_error("were not written to", &problem))
            }
            _ => Ok(()),
        }
    }

    /// Updates the status after `bytes` more bytes were written, and wakes waiting callers. After a permanent
    /// failure, the status no longer changes.
    pub(super) fn update_status(&self, bytes: usize, update: impl FnOnce(&mut WriteStatus)) {
        self.written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        let mut status = self.status.lock();
        if status.failed {
            return;
        }
        update(&mut status);
        if status.missing_logs.is_empty() {
            self.durable_below
                .store(status.durable_below, Ordering::Release);
        }
        let wakers = std::mem::take(&mut status.wakers);
        drop(status);
        self.status_changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Reports a problem after which no change is acknowledged any more.
    pub(crate) fn fail_permanently(&self, problem: String) {
        self.update_status(0, |status| {
            status.problem = Some(problem);
            status.failed = true;
        });
    }

    /// Ready if `done` returns true, or with an error if writing fails, logs are missing or the log writer has ended.
    /// Otherwise stores the waker and requests that the log writer writes soon; with the no-op waker, does neither.
    fn poll(&self, waker: &Waker, done: impl Fn() -> bool) -> Poll<Result<()>> {
        if done() {
            return Poll::Ready(Ok(()));
        }
        {
            let mut status = self.status.lock();
            // Checked again: the status may have changed before it was locked.
            if done() {
                return Poll::Ready(Ok(()));
            }
            self.check_writing(&status)?;
            if let Some(missing) = status.missing_logs_problem() {
                let problem = format!("{missing}{NEXT_CHECKPOINT_NOTE}");
                return Poll::Ready(Err(self.write_error("are not durable in", &problem)));
            }
            if waker.will_wake(Waker::noop()) {
                // The caller does not wait.
                return Poll::Pending;
            }
            if !status.wakers.iter().any(|stored| stored.will_wake(waker)) {
                status.wakers.push(waker.clone());
            }
        }
        let mut pending = self.pending.lock();
        if !pending.urgent {
            pending.urgent = true;
            self.work.notify_one();
        }
        Poll::Pending
    }

    fn has_space(&self) -> bool {
        let written = self.written_bytes.load(Ordering::Relaxed);
        let appended = self.appended_bytes.load(Ordering::Relaxed);
        appended.saturating_sub(written) <= MAX_PENDING_BYTES
    }

    /// Makes the log writer end after one attempt to write everything appended so far.
    pub(crate) fn stop(&self) {
        self.pending.lock().stopped = true;
        self.work.notify_one();
    }
}

/// Describes a failed sync. Nothing more is written after it.
pub(super) fn describe_sync_failure(error: &io::Error) -> String {
    format!("{error}; earlier writes may be lost too: close the store and open it again")
}

/// Why nothing more is written after another process may have opened the directory.
pub(super) const NOT_LOCKED: &str = "its LOCK was replaced, so another process may have opened the directory; close \
                                     the store";

/// Describes missing logs: they were removed or replaced.
fn describe_missing_logs(logs: &BTreeSet<u64>) -> String {
    let names: Vec<String> = logs.iter().map(|log| log_name(*log)).collect();
    let verb = if logs.len() == 1 { "was" } else { "were" };
    format!("{} {verb} removed or replaced", names.join(", "))
}

/// Appended to the description of missing logs.
pub(super) const NEXT_CHECKPOINT_NOTE: &str = "; the next checkpoint stores everything again";

/// Appends one table's changes to the journal.
#[derive(Debug)]
struct TableSink {
    journal: Arc<Journal>,
    table: u64,
}

impl OpSink for TableSink {
    fn append(&self, _table: &str, op: &TableOp<'_>) -> Lsn {
        self.journal
            .append(|pending| pending.add_change(self.table, op))
    }

    fn last(&self) -> Lsn {
        // Changes are numbered from 1.
        Lsn(self.journal.pending.lock().next_change - 1)
    }

    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>> {
        let journal = &self.journal;
        journal.poll(waker, || {
            journal.durable_below.load(Ordering::Acquire) > lsn.0
        })
    }

    fn poll_space(&self, waker: &Waker) -> Poll<Result<()>> {
        let space = self.journal.poll(waker, || self.journal.has_space());
        space.map_err(|error| match error {
            Error::Storage(text) => Error::Storage(match text.strip_suffix(CHANGES_ARE_KEPT) {
                Some(text) => format!("{text}{BUFFER_IS_FULL}"),
                None => text,
            }),
            other => other,
        })
    }

    fn has_ended(&self) -> bool {
        let status = self.journal.status.lock();
        status.ended || status.failed
    }

    fn problem(&self) -> Option<String> {
        self.journal.problem()
    }
}

/// The sink of the tables of a store that logs no changes: discards them.
#[derive(Debug)]
struct UnloggedSink(Arc<Journal>);

impl OpSink for UnloggedSink {
    fn append(&self, _table: &str, _op: &TableOp<'_>) -> Lsn {
        Lsn(0)
    }

    fn last(&self) -> Lsn {
        Lsn(0)
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn poll_durable(&self, _lsn: Lsn, _waker: &Waker) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::power_loss_directory::PowerLossDirectory;

    #[test]
    fn all_missing_logs_are_named_until_a_checkpoint_does_not_require_them() {
        let start = JournalStart {
            store: 1,
            log: 9,
            next_change: 1,
            next_serial: 1,
            logs: Vec::new(),
            clock: ClockReading::default(),
        };
        let files = Arc::new(PowerLossDirectory::from_files(&[]));
        let journal = Journal::new(files, Durability::Process, start);
        journal.add_missing_logs(&[4]);
        journal.add_missing_logs(&[2, 4]);
        let text = "log-0000000002, log-0000000004 were removed or replaced";
        assert_eq!(journal.missing_logs_problem().as_deref(), Some(text));
        journal.resolve_missing_logs(&journal.missing_logs());
        assert_eq!(journal.missing_logs_problem(), None);
        journal.add_missing_logs(&[3]);
        let text = "log-0000000003 was removed or replaced";
        assert_eq!(journal.missing_logs_problem().as_deref(), Some(text));
    }
}
