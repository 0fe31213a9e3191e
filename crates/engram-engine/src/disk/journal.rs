//! The log: changes are told here under their table's lock, and written by a thread of their own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use engram_core::chunk::{Chunk, Filed, Shelf};
use engram_core::{Error, Lsn, OpSink, Result, TableOp, TableOptions, Trajectory};
use parking_lot::{Condvar, Mutex};

use super::bytes::Put;
use super::changes::put_change;
use super::file::{FILE_HEAD, FileHead, Kind, padding, record_bytes, record_head};
use super::files::{Files, Written};
use super::names::log_name;
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

/// Changes wait this long for others to be written with, unless somebody waits for them.
const GATHER: Duration = Duration::from_millis(5);

/// Bytes that are written however little time has passed.
const PLENTY: usize = 1 << 20;

/// Bytes told and not written, beyond which nobody may tell more.
const MOST_PENDING: usize = 64 << 20;

/// Bytes of one record of changes, about.
const RECORD: usize = 64 << 10;

/// How long to wait before what failed is written again.
const AGAIN: Duration = Duration::from_millis(500);

/// A store's log.
#[derive(Debug)]
pub(crate) struct Journal {
    files: Arc<dyn Files>,
    store: u64,
    durability: Durability,
    pending: Mutex<Pending>,
    /// Something is to be written.
    work: Condvar,
    safe: Mutex<Safe>,
}

/// What was told and is not being written yet.
#[derive(Debug)]
struct Pending {
    told: Told,
    pieces: Vec<Piece>,
    bytes: usize,
    /// The record of changes that grows.
    open: Option<Open>,
    next_change: u64,
    next_serial: u64,
    log: Arc<Log>,
    /// Somebody waits.
    urgent: bool,
    stopped: bool,
}

/// A log, and what it holds of chunks that are still used.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) number: u64,
    /// Of chunks that somebody uses.
    used: AtomicU64,
    /// Of all that was told.
    bytes: AtomicU64,
}

