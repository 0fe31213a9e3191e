//! Reading a file's records sequentially.

use std::io;
use std::sync::Arc;

use engram_core::text::count;

use super::byte_codec::UnusableData;
use super::directory::ReadableFile;
use super::file_format::{
    FILE_HEADER_BYTES, FileHeader, HeaderError, RECORD_HEADER_BYTES, RecordHeader, record_bytes,
};
use super::kind;
use super::read_ahead::{BLOCK_BYTES, ReadAhead, ReadBlock};

/// Records begin at multiples of this.
const ALIGNMENT: u64 = 8;

/// Chunk records with bodies of at least this size are large: if the checkpoint's items refer to such a chunk, another
/// thread checks it.
const LARGE_CHUNK_BYTES: usize = 16 << 10;

/// Minimum size of a file's first read. It is small because often only the first record is needed.
const FIRST_READ_BYTES: usize = 4 << 10;

/// Maximum number of bytes searched for valid records after an invalid one.
const MAX_SEARCHED_BYTES: u64 = 64 << 20;

/// Reads a file's records in order, up to the first invalid one.
#[derive(Debug)]
pub(crate) struct RecordReader {
    file: Arc<dyn ReadableFile>,
    pub(crate) header: FileHeader,
    /// Offset of the next record.
    offset: u64,
    /// Size of the file.
    len: u64,
    /// The part of the file that was read last.
    block: Arc<ReadBlock>,
    /// Offset of the block in the file. Without a block: 0 before the first read, the file's size after it.
    block_offset: u64,
    /// The thread that reads ahead; `None` while none runs.
    ahead: Option<ReadAhead>,
}

/// The record of a large chunk, whose body's checksum is not checked yet.
#[derive(Debug)]
pub(super) struct UncheckedRecord {
    header: RecordHeader,
    block: Arc<ReadBlock>,
    /// Position of the body in the block.
    body_start: usize,
}

impl UncheckedRecord {
    pub(super) fn body(&self) -> &[u8] {
        &self.block.content()[self.body_start..self.body_start + self.header.len]
    }

    /// Bytes of memory of the block that this record keeps alive; 0 if `previous` keeps the same block
    /// alive.
    pub(super) fn block_memory(&self, previous: Option<&Self>) -> usize {
        match previous {
            Some(previous) if Arc::ptr_eq(&self.block, &previous.block) => 0,
            _ => self.block.memory(),
        }
    }

    /// True if the body's checksum is right.
    pub(super) fn is_valid(&self) -> bool {
        self.header.matches(&[self.body()])
    }

    /// Size of the whole record.
    pub(super) fn bytes(&self) -> u64 {
        record_bytes(self.header.len) as u64
    }
}

/// Why a reader returns no more records.
#[derive(Debug, PartialEq)]
pub(crate) enum EndOfRecords {
    /// The whole file was read.
    EndOfFile,
    /// The record at `offset` is invalid.
    Invalid { offset: u64, reason: String },
}

/// A record whose checksums are right.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: u32,
    pub(crate) body: &'a [u8],
}

impl RecordReader {
    /// Reads the file's header. The outer error means that the file cannot be read, the inner one that the header
    /// cannot be used.
    pub(crate) fn new(file: Box<dyn ReadableFile>) -> io::Result<Result<Self, HeaderError>> {
        let len = file.len()?;
        if len < FILE_HEADER_BYTES as u64 {
            let reason = format!(
                "it has {}, fewer than a file header ({FILE_HEADER_BYTES} bytes)",
                count(len, "byte")
            );
            return Ok(Err(UnusableData(reason).into()));
        }
        let mut header = [0; FILE_HEADER_BYTES];
        file.read_at(&mut header, 0)?;
        Ok(FileHeader::read(&header).map(|header| Self::after_header(file, header, len)))
    }

