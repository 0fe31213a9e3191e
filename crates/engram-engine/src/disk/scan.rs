//! Reading a file of records from front to back.

use std::io;

use super::bytes::Damage;
use super::file::{FILE_HEAD, FileHead, NoHead, RECORD_HEAD, RecordHead, record_bytes};
use super::files::Read;

/// Bytes read at once: records are mostly smaller.
const AHEAD: usize = 1 << 20;

/// A file's records, in order, up to the first that does not pass.
#[derive(Debug)]
pub(crate) struct Scan {
    file: Box<dyn Read>,
    pub(crate) head: FileHead,
    /// Where the next record begins.
    place: u64,
    len: u64,
    /// Bytes of the file from `from` on.
    buffer: Vec<u8>,
    from: u64,
}

/// Why a file has no more records.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    /// It was read to its end.
    Whole,
    /// What follows does not pass.
    Torn { place: u64, why: String },
}

/// A record that passed.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: u32,
    pub(crate) body: &'a [u8],
}

impl Scan {
    /// Begins with the file's head.
    pub(crate) fn new(file: Box<dyn Read>) -> io::Result<Result<Self, NoHead>> {
        let len = file.len()?;
        if len < FILE_HEAD as u64 {
            let why = format!("it has {len} bytes; its head alone takes {FILE_HEAD}");
            return Ok(Err(Damage(why).into()));
        }
        let mut head = [0; FILE_HEAD];
        file.read_at(&mut head, 0)?;
        Ok(FileHead::read(&head).map(|head| Self {
            file,
            head,
            place: FILE_HEAD as u64,
            len,
            buffer: Vec::new(),
            from: 0,
        }))
    }

    /// Where the next record begins, or what is torn.
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The next record.
    pub(crate) fn next(&mut self) -> io::Result<Result<Record<'_>, End>> {
        let place = self.place;
        if place >= self.len {
            return Ok(Err(End::Whole));
        }
        let torn = |why: String| Ok(Err(End::Torn { place, why }));
        let left = self.len - place;
        if left < RECORD_HEAD as u64 {
            return torn(format!("{left} bytes are left; a record's head alone takes {RECORD_HEAD}"));
        }
        let at = self.have(RECORD_HEAD)?;
        let mut head = [0; RECORD_HEAD];
        head.copy_from_slice(&self.buffer[at..at + RECORD_HEAD]);
        let head = RecordHead::read(&head, self.head.number, place, left - RECORD_HEAD as u64);
        let head = match head {
            Ok(head) => head,
            Err(Damage(why)) => return torn(why),
        };
        let bytes = record_bytes(head.len);
        let at = self.have(bytes)? + RECORD_HEAD;
        let body = &self.buffer[at..at + head.len];
        if !head.fits(body) {
            return torn(format!("the checksum of its {} bytes does not fit", head.len));
        }
        self.place += bytes as u64;
        Ok(Ok(Record {
            kind: head.kind,
            body,
        }))
    }

    /// The body of a record that passed before, as it is now.
    pub(crate) fn body_at(&self, place: u64, bytes: usize) -> Result<Vec<u8>, Damage> {
        let mut record = vec![0; bytes];
        let read = self.file.read_at(&mut record, place);
        read.map_err(|error| Damage(format!("it cannot be read: {error}")))?;
        let mut head = [0; RECORD_HEAD];
        head.copy_from_slice(&record[..RECORD_HEAD]);
        let left = (bytes - RECORD_HEAD) as u64;
        let head = RecordHead::read(&head, self.head.number, place, left)?;
        record.drain(..RECORD_HEAD);
        record.truncate(head.len);
        if head.fits(&record) {
            return Ok(record);
        }
        Damage::new(format!("it has changed at byte {place}"))
    }

    /// Has so many bytes from `place` on in the buffer, which the file has; returns where.
    fn have(&mut self, bytes: usize) -> io::Result<usize> {
        let at = usize::try_from(self.place - self.from).unwrap_or(usize::MAX);
        if at.saturating_add(bytes) <= self.buffer.len() {
            return Ok(at);
        }
        let left = usize::try_from(self.len - self.place).unwrap_or(usize::MAX);
        let wanted = left.min(bytes.max(AHEAD));
        // What is there already is not read again.
        let kept = self.buffer.len().saturating_sub(at);
        let first = self.buffer.len() - kept;
        self.buffer.copy_within(first.., 0);
        self.buffer.truncate(kept);
        // What one large record took is given back.
        self.buffer.shrink_to(2 * AHEAD);
        self.buffer.resize(wanted.max(kept), 0);
        self.file
            .read_at(&mut self.buffer[kept..], self.place + kept as u64)?;
        self.from = self.place;
        Ok(0)
    }
}
