//! What a log was told and has not been written yet.

use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::{Lsn, TableOp, Trajectory};

use super::byte_codec::PutBytes;
use super::change_codec::put_change;
use super::file_format::record_bytes;
use super::file_system::WritableFile;
use super::journal::{JournalStart, LogPosition};
use super::log::Log;
use super::record_codec::{DictionaryWriter, WrittenDictionary, kind, put_chunk};
use super::recover::ClockReading;

/// Bytes of one record of changes, about.
const RECORD: usize = 64 << 10;

/// Bytes of such a record before its changes.
const RECORD_START: usize = 20;

/// What was told and is not being written yet.
#[derive(Debug)]
pub(super) struct PendingLog {
    store: u64,
    told: WrittenDictionary,
    pub(super) pieces: Vec<LogEntry>,
    pub(super) bytes: usize,
    /// Pieces so far, those written included.
    pub(super) count: u64,
    /// The record of changes that grows.
    open: Option<OpenRecord>,
    pub(super) next_change: u64,
    pub(super) next_serial: u64,
    pub(super) log: Arc<Log>,
    /// The earlier ones.
    pub(super) logs: Vec<Arc<Log>>,
    /// Somebody waits.
    pub(super) urgent: bool,
    /// Somebody waits who cannot wait for others.
    pub(super) at_once: bool,
    pub(super) stopped: bool,
}

#[derive(Debug)]
struct OpenRecord {
    table: u64,
    first: u64,
    count: u32,
    body: Vec<u8>,
}

/// A record to be written, or the end of a file.
#[derive(Debug)]
pub(super) enum LogEntry {
    Record {
        kind: u32,
        body: Vec<u8>,
    },
    Chunk {
        head: Vec<u8>,
        chunk: Arc<Chunk>,
    },
    NextLog {
        number: u64,
        file: Box<dyn WritableFile>,
    },
}

impl DictionaryWriter for PendingLog {
    fn told(&mut self) -> &mut WrittenDictionary {
        &mut self.told
    }

    fn record(&mut self, kind: u32, body: &[u8]) {
        let bytes = record_bytes(body.len());
        let body = body.to_vec();
        self.push(LogEntry::Record { kind, body }, bytes);
    }
}

impl PendingLog {
    /// What is told first says where the log begins.
    pub(super) fn new(start: JournalStart) -> Self {
        let mut pending = Self {
            store: start.store,
            told: WrittenDictionary::default(),
            pieces: Vec::new(),
            bytes: 0,
            count: 0,
            open: None,
            next_change: start.next_change,
            next_serial: start.next_serial,
            log: Log::new(start.store, start.log),
            logs: start.logs,
            urgent: false,
            at_once: false,
            stopped: false,
        };
        pending.begin(start.moment);
        pending
    }

    fn begin(&mut self, moment: ClockReading) {
        let mut body = Vec::new();
        body.put_u64(self.next_change);
        body.put_u64(moment.clock);
        body.put_u64(moment.system);
        self.record(kind::BEGIN, &body);
    }

    fn push(&mut self, piece: LogEntry, bytes: usize) {
        self.bytes += bytes;
        self.log.add(bytes as u64);
        self.add(piece);
    }

    fn add(&mut self, piece: LogEntry) {
        self.pieces.push(piece);
        self.count += 1;
    }

    /// Tells a chunk that no log has; returns its serial.
    fn chunk(&mut self, chunk: &Arc<Chunk>) -> u64 {
        if let Some((serial, _)) = chunk.location(self.store) {
            return serial;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let schema = self.schema(chunk.schema());
        let mut head = Vec::with_capacity(128);
        put_chunk(&mut head, chunk, serial, schema);
        let bytes = record_bytes(head.len() + chunk.payload().len());
        drop(self.log.hold(chunk, serial, bytes as u64));
        let chunk = Arc::clone(chunk);
        self.push(LogEntry::Chunk { head, chunk }, bytes);
        serial
    }

    /// Ends the record of changes that grows.
    pub(super) fn close(&mut self) {
        let Some(OpenRecord {
            table,
            first,
            count,
            mut body,
        }) = self.open.take()
        else {
            return;
        };
        let mut start = Vec::with_capacity(RECORD_START);
        start.put_u64(table);
        start.put_u64(first);
        start.put_u32(count);
        body[..RECORD_START].copy_from_slice(&start);
        // Their bytes were counted as pending when they came.
        self.log.add(record_bytes(body.len()) as u64);
        let kind = kind::CHANGES;
        self.add(LogEntry::Record { kind, body });
    }

    pub(super) fn change(&mut self, table: u64, op: &TableOp<'_>) -> Lsn {
        // Its serial, so that nobody looks for it twice.
        let mut only = None;
        if let TableOp::Insert { item, .. } = op {
            match &item.trajectory {
                Trajectory::Rows { chunk, .. } | Trajectory::Window { chunk, .. } => {
                    only = Some(self.chunk(chunk));
                }
                Trajectory::Spans(spans) => {
                    for chunk in &spans.chunks {
                        self.chunk(chunk);
                    }
                }
            }
        }
        let fits = |open: &OpenRecord| open.table == table && open.body.len() < RECORD;
        if !self.open.as_ref().is_some_and(fits) {
            self.close();
        }
        let mut open = self.open.take().unwrap_or_else(|| {
            let mut body = Vec::with_capacity(RECORD + 256);
            body.put(&[0; RECORD_START]);
            OpenRecord {
                table,
                first: self.next_change,
                count: 0,
                body,
            }
        });
        let before = open.body.len();
        let store = self.store;
        let serial = |chunk: &Arc<Chunk>| match only {
            Some(serial) => serial,
            None => chunk.location(store).map_or(0, |(serial, _)| serial),
        };
        put_change(&mut open.body, op, self, &serial);
        self.bytes += open.body.len() - before;
        open.count += 1;
        self.open = Some(open);
        self.count_change()
    }

    pub(super) fn count_change(&mut self) -> Lsn {
        let number = self.next_change;
        self.next_change += 1;
        Lsn(number)
    }

    /// Lets what follows go to another log, whose file is begun.
    pub(super) fn next_log(
        &mut self,
        number: u64,
        file: Box<dyn WritableFile>,
        moment: ClockReading,
    ) -> LogPosition {
        self.close();
        self.told = WrittenDictionary::default();
        let before = std::mem::replace(&mut self.log, Log::new(self.store, number));
        // Whoever uses a chunk now may insert it later: what holds it is needed.
        self.logs.retain(|log| log.usage().used > 0);
        self.logs.push(before);
        self.push(LogEntry::NextLog { number, file }, 0);
        self.begin(moment);
        LogPosition {
            log: number,
            first_change: self.next_change,
            moment,
            needed: self.logs.iter().map(|log| log.usage()).collect(),
        }
    }
}
