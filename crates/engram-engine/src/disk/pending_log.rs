//! Log entries that are encoded in memory and not yet written.

use std::collections::BTreeSet;
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::{Lsn, TableOp, Trajectory};

use super::byte_codec::BodyWriter;
use super::change_codec::put_change;
use super::clock_reading::ClockReading;
use super::directory::WritableFile;
use super::file_format::record_bytes;
use super::kind;
use super::log::{Log, LogUsage};
use super::record_codec::{DictionaryWriter, WrittenDictionary, put_chunk};

/// A record of changes is closed once its body has at least this many bytes.
const CLOSE_RECORD_BYTES: usize = 64 << 10;

/// Bytes in front of the changes in a record's body: table, first change, number of changes.
const CHANGES_HEADER_BYTES: usize = 20;

/// The state with which a journal starts.
#[derive(Debug)]
pub(crate) struct JournalStart {
    pub(crate) store: u64,
    /// Number of the log to write.
    pub(crate) log: u64,
    /// Number that the next change gets.
    pub(crate) next_change: u64,
    /// Serial that the next chunk gets: its number in the store.
    pub(crate) next_serial: u64,
    /// Earlier logs that recovery has read.
    pub(crate) logs: Vec<Arc<Log>>,
    /// The store's clock and the system's when the log was created.
    pub(crate) clock: ClockReading,
}

/// The start of a log at which a checkpoint's replay begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogPosition {
    /// The log's number.
    pub(crate) log: u64,
    /// Number of the log's first change.
    pub(crate) first_change: u64,
    /// The store's clock and the system's when the log was started.
    pub(crate) clock: ClockReading,
    /// The previous log, and earlier logs that contain chunks in use.
    pub(crate) earlier_logs: Vec<LogUsage>,
}

/// Entries that the log writer has not taken yet, and the numbers of the next change and chunk.
#[derive(Debug)]
pub(super) struct PendingLog {
    store: u64,
    dictionary: WrittenDictionary,
    pub(super) entries: Vec<LogEntry>,
    /// Bytes of the entries and of the open record's changes.
    pub(super) bytes: usize,
    /// Number of all entries so far, including written ones.
    pub(super) entry_count: u64,
    /// The record to which the next changes are appended; it is not in `entries` yet.
    open_record: Option<OpenRecord>,
    /// Number that the next change gets.
    pub(super) next_change: u64,
    /// Serial that the next chunk gets: its number in the store.
    pub(super) next_serial: u64,
    /// The log that is being written.
    pub(super) log: Arc<Log>,
    /// All logs except `log` that may contain chunks in use, also chunk logs written since `log` was started:
    /// `switch_log` drops the others from this list, except the previous log.
    pub(super) earlier_logs: Vec<Arc<Log>>,
    /// Logs that were found missing since the store was opened: their chunks in use must be written again.
    pub(super) missing_logs: BTreeSet<u64>,
    /// True if a caller waits until its changes are durable, or until fewer bytes are pending. The log writer then
    /// collects no further changes before it writes. With [`Durability::Disk`](crate::Durability), it still waits
    /// until a sync is due.
    pub(super) urgent: bool,
    /// True if changes must be written at once, with every durability: also before a sync is due.
    pub(super) immediate: bool,
    /// True if the log writer must end.
    pub(super) stopped: bool,
}

/// A record of one table's changes that is not complete.
#[derive(Debug)]
struct OpenRecord {
    table: u64,
    /// Number of the record's first change.
    first_change: u64,
    /// Number of changes in the record.
    count: u32,
    /// Space of `CHANGES_HEADER_BYTES`, then the changes.
    body: Vec<u8>,
}

/// What the log writer writes or does next.
#[derive(Debug)]
pub(super) enum LogEntry {
    /// A record.
    Record { kind: u32, body: Vec<u8> },
    /// A chunk's record. The payload is written from the chunk's own memory, after `header`.
    Chunk { header: Vec<u8>, chunk: Arc<Chunk> },
    /// The following entries are written to this log.
    NextLog {
        number: u64,
        file: Box<dyn WritableFile>,
    },
}

impl DictionaryWriter for PendingLog {
    fn dictionary(&mut self) -> &mut WrittenDictionary {
        &mut self.dictionary
    }

    fn write_record(&mut self, kind: u32, body: &[u8]) {
        let bytes = record_bytes(body.len());
        let body = body.to_vec();
        self.push(LogEntry::Record { kind, body }, bytes);
    }
}

impl PendingLog {
    pub(super) fn new(start: JournalStart) -> Self {
        let mut pending = Self {
            store: start.store,
            dictionary: WrittenDictionary::default(),
            entries: Vec::new(),
            bytes: 0,
            entry_count: 0,
            open_record: None,
            next_change: start.next_change,
            next_serial: start.next_serial,
            log: Log::new(start.store, start.log),
            earlier_logs: start.logs,
            missing_logs: BTreeSet::new(),
            urgent: false,
            immediate: false,
            stopped: false,
        };
        pending.write_begin(start.clock);
        pending
    }