    /// Starts after the file header. `header` is what it contains, or should contain if it is damaged; `len` is the
    /// file's size.
    pub(crate) fn after_header(file: Box<dyn ReadableFile>, header: FileHeader, len: u64) -> Self {
        Self {
            file: file.into(),
            header,
            offset: FILE_HEADER_BYTES as u64,
            len,
            block: Arc::default(),
            block_offset: 0,
            ahead: None,
        }
    }

    /// Returns the next record, without checking its body's checksum, if it is that of a large chunk. Returns `None`
    /// for other records, for an invalid record header, and at the end of the file. Does not advance:
    /// [`RecordReader::skip`] does.
    pub(super) fn peek_large_chunk(&mut self) -> io::Result<Option<UncheckedRecord>> {
        if self.offset + RECORD_HEADER_BYTES as u64 > self.len {
            return Ok(None);
        }
        let Ok(header) = self.record_header()? else {
            return Ok(None);
        };
        if header.kind != kind::CHUNK || header.len < self.min_large_chunk_bytes() {
            return Ok(None);
        }
        let body_start = self.load(record_bytes(header.len))? + RECORD_HEADER_BYTES;
        let block = Arc::clone(&self.block);
        Ok(Some(UncheckedRecord {
            header,
            block,
            body_start,
        }))
    }

    /// Minimum body size of a large chunk. Unit tests have only small chunks: there, all chunks in every eighth
    /// file count as large.
    fn min_large_chunk_bytes(&self) -> usize {
        if cfg!(test) && self.header.number % 8 == 7 {
            0
        } else {
            LARGE_CHUNK_BYTES
        }
    }

    /// Advances past a record that [`RecordReader::peek_large_chunk`] returned.
    pub(super) fn skip(&mut self, record: &UncheckedRecord) {
        self.offset += record.bytes();
    }

