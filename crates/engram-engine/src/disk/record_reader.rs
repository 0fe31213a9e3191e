//! Reading a file of records from front to back.

use std::io;
use std::sync::Arc;

use super::byte_codec::CorruptRecord;
use super::file_format::{
    FILE_HEADER_BYTES, FileHeader, HeaderError, RECORD_HEADER_BYTES, RecordHeader, record_bytes,
};
use super::file_system::Read;
use super::read_ahead::{BLOCK, Block, ReadAhead};
use super::record_codec::kind;

/// RecordWriter begin at multiples of it.
const STEP: u64 = 8;

/// A chunk's record from this size on may be checked by somebody else.
const LARGE: usize = 16 << 10;

/// Bytes that are read at first: what comes first may be all that is asked for.
const FIRST: usize = 4 << 10;

/// Bytes that are searched for records that pass.
const SEARCHED: u64 = 64 << 20;

/// A file's records, in order, up to the first that does not pass.
#[derive(Debug)]
pub(crate) struct RecordReader {
    file: Arc<dyn Read>,
    pub(crate) head: FileHeader,
    /// Where the next record begins.
    place: u64,
    len: u64,
    /// Bytes of the file from `from` on.
    block: Arc<Block>,
    from: u64,
    ahead: Option<ReadAhead>,
}

/// A large chunk's record, which nobody has checked.
#[derive(Debug)]
pub(super) struct UncheckedRecord {
    head: RecordHeader,
    block: Arc<Block>,
    at: usize,
}

impl UncheckedRecord {
    pub(super) fn body(&self) -> &[u8] {
        &self.block.filled()[self.at..self.at + self.head.len]
    }

    /// Bytes of memory that it keeps, beside those that another keeps.
    pub(super) fn keeps(&self, beside: Option<&Self>) -> usize {
        match beside {
            Some(other) if Arc::ptr_eq(&self.block, &other.block) => 0,
            _ => self.block.memory(),
        }
    }

    pub(super) fn passes(&self) -> bool {
        self.head.fits(&[self.body()])
    }

    /// Of the whole record.
    pub(super) fn bytes(&self) -> u64 {
        record_bytes(self.head.len) as u64
    }
}

/// Why a file has no more records.
#[derive(Debug, PartialEq)]
pub(crate) enum EndOfRecords {
    /// It was read to its end.
    EndOfFile,
    /// What follows does not pass.
    Invalid { place: u64, why: String },
}

/// A record that passed.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: u32,
    pub(crate) body: &'a [u8],
}

impl RecordReader {
    /// Begins with the file's head.
    pub(crate) fn new(file: Box<dyn Read>) -> io::Result<Result<Self, HeaderError>> {
        let len = file.len()?;
        if len < FILE_HEADER_BYTES as u64 {
            let why = format!("it has {len} bytes; its head alone takes {FILE_HEADER_BYTES}");
            return Ok(Err(CorruptRecord(why).into()));
        }
        let mut head = [0; FILE_HEADER_BYTES];
        file.read_at(&mut head, 0)?;
        Ok(FileHeader::read(&head).map(|head| Self::after(file, head, len)))
    }

    /// Goes on after a head that was read, or that is damaged and known from elsewhere.
    pub(crate) fn after(file: Box<dyn Read>, head: FileHeader, len: u64) -> Self {
        Self {
            file: file.into(),
            head,
            place: FILE_HEADER_BYTES as u64,
            len,
            block: Arc::default(),
            from: 0,
            ahead: None,
        }
    }

    /// The next record, if it is of a large chunk; [`RecordReader::skip`] goes on behind it.
    pub(super) fn large_chunk(&mut self) -> io::Result<Option<UncheckedRecord>> {
        if self.place + RECORD_HEADER_BYTES as u64 > self.len {
            return Ok(None);
        }
        let Ok(head) = self.record_header()? else {
            return Ok(None);
        };
        if head.kind != kind::CHUNK || head.len < self.large() {
            return Ok(None);
        }
        let at = self.have(record_bytes(head.len))? + RECORD_HEADER_BYTES;
        let block = Arc::clone(&self.block);
        Ok(Some(UncheckedRecord { head, block, at }))
    }

    /// Tests have no large chunks: in some of their files, all are.
    fn large(&self) -> usize {
        if cfg!(test) && self.head.number % 8 == 7 {
            0
        } else {
            LARGE
        }
    }

    /// Leaves the next record to somebody else.
    pub(super) fn skip(&mut self, record: &UncheckedRecord) {
        self.place += record.bytes();
    }

