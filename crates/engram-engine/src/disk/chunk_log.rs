//! A log that contains chunks but no changes. A checkpoint writes one, with:
//!
//! * chunks that are in no log yet;
//! * copies of the chunks in use of sparse logs (less than half of their bytes in use), which can then be removed;
//! * copies of the chunks in use of missing logs (their files were removed or replaced).

use std::io;
use std::sync::Arc;

use engram_core::chunk::{Chunk, ChunkLocation};

use super::directory::Directory;
use super::file_format::{FILE_HEADER_BYTES, FileHeader, FileKind};
use super::file_names::{UNFINISHED_SUFFIX, log_name};
use super::journal::Journal;
use super::log::Log;
use super::record_writer::RecordWriter;

/// A chunk log that is being written. Its file is created when the first chunk is written.
#[derive(Debug)]
pub(crate) struct ChunkLog<'a> {
    files: &'a dyn Directory,
    journal: &'a Journal,
    number: u64,
    /// Sparse and missing logs: their chunks in use are copied to this log.
    logs_to_copy: Vec<u64>,
    /// `None` before the first chunk.
    open: Option<OpenChunkLog>,
}

#[derive(Debug)]
struct OpenChunkLog {
    records: RecordWriter,
    log: Arc<Log>,
    /// Chunks written here, with their previous locations (`None`: in no log), which are restored after an error.
    written: Vec<(Arc<Chunk>, Option<ChunkLocation>)>,
}

impl<'a> ChunkLog<'a> {
    pub(crate) fn new(
        files: &'a dyn Directory,
        journal: &'a Journal,
        number: u64,
        logs_to_copy: Vec<u64>,
    ) -> Self {
        Self {
            files,
            journal,
            number,
            logs_to_copy,
            open: None,
        }
    }

    fn unfinished_name(&self) -> String {
        format!("{}{UNFINISHED_SUFFIX}", log_name(self.number))
    }

    /// Writes a chunk, unless a log that is neither sparse nor missing contains it; returns the chunk's serial.
    pub(crate) fn ensure_stored(&mut self, chunk: &Arc<Chunk>) -> io::Result<u64> {
        let serial = match chunk.location(self.journal.store) {
            Some((serial, log)) if !self.logs_to_copy.contains(&log) => return Ok(serial),
            Some((serial, _)) => serial,
            None => self.journal.new_serial(),
        };
        if self.open.is_none() {
            let store = self.journal.store;
            let header = FileHeader {
                kind: FileKind::Log,
                store,
                number: self.number,
            };
            let file = self.files.create_large(&self.unfinished_name())?;
            self.open = Some(OpenChunkLog {
                records: RecordWriter::new(file, header),
                log: Log::new(store, self.number),
                written: Vec::new(),
            });
        }
        if let Some(open) = &mut self.open {
            open.write(chunk, serial)?;
        }
        Ok(serial)
    }

    /// Makes the log durable, renames it to its final name and adds it to the journal's logs; returns its
    /// size in bytes, or 0 if no chunk was written.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        let Some(open) = self.open.take() else {
            return Ok(0);
        };
        let unfinished = self.unfinished_name();
        let finished = open.records.finish().and_then(|bytes| {
            self.files.rename(&unfinished, &log_name(self.number))?;
            self.files.sync_directory()?;
            Ok(bytes)
        });
        match finished {
            Ok(bytes) => {
                open.log.add_bytes(bytes - FILE_HEADER_BYTES as u64);
                self.journal.add_log(open.log);
                Ok(bytes)
            }
            Err(error) => {
                restore_locations(open.written);
                let _ = self.files.remove(&unfinished);
                Err(error)
            }
        }
    }
}

impl Drop for ChunkLog<'_> {
    /// Discards an unfinished log.
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            restore_locations(open.written);
            // If this fails, the file is removed when the directory is opened next.
            let _ = self.files.remove(&self.unfinished_name());
        }
    }
}

impl OpenChunkLog {
    fn write(&mut self, chunk: &Arc<Chunk>, serial: u64) -> io::Result<()> {
        let (schema, payload) = (chunk.schema(), chunk.payload());
        let bytes = self.records.add_chunk(chunk, schema, payload, serial)?;
        let previous = self.log.add_chunk(chunk, serial, bytes);
        self.written.push((Arc::clone(chunk), previous));
        Ok(())
    }
}

fn restore_locations(written: Vec<(Arc<Chunk>, Option<ChunkLocation>)>) {
    for (chunk, previous) in written {
        drop(chunk.set_location(previous));
    }
}
