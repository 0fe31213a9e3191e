//! The thread that writes a journal's logs.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use engram_core::Result;

use super::file::{FILE_HEAD, FileHead, Kind, padding, record_bytes, record_head};
use super::files::Written;
use super::journal::{Durability, Journal, PLENTY, Piece, Safe};
use super::names::{UNFINISHED, log_name};
use super::things::kind;

/// Changes wait this long for others to be written with, unless somebody waits for them.
const GATHER: Duration = Duration::from_millis(5);

/// How long to wait before what failed is written again.
const AGAIN: Duration = Duration::from_millis(500);

/// The thread's part of a journal.
#[derive(Debug)]
pub(crate) struct LogWriter {
    journal: Arc<Journal>,
    file: Box<dyn Written>,
    number: u64,
    place: u64,
    synced: Instant,
    /// Bytes were written since.
    unsynced: bool,
}

/// What is written together.
struct Batch {
    pieces: Vec<Piece>,
    /// Pieces so far, these included.
    count: u64,
    /// Changes below this one are in it, or were before.
    up_to: u64,
    sync: bool,
    stopped: bool,
}

/// Why something was not written.
enum Failure {
    /// It may be later.
    Now(io::Error),
    /// What the system said it has may be gone: only what can be read back may be believed.
    ForGood(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Now(error)
    }
}

impl LogWriter {
    /// Begins the first log.
    pub(crate) fn new(journal: &Arc<Journal>, number: u64, first_change: u64) -> io::Result<Self> {
        Ok(Self {
            journal: Arc::clone(journal),
            file: begin(journal, number, first_change)?,
            number,
            place: FILE_HEAD as u64,
            synced: Instant::now(),
            unsynced: false,
        })
    }

    /// Writes until the journal is stopped and all that was told is written, or until a sync fails.
    pub(crate) fn run(mut self) {
        loop {
            let batch = self.gather();
            let mut rest = batch.pieces.as_slice();
            let mut stopped = batch.stopped;
            let outcome = loop {
                match self.write(&mut rest, batch.sync) {
                    Err(Failure::Now(error)) if !stopped => {
                        let problem = format!(
                            "{error}; they are in memory, and written as soon as that is possible"
                        );
                        self.say(|safe| safe.problem = Some(problem));
                        stopped = self.pause();
                    }
                    outcome => break outcome,
                }
            };
            let is_last = batch.stopped || outcome.is_err();
            self.say(|safe| {
                safe.ended = is_last;
                safe.problem = match &outcome {
                    Ok(()) => None,
                    Err(Failure::Now(error)) => Some(error.to_string()),
                    Err(Failure::ForGood(error)) => Some(format!(
                        "{error}; what was written before may be lost, too: open the store again"
                    )),
                };
                if outcome.is_ok() {
                    safe.up_to = batch.up_to;
                    if !self.unsynced {
                        safe.synced = batch.count;
                    }
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
            if self.journal.work.wait_until(&mut pending, until).timed_out() {
                break;
            }
        }
        pending.stopped
    }

    fn say(&self, change: impl FnOnce(&mut Safe)) {
        let mut safe = self.journal.safe.lock();
        change(&mut safe);
        let wakers = std::mem::take(&mut safe.wakers);
        drop(safe);
        self.journal.written.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for something to write, and somewhat longer for more.
    fn gather(&self) -> Batch {
        let mut pending = self.journal.pending.lock();
        while pending.bytes == 0 && !pending.stopped && !pending.sync {
            pending.urgent = false;
            self.journal.work.wait(&mut pending);
        }
        let until = match self.journal.durability {
            Durability::Disk { interval } => self.synced + interval,
            _ => Instant::now() + GATHER,
        };
        let group = matches!(self.journal.durability, Durability::Disk { .. });
        while !pending.stopped
            && !pending.sync
            && pending.bytes < PLENTY
            && (group || !pending.urgent)
        {
            let wait = self.journal.work.wait_until(&mut pending, until);
            if wait.timed_out() {
                break;
            }
        }
        pending.close();
        pending.bytes = 0;
        pending.urgent = false;
        Batch {
            pieces: std::mem::take(&mut pending.pieces),
            count: pending.count,
            up_to: pending.next_change,
            sync: std::mem::take(&mut pending.sync),
            stopped: pending.stopped,
        }
    }

    /// Writes pieces, file after file; `rest` is what is not written yet.
    fn write(&mut self, rest: &mut &[Piece], sync: bool) -> Result<(), Failure> {
        while let Some(first) = rest.first() {
            if let Piece::NextLog {
                number,
                first_change,
            } = *first
            {
                self.sync()?;
                self.file = begin(&self.journal, number, first_change)?;
                self.number = number;
                self.place = FILE_HEAD as u64;
                *rest = &rest[1..];
                continue;
            }
            let is_end = |piece: &Piece| matches!(piece, Piece::NextLog { .. });
            let end = rest.iter().position(is_end).unwrap_or(rest.len());
            let (now, later) = rest.split_at(end);
            self.append(now)?;
            *rest = later;
        }
        if sync || matches!(self.journal.durability, Durability::Disk { .. }) {
            self.sync()?;
        }
        Ok(())
    }

    /// Once this has failed, the system may have dropped what it could not write, and say no more of it.
    fn sync(&mut self) -> Result<(), Failure> {
        if self.unsynced {
            self.file.sync().map_err(Failure::ForGood)?;
            self.unsynced = false;
        }
        self.synced = Instant::now();
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
        self.unsynced = true;
        self.place = place;
        Ok(())
    }
}

/// Begins a log: where there is one of that name, its head is whole.
fn begin(journal: &Journal, number: u64, first_change: u64) -> io::Result<Box<dyn Written>> {
    let head = FileHead {
        kind: Kind::Log,
        store: journal.store,
        number,
        first_change,
    };
    let name = log_name(number);
    let unfinished = format!("{name}{UNFINISHED}");
    let mut file = journal.files.create(&unfinished)?;
    file.append(&[&head.bytes()])?;
    file.sync()?;
    journal.files.rename(&unfinished, &name)?;
    journal.files.sync_names()?;
    Ok(file)
}
