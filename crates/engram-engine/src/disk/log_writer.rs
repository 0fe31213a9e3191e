//! The thread that writes a journal's logs.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::Result;

use super::file_format::{FILE_HEADER_BYTES, padding, record_bytes, record_header};
use super::file_system::WritableFile;
use super::journal::{Durability, Journal, PLENTY, lost};
use super::pending_log::LogEntry;
use super::record_codec::kind;

/// Changes wait this long for others to be written with, unless somebody waits for them.
const GATHER: Duration = Duration::from_millis(5);

/// How long to wait before what failed is written again.
const AGAIN: Duration = Duration::from_millis(500);

/// The thread's part of a journal.
#[derive(Debug)]
pub(crate) struct LogWriter {
    journal: Arc<Journal>,
    file: Box<dyn WritableFile>,
    number: u64,
    place: u64,
    synced: Instant,
    /// Bytes were written since.
    unsynced: bool,
}

/// What is written together.
struct WriteBatch {
    pieces: Vec<LogEntry>,
    bytes: usize,
    /// Pieces so far, these included.
    count: u64,
    /// Changes below this one are in it, or were before.
    up_to: u64,
    stopped: bool,
}

/// Why something was not written.
enum WriteFailure {
    /// It may be later.
    Retryable(io::Error),
    /// What the system said it has may be gone: only what can be read back may be believed.
    Permanent(io::Error),
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        Self::Retryable(error)
    }
}

impl LogWriter {
    /// Writes to a log that is begun.
    pub(crate) fn new(journal: &Arc<Journal>, number: u64, file: Box<dyn WritableFile>) -> Self {
        Self {
            journal: Arc::clone(journal),
            file,
            number,
            place: FILE_HEADER_BYTES as u64,
            synced: Instant::now(),
            unsynced: false,
        }
    }

    fn is_synced(&self) -> bool {
        matches!(self.journal.durability, Durability::Disk { .. })
    }

    /// Writes until the journal is stopped and all that was told is written, or until a sync fails.
    pub(crate) fn run(mut self) {
        loop {
            let mut batch = self.gather();
            let mut stopped = batch.stopped;
            let outcome = loop {
                match self.write(&mut batch.pieces) {
                    Err(WriteFailure::Retryable(error)) if !stopped => {
                        let problem = format!(
                            "{error}; they are in memory, and written as soon as that is possible"
                        );
                        self.journal.say(0, |safe| safe.problem = Some(problem));
                        stopped = self.pause();
                    }
                    outcome => break outcome,
                }
            };
            let is_last = batch.stopped || outcome.is_err();
            let written = if outcome.is_ok() { batch.bytes } else { 0 };
            self.journal.say(written, |safe| {
                safe.ended = is_last;
                safe.problem = match &outcome {
                    Ok(()) => None,
                    Err(WriteFailure::Retryable(error)) => Some(error.to_string()),
                    Err(WriteFailure::Permanent(error)) => Some(lost(error)),
                };
                if outcome.is_ok() {
                    safe.up_to = batch.up_to;
                    safe.written = batch.count;
                }
            });
            if is_last {
                return;
            }
        }
    }

    /// Waits before another attempt; whether it is the last.
    fn pause(&self) -> bool {
        let until = Instant::now() + AGAIN;
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

    /// Waits for something to write, and somewhat longer for more.
    fn gather(&self) -> WriteBatch {
        let mut pending = self.journal.pending.lock();
        while pending.bytes == 0 && !pending.stopped && !pending.at_once {
            pending.urgent = false;
            self.journal.work.wait(&mut pending);
        }
        let until = match self.journal.durability {
            Durability::Disk { interval } => self.synced + interval,
            _ => Instant::now() + GATHER,
        };
        while !pending.stopped
            && !pending.at_once
            && pending.bytes < PLENTY
            && (self.is_synced() || !pending.urgent)
        {
            let wait = self.journal.work.wait_until(&mut pending, until);
            if wait.timed_out() {
                break;
            }
        }
        pending.close();
        pending.urgent = false;
        pending.at_once = false;
        WriteBatch {
            pieces: std::mem::take(&mut pending.pieces),
            bytes: std::mem::take(&mut pending.bytes),
            count: pending.count,
            up_to: pending.next_change,
            stopped: pending.stopped,
        }
    }

    /// Writes pieces, file after file; what is left in `pieces` is not written.
    fn write(&mut self, pieces: &mut Vec<LogEntry>) -> Result<(), WriteFailure> {
        while !pieces.is_empty() {
            let is_end = |piece: &LogEntry| matches!(piece, LogEntry::NextLog { .. });
            let end = pieces.iter().position(is_end).unwrap_or(pieces.len());
            if end > 0 {
                self.append(&pieces[..end])?;
                pieces.drain(..end);
                continue;
            }
            // What follows in another file is not to be safe before this is.
            self.sync()?;
            if let LogEntry::NextLog { number, file } = pieces.remove(0) {
                self.file = file;
                self.number = number;
                self.place = FILE_HEADER_BYTES as u64;
                self.unsynced = false;
            }
        }
        self.sync()
    }

    /// Where that is what changes wait for. Once it has failed, the system may have dropped what it could not
    /// write, and say no more of it.
    fn sync(&mut self) -> Result<(), WriteFailure> {
        if self.unsynced && self.is_synced() {
            self.file.sync().map_err(WriteFailure::Permanent)?;
            self.unsynced = false;
        }
        self.synced = Instant::now();
        Ok(())
    }

    /// Appends records to the log.
    fn append(&mut self, pieces: &[LogEntry]) -> io::Result<()> {
        const ZEROS: [u8; 8] = [0; 8];
        let payloads: Vec<_> = pieces
            .iter()
            .map(|piece| match piece {
                LogEntry::Chunk { chunk, .. } => chunk.payload().pin().map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_>>()
            .map_err(io::Error::other)?;
        let mut heads = Vec::with_capacity(pieces.len());
        let mut place = self.place;
        for (piece, payload) in pieces.iter().zip(&payloads) {
            let (kind, body): (u32, [&[u8]; 2]) = match piece {
                LogEntry::Record { kind, body } => (*kind, [body, &[]]),
                LogEntry::Chunk { head, .. } => {
                    let payload = payload.as_ref().map_or(&[][..], |payload| payload);
                    (kind::CHUNK, [head, payload])
                }
                LogEntry::NextLog { .. } => continue,
            };
            let len = body[0].len() + body[1].len();
            heads.push((record_header(self.number, place, kind, &body), body, len));
            place += record_bytes(len) as u64;
        }
        let mut bytes: Vec<&[u8]> = Vec::with_capacity(4 * heads.len());
        for (head, body, len) in &heads {
            bytes.extend([&head[..], body[0], body[1], &ZEROS[..padding(*len)]]);
        }
        self.file.append(&bytes)?;
        self.unsynced = true;
        self.place = place;
        Ok(())
    }
}
