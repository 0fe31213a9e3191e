//! Files of records, each record with a checksum that knows its place. See `docs/format.md`.

use std::io::{self, IoSlice, Write};

use super::bytes::{Damage, Put, Take};

const MAGIC: [u8; 8] = *b"ENGRAM\r\n";

/// The version of the format that is written, and the newest that is read.
pub const VERSION: u32 = 1;

/// Bytes before a file's first record.
pub(crate) const FILE_HEAD: usize = 48;

/// Bytes before a record's body.
pub(crate) const RECORD_HEAD: usize = 16;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Checkpoint,
    Log,
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHead {
    pub(crate) kind: Kind,
    /// Random number of the store that it belongs to.
    pub(crate) store: u64,
    /// As in its name.
    pub(crate) number: u64,
    /// Number of a log's first change.
    pub(crate) first_change: u64,
}

impl FileHead {
    pub(crate) fn bytes(&self) -> [u8; FILE_HEAD] {
        let mut bytes = Vec::with_capacity(FILE_HEAD);
        bytes.put(&MAGIC);
        bytes.put_u32(VERSION);
        bytes.put_u32(match self.kind {
            Kind::Checkpoint => 1,
            Kind::Log => 2,
        });
        bytes.put_u64(self.store);
        bytes.put_u64(self.number);
        bytes.put_u64(self.first_change);
        bytes.put_u32(0);
        let sum = crc32c::crc32c(&bytes);
        bytes.put_u32(sum);
        let mut head = [0; FILE_HEAD];
        head.copy_from_slice(&bytes);
        head
    }

    pub(crate) fn read(bytes: &[u8; FILE_HEAD]) -> Result<Self, Damage> {
        let mut take = Take(bytes);
        if take.take(MAGIC.len())? != MAGIC {
            return Damage::new("it is no file of ours, or its beginning is damaged");
        }
        let version = take.u32()?;
        let sum = crc32c::crc32c(&bytes[..FILE_HEAD - 4]);
        if Take(&bytes[FILE_HEAD - 4..]).u32()? != sum {
            return Damage::new("its first 48 bytes are damaged");
        }
        if version != VERSION {
            return Damage::new(format!(
                "it is of format version {version}; this release reads version {VERSION}"
            ));
        }
        let kind = match take.u32()? {
            1 => Kind::Checkpoint,
            2 => Kind::Log,
            other => return Damage::new(format!("it is of kind {other}; 1 and 2 are known")),
        };
        Ok(Self {
            kind,
            store: take.u64()?,
            number: take.u64()?,
            first_change: take.u64()?,
        })
    }
}

/// The head of a record whose body lies in several pieces.
pub(crate) fn record_head(file: u64, place: u64, kind: u32, body: &[&[u8]]) -> [u8; RECORD_HEAD] {
    let len = body.iter().map(|piece| piece.len()).sum();
    let mut head = Vec::with_capacity(RECORD_HEAD);
    head.put_u32(0);
    head.put_len(len);
    head.put_u32(kind);
    head.put_u32(low(file));
    let mut sum = crc32c::crc32c(&head[4..]);
    for piece in body {
        sum = crc32c::crc32c_append(sum, piece);
    }
    head[..4].copy_from_slice(&sum.wrapping_add(low(place)).to_le_bytes());
    let mut bytes = [0; RECORD_HEAD];
    bytes.copy_from_slice(&head);
    bytes
}

/// Zeros after a body of so many bytes.
pub(crate) const fn padding(len: usize) -> usize {
    len.wrapping_neg() % 8
}

/// Bytes that a record with a body of so many takes.
pub(crate) const fn record_bytes(len: usize) -> usize {
    RECORD_HEAD + len + padding(len)
}

/// What a record's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) kind: u32,
    pub(crate) len: usize,
    sum: u32,
    head_sum: u32,
}

impl RecordHead {
    /// Reads the head of the record at `place` of a file, which has `left` bytes after the head.
    pub(crate) fn read(
        bytes: &[u8; RECORD_HEAD],
        file: u64,
        place: u64,
        left: u64,
    ) -> Result<Self, Damage> {
        let mut take = Take(bytes);
        let sum = take.u32()?.wrapping_sub(low(place));
        let len = take.u32()? as usize;
        let kind = take.u32()?;
        if take.u32()? != low(file) {
            return Damage::new("it was written to another file");
        }
        if (len + padding(len)) as u64 > left {
            return Damage::new(format!("it says it has {len} bytes; the file has {left} more"));
        }
        let head_sum = crc32c::crc32c(&bytes[4..]);
        Ok(Self {
            kind,
            len,
            sum,
            head_sum,
        })
    }

    /// Whether the body is the one that was written.
    pub(crate) fn fits(&self, body: &[u8]) -> bool {
        body.len() == self.len && crc32c::crc32c_append(self.head_sum, body) == self.sum
    }
}

fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// Writes all pieces, one after the other.
pub(crate) fn write_all(file: &mut impl Write, pieces: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut slices = slices.as_mut_slice();
    // So that empty pieces at the front do not look like a full disk.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: FileHead = FileHead {
        kind: Kind::Log,
        store: 7,
        number: 3,
        first_change: 9,
    };

    #[test]
    fn every_flipped_bit_of_a_head_is_found() {
        let bytes = HEAD.bytes();
        assert_eq!(FileHead::read(&bytes), Ok(HEAD));
        for bit in 0..FILE_HEAD * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHead::read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_passes_in_its_place_only() {
        let body = b"some bytes".as_slice();
        let head = record_head(3, 48, 4, &[&body[..4], &body[4..]]);
        let read = |file, place| RecordHead::read(&head, file, place, 16);
        let good = read(3, 48).unwrap();
        assert!(good.fits(body) && (good.kind, good.len) == (4, 10));
        assert!(!good.fits(b"some bytez") && !good.fits(&body[1..]));
        assert!(!read(3, 56).unwrap().fits(body));
        assert!(read(4, 48).is_err());
        assert!(RecordHead::read(&head, 3, 48, 15).is_err());
        for bit in 0..RECORD_HEAD * 8 {
            let mut head = head;
            head[bit / 8] ^= 1 << (bit % 8);
            let read = RecordHead::read(&head, 3, 48, 16);
            assert!(!read.is_ok_and(|read| read.fits(body)), "bit {bit}");
        }
    }
}