impl Log {
    pub(crate) fn new(number: u64) -> Arc<Self> {
        Arc::new(Self {
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

    /// Bytes of chunks that somebody uses.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Shelf for Log {
    fn released(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
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
enum Piece {
    Record { kind: u32, body: Vec<u8> },
    Chunk { head: Vec<u8>, chunk: Arc<Chunk> },
    NextLog { number: u64, first_change: u64 },
}

/// How far the log is written.
#[derive(Debug, Default)]
struct Safe {
    up_to: u64,
    /// Why nothing more is, at the moment.
    problem: Option<String>,
    wakers: Vec<Waker>,
    ended: bool,
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
        self.pieces.push(piece);
    }

    /// Tells a chunk that no log has.
    fn chunk(&mut self, chunk: &Arc<Chunk>) {
        if chunk.serial().is_none() {
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
    fn close(&mut self) {
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
        self.pieces.push(Piece::Record {
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
        let serial = |chunk: &Arc<Chunk>| chunk.serial().unwrap_or_default();
        put_change(&mut open.changes, op, self, &serial);
        self.bytes += open.changes.len() - before;
        open.count += 1;
        self.open = Some(open);
        self.count()
    }

    /// Counts a change.
    fn count(&mut self) -> Lsn {
        let number = self.next_change;
        self.next_change += 1;
        Lsn(number)
    }
}

/// Where a journal goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) store: u64,
    pub(crate) log: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
}

impl Journal {
    /// Begins a log.
    pub(crate) fn new(
        files: Arc<dyn Files>,
        durability: Durability,
        start: Start,
    ) -> io::Result<(Arc<Self>, Writer)> {
        let journal = Arc::new(Self {
            files,
            store: start.store,
            durability,
            pending: Mutex::new(Pending {
                told: Told::default(),
                pieces: Vec::new(),
                bytes: 0,
                open: None,
                next_change: start.next_change,
                next_serial: start.next_serial,
                log: Log::new(start.log),
                urgent: false,
                stopped: false,
            }),
            work: Condvar::new(),
            safe: Mutex::new(Safe {
                up_to: start.next_change,
                ..Safe::default()
            }),
        });
        let writer = Writer::new(&journal, start.log, start.next_change)?;
        Ok((journal, writer))
    }

    /// Where a table's changes are told.
    pub(crate) fn sink(self: &Arc<Self>, table: u64) -> Arc<dyn OpSink> {
        Arc::new(TableSink {
            journal: Arc::clone(self),
            table,
        })
    }

    fn tell(&self, work: impl FnOnce(&mut Pending) -> Lsn) -> Lsn {
        let mut pending = self.pending.lock();
        let was_idle = pending.bytes == 0;
        let lsn = work(&mut pending);
        if was_idle || pending.bytes >= PLENTY {
            self.work.notify_one();
        }
        lsn
    }

    /// Tells that a table was created.
    pub(crate) fn created(&self, table: u64, options: &TableOptions) -> Lsn {
        self.tell(|pending| {
            pending.close();
            let lsn = pending.count();
            let mut body = Vec::new();
            body.put_u64(lsn.0);
            body.put_u64(table);
            put_options(&mut body, options);
            pending.record(kind::TABLE_CREATED, &body);
            lsn
        })
    }

    /// Tells that a table was dropped.
    pub(crate) fn dropped(&self, table: u64) -> Lsn {
        self.tell(|pending| {
            pending.close();
            let lsn = pending.count();
            let mut body = Vec::new();
            body.put_u64(lsn.0);
            body.put_u64(table);
            pending.record(kind::TABLE_DROPPED, &body);
            lsn
        })
    }

    /// Tells chunks that no log has: for a checkpoint of a store that tells no changes.
    pub(crate) fn chunks<'a>(&self, chunks: impl Iterator<Item = &'a Arc<Chunk>>) {
        self.tell(|pending| {
            chunks.for_each(|chunk| pending.chunk(chunk));
            Lsn(pending.next_change)
        });
    }

    /// Tells a chunk again, so that the log that has it may go.
    pub(crate) fn again(&self, chunk: &Arc<Chunk>) {
        self.tell(|pending| {
            if let Some(serial) = chunk.serial() {
                pending.file(chunk, serial);
            }
            Lsn(pending.next_change)
        });
    }

    /// Lets what follows go to another log; the one before, and the new one.
    pub(crate) fn next_log(&self) -> (Arc<Log>, Arc<Log>) {
        let mut pending = self.pending.lock();
        pending.close();
        pending.told = Told::default();
        let next = Log::new(pending.log.number + 1);
        let before = std::mem::replace(&mut pending.log, Arc::clone(&next));
        let first_change = pending.next_change;
        pending.push(Piece::NextLog {
            number: next.number,
            first_change,
        });
        self.work.notify_one();
        (before, next)
    }

    fn problem(&self, problem: &str) -> Error {
        Error::Storage(format!(
            "changes cannot be written to {}: {problem}; they are in memory, and written as soon as that is possible",
            self.files.path().display()
        ))
    }

    fn poll(&self, waker: &Waker, done: impl FnOnce(&Safe) -> bool) -> Poll<Result<()>> {
        let mut safe = self.safe.lock();
        if done(&safe) {
            return Poll::Ready(Ok(()));
        }
        if let Some(problem) = &safe.problem {
            return Poll::Ready(Err(self.problem(problem)));
        }
        if safe.ended {
            return Poll::Ready(Err(Error::Closed("the store is closed".into())));
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

    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>> {
        self.journal.poll(waker, |safe| safe.up_to > lsn.0)
    }

    fn poll_room(&self, waker: &Waker) -> Poll<Result<()>> {
        let full = self.journal.pending.lock().bytes > MOST_PENDING;
        self.journal.poll(waker, |_| !full)
    }
}

/// The thread's part of a journal.
#[derive(Debug)]
pub(crate) struct Writer {
    journal: Arc<Journal>,
    file: Box<dyn Written>,
    number: u64,
    place: u64,
    synced: Instant,
}

/// What is written together.
struct Batch {
    pieces: Vec<Piece>,
    /// Changes below this one are in it, or were before.
    up_to: u64,
    stopped: bool,
}

impl Writer {
    fn new(journal: &Arc<Journal>, number: u64, first_change: u64) -> io::Result<Self> {
        let file = begin(journal, number, first_change)?;
        Ok(Self {
            journal: Arc::clone(journal),
            file,
            number,
            place: FILE_HEAD as u64,
            synced: Instant::now(),
        })
    }

    /// Writes until the journal is stopped, and all that was told is written.
    pub(crate) fn run(mut self) {
        loop {
            let Batch {
                pieces,
                up_to,
                stopped,
            } = self.gather();
            let mut rest = pieces.as_slice();
            while let Err(error) = self.write(&mut rest) {
                self.say(|safe| safe.problem = Some(error.to_string()));
                if stopped {
                    return self.say(|safe| safe.ended = true);
                }
                std::thread::sleep(AGAIN);
            }
            self.say(|safe| {
                safe.up_to = up_to;
                safe.problem = None;
                safe.ended = stopped;
            });
            if stopped {
                return;
            }
        }
    }

    fn say(&self, change: impl FnOnce(&mut Safe)) {
        let mut safe = self.journal.safe.lock();
        change(&mut safe);
        let wakers = std::mem::take(&mut safe.wakers);
        drop(safe);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for something to write, and somewhat longer for more.
    fn gather(&self) -> Batch {
        let mut pending = self.journal.pending.lock();
        while pending.bytes == 0 && !pending.stopped {
            pending.urgent = false;
            self.journal.work.wait(&mut pending);
        }
        let until = match self.journal.durability {
            Durability::Disk { interval } => self.synced + interval,
            _ => Instant::now() + GATHER,
        };
        let group = matches!(self.journal.durability, Durability::Disk { .. });
        while !pending.stopped && pending.bytes < PLENTY && (group || !pending.urgent) {
            if self.journal.work.wait_until(&mut pending, until).timed_out() {
                break;
            }
        }
        pending.close();
        pending.bytes = 0;
        pending.urgent = false;
        Batch {
            pieces: std::mem::take(&mut pending.pieces),
            up_to: pending.next_change,
            stopped: pending.stopped,
        }
    }

    /// Writes pieces, file after file; `rest` is what is not written yet.
    fn write(&mut self, rest: &mut &[Piece]) -> io::Result<()> {
        while let Some(first) = rest.first() {
            if let Piece::NextLog {
                number,
                first_change,
            } = *first
            {
                self.file.sync()?;
                self.file = begin(&self.journal, number, first_change)?;
                self.number = number;
                self.place = FILE_HEAD as u64;
                *rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|piece| matches!(piece, Piece::NextLog { .. }));
            let (now, later) = rest.split_at(end.unwrap_or(rest.len()));
            self.append(now)?;
            *rest = later;
        }
        if matches!(self.journal.durability, Durability::Disk { .. }) {
            self.file.sync()?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Appends records to the log.
    fn append(&mut self, pieces: &[Piece]) -> io::Result<()> {
        const ZEROS: [u8; 8] = [0; 8];
        let payloads: Vec<_> = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Chunk { chunk, .. } => chunk.payload().pin().map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_>>()
            .map_err(io::Error::other)?;
        let mut heads = Vec::with_capacity(pieces.len());
        let mut place = self.place;
        for (piece, payload) in pieces.iter().zip(&payloads) {
            let (kind, body): (u32, [&[u8]; 2]) = match piece {
                Piece::Record { kind, body } => (*kind, [body, &[]]),
                Piece::Chunk { head, .. } => {
                    let payload = payload.as_ref().map_or(&[][..], |payload| payload);
                    (kind::CHUNK, [head, payload])
                }
                Piece::NextLog { .. } => continue,
            };
            let len = body[0].len() + body[1].len();
            heads.push((record_head(self.number, place, kind, &body), body, len));
            place += record_bytes(len) as u64;
        }
        let mut bytes: Vec<&[u8]> = Vec::with_capacity(4 * heads.len());
        for (head, body, len) in &heads {
            bytes.extend([&head[..], body[0], body[1], &ZEROS[..padding(*len)]]);
        }
        self.file.append(&bytes)?;
        self.place = place;
        Ok(())
    }
}

fn begin(journal: &Journal, number: u64, first_change: u64) -> io::Result<Box<dyn Written>> {
    let head = FileHead {
        kind: Kind::Log,
        store: journal.store,
        number,
        first_change,
    };
    let mut file = journal.files.create(&log_name(number))?;
    file.append(&[&head.bytes()])?;
    file.sync()?;
    journal.files.sync_names()?;
    Ok(file)
}
