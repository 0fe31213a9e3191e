//! The log: changes are told here under their table's lock, and written by a thread of their own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use engram_core::{Error, Lsn, OpSink, Result, TableOp, TableOptions};
use parking_lot::{Condvar, Mutex};

use super::byte_codec::PutBytes;
use super::file_system::{FileSystem, WritableFile};
use super::log::{Log, Usage};
use super::pending_log::PendingLog;
use super::record_codec::{DictionaryWriter as _, kind, put_options};
use super::recover::ClockReading;

/// How safe a change is once it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As safe as the last checkpoint: changes are not written.
    None,
    /// It outlives the process: written before it is acknowledged.
    Process,
    /// It outlives the machine's power: written and synced, at most once per interval.
    Disk {
        /// Between two syncs.
        interval: Duration,
    },
}

/// Bytes that are written however little time has passed.
pub(super) const PLENTY: usize = 1 << 20;

/// Bytes told and not written, beyond which nobody should tell more.
const MOST_PENDING: u64 = 64 << 20;

/// A store's log.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) store: u64,
    pub(super) durability: Durability,
    pub(super) pending: Mutex<PendingLog>,
    /// Bytes told since the beginning: changes under the lock of what is pending, so that nobody need add to it at once.
    told: AtomicU64,
    /// Those of them that are written.
    written_bytes: AtomicU64,
    /// Something is to be written.
    pub(super) work: Condvar,
    pub(super) safe: Mutex<WriteStatus>,
    /// As it says.
    up_to: AtomicU64,
    /// Something was written, or cannot be.
    written: Condvar,
}

/// How far the log is written.
#[derive(Debug, Default)]
pub(super) struct WriteStatus {
    /// Changes below this one are as safe as they should be.
    pub(super) up_to: u64,
    /// Pieces that are written.
    pub(super) written: u64,
    /// Why nothing more is, at the moment, or for good.
    pub(super) problem: Option<String>,
    wakers: Vec<Waker>,
    pub(super) ended: bool,
    /// What is written from now on may not be believed.
    given_up: bool,
}

/// Where a journal goes on.
#[derive(Debug)]
pub(crate) struct JournalStart {
    pub(crate) store: u64,
    pub(crate) log: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
    /// Those that hold chunks in use.
    pub(crate) logs: Vec<Arc<Log>>,
    pub(crate) moment: ClockReading,
}

/// The beginning of a log at which replay may begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogPosition {
    pub(crate) log: u64,
    pub(crate) first_change: u64,
    pub(crate) moment: ClockReading,
    /// Earlier logs that hold what somebody used then.
    pub(crate) needed: Vec<Usage>,
}

impl Journal {
    /// A journal whose first log is begun.
    pub(crate) fn new(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        start: JournalStart,
    ) -> Arc<Self> {
        let (store, up_to) = (start.store, start.next_change);
        let pending = PendingLog::new(start);
        Arc::new(Self {
            files,
            store,
            durability,
            safe: Mutex::new(WriteStatus {
                up_to,
                ..WriteStatus::default()
            }),
            up_to: AtomicU64::new(up_to),
            told: AtomicU64::new(pending.bytes as u64),
            written_bytes: AtomicU64::new(0),
            pending: Mutex::new(pending),
            work: Condvar::new(),
            written: Condvar::new(),
        })
    }

    /// Where a table's changes are told.
    pub(crate) fn sink(self: &Arc<Self>, table: u64) -> Arc<dyn OpSink> {
        Arc::new(TableSink {
            journal: Arc::clone(self),
            table,
        })
    }

    fn tell<T>(&self, work: impl FnOnce(&mut PendingLog) -> T) -> T {
        let mut pending = self.pending.lock();
        let before = pending.bytes;
        let told = work(&mut pending);
        let bytes = self.told.load(Ordering::Relaxed) + (pending.bytes - before) as u64;
        self.told.store(bytes, Ordering::Relaxed);
        if before == 0 || pending.bytes >= PLENTY {
            self.work.notify_one();
        }
        told
    }

    /// Tells that a table was created.
    pub(crate) fn record_table_created(&self, table: u64, options: &TableOptions) -> Lsn {
        let mut body = Vec::new();
        put_options(&mut body, options);
        self.tell_table(kind::TABLE_CREATED, table, &body)
    }

    /// Tells that a table was dropped.
    pub(crate) fn record_table_dropped(&self, table: u64) -> Lsn {
        self.tell_table(kind::TABLE_DROPPED, table, &[])
    }

    fn tell_table(&self, kind: u32, table: u64, rest: &[u8]) -> Lsn {
        self.tell(|pending| {
            pending.close();
            let lsn = pending.count_change();
            let mut body = Vec::new();
            body.put_u64(lsn.0);
            body.put_u64(table);
            body.put(rest);
            pending.record(kind, &body);
            lsn
        })
    }

    /// Lets what follows go to another log, whose file is begun.
    pub(crate) fn next_log(
        &self,
        number: u64,
        file: Box<dyn WritableFile>,
        moment: ClockReading,
    ) -> LogPosition {
        self.tell(|pending| pending.next_log(number, file, moment))
    }

