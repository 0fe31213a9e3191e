//! The thread that writes a journal's logs.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::directory::{FileId, WritableFile};
use super::file_format::{FILE_HEADER_BYTES, padding, record_bytes, record_header};
use super::file_names::log_name;
use super::journal::{
    CHANGES_ARE_KEPT, Durability, Journal, NOT_LOCKED, WRITE_NOW_BYTES, describe_sync_failure,
};
use super::kind;
use super::pending_log::LogEntry;

/// How long the writer waits for more changes to write together, unless a caller waits for it. Not used with
/// [`Durability::Disk`].
const BATCH_WAIT: Duration = Duration::from_millis(5);

/// How long the writer waits before it retries a failed write.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A write checks whether the current log is still in the directory if the last check was at least this long ago. It is
/// also checked when the next log begins.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// State of the thread that writes a journal's logs.
#[derive(Debug)]
pub(crate) struct LogWriter {
    journal: Arc<Journal>,
    /// The current log.
    file: Box<dyn WritableFile>,
    number: u64,
    /// `None` if the file cannot be identified.
    id: Option<FileId>,
    /// True if the current log was removed or replaced. Its entries are discarded: the next checkpoint contains
    /// their changes.
    is_missing: bool,
    /// When the writer last checked that the current log is in the directory; `None` before the first check.
    last_check: Option<Instant>,
    /// Size of the current log: the offset of the next record.
    offset: u64,
    /// When `sync` last succeeded.
    last_sync: Instant,
    /// True if the current log has bytes that are not synced.
    unsynced: bool,
}

/// The last log that a log writer has written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEnd {
    /// Number of the log.
    pub(crate) log: u64,
    /// Its size in bytes.
    pub(crate) bytes: u64,
}

/// Entries that are written together.
struct WriteBatch {
    entries: Vec<LogEntry>,
    /// Bytes of the entries, counted as in [`PendingLog`](super::pending_log::PendingLog).
    bytes: usize,
    /// Number of all entries that the journal has had so far, including these.
    entry_count: u64,
    /// Once the batch is written, changes below this number are durable.
    durable_below: u64,
    /// True if the journal was stopped: this is the last batch.
    stopped: bool,
}

enum WriteFailure {
    /// A write failed. The log has only complete records, and the write can be retried.
    Retryable(io::Error),
    /// Writing must end, for this reason.
    Permanent(String),
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        Self::Retryable(error)
    }
}

impl LogWriter {
    /// A writer that starts with this log, whose file has only a header.
    pub(crate) fn new(journal: &Arc<Journal>, number: u64, file: Box<dyn WritableFile>) -> Self {
        Self {
            journal: Arc::clone(journal),
            id: file.id().ok(),
            is_missing: false,
            last_check: None,
            file,
            number,
            offset: FILE_HEADER_BYTES as u64,
            last_sync: Instant::now(),
            unsynced: false,
        }
    }

    /// True if changes are synced before they are acknowledged.
    fn syncs_changes(&self) -> bool {
        matches!(self.journal.durability, Durability::Disk { .. })
    }

    /// Writes until the journal is stopped and the last attempt was made, or until a permanent failure. Returns where
    /// the log ends.
    pub(crate) fn run(mut self) -> LogEnd {
        loop {
            let mut batch = self.next_batch();
            let mut is_last_attempt = batch.stopped;
            let outcome = loop {
                match self.write(&mut batch.entries) {
                    Err(WriteFailure::Retryable(error)) if !is_last_attempt => {
                        let problem = format!("{error}{CHANGES_ARE_KEPT}");
                        self.journal
                            .update_status(0, |status| status.problem = Some(problem));
                        is_last_attempt = self.pause();
                    }
                    outcome => break outcome,
                }
            };
            let has_ended = batch.stopped || outcome.is_err();
            let written = if outcome.is_ok() { batch.bytes } else { 0 };
            self.journal.update_status(written, |status| {
                status.ended = has_ended;
                status.problem = match &outcome {
                    Ok(()) => None,
                    Err(WriteFailure::Retryable(error)) => Some(error.to_string()),
                    Err(WriteFailure::Permanent(problem)) => Some(problem.clone()),
                };
                if outcome.is_ok() {
                    status.durable_below = batch.durable_below;
                    status.written_entries = batch.entry_count;
                }
            });
            if has_ended {
                return LogEnd {
                    log: self.number,
                    bytes: self.offset,
                };
            }
        }
    }

    /// Waits before the next attempt. Returns true if the journal was stopped: then that attempt is the
    /// last one.
    fn pause(&self) -> bool {
        let until = Instant::now() + RETRY_INTERVAL;
        let mut pending = self.journal.pending.lock();
        while !pending.stopped {
            if self
                .journal
                .work
                .wait_until(&mut pending, until)
                .timed_out()
            {
                break;
            }
        }
        pending.stopped
    }