    /// Where the next record begins, or what is torn.
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The next record.
    pub(crate) fn next(&mut self) -> io::Result<Result<Record<'_>, EndOfRecords>> {
        let (kind, at, len) = match self.look()? {
            Ok(found) => found,
            Err(end) => {
                self.end();
                return Ok(Err(end));
            }
        };
        self.place += record_bytes(len) as u64;
        let body = &self.block.filled()[at..at + len];
        Ok(Ok(Record { kind, body }))
    }

    /// Kind, place in the block and length of the next record's body.
    fn look(&mut self) -> io::Result<Result<(u32, usize, usize), EndOfRecords>> {
        let place = self.place;
        if place >= self.len {
            return Ok(Err(EndOfRecords::EndOfFile));
        }
        let torn = |why: String| Ok(Err(EndOfRecords::Invalid { place, why }));
        let head = match self.record_header()? {
            Ok(head) => head,
            Err(CorruptRecord(why)) => return torn(why),
        };
        let at = self.have(record_bytes(head.len))? + RECORD_HEADER_BYTES;
        if !head.fits(&[&self.block.filled()[at..at + head.len]]) {
            return torn(format!(
                "the checksum of its {} bytes does not fit",
                head.len
            ));
        }
        Ok(Ok((head.kind, at, head.len)))
    }

    /// What the head at `place` says, if it passes.
    fn record_header(&mut self) -> io::Result<Result<RecordHeader, CorruptRecord>> {
        let left = self.len.saturating_sub(self.place);
        let Some(after) = left.checked_sub(RECORD_HEADER_BYTES as u64) else {
            let why =
                format!("{left} bytes are left; a record's head alone takes {RECORD_HEADER_BYTES}");
            return Ok(Err(CorruptRecord(why)));
        };
        let at = self.have(RECORD_HEADER_BYTES)?;
        let mut head = [0; RECORD_HEADER_BYTES];
        head.copy_from_slice(&self.block.filled()[at..at + RECORD_HEADER_BYTES]);
        Ok(RecordHeader::read(
            &head,
            self.head.number,
            self.place,
            after,
        ))
    }

    /// Goes from a record that does not pass to the next place where a head does; false where there is none within
    /// `most` bytes, from which what was looked at is taken.
    pub(crate) fn search(&mut self, most: &mut u64) -> io::Result<bool> {
        // A head that passes says where its body ends, whatever became of that.
        let head = self.record_header()?;
        self.place += head.map_or(STEP, |head| record_bytes(head.len) as u64);
        while self.place < self.len && *most >= STEP {
            if self.record_header()?.is_ok() {
                return Ok(true);
            }
            self.place += STEP;
            *most -= STEP;
        }
        Ok(false)
    }

    /// Counts the records that pass from here on, be there more places that do not.
    pub(crate) fn count_rest(&mut self) -> u64 {
        let (mut count, mut most) = (0, SEARCHED);
        loop {
            while let Ok(Ok(_)) = self.next() {
                count += 1;
            }
            if !self.search(&mut most).unwrap_or(false) {
                return count;
            }
        }
    }

    /// The body of a record that passed before, as it is now.
    pub(crate) fn body_at(&self, place: u64, bytes: usize) -> Result<Vec<u8>, CorruptRecord> {
        let mut record = vec![0; bytes];
        let read = self.file.read_at(&mut record, place);
        read.map_err(|error| CorruptRecord(format!("it cannot be read: {error}")))?;
        let mut head = [0; RECORD_HEADER_BYTES];
        head.copy_from_slice(&record[..RECORD_HEADER_BYTES]);
        let left = (bytes - RECORD_HEADER_BYTES) as u64;
        let head = RecordHeader::read(&head, self.head.number, place, left)?;
        record.drain(..RECORD_HEADER_BYTES);
        record.truncate(head.len);
        if head.fits(&[&record]) {
            return Ok(record);
        }
        CorruptRecord::err(format!("it has changed at byte {place}"))
    }

    /// Has so many bytes from `place` on in the block, which the file has; returns where.
    fn have(&mut self, bytes: usize) -> io::Result<usize> {
        let at = self.place.checked_sub(self.from);
        let at = at.map_or(usize::MAX, |at| usize::try_from(at).unwrap_or(usize::MAX));
        if at.saturating_add(bytes) <= self.block.filled().len() {
            return Ok(at);
        }
        let is_first = self.from == 0;
        if at > self.block.filled().len() {
            // It goes on elsewhere.
            self.end();
        }
        let filled = self.fill(at, bytes, is_first);
        if filled.is_err() {
            // Whoever asks again is to be told the same, unless it passes.
            self.end();
        }
        filled.map(|()| 0)
    }

    /// Has so many bytes from `place` on at the block's front; what it has from `at` on are the first of them.
    fn fill(&mut self, at: usize, bytes: usize, is_first: bool) -> io::Result<()> {
        let rest = match &self.ahead {
            Some(_) => self.block.filled().get(at..).unwrap_or_default().to_vec(),
            // What comes next begins here.
            None => Vec::new(),
        };
        self.from = self.place;
        self.block = Arc::default();
        let block = if is_first && self.ahead.is_none() {
            let left = usize::try_from(self.len - self.place).unwrap_or(usize::MAX);
            Block::read(
                &*self.file,
                self.place,
                bytes.max(FIRST).min(left),
                Vec::new(),
            )?
        } else {
            self.next_block()?.behind(&rest)
        };
        if block.filled().len() >= bytes {
            self.block = block.into();
            return Ok(());
        }
        // A record of several blocks; the file has them.
        let mut all = Vec::with_capacity(bytes + BLOCK);
        all.extend_from_slice(block.filled());
        drop(block);
        while all.len() < bytes {
            all.extend_from_slice(self.next_block()?.filled());
        }
        self.block = Block::of(all).into();
        Ok(())
    }

    /// What follows.
    fn next_block(&mut self) -> io::Result<Block> {
        if let Some(ahead) = &self.ahead {
            return ahead.next();
        }
        let left = self.len - self.place;
        if left <= BLOCK as u64 {
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            return Block::read(&*self.file, self.place, left, Vec::new());
        }
        let ahead = ReadAhead::new(&self.file, self.place, self.len)?;
        self.ahead.insert(ahead).next()
    }

    /// Nothing more is read.
    fn end(&mut self) {
        self.ahead = None;
        self.block = Arc::default();
        self.from = self.len;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::file_format::{Kind, padding, record_header};
    use super::*;

    /// A file in memory, of which every so many reads fail.
    #[derive(Debug)]
    struct Flaky {
        bytes: Vec<u8>,
        reads: AtomicU32,
        every: u32,
    }

    impl Read for Flaky {
        fn len(&self) -> io::Result<u64> {
            Ok(self.bytes.len() as u64)
        }

        fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
            if self.reads.fetch_add(1, Ordering::Relaxed) % self.every == self.every - 1 {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let place = usize::try_from(place).unwrap();
            buffer.copy_from_slice(&self.bytes[place..place + buffer.len()]);
            Ok(())
        }
    }

    fn body(number: usize) -> Vec<u8> {
        let lengths = [10, 5_000, 70_000, 300_000, BLOCK, 3 * BLOCK + 5];
        let mut body = vec![0; lengths[number % lengths.len()]];
        body[..8].copy_from_slice(&number.to_le_bytes());
        body
    }

    #[test]
    fn a_read_that_fails_is_told_and_loses_nothing() {
        let head = FileHeader {
            kind: Kind::Log,
            store: 1,
            number: 9,
        };
        let mut bytes = head.bytes().to_vec();
        let count = 40;
        for number in 0..count {
            let body = body(number);
            bytes.extend(record_header(9, bytes.len() as u64, kind::CHUNK, &[&body]));
            bytes.extend(&body);
            bytes.resize(bytes.len() + padding(body.len()), 0);
        }
        for every in [7, 10, 1_000] {
            let file = Flaky {
                bytes: bytes.clone(),
                reads: AtomicU32::default(),
                every,
            };
            let mut scan = RecordReader::new(Box::new(file)).unwrap().unwrap();
            let (mut found, mut failed) = (0, 0);
            loop {
                match scan.next() {
                    Err(_) => failed += 1,
                    Ok(Ok(record)) => {
                        assert!(record.body == body(found), "{found} of every {every}");
                        found += 1;
                    }
                    Ok(Err(end)) => {
                        assert_eq!(end, EndOfRecords::EndOfFile);
                        break;
                    }
                }
                assert!(failed < 100, "{found} of every {every}");
                let large = scan.large_chunk().ok().flatten();
                if let Some(record) = large {
                    assert!(record.passes() && record.body() == body(found));
                    scan.skip(&record);
                    found += 1;
                }
            }
            assert_eq!((found, failed > 0 || every > 100), (count, true));
        }
    }
}