    /// Offset of the next record, or of the first invalid one.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Checks and returns the next record, or why there is none. The outer error means that the file cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Result<Record<'_>, EndOfRecords>> {
        let (kind, start, len) = match self.check_next()? {
            Ok(record) => record,
            Err(end) => {
                self.stop();
                return Ok(Err(end));
            }
        };
        self.offset += record_bytes(len) as u64;
        let body = &self.block.content()[start..start + len];
        Ok(Ok(Record { kind, body }))
    }

    /// Checks the next record; returns its kind, its body's position in the block, and the body's length.
    fn check_next(&mut self) -> io::Result<Result<(u32, usize, usize), EndOfRecords>> {
        let offset = self.offset;
        if offset >= self.len {
            return Ok(Err(EndOfRecords::EndOfFile));
        }
        let invalid = |reason: String| Ok(Err(EndOfRecords::Invalid { offset, reason }));
        let header = match self.record_header()? {
            Ok(header) => header,
            Err(UnusableData(reason)) => return invalid(reason),
        };
        let start = self.load(record_bytes(header.len))? + RECORD_HEADER_BYTES;
        if !header.matches(&[&self.block.content()[start..start + header.len]]) {
            return invalid(format!(
                "the checksum of the record's {} bytes is wrong",
                header.len
            ));
        }
        Ok(Ok((header.kind, start, header.len)))
    }

    /// Reads and checks the header of the next record.
    fn record_header(&mut self) -> io::Result<Result<RecordHeader, UnusableData>> {
        let left = self.len.saturating_sub(self.offset);
        let Some(left_after_header) = left.checked_sub(RECORD_HEADER_BYTES as u64) else {
            let reason = format!(
                "expected a record header of {RECORD_HEADER_BYTES} bytes, found {}",
                count(left, "byte")
            );
            return Ok(Err(UnusableData(reason)));
        };
        let start = self.load(RECORD_HEADER_BYTES)?;
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(&self.block.content()[start..start + RECORD_HEADER_BYTES]);
        Ok(RecordHeader::read(
            &header,
            self.header.number,
            self.offset,
            left_after_header,
        ))
    }

    /// Advances from an invalid record to the next offset with a valid record header. Searches up to
    /// `limit` bytes and subtracts the number of searched bytes from it. Returns false if it finds no valid header.
    pub(crate) fn skip_to_valid(&mut self, limit: &mut u64) -> io::Result<bool> {
        // If only the body is invalid, the header contains the right length.
        let header = self.record_header()?;
        self.offset += header.map_or(ALIGNMENT, |header| record_bytes(header.len) as u64);
        while self.offset < self.len && *limit >= ALIGNMENT {
            if self.record_header()?.is_ok() {
                return Ok(true);
            }
            self.offset += ALIGNMENT;
            *limit -= ALIGNMENT;
        }
        Ok(false)
    }

    /// Counts the valid records from the next record to the end of the file, skipping invalid ones. Searches at
    /// most [`MAX_SEARCHED_BYTES`] for them.
    pub(crate) fn count_remaining_valid(&mut self) -> io::Result<u64> {
        let (mut count, mut limit) = (0, MAX_SEARCHED_BYTES);
        loop {
            while self.next()?.is_ok() {
                count += 1;
            }
            if !self.skip_to_valid(&mut limit)? {
                return Ok(count);
            }
        }
    }

    /// Reads the record at `offset` again; returns its body. `bytes` is the size of the whole record.
    pub(crate) fn read_body_at(
        &self,
        offset: u64,
        bytes: usize,
    ) -> io::Result<Result<Vec<u8>, UnusableData>> {
        let mut record = vec![0; bytes];
        self.file.read_at(&mut record, offset)?;
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(&record[..RECORD_HEADER_BYTES]);
        let left = (record.len() - RECORD_HEADER_BYTES) as u64;
        let header = RecordHeader::read(&header, self.header.number, offset, left);
        Ok(header.and_then(|header| {
            record.drain(..RECORD_HEADER_BYTES);
            record.truncate(header.len);
            if header.matches(&[&record]) {
                return Ok(record);
            }
            UnusableData::err("it has changed since it was first read")
        }))
    }

    /// Loads the file's next `bytes` bytes, which must exist, into the block; returns their position in it.
    fn load(&mut self, bytes: usize) -> io::Result<usize> {
        let start = self.offset.checked_sub(self.block_offset);
        let start = start.map_or(usize::MAX, |start| {
            usize::try_from(start).unwrap_or(usize::MAX)
        });
        if start.saturating_add(bytes) <= self.block.content().len() {
            return Ok(start);
        }
        let is_first_read = self.block_offset == 0;
        if start > self.block.content().len() {
            // The reader has skipped beyond the block.
            self.stop();
        }
        let outcome = self.fill(start, bytes, is_first_read);
        if outcome.is_err() {
            // The next call reads the same bytes again.
            self.stop();
        }
        outcome.map(|()| 0)
    }

    /// Replaces the block with one that begins at the next record and has at least `bytes` bytes. The next record's
    /// bytes in the current block begin at `start`.
    fn fill(&mut self, start: usize, bytes: usize, is_first_read: bool) -> io::Result<()> {
        let unprocessed = match &self.ahead {
            Some(_) => self
                .block
                .content()
                .get(start..)
                .unwrap_or_default()
                .to_vec(),
            // Without reading ahead, the next read starts at `offset`.
            None => Vec::new(),
        };
        self.block_offset = self.offset;
        self.block = Arc::default();
        let block = if is_first_read && self.ahead.is_none() {
            let left = usize::try_from(self.len - self.offset).unwrap_or(usize::MAX);
            ReadBlock::read(
                &*self.file,
                self.offset,
                bytes.max(FIRST_READ_BYTES).min(left),
                Vec::new(),
            )?
        } else {
            self.next_block()?.with_prefix(&unprocessed)
        };
        if block.content().len() >= bytes {
            self.block = block.into();
            return Ok(());
        }
        // The record spans several blocks.
        let mut joined = Vec::with_capacity(bytes + BLOCK_BYTES);
        joined.extend_from_slice(block.content());
        drop(block);
        while joined.len() < bytes {
            joined.extend_from_slice(self.next_block()?.content());
        }
        self.block = ReadBlock::from_bytes(joined).into();
        Ok(())
    }

    /// Reads the next block; starts to read ahead if the rest of the file is large.
    fn next_block(&mut self) -> io::Result<ReadBlock> {
        if let Some(ahead) = &self.ahead {
            return ahead.next();
        }
        let left = self.len - self.offset;
        if left <= BLOCK_BYTES as u64 {
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            return ReadBlock::read(&*self.file, self.offset, left, Vec::new());
        }
        let ahead = ReadAhead::new(&self.file, self.offset, self.len)?;
        self.ahead.insert(ahead).next()
    }

    /// Stops reading ahead and drops the block.
    fn stop(&mut self) {
        self.ahead = None;
        self.block = Arc::default();
        // The next `load` reads again, but not as the first read of the file.
        self.block_offset = self.len;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::file_format::{FileKind, padding, record_header};
    use super::*;

    /// A file in memory. One of every `failure_interval` reads fails.
    #[derive(Debug)]
    struct FlakyFile {
        bytes: Vec<u8>,
        reads: AtomicU32,
        failure_interval: u32,
    }

    impl ReadableFile for FlakyFile {
        fn len(&self) -> io::Result<u64> {
            Ok(self.bytes.len() as u64)
        }

        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            if self.reads.fetch_add(1, Ordering::Relaxed) % self.failure_interval
                == self.failure_interval - 1
            {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let offset = usize::try_from(offset).unwrap();
            buffer.copy_from_slice(&self.bytes[offset..offset + buffer.len()]);
            Ok(())
        }
    }

    fn body(number: usize) -> Vec<u8> {
        let lengths = [10, 5_000, 70_000, 300_000, BLOCK_BYTES, 3 * BLOCK_BYTES + 5];
        let mut body = vec![0; lengths[number % lengths.len()]];
        body[..8].copy_from_slice(&number.to_le_bytes());
        body
    }

    #[test]
    fn a_failed_read_is_reported_and_loses_no_record() {
        let header = FileHeader {
            kind: FileKind::Log,
            store: 1,
            number: 9,
        };
        let mut bytes = header.bytes().to_vec();
        let count = 40;
        for number in 0..count {
            let body = body(number);
            bytes.extend(record_header(9, bytes.len() as u64, kind::CHUNK, &[&body]));
            bytes.extend(&body);
            bytes.resize(bytes.len() + padding(body.len()), 0);
        }
        for failure_interval in [7, 10, 1_000] {
            let case = format!("one of {failure_interval} reads fails");
            let file = FlakyFile {
                bytes: bytes.clone(),
                reads: AtomicU32::default(),
                failure_interval,
            };
            let mut file_reader = RecordReader::new(Box::new(file)).unwrap().unwrap();
            let (mut records_read, mut failures) = (0, 0);
            loop {
                match file_reader.next() {
                    Err(_) => failures += 1,
                    Ok(Ok(record)) => {
                        assert!(record.body == body(records_read), "{case}: {records_read}");
                        records_read += 1;
                    }
                    Ok(Err(end)) => {
                        assert_eq!(end, EndOfRecords::EndOfFile);
                        break;
                    }
                }
                assert!(failures < 100, "{case}: {records_read}");
                let large = file_reader.peek_large_chunk().ok().flatten();
                if let Some(record) = large {
                    assert!(record.is_valid() && record.body() == body(records_read));
                    file_reader.skip(&record);
                    records_read += 1;
                }
            }
            assert_eq!(records_read, count, "{case}");
            assert!(failures > 0 || failure_interval > 100, "{case}");
        }
    }
}