    /// Adds the log's `begin` record.
    fn write_begin(&mut self, clock: ClockReading) {
        let mut body = Vec::new();
        body.put_u64(self.next_change);
        body.put_u64(clock.store);
        body.put_u64(clock.system);
        self.write_record(kind::BEGIN, &body);
    }

    /// Adds an entry and counts its bytes.
    fn push(&mut self, entry: LogEntry, bytes: usize) {
        self.bytes += bytes;
        self.log.add_bytes(bytes as u64);
        self.push_uncounted(entry);
    }

    /// Adds an entry whose bytes are counted already.
    fn push_uncounted(&mut self, entry: LogEntry) {
        self.entries.push(entry);
        self.entry_count += 1;
    }

    /// Adds a chunk unless a log that is not missing contains it; returns the chunk's serial.
    fn add_chunk(&mut self, chunk: &Arc<Chunk>) -> u64 {
        let serial = match chunk.location(self.store) {
            Some((serial, log)) if !self.missing_logs.contains(&log) => return serial,
            Some((serial, _)) => serial,
            None => {
                self.next_serial += 1;
                self.next_serial - 1
            }
        };
        let schema = self.schema_number(chunk.schema());
        let mut header = Vec::with_capacity(128);
        put_chunk(&mut header, chunk, serial, schema);
        let bytes = record_bytes(header.len() + chunk.payload().len());
        // Dropping the chunk's previous location releases its bytes in a missing log.
        drop(self.log.add_chunk(chunk, serial, bytes as u64));
        let chunk = Arc::clone(chunk);
        self.push(LogEntry::Chunk { header, chunk }, bytes);
        serial
    }

    /// Completes the open record of changes.
    pub(super) fn close_record(&mut self) {
        let Some(OpenRecord {
            table,
            first_change,
            count,
            mut body,
        }) = self.open_record.take()
        else {
            return;
        };
        let mut header = Vec::with_capacity(CHANGES_HEADER_BYTES);
        header.put_u64(table);
        header.put_u64(first_change);
        header.put_u32(count);
        body[..CHANGES_HEADER_BYTES].copy_from_slice(&header);
        // `self.bytes` already includes the changes.
        self.log.add_bytes(record_bytes(body.len()) as u64);
        let kind = kind::CHANGES;
        self.push_uncounted(LogEntry::Record { kind, body });
    }

    /// Adds a table's change; returns its number.
    pub(super) fn add_change(&mut self, table: u64, op: &TableOp<'_>) -> Lsn {
        // The serial of the item's chunk, so that it is looked up only once; `None` if the item may have
        // several chunks.
        let mut only_serial = None;
        if let TableOp::Insert { item, .. } = op {
            match &item.trajectory {
                Trajectory::Rows { chunk, .. } | Trajectory::Window { chunk, .. } => {
                    only_serial = Some(self.add_chunk(chunk));
                }
                Trajectory::Spans(spans) => {
                    for chunk in &spans.chunks {
                        self.add_chunk(chunk);
                    }
                }
            }
        }
        let fits = |open: &OpenRecord| open.table == table && open.body.len() < CLOSE_RECORD_BYTES;
        if !self.open_record.as_ref().is_some_and(fits) {
            self.close_record();
        }
        let mut open = self.open_record.take().unwrap_or_else(|| {
            let mut body = Vec::with_capacity(CLOSE_RECORD_BYTES + 256);
            body.put(&[0; CHANGES_HEADER_BYTES]);
            OpenRecord {
                table,
                first_change: self.next_change,
                count: 0,
                body,
            }
        });
        let len_before = open.body.len();
        let store = self.store;
        let serial_of = |chunk: &Arc<Chunk>| match only_serial {
            Some(serial) => serial,
            None => chunk.location(store).map_or(0, |(serial, _)| serial),
        };
        put_change(&mut open.body, op, self, &serial_of);
        self.bytes += open.body.len() - len_before;
        open.count += 1;
        self.open_record = Some(open);
        self.new_lsn()
    }

    /// Returns the number of a new change.
    pub(super) fn new_lsn(&mut self) -> Lsn {
        let number = self.next_change;
        self.next_change += 1;
        Lsn(number)
    }

    /// Switches to a new log, whose file exists: the following entries are written to it. The open record must be
    /// closed before.
    pub(super) fn switch_log(
        &mut self,
        number: u64,
        file: Box<dyn WritableFile>,
        clock: ClockReading,
    ) -> LogPosition {
        self.dictionary = WrittenDictionary::default();
        let previous = std::mem::replace(&mut self.log, Log::new(self.store, number));
        // A chunk in use may be inserted again later, so its log is still required.
        self.earlier_logs.retain(|log| log.usage().used_bytes > 0);
        self.earlier_logs.push(previous);
        self.push(LogEntry::NextLog { number, file }, 0);
        self.write_begin(clock);
        LogPosition {
            log: number,
            first_change: self.next_change,
            clock,
            earlier_logs: self.earlier_logs.iter().map(|log| log.usage()).collect(),
        }
    }
}