    /// Waits for entries to write, then for more: until the next sync is due, or for `BATCH_WAIT`. Does not wait for
    /// more if at least [`WRITE_NOW_BYTES`] are pending, if entries must be written at once, or if the journal was
    /// stopped. If changes are not synced, it does not wait for more if a caller waits either.
    fn next_batch(&self) -> WriteBatch {
        let mut pending = self.journal.pending.lock();
        while pending.bytes == 0 && !pending.stopped && !pending.immediate {
            pending.urgent = false;
            self.journal.work.wait(&mut pending);
        }
        let until = match self.journal.durability {
            Durability::Disk { interval } => self.last_sync + interval,
            _ => Instant::now() + BATCH_WAIT,
        };
        while !pending.stopped
            && !pending.immediate
            && pending.bytes < WRITE_NOW_BYTES
            && (self.syncs_changes() || !pending.urgent)
        {
            let wait_result = self.journal.work.wait_until(&mut pending, until);
            if wait_result.timed_out() {
                break;
            }
        }
        pending.close_record();
        pending.urgent = false;
        pending.immediate = false;
        WriteBatch {
            entries: std::mem::take(&mut pending.entries),
            bytes: std::mem::take(&mut pending.bytes),
            entry_count: pending.entry_count,
            durable_below: pending.next_change,
            stopped: pending.stopped,
        }
    }

    /// Writes entries, log by log, and removes the written ones from `entries`.
    fn write(&mut self, entries: &mut Vec<LogEntry>) -> Result<(), WriteFailure> {
        while !entries.is_empty() {
            let switches_log = |entry: &LogEntry| matches!(entry, LogEntry::NextLog { .. });
            let count = entries.iter().position(switches_log);
            let count = count.unwrap_or(entries.len());
            if count > 0 {
                // Before the write: another process may have opened the directory and continued the log.
                if (self.last_check).is_none_or(|checked| checked.elapsed() >= CHECK_INTERVAL) {
                    self.check_in_place()?;
                }
                if !self.is_missing {
                    self.append(&entries[..count])?;
                }
                entries.drain(..count);
                continue;
            }
            // This log must be durable before the entries of the next one.
            self.sync()?;
            self.check_in_place()?;
            if let LogEntry::NextLog { number, file } = entries.remove(0) {
                self.id = file.id().ok();
                self.is_missing = false;
                self.file = file;
                self.number = number;
                self.offset = FILE_HEADER_BYTES as u64;
                self.unsynced = false;
            }
        }
        self.sync()
    }

    /// Checks that the current log is still in the directory; if not, reports this to the journal. Fails if the
    /// directory is no longer locked.
    fn check_in_place(&mut self) -> Result<(), WriteFailure> {
        let files = &*self.journal.files;
        self.last_check = Some(Instant::now());
        // If the check cannot be made, it is repeated later.
        if let Ok(false) = files.check_lock() {
            return Err(WriteFailure::Permanent(NOT_LOCKED.into()));
        }
        let id = files.id(&log_name(self.number));
        let is_removed = matches!(&id, Err(error) if error.kind() == io::ErrorKind::NotFound);
        let is_replaced = id
            .ok()
            .zip(self.id)
            .is_some_and(|(id, own_id)| id != own_id);
        if is_removed || is_replaced {
            self.is_missing = true;
            self.journal.add_missing_logs(&[self.number]);
        }
        Ok(())
    }

    /// Syncs the log if the store's durability requires it. A failure is permanent: the system may have dropped
    /// the bytes that it could not write, and a later sync would succeed without them.
    fn sync(&mut self) -> Result<(), WriteFailure> {
        if self.unsynced && self.syncs_changes() {
            let synced = self.file.sync();
            synced.map_err(|error| WriteFailure::Permanent(describe_sync_failure(&error)))?;
            self.unsynced = false;
        }
        self.last_sync = Instant::now();
        Ok(())
    }

    /// Appends records to the log.
    fn append(&mut self, entries: &[LogEntry]) -> io::Result<()> {
        const ZEROS: [u8; 8] = [0; 8];
        // Header, pieces of the body, and length of the body of each record.
        let mut records = Vec::with_capacity(entries.len());
        let mut offset = self.offset;
        for entry in entries {
            let (kind, body): (u32, [&[u8]; 2]) = match entry {
                LogEntry::Record { kind, body } => (*kind, [body, &[]]),
                LogEntry::Chunk { header, chunk } => (kind::CHUNK, [header, chunk.payload()]),
                LogEntry::NextLog { .. } => continue,
            };
            let len = body[0].len() + body[1].len();
            records.push((record_header(self.number, offset, kind, &body), body, len));
            offset += record_bytes(len) as u64;
        }
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(4 * records.len());
        for (header, body, len) in &records {
            pieces.extend([&header[..], body[0], body[1], &ZEROS[..padding(*len)]]);
        }
        self.file.append(&pieces)?;
        self.unsynced = true;
        self.offset = offset;
        Ok(())
    }
}
