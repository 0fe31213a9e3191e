//! The chunks of logs that are read back: those that are in use, and where the others are.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use engram_core::chunk::Chunk;

use super::byte_codec::{CorruptRecord, TakeBytes};
use super::chunk_checkers::{CheckedChunk, ChunkCheckers, UncheckedChunk};
use super::file_format::{Kind, record_bytes};
use super::file_names::log_name;
use super::log::Log;
use super::record_codec::{ReadDictionary, kind};
use super::record_reader::{EndOfRecords, RecordReader};
use super::recover::{DirectoryReader, RecoveryError, unreadable};
use super::serial_ranges::SerialRanges;

/// A chunk that no item of the checkpoint refers to: read when a change does.
pub(super) struct UnloadedChunk {
    log: u64,
    place: u64,
    bytes: usize,
    used: Weak<Chunk>,
}

/// A log whose chunks were looked at.
pub(super) struct LoadedLog {
    pub(super) log: Arc<Log>,
    /// All forms that it tells.
    known: ReadDictionary,
    /// It is whole, and has no changes.
    pub(super) is_chunks: bool,
}

/// What a log has.
#[derive(Default)]
struct LogChunks {
    chunks: HashMap<u64, Arc<Chunk>>,
    others: HashMap<u64, UnloadedChunk>,
}

impl DirectoryReader<'_> {
    /// ChunkCheckers the chunks of a log that are wanted, and notes where the others are.
    pub(super) fn load_chunks(
        &mut self,
        number: u64,
        wanted: &SerialRanges,
    ) -> Result<(), RecoveryError> {
        let mut checkers = std::mem::take(&mut self.checkers);
        let mut held = LogChunks::default();
        let mut outcome = self.load(number, wanted, Some(&mut checkers), &mut held);
        if let Ok(true) = outcome {
            self.checkers = checkers;
        } else {
            // All is looked at in order, up to what is torn; what was found behind that does not count.
            drop(checkers);
            held = LogChunks::default();
            outcome = self.load(number, wanted, None, &mut held);
        }
        self.chunks.extend(held.chunks);
        self.others.extend(held.others);
        outcome.map(|_| ())
    }

    /// With others who check large chunks: false where one of them is not what was written.
    fn load(
        &mut self,
        number: u64,
        wanted: &SerialRanges,
        mut checkers: Option<&mut ChunkCheckers>,
        held: &mut LogChunks,
    ) -> Result<bool, RecoveryError> {
        let name = log_name(number);
        let mut scan = self.open(&name, Kind::Log, number)?;
        let log = Log::new(scan.head.store, number);
        let mut known = ReadDictionary::default();
        let mut is_chunks = true;
        let keep = |chunks: &mut HashMap<_, _>, found: Vec<CheckedChunk>| {
            for (serial, bytes, chunk) in found {
                drop(log.hold(&chunk, serial, bytes));
                chunks.insert(serial, Arc::new(chunk));
            }
        };
        loop {
            if let Some(checkers) = &mut checkers
                && let Some(wanted) = large(&mut scan, &known, wanted)
            {
                self.out.next_serial = self.out.next_serial.max(wanted.serial.saturating_add(1));
                let bytes = wanted.record.bytes();
                log.add(bytes);
                self.advance(bytes);
                match checkers.give(wanted) {
                    Ok(found) => keep(&mut held.chunks, found),
                    Err(_) => return Ok(false),
                }
                continue;
            }
            let place = scan.place();
            let record = match scan.next() {
                Err(error) => return Err(unreadable(&name, &error)),
                // What is torn here is told when it is replayed, or missed if it was needed.
                Ok(Err(end)) => {
                    is_chunks &= end == EndOfRecords::EndOfFile;
                    break;
                }
                Ok(Ok(record)) => record,
            };
            let bytes = record_bytes(record.body.len()) as u64;
            log.add(bytes);
            self.advance(bytes);
            if record.kind != kind::CHUNK {
                is_chunks &= known.take(record.kind, record.body)?;
                continue;
            }
            let (serial, chunk) = known.chunk(record.body, |serial| wanted.contains(serial))?;
            self.out.next_serial = self.out.next_serial.max(serial.saturating_add(1));
            if let Some(chunk) = chunk {
                keep(&mut held.chunks, vec![(serial, bytes, chunk)]);
            } else {
                let other = UnloadedChunk {
                    log: number,
                    place,
                    bytes: record_bytes(record.body.len()),
                    used: Weak::new(),
                };
                held.others.insert(serial, other);
            }
        }
        match checkers.map_or(Ok(Vec::new()), ChunkCheckers::finish) {
            Ok(found) => keep(&mut held.chunks, found),
            Err(_) => return Ok(false),
        }
        let loaded = LoadedLog {
            log,
            known,
            is_chunks,
        };
        self.logs.insert(number, loaded);
        Ok(true)
    }

    /// A chunk that a change refers to.
    pub(super) fn chunk(&mut self, serial: u64) -> Result<Arc<Chunk>, CorruptRecord> {
        if let Some(chunk) = self.chunks.get(&serial) {
            return Ok(Arc::clone(chunk));
        }
        let missing = || CorruptRecord(format!("chunk {serial} is missing"));
        let other = self.others.get(&serial).ok_or_else(missing)?;
        if let Some(chunk) = other.used.upgrade() {
            return Ok(chunk);
        }
        let number = other.log;
        if self.at_hand.as_ref().is_none_or(|(log, _)| *log != number) {
            self.at_hand = None;
            let opened = self.open(&log_name(number), Kind::Log, number);
            let scan = opened.map_err(|trouble| {
                if let RecoveryError::Refused(why) = &trouble {
                    self.refused = Some(why.clone());
                }
                CorruptRecord::from(trouble)
            })?;
            self.at_hand = Some((number, scan));
        }
        let (_, scan) = self.at_hand.as_ref().ok_or_else(missing)?;
        let other = self.others.get_mut(&serial).ok_or_else(missing)?;
        let LoadedLog { log, known, .. } = self.logs.get(&number).ok_or_else(missing)?;
        let body = scan.body_at(other.place, other.bytes)?;
        let (_, chunk) = known.chunk(&body, |_| true)?;
        let chunk = Arc::new(chunk.ok_or_else(missing)?);
        drop(log.hold(&chunk, serial, other.bytes as u64));
        other.used = Arc::downgrade(&chunk);
        Ok(chunk)
    }
}

/// The next record of a log, if it is of a large chunk that is wanted: somebody else is to check it.
fn large(
    scan: &mut RecordReader,
    known: &ReadDictionary,
    wanted: &SerialRanges,
) -> Option<UncheckedChunk> {
    let record = scan.large_chunk().ok()??;
    let mut take = TakeBytes(record.body());
    let serial = take.u64().ok().filter(|serial| wanted.contains(*serial))?;
    let facts = known.chunk_header(&mut take).ok()?;
    let front = record.body().len() - take.0.len();
    scan.skip(&record);
    Some(UncheckedChunk {
        serial,
        facts,
        record,
        front,
    })
}
