//! Writing a file of records from front to back.

use std::io;

use super::byte_codec::PutBytes;
use super::file_format::{FILE_HEADER_BYTES, padding, record_bytes, record_header};
use super::file_system::WritableFile;

/// Bytes that are written at once.
pub(crate) const AT_ONCE: usize = 1 << 20;

/// Bodies from this size on are written as they lie.
const LARGE: usize = 32 << 10;

/// A file whose head is written, or in the buffer. After a failure nothing more is.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    file: Box<dyn WritableFile>,
    number: u64,
    buffer: Vec<u8>,
    /// Of the file, the buffer included.
    bytes: u64,
    count: u64,
    outcome: io::Result<()>,
}

impl RecordWriter {
    /// Goes on behind a head of [`FILE_HEADER_BYTES`] bytes; `buffer` is what of it is not written.
    pub(crate) fn new(file: Box<dyn WritableFile>, number: u64, buffer: Vec<u8>) -> Self {
        Self {
            file,
            number,
            buffer,
            bytes: FILE_HEADER_BYTES as u64,
            count: 0,
            outcome: Ok(()),
        }
    }

    /// RecordWriter so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Adds a record whose body lies in two pieces; returns its bytes.
    pub(crate) fn add(&mut self, kind: u32, first: &[u8], rest: &[u8]) -> u64 {
        let body = [first, rest];
        let len = first.len() + rest.len();
        let bytes = record_bytes(len) as u64;
        if self.outcome.is_err() {
            return bytes;
        }
        let head = record_header(self.number, self.bytes, kind, &body);
        let zeros = &[0; 8][..padding(len)];
        if len >= LARGE {
            let all = [&self.buffer[..], &head, first, rest, zeros];
            self.outcome = self.file.append(&all);
            self.buffer.clear();
        } else {
            for piece in [&head[..], first, rest, zeros] {
                self.buffer.put(piece);
            }
            if self.buffer.len() >= AT_ONCE {
                self.outcome = self.flush();
            }
        }
        self.bytes += bytes;
        self.count += 1;
        bytes
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.append(&[&self.buffer])?;
        self.buffer.clear();
        Ok(())
    }

    /// What went wrong so far.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.outcome, Ok(()))
    }

    /// Makes all of it safe; returns the file's bytes.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.check()?;
        self.flush()?;
        self.file.sync()?;
        Ok(self.bytes)
    }
}
