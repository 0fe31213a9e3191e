//! Loading chunks from logs: those that the checkpoint's items refer to are loaded before the replay, each other one
//! when a replayed change refers to it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use engram_core::chunk::Chunk;

use super::byte_codec::{BodyReader, UnusableData};
use super::chunk_checkers::{CheckedChunk, ChunkCheckers, UncheckedChunk};
use super::directory_reader::{DirectoryReader, LoadedLog, UnloadedChunk};
use super::file_format::{FileKind, record_bytes};
use super::file_names::log_name;
use super::kind;
use super::log::Log;
use super::record_codec::ReadDictionary;
use super::record_reader::{EndOfRecords, RecordReader};
use super::recovery_error::{RecoveryError, read_error, unusable_record};
use super::serial_ranges::SerialRanges;

/// The chunks of one log, by serial.
#[derive(Default)]
struct LogChunks {
    loaded: HashMap<u64, Arc<Chunk>>,
    unloaded: HashMap<u64, UnloadedChunk>,
}

impl DirectoryReader<'_> {
    /// Loads the chunks of log `number` whose serials are in `serials`, and records where the others are.
    pub(super) fn load_chunks(
        &mut self,
        number: u64,
        serials: &SerialRanges,
    ) -> Result<(), RecoveryError> {
        let mut checkers = std::mem::take(&mut self.checkers);
        let mut chunks = LogChunks::default();
        let mut outcome = self.load_log(number, serials, Some(&mut checkers), &mut chunks);
        if let Ok(true) = outcome {
            self.checkers = checkers;
        } else {
            // A large chunk is invalid, or reading failed: read the log again without other threads, up to the first
            // invalid record.
            drop(checkers);
            chunks = LogChunks::default();
            outcome = self.load_log(number, serials, None, &mut chunks);
        }
        self.chunks.extend(chunks.loaded);
        self.unloaded_chunks.extend(chunks.unloaded);
        outcome.map(|_| ())
    }

    /// Reads a log and adds its chunks to `chunks`. With `checkers`, large chunks are checked in other threads: if one
    /// is invalid or cannot be checked, returns false and leaves `chunks` incomplete.
    fn load_log(
        &mut self,
        number: u64,
        serials: &SerialRanges,
        mut checkers: Option<&mut ChunkCheckers>,
        chunks: &mut LogChunks,
    ) -> Result<bool, RecoveryError> {
        let name = log_name(number);
        let mut file_reader = self.open(&name, FileKind::Log, number)?;
        let log = Log::new(file_reader.header.store, number);
        let mut dictionary = ReadDictionary::new(self.skip_payloads);
        let mut has_only_chunks = true;
        let add_loaded = |loaded: &mut HashMap<_, _>, checked: Vec<CheckedChunk>| {
            for (serial, bytes, chunk) in checked {
                drop(log.add_chunk(&chunk, serial, bytes));
                loaded.insert(serial, Arc::new(chunk));
            }
        };
        loop {
            if let Some(checkers) = &mut checkers
                && !self.skip_payloads
                && let Some(chunk) = take_large_chunk(&mut file_reader, &dictionary, serials)
            {
                self.out.next_serial = self.out.next_serial.max(chunk.serial.saturating_add(1));
                let bytes = chunk.record.bytes();
                log.add_bytes(bytes);
                self.advance(bytes);
                match checkers.submit(chunk) {
                    Ok(checked) => add_loaded(&mut chunks.loaded, checked),
                    Err(_) => return Ok(false),
                }
                continue;
            }
            let offset = file_reader.offset();
            let record = match file_reader.next() {
                Err(error) => return Err(read_error(&name, &error)),
                // The replay reports the invalid record. `read_from` reports missing chunks.
                Ok(Err(end)) => {
                    has_only_chunks &= end == EndOfRecords::EndOfFile;
                    break;
                }
                Ok(Ok(record)) => record,
            };
            let at_record = |reason| unusable_record(&name, offset, &reason);
            let bytes = record_bytes(record.body.len()) as u64;
            log.add_bytes(bytes);
            self.advance(bytes);
            if record.kind != kind::CHUNK {
                let added = dictionary.add_record(record.kind, record.body);
                has_only_chunks &= added.map_err(at_record)?;
                continue;
            }
            let is_needed = |serial| serials.contains(serial);
            let read = dictionary.read_chunk(record.body, is_needed);
            let (serial, chunk) = read.map_err(|error| error.map_reason(at_record))?;
            self.out.next_serial = self.out.next_serial.max(serial.saturating_add(1));
            if let Some(chunk) = chunk {
                add_loaded(&mut chunks.loaded, vec![(serial, bytes, chunk)]);
            } else {
                let unloaded = UnloadedChunk {
                    log: number,
                    offset,
                    bytes: record_bytes(record.body.len()),
                    loaded: Weak::new(),
                };
                chunks.unloaded.insert(serial, unloaded);
            }
        }
        match checkers.map_or(Ok(Vec::new()), ChunkCheckers::finish) {
            Ok(checked) => add_loaded(&mut chunks.loaded, checked),
            Err(_) => return Ok(false),
        }
        let loaded_log = LoadedLog {
            log,
            dictionary,
            has_only_chunks,
        };
        self.logs.insert(number, loaded_log);
        Ok(true)
    }

    /// Returns a chunk that a replayed change refers to; reads it if it is not loaded. Sets `unreadable_log` if the
    /// chunk's log cannot be read now.
    pub(super) fn chunk(&mut self, serial: u64) -> Result<Arc<Chunk>, UnusableData> {
        self.find_chunk(serial).map_err(|error| {
            if let RecoveryError::Unreadable(reason) = &error {
                self.unreadable_log = Some(reason.clone());
            }
            error.into()
        })
    }

    fn find_chunk(&mut self, serial: u64) -> Result<Arc<Chunk>, RecoveryError> {
        if let Some(chunk) = self.chunks.get(&serial) {
            return Ok(Arc::clone(chunk));
        }
        let missing = || UnusableData(format!("chunk {serial} is missing"));
        let unloaded = self.unloaded_chunks.get(&serial).ok_or_else(missing)?;
        if let Some(chunk) = unloaded.loaded.upgrade() {
            return Ok(chunk);
        }
        let number = unloaded.log;
        if self.open_log.as_ref().is_none_or(|(log, _)| *log != number) {
            self.open_log = None;
            let file_reader = self.open(&log_name(number), FileKind::Log, number)?;
            self.open_log = Some((number, file_reader));
        }
        let (_, file_reader) = self.open_log.as_ref().ok_or_else(missing)?;
        let unloaded = self.unloaded_chunks.get_mut(&serial).ok_or_else(missing)?;
        let LoadedLog {
            log, dictionary, ..
        } = self.logs.get(&number).ok_or_else(missing)?;
        let name = log_name(number);
        let body = file_reader.read_body_at(unloaded.offset, unloaded.bytes);
        let body = body.map_err(|error| read_error(&name, &error))?;
        let chunk = body
            .map_err(RecoveryError::from)
            .and_then(|body| dictionary.read_chunk(&body, |_| true));
        let (_, chunk) = chunk.map_err(|error| {
            error.map_reason(|reason| unusable_record(&name, unloaded.offset, &reason))
        })?;
        let chunk = Arc::new(chunk.ok_or_else(missing)?);
        drop(log.add_chunk(&chunk, serial, unloaded.bytes as u64));
        unloaded.loaded = Arc::downgrade(&chunk);
        Ok(chunk)
    }
}

/// If the next record is that of a large chunk in `serials`, returns it, without checking its body, and advances
/// past it. Also returns `None` if reading fails: [`RecordReader::next`] then reports the error.
fn take_large_chunk(
    file_reader: &mut RecordReader,
    dictionary: &ReadDictionary,
    serials: &SerialRanges,
) -> Option<UncheckedChunk> {
    let record = file_reader.peek_large_chunk().ok()??;
    let mut reader = BodyReader(record.body());
    let serial = reader
        .u64()
        .ok()
        .filter(|serial| serials.contains(*serial))?;
    let header = dictionary.read_chunk_header(&mut reader).ok()?;
    let payload_start = record.body().len() - reader.0.len();
    file_reader.skip(&record);
    Some(UncheckedChunk {
        serial,
        header,
        record,
        payload_start,
    })
}
