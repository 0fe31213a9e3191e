//! The log: changes are told here under their table's lock, and written by a thread of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use engram_core::chunk::{Chunk, Filed, Shelf};
use engram_core::{Error, Lsn, OpSink, Result, TableOp, TableOptions, Trajectory};
use parking_lot::{Condvar, Mutex};

use super::bytes::Put;
use super::changes::put_change;
use super::file::{FILE_HEAD, record_bytes};
use super::files::Files;
use super::things::{Forms, Told, kind, put_chunk, put_options};

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

/// Bytes told and not written, beyond which nobody may tell more.
const MOST_PENDING: usize = 64 << 20;

/// Bytes of one record of changes, about.
const RECORD: usize = 64 << 10;

/// A store's log.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) files: Arc<dyn Files>,
    pub(super) store: u64,
    pub(super) durability: Durability,
    pub(super) pending: Mutex<Pending>,
    /// Something is to be written.
    pub(super) work: Condvar,
    pub(super) safe: Mutex<Safe>,
    /// Something was written, or cannot be.
    pub(super) written: Condvar,
}

/// What was told and is not being written yet.
#[derive(Debug)]
pub(super) struct Pending {
    store: u64,
    told: Told,
    pub(super) pieces: Vec<Piece>,
    pub(super) bytes: usize,
    /// Pieces so far, those written included.
    pub(super) count: u64,
    /// The record of changes that grows.
    open: Option<Open>,
    pub(super) next_change: u64,
    next_serial: u64,
    log: Arc<Log>,
    /// The earlier ones.
    logs: Vec<Arc<Log>>,
    /// Somebody waits.
    pub(super) urgent: bool,
    /// What comes next is to be synced, whatever the durability.
    pub(super) sync: bool,
    pub(super) stopped: bool,
}

/// A log, and what it holds of chunks that are still used.
#[derive(Debug)]
pub(crate) struct Log {
    store: u64,
    number: u64,
    /// Of chunks that somebody uses.
    used: AtomicU64,
    /// Of all that was told.
    bytes: AtomicU64,
}

