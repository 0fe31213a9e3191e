//! Writing a file of records sequentially.

use std::io;
use std::sync::Arc;

use engram_core::Schema;
use engram_core::chunk::Chunk;

use super::byte_codec::BodyWriter;
use super::directory::WritableFile;
use super::file_format::{FILE_HEADER_BYTES, FileHeader, padding, record_bytes, record_header};
use super::kind;
use super::record_codec::{DictionaryWriter, WrittenDictionary, put_chunk};

/// Size at which the buffer is written.
pub(crate) const WRITE_BYTES: usize = 1 << 20;

/// Bodies of at least this size are written without copying them to the buffer.
const LARGE_BODY_BYTES: usize = 32 << 10;

/// Writes a file's records, and the definitions that they refer to. It must not be used after an error.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    file: Box<dyn WritableFile>,
    pub(crate) header: FileHeader,
    dictionary: WrittenDictionary,
    buffer: Vec<u8>,
    /// Size of the file, including the bytes in `buffer`.
    bytes: u64,
    /// Number of records added.
    count: u64,
    /// The first error since the last `check`.
    outcome: io::Result<()>,
}

impl DictionaryWriter for RecordWriter {
    fn dictionary(&mut self) -> &mut WrittenDictionary {
        &mut self.dictionary
    }

    fn write_record(&mut self, kind: u32, body: &[u8]) {
        self.add(kind, &[body]);
    }
}

impl RecordWriter {
    /// Starts an empty file, with a file header that is written together with the first records.
    pub(crate) fn new(file: Box<dyn WritableFile>, header: FileHeader) -> Self {
        Self {
            file,
            header,
            dictionary: WrittenDictionary::default(),
            buffer: header.bytes().to_vec(),
            bytes: FILE_HEADER_BYTES as u64,
            count: 0,
            outcome: Ok(()),
        }
    }

    /// Number of records added so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Adds a record whose body is given in pieces; returns the record's size in bytes. The next `check` or `finish`
    /// returns the error if it cannot be written.
    pub(crate) fn add(&mut self, kind: u32, body: &[&[u8]]) -> u64 {
        let len = body.iter().map(|piece| piece.len()).sum();
        let bytes = record_bytes(len) as u64;
        if self.outcome.is_err() {
            return bytes;
        }
        let header = record_header(self.header.number, self.bytes, kind, body);
        let zeros = &[0; 8][..padding(len)];
        if len >= LARGE_BODY_BYTES {
            let pieces = [&[&self.buffer[..], &header], body, &[zeros]].concat();
            self.outcome = self.file.append(&pieces);
            self.buffer.clear();
        } else {
            for piece in [&[&header[..]], body, &[zeros]].concat() {
                self.buffer.put(piece);
            }
            if self.buffer.len() >= WRITE_BYTES {
                self.outcome = self.flush();
            }
        }
        self.bytes += bytes;
        self.count += 1;
        bytes
    }

    /// Adds a chunk's record, with this schema and payload; returns the record's size in bytes, or the first error since
    /// the last `check`.
    pub(crate) fn add_chunk(
        &mut self,
        chunk: &Chunk,
        schema: &Arc<Schema>,
        payload: &[u8],
        serial: u64,
    ) -> io::Result<u64> {
        let schema = self.schema_number(schema);
        let mut header = Vec::with_capacity(128);
        put_chunk(&mut header, chunk, serial, schema);
        let bytes = self.add(kind::CHUNK, &[&header, payload]);
        self.check().map(|()| bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.append(&[&self.buffer])?;
        self.buffer.clear();
        Ok(())
    }

    /// Returns the first error since the last call.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.outcome, Ok(()))
    }

    /// Writes and syncs everything; returns the file's size.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.check()?;
        self.flush()?;
        self.file.sync()?;
        Ok(self.bytes)
    }
}
