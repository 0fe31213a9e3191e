//! A log of chunks alone, which a checkpoint writes: of those that are in no log yet, and of those in logs that are to be given up.

use std::io;
use std::sync::Arc;

use engram_core::chunk::{Chunk, ChunkLocation};

use super::file_format::{FileHeader, Kind};
use super::file_names::{UNFINISHED, log_name};
use super::file_system::FileSystem;
use super::journal::Journal;
use super::log::Log;
use super::record_codec::{DictionaryWriter, WrittenDictionary, kind, put_chunk};
use super::record_writer::RecordWriter;

/// A log that is begun when the first chunk comes.
#[derive(Debug)]
pub(crate) struct ChunkLog<'a> {
    files: &'a dyn FileSystem,
    journal: &'a Journal,
    number: u64,
    /// CheckpointHeader whose chunks are to be moved.
    given_up: Vec<u64>,
    out: Option<Out>,
}

#[derive(Debug)]
struct Out {
    records: RecordWriter,
    told: WrittenDictionary,
    log: Arc<Log>,
    /// Where they were before, should this come to nothing.
    moved: Vec<(Arc<Chunk>, Option<ChunkLocation>)>,
}

impl DictionaryWriter for Out {
    fn told(&mut self) -> &mut WrittenDictionary {
        &mut self.told
    }

    fn record(&mut self, kind: u32, body: &[u8]) {
        let bytes = self.records.add(kind, body, &[]);
        self.log.add(bytes);
    }
}

impl<'a> ChunkLog<'a> {
    pub(crate) fn new(
        files: &'a dyn FileSystem,
        journal: &'a Journal,
        number: u64,
        given_up: Vec<u64>,
    ) -> Self {
        Self {
            files,
            journal,
            number,
            given_up,
            out: None,
        }
    }

    fn unfinished(&self) -> String {
        format!("{}{UNFINISHED}", log_name(self.number))
    }

    /// The serial of a chunk, which is written here if no log that stays has it.
    pub(crate) fn keep(&mut self, chunk: &Arc<Chunk>) -> io::Result<u64> {
        let serial = match chunk.location(self.journal.store) {
            Some((serial, log)) if !self.given_up.contains(&log) => return Ok(serial),
            Some((serial, _)) => serial,
            None => self.journal.take_serial(),
        };
        if self.out.is_none() {
            let store = self.journal.store;
            let head = FileHeader {
                kind: Kind::Log,
                store,
                number: self.number,
            };
            let file = self.files.create_large(&self.unfinished())?;
            self.out = Some(Out {
                records: RecordWriter::new(file, self.number, head.bytes().to_vec()),
                told: WrittenDictionary::default(),
                log: Log::new(store, self.number),
                moved: Vec::new(),
            });
        }
        if let Some(out) = &mut self.out {
            out.write(chunk, serial)?;
        }
        Ok(serial)
    }

    /// Makes all of it safe; returns its bytes, where there is one.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        let Some(out) = self.out.take() else {
            return Ok(0);
        };
        let unfinished = self.unfinished();
        let finished = out.records.finish().and_then(|bytes| {
            self.files.rename(&unfinished, &log_name(self.number))?;
            self.files.sync_directory()?;
            Ok(bytes)
        });
        match finished {
            Ok(bytes) => {
                self.journal.keep_log(out.log);
                Ok(bytes)
            }
            Err(error) => {
                undo(out.moved);
                let _ = self.files.remove(&unfinished);
                Err(error)
            }
        }
    }
}

impl Drop for ChunkLog<'_> {
    /// It came to nothing.
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            undo(out.moved);
            // What is left is removed by the next to open the directory, if not now.
            let _ = self.files.remove(&self.unfinished());
        }
    }
}

impl Out {
    fn write(&mut self, chunk: &Arc<Chunk>, serial: u64) -> io::Result<()> {
        let schema = self.schema(chunk.schema());
        let mut head = Vec::with_capacity(128);
        put_chunk(&mut head, chunk, serial, schema);
        let payload = chunk.payload().pin().map_err(io::Error::other)?;
        let bytes = self.records.add(kind::CHUNK, &head, &payload);
        self.records.check()?;
        self.log.add(bytes);
        let before = self.log.hold(chunk, serial, bytes);
        self.moved.push((Arc::clone(chunk), before));
        Ok(())
    }
}

fn undo(moved: Vec<(Arc<Chunk>, Option<ChunkLocation>)>) {
    for (chunk, before) in moved {
        drop(chunk.set_location(before));
    }
}
