//! Reading a file of records from front to back.

use std::io;
use std::sync::Arc;

use super::ahead::{Ahead, BLOCK, Block};
use super::bytes::Damage;
use super::file::{FILE_HEAD, FileHead, NoHead, RECORD_HEAD, RecordHead, record_bytes};
use super::files::Read;
use super::things::kind;

/// Records begin at multiples of it.
const STEP: u64 = 8;

/// A chunk's record from this size on may be read by somebody else.
const LARGE: usize = 16 << 10;

/// Of such a record, what is looked at, if that is enough to know what it is.
const FRONT: usize = 512;

/// Bytes that are read at once behind records that others read, at first; while none follows, it doubles.
const WINDOW: usize = 1 << 10;

/// How often it does before all is read again.
const DOUBLINGS: u32 = 8;

/// Bytes that are searched for records that pass.
const SEARCHED: u64 = 64 << 20;

/// A file's records, in order, up to the first that does not pass.
#[derive(Debug)]
pub(crate) struct Scan {
    file: Arc<dyn Read>,
    pub(crate) head: FileHead,
    /// Where the next record begins.
    place: u64,
    len: u64,
    /// Bytes of the file from `from` on.
    block: Block,
    from: u64,
    ahead: Option<Ahead>,
    /// Windows since the beginning, or since a record was left to others; none where all is read.
    windows: Option<u32>,
}

/// A large chunk's record, whose body is not read.
#[derive(Debug)]
pub(crate) struct Front<'a> {
    pub(crate) head: RecordHead,
    /// The first bytes of its body, which nobody has checked, and where they lie.
    pub(crate) body: &'a [u8],
    pub(crate) place: u64,
    pub(crate) file: &'a Arc<dyn Read>,
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
        Ok(FileHead::read(&head).map(|head| Self::after(file, head, len)))
    }

    /// Goes on after a head that was read, or that is damaged and known from elsewhere.
    pub(crate) fn after(file: Box<dyn Read>, head: FileHead, len: u64) -> Self {
        Self {
            file: file.into(),
            head,
            place: FILE_HEAD as u64,
            len,
            block: Block::default(),
            from: 0,
            ahead: None,
            windows: Some(0),
        }
    }

    /// The next record, if it is of a large chunk, which is not read then; [`Scan::skip`] goes on behind it.
    pub(crate) fn front(&mut self) -> io::Result<Option<Front<'_>>> {
        if self.place + RECORD_HEAD as u64 > self.len {
            return Ok(None);
        }
        let Ok(head) = self.record_head()? else {
            return Ok(None);
        };
        if head.kind != kind::CHUNK || head.len < self.large() {
            return Ok(None);
        }
        let front = FRONT.min(head.len);
        let at = self.have(RECORD_HEAD + front)? + RECORD_HEAD;
        Ok(Some(Front {
            head,
            body: &self.block.filled()[at..at + front],
            place: self.place + RECORD_HEAD as u64,
            file: &self.file,
        }))
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
    pub(crate) fn skip(&mut self, head: &RecordHead) {
        self.place += record_bytes(head.len) as u64;
        self.ahead = None;
        self.windows = Some(0);
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
    fn look(&mut self) -> io::Result<Result<(u32, usize, usize), End>> {
        let place = self.place;
        if place >= self.len {
            return Ok(Err(End::Whole));
        }
        let torn = |why: String| Ok(Err(End::Torn { place, why }));
        let head = match self.record_head()? {
            Ok(head) => head,
            Err(Damage(why)) => return torn(why),
        };
        let at = self.have(record_bytes(head.len))? + RECORD_HEAD;
        if !head.fits(&[&self.block.filled()[at..at + head.len]]) {
            return torn(format!(
                "the checksum of its {} bytes does not fit",
                head.len
            ));
        }
        Ok(Ok((head.kind, at, head.len)))
    }

    /// What the head at `place` says, if it passes.
    fn record_head(&mut self) -> io::Result<Result<RecordHead, Damage>> {
        let left = self.len.saturating_sub(self.place);
        let Some(after) = left.checked_sub(RECORD_HEAD as u64) else {
            let why = format!("{left} bytes are left; a record's head alone takes {RECORD_HEAD}");
            return Ok(Err(Damage(why)));
        };
        let at = self.have(RECORD_HEAD)?;
        let mut head = [0; RECORD_HEAD];
        head.copy_from_slice(&self.block.filled()[at..at + RECORD_HEAD]);
        Ok(RecordHead::read(&head, self.head.number, self.place, after))
    }

    /// Goes from a record that does not pass to the next place where a head does; false where there is none within
    /// `most` bytes, from which what was looked at is taken.
    pub(crate) fn search(&mut self, most: &mut u64) -> io::Result<bool> {
        // A head that passes says where its body ends, whatever became of that.
        let head = self.record_head()?;
        self.place += head.map_or(STEP, |head| record_bytes(head.len) as u64);
        while self.place < self.len && *most >= STEP {
            if self.record_head()?.is_ok() {
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
        if head.fits(&[&record]) {
            return Ok(record);
        }
        Damage::new(format!("it has changed at byte {place}"))
    }

    /// Has so many bytes from `place` on in the block, which the file has; returns where.
    fn have(&mut self, bytes: usize) -> io::Result<usize> {
        let at = self.place.checked_sub(self.from);
        let at = at.map_or(usize::MAX, |at| usize::try_from(at).unwrap_or(usize::MAX));
        if at.saturating_add(bytes) <= self.block.filled().len() {
            return Ok(at);
        }
        if at > self.block.filled().len() {
            // It goes on elsewhere.
            self.end();
        }
        if let Some(windows) = self.windows {
            self.windows = (windows < DOUBLINGS).then_some(windows + 1);
            let left = usize::try_from(self.len - self.place).unwrap_or(usize::MAX);
            let window = bytes.max(WINDOW << windows).min(left);
            let mut block = std::mem::take(&mut self.block).of_len(window);
            self.file.read_at(block.room(), self.place)?;
            self.from = self.place;
            self.block = block;
            return Ok(0);
        }
        let rest = match &self.ahead {
            Some(_) => self.block.filled().get(at..).unwrap_or_default().to_vec(),
            // What comes next begins here.
            None => Vec::new(),
        };
        self.from = self.place;
        let block = std::mem::take(&mut self.block);
        let block = self.next_block(block)?.behind(&rest);
        if block.filled().len() >= bytes {
            self.block = block;
            return Ok(0);
        }
        // A record of several blocks; the file has them.
        let mut all = Vec::with_capacity(bytes + BLOCK);
        all.extend_from_slice(block.filled());
        let mut done = block;
        while all.len() < bytes {
            done = self.next_block(done)?;
            all.extend_from_slice(done.filled());
        }
        self.block = Block::of(all);
        Ok(0)
    }

    /// What follows the block, which is done with.
    fn next_block(&mut self, done: Block) -> io::Result<Block> {
        if let Some(ahead) = &self.ahead {
            return ahead.next(done);
        }
        if self.len - self.place <= BLOCK as u64 {
            return Block::read(&*self.file, self.place, self.len, done);
        }
        let ahead = Ahead::new(&self.file, self.place, self.len)?;
        self.ahead.insert(ahead).next(done)
    }

    /// Nothing more is read.
    fn end(&mut self) {
        self.ahead = None;
        self.block = Block::default();
        self.from = self.len;
    }
}