    /// Leaves out the number of a change.
    pub(crate) fn skip_change_number(&self) {
        let mut pending = self.pending.lock();
        pending.close();
        pending.count_change();
    }

    /// Bytes of the log that is being written.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.pending.lock().log.usage().bytes
    }

    /// Minds a log that somebody else has written, before the one that is being written.
    pub(crate) fn keep_log(&self, log: Arc<Log>) {
        self.pending.lock().logs.push(log);
    }

    /// Gives a serial to a chunk.
    pub(crate) fn take_serial(&self) -> u64 {
        let mut pending = self.pending.lock();
        pending.next_serial += 1;
        pending.next_serial - 1
    }

    /// The serial that the next chunk gets.
    pub(crate) fn next_serial(&self) -> u64 {
        self.pending.lock().next_serial
    }

    /// Waits until all that was told is written.
    ///
    /// # Errors
    /// [`Error::Storage`] where that cannot be; [`Error::Closed`] when the journal has ended.
    pub(crate) fn write_all(&self) -> Result<()> {
        let count = {
            let mut pending = self.pending.lock();
            pending.close();
            pending.at_once = true;
            self.work.notify_one();
            pending.count
        };
        let mut safe = self.safe.lock();
        loop {
            if safe.written >= count {
                return Ok(());
            }
            self.check(&safe)?;
            self.written.wait(&mut safe);
        }
    }

    /// Fails where nothing more is written.
    fn check(&self, safe: &WriteStatus) -> Result<()> {
        if let Some(problem) = &safe.problem {
            return Err(self.unwritten_error("cannot be written", problem));
        }
        if safe.ended {
            return Err(Error::Closed("the store is closed".into()));
        }
        Ok(())
    }

    fn unwritten_error(&self, what: &str, problem: &str) -> Error {
        let path = self.files.path().display();
        Error::Storage(format!("changes {what} to {path}: {problem}"))
    }

    /// How it ended, once its thread has.
    ///
    /// # Errors
    /// [`Error::Storage`] where something that was told is not written, and should be.
    pub(crate) fn ended(&self, by_itself: bool) -> Result<()> {
        let panicked = (!by_itself).then(|| "the thread that writes them panicked".into());
        match &self.safe.lock().problem.clone().or(panicked) {
            Some(problem) if self.durability != Durability::None => {
                Err(self.unwritten_error("were not written", problem))
            }
            _ => Ok(()),
        }
    }

    /// Says how far the log is.
    pub(super) fn say(&self, bytes: usize, change: impl FnOnce(&mut WriteStatus)) {
        self.written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        let mut safe = self.safe.lock();
        if safe.given_up {
            return;
        }
        change(&mut safe);
        self.up_to.store(safe.up_to, Ordering::Release);
        let wakers = std::mem::take(&mut safe.wakers);
        drop(safe);
        self.written.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Says that a log could not be synced.
    pub(crate) fn give_up(&self, error: &io::Error) {
        self.say(0, |safe| {
            safe.problem = Some(lost(error));
            safe.given_up = true;
        });
    }

    fn poll(&self, waker: &Waker, done: impl Fn() -> bool) -> Poll<Result<()>> {
        if done() {
            return Poll::Ready(Ok(()));
        }
        {
            let mut safe = self.safe.lock();
            // It may be since: who says so has had this lock.
            if done() {
                return Poll::Ready(Ok(()));
            }
            self.check(&safe)?;
            if waker.will_wake(Waker::noop()) {
                // Nobody waits: somebody looks.
                return Poll::Pending;
            }
            if !safe.wakers.iter().any(|known| known.will_wake(waker)) {
                safe.wakers.push(waker.clone());
            }
        }
        let mut pending = self.pending.lock();
        if !pending.urgent {
            pending.urgent = true;
            self.work.notify_one();
        }
        Poll::Pending
    }

    fn has_room(&self) -> bool {
        let written = self.written_bytes.load(Ordering::Relaxed);
        self.told.load(Ordering::Relaxed).saturating_sub(written) <= MOST_PENDING
    }

    /// Writes what was told, then ends.
    pub(crate) fn stop(&self) {
        self.pending.lock().stopped = true;
        self.work.notify_one();
    }
}

/// Why nothing more is written once a sync has failed.
pub(super) fn lost(error: &io::Error) -> String {
    format!("{error}; what was written before may be lost, too: open the store again")
}

/// The end of the log that one table knows.
#[derive(Debug)]
struct TableSink {
    journal: Arc<Journal>,
    table: u64,
}

impl OpSink for TableSink {
    fn append(&self, _table: &str, op: &TableOp<'_>) -> Lsn {
        self.journal.tell(|pending| pending.change(self.table, op))
    }

    fn last(&self) -> Lsn {
        // Numbers begin with 1.
        Lsn(self.journal.pending.lock().next_change - 1)
    }

    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>> {
        let journal = &self.journal;
        journal.poll(waker, || journal.up_to.load(Ordering::Acquire) > lsn.0)
    }

    fn poll_room(&self, waker: &Waker) -> Poll<Result<()>> {
        self.journal.poll(waker, || self.journal.has_room())
    }
}