impl Log {
    pub(crate) fn new(store: u64, number: u64) -> Arc<Self> {
        Arc::new(Self {
            store,
            number,
            used: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Says that it holds a chunk.
    pub(crate) fn hold(self: &Arc<Self>, chunk: &Chunk, serial: u64, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        chunk.file(Filed {
            serial,
            bytes,
            shelf: Arc::clone(self) as Arc<dyn Shelf>,
        });
    }

    /// Counts bytes told.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What is used of it.
    fn usage(&self) -> Usage {
        Usage {
            log: self.number,
            used: self.used.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Shelf for Log {
    fn store(&self) -> u64 {
        self.store
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn released(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// How much of a log's chunks somebody uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    pub(crate) log: u64,
    pub(crate) used: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Open {
    table: u64,
    first: u64,
    count: u32,
    changes: Vec<u8>,
}

/// A record to be written, or the end of a file.
#[derive(Debug)]
pub(super) enum Piece {
    Record { kind: u32, body: Vec<u8> },
    Chunk { head: Vec<u8>, chunk: Arc<Chunk> },
    NextLog { number: u64, first_change: u64 },
}

/// How far the log is written.
#[derive(Debug, Default)]
pub(super) struct Safe {
    /// Changes below this one are as safe as they should be.
    pub(super) up_to: u64,
    /// Pieces that are synced.
    pub(super) synced: u64,
    /// Why nothing more is, at the moment, or for good.
    pub(super) problem: Option<String>,
    pub(super) wakers: Vec<Waker>,
    pub(super) ended: bool,
}

impl Forms for Pending {
    fn told(&mut self) -> &mut Told {
        &mut self.told
    }

    fn record(&mut self, kind: u32, body: &[u8]) {
        self.push(Piece::Record {
            kind,
            body: body.to_vec(),
        });
    }
}

impl Pending {
    fn push(&mut self, piece: Piece) {
        let bytes = match &piece {
            Piece::Record { body, .. } => record_bytes(body.len()),
            Piece::Chunk { head, chunk } => record_bytes(head.len() + chunk.payload().len()),
            Piece::NextLog { .. } => FILE_HEAD,
        };
        self.bytes += bytes;
        self.log.add(bytes as u64);
        self.add(piece);
    }

    fn add(&mut self, piece: Piece) {
        self.pieces.push(piece);
        self.count += 1;
    }

    fn serial(&self, chunk: &Chunk) -> Option<u64> {
        chunk.filed(self.store).map(|(serial, _)| serial)
    }

    /// Tells a chunk that no log has.
    fn chunk(&mut self, chunk: &Arc<Chunk>) {
        if self.serial(chunk).is_none() {
            let serial = self.next_serial;
            self.next_serial += 1;
            self.file(chunk, serial);
        }
    }

    /// Tells a chunk, be it again.
    fn file(&mut self, chunk: &Arc<Chunk>, serial: u64) {
        let schema = self.schema(chunk.schema());
        let mut head = Vec::with_capacity(128);
        put_chunk(&mut head, chunk, serial, schema);
        let bytes = record_bytes(head.len() + chunk.payload().len());
        self.log.hold(chunk, serial, bytes as u64);
        self.push(Piece::Chunk {
            head,
            chunk: Arc::clone(chunk),
        });
    }

    /// Ends the record of changes that grows.
    pub(super) fn close(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let mut body = Vec::with_capacity(20 + open.changes.len());
        body.put_u64(open.table);
        body.put_u64(open.first);
        body.put_u32(open.count);
        body.put(&open.changes);
        // Their bytes were counted as pending when they came.
        self.log.add(record_bytes(body.len()) as u64);
        self.add(Piece::Record {
            kind: kind::CHANGES,
            body,
        });
    }

    fn change(&mut self, table: u64, op: &TableOp<'_>) -> Lsn {
        if let TableOp::Insert { item, .. } = op {
            let chunks: &[Arc<Chunk>] = match &item.trajectory {
                Trajectory::Rows { chunk, .. } | Trajectory::Window { chunk, .. } => {
                    std::slice::from_ref(chunk)
                }
                Trajectory::Spans(spans) => &spans.chunks,
            };
            for chunk in chunks {
                self.chunk(chunk);
            }
        }
        let fits = |open: &Open| open.table == table && open.changes.len() < RECORD;
        if !self.open.as_ref().is_some_and(fits) {
            self.close();
        }
        let mut open = self.open.take().unwrap_or_else(|| Open {
            table,
            first: self.next_change,
            count: 0,
            changes: Vec::new(),
        });
        let before = open.changes.len();
        let store = self.store;
        let serial = |chunk: &Arc<Chunk>| chunk.filed(store).map_or(0, |(serial, _)| serial);
        put_change(&mut open.changes, op, self, &serial);
        self.bytes += open.changes.len() - before;
        open.count += 1;
        self.open = Some(open);
        self.count_change()
    }

    fn count_change(&mut self) -> Lsn {
        let number = self.next_change;
        self.next_change += 1;
        Lsn(number)
    }
}

/// Where a journal goes on.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) store: u64,
    pub(crate) log: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
    /// Those that hold chunks in use.
    pub(crate) logs: Vec<Arc<Log>>,
}

/// The beginning of a log at which replay may begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub(crate) log: u64,
    pub(crate) first_change: u64,
    /// Earlier logs that hold what somebody used then.
    pub(crate) needed: Vec<Usage>,
}

impl Journal {
    /// A journal whose first log is about to begin.
    pub(crate) fn new(files: Arc<dyn Files>, durability: Durability, start: Start) -> Arc<Self> {
        Arc::new(Self {
            files,
            store: start.store,
            durability,
            pending: Mutex::new(Pending {
                store: start.store,
                told: Told::default(),
                pieces: Vec::new(),
                bytes: 0,
                count: 0,
                open: None,
                next_change: start.next_change,
                next_serial: start.next_serial,
                log: Log::new(start.store, start.log),
                logs: start.logs,
                urgent: false,
                sync: false,
                stopped: false,
            }),
            work: Condvar::new(),
            safe: Mutex::new(Safe {
                up_to: start.next_change,
                ..Safe::default()
            }),
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

    fn tell<T>(&self, work: impl FnOnce(&mut Pending) -> T) -> T {
        let mut pending = self.pending.lock();
        let was_idle = pending.bytes == 0;
        let told = work(&mut pending);
        if was_idle || pending.bytes >= PLENTY {
            self.work.notify_one();
        }
        told
    }

    /// Tells that a table was created.
    pub(crate) fn created(&self, table: u64, options: &TableOptions) -> Lsn {
        let mut body = Vec::new();
        put_options(&mut body, options);
        self.tell_table(kind::TABLE_CREATED, table, &body)
    }

    /// Tells that a table was dropped.
    pub(crate) fn dropped(&self, table: u64) -> Lsn {
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

    /// Tells a chunk if no log has it, or if it is in one that should be given up; waits while much is pending.
    ///
    /// # Errors
    /// [`Error::Storage`] where nothing can be written.
    pub(crate) fn keep(&self, chunk: &Arc<Chunk>, given_up: &[u64]) -> Result<u64> {
        let filed = chunk.filed(self.store);
        if let Some((serial, log)) = filed
            && !given_up.contains(&log)
        {
            return Ok(serial);
        }
        if self.pending.lock().bytes > MOST_PENDING {
            self.sync()?;
        }
        self.tell(|pending| match pending.serial(chunk) {
            Some(serial) => {
                pending.file(chunk, serial);
                Ok(serial)
            }
            None => {
                pending.chunk(chunk);
                Ok(pending.next_serial - 1)
            }
        })
    }

    /// Lets what follows go to another log.
    pub(crate) fn next_log(&self) -> Mark {
        self.tell(|pending| {
            pending.close();
            pending.told = Told::default();
            let next = Log::new(self.store, pending.log.number + 1);
            let before = std::mem::replace(&mut pending.log, Arc::clone(&next));
            // Whoever uses a chunk now may insert it later: what holds it is needed.
            pending.logs.retain(|log| log.usage().used > 0);
            pending.logs.push(before);
            let first_change = pending.next_change;
            pending.push(Piece::NextLog {
                number: next.number,
                first_change,
            });
            Mark {
                log: next.number,
                first_change,
                needed: pending.logs.iter().map(|log| log.usage()).collect(),
            }
        })
    }

    /// The serial that the next chunk gets.
    pub(crate) fn next_serial(&self) -> u64 {
        self.pending.lock().next_serial
    }

    /// Waits until all that was told is synced, whatever the durability.
    ///
    /// # Errors
    /// [`Error::Storage`] where that cannot be; [`Error::Closed`] when the journal has ended.
    pub(crate) fn sync(&self) -> Result<()> {
        let count = {
            let mut pending = self.pending.lock();
            pending.close();
            pending.sync = true;
            self.work.notify_one();
            pending.count
        };
        let mut safe = self.safe.lock();
        loop {
            if safe.synced >= count {
                return Ok(());
            }
            self.check(&safe)?;
            self.written.wait(&mut safe);
        }
    }

    /// Fails where nothing more is written.
    fn check(&self, safe: &Safe) -> Result<()> {
        if let Some(problem) = &safe.problem {
            return Err(Error::Storage(format!(
                "changes cannot be written to {}: {problem}",
                self.files.path().display()
            )));
        }
        if safe.ended {
            return Err(Error::Closed("the store is closed".into()));
        }
        Ok(())
    }

    fn poll(&self, waker: &Waker, done: impl FnOnce(&Safe) -> bool) -> Poll<Result<()>> {
        let mut safe = self.safe.lock();
        if done(&safe) {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = self.check(&safe) {
            return Poll::Ready(Err(error));
        }
        if !safe.wakers.iter().any(|known| known.will_wake(waker)) {
            safe.wakers.push(waker.clone());
        }
        drop(safe);
        self.pending.lock().urgent = true;
        self.work.notify_one();
        Poll::Pending
    }

    /// Writes what was told, then ends.
    pub(crate) fn stop(&self) {
        self.pending.lock().stopped = true;
        self.work.notify_one();
    }
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
        self.journal.poll(waker, |safe| safe.up_to > lsn.0)
    }

    fn poll_room(&self, waker: &Waker) -> Poll<Result<()>> {
        let has_room = || self.journal.pending.lock().bytes <= MOST_PENDING;
        if has_room() {
            return Poll::Ready(Ok(()));
        }
        match self.journal.poll(waker, |_| false) {
            // There may be since, with nobody left to wake us.
            Poll::Pending if has_room() => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}
