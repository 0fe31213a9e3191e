//! FileSystem of records, each record with a checksum that knows its place. See `docs/format.md`.

use std::io::{self, IoSlice, Write};

use super::byte_codec::{CorruptRecord, PutBytes, TakeBytes};

const MAGIC: [u8; 8] = *b"ENGRAM\r\n";

/// The version of the format that is written, and the newest that is read.
pub(crate) const VERSION: u32 = 1;

/// Bytes before a file's first record.
pub(crate) const FILE_HEADER_BYTES: usize = 48;

/// Bytes before a record's body.
pub(crate) const RECORD_HEADER_BYTES: usize = 24;

/// Why a file's head cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HeaderError {
    Corrupt(CorruptRecord),
    /// It is whole, and of a version that we do not read.
    UnsupportedVersion(u32),
}

impl From<CorruptRecord> for HeaderError {
    fn from(damage: CorruptRecord) -> Self {
        Self::Corrupt(damage)
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Checkpoint,
    Log,
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: Kind,
    /// Random number of the store that it belongs to.
    pub(crate) store: u64,
    /// As in its name.
    pub(crate) number: u64,
}

impl FileHeader {
    pub(crate) fn bytes(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
        bytes.put(&MAGIC);
        bytes.put_u32(VERSION);
        bytes.put_u32(match self.kind {
            Kind::Checkpoint => 1,
            Kind::Log => 2,
        });
        bytes.put_u64(self.store);
        bytes.put_u64(self.number);
        bytes.put(&[0; 12]);
        let sum = crc32c::crc32c(&bytes);
        bytes.put_u32(sum);
        let mut head = [0; FILE_HEADER_BYTES];
        head.copy_from_slice(&bytes);
        head
    }

    pub(crate) fn read(bytes: &[u8; FILE_HEADER_BYTES]) -> Result<Self, HeaderError> {
        let mut take = TakeBytes(bytes);
        if take.take(MAGIC.len())? != MAGIC {
            return Err(
                CorruptRecord("it is no file of ours, or its beginning is damaged".into()).into(),
            );
        }
        let version = take.u32()?;
        let sum = crc32c::crc32c(&bytes[..FILE_HEADER_BYTES - 4]);
        if TakeBytes(&bytes[FILE_HEADER_BYTES - 4..]).u32()? != sum {
            return Err(CorruptRecord("its first 48 bytes are damaged".into()).into());
        }
        if version != VERSION {
            return Err(HeaderError::UnsupportedVersion(version));
        }
        let kind = match take.u32()? {
            1 => Kind::Checkpoint,
            2 => Kind::Log,
            other => {
                let what = format!("it is of kind {other}; 1 and 2 are known");
                return Err(CorruptRecord(what).into());
            }
        };
        Ok(Self {
            kind,
            store: take.u64()?,
            number: take.u64()?,
        })
    }
}

/// The head of a record whose body lies in several pieces.
pub(crate) fn record_header(
    file: u64,
    place: u64,
    kind: u32,
    body: &[&[u8]],
) -> [u8; RECORD_HEADER_BYTES] {
    let len: usize = body.iter().map(|piece| piece.len()).sum();
    let sum = sum(body);
    let mut head = [0; RECORD_HEADER_BYTES];
    head[4..8].copy_from_slice(&kind.to_le_bytes());
    head[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    head[16..20].copy_from_slice(&low(file).to_le_bytes());
    head[20..].copy_from_slice(&sum.to_le_bytes());
    let own = head_sum(&head, place);
    head[..4].copy_from_slice(&own.to_le_bytes());
    head
}

fn sum(body: &[&[u8]]) -> u32 {
    body.iter()
        .fold(0, |sum, piece| crc32c::crc32c_append(sum, piece))
}

/// Of the head of a record at that place: the same bytes do not pass at another.
fn head_sum(head: &[u8; RECORD_HEADER_BYTES], place: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), &head[4..])
}

/// Zeros after a body of so many bytes.
pub(crate) const fn padding(len: usize) -> usize {
    len.wrapping_neg() % 8
}

/// Bytes that a record with a body of so many takes.
pub(crate) const fn record_bytes(len: usize) -> usize {
    RECORD_HEADER_BYTES + len + padding(len)
}

/// What a record's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: u32,
    pub(crate) len: usize,
    sum: u32,
}

impl RecordHeader {
    /// Reads the head of the record at `place` of a file, which has `left` bytes after the head.
    pub(crate) fn read(
        bytes: &[u8; RECORD_HEADER_BYTES],
        file: u64,
        place: u64,
        left: u64,
    ) -> Result<Self, CorruptRecord> {
        let mut take = TakeBytes(bytes);
        if take.u32()? != head_sum(bytes, place) {
            return CorruptRecord::err("the checksum of a record's head does not fit");
        }
        let (kind, len) = (take.u32()?, take.u64()?);
        if take.u32()? != low(file) {
            return CorruptRecord::err("it was written to another file");
        }
        if len
            .checked_next_multiple_of(8)
            .is_none_or(|bytes| bytes > left)
        {
            return CorruptRecord::err(format!(
                "it says it has {len} bytes; the file has {left} more"
            ));
        }
        Ok(Self {
            kind,
            len: usize::try_from(len).unwrap_or(usize::MAX),
            sum: take.u32()?,
        })
    }

    /// Whether the body, in pieces, is the one that was written.
    pub(crate) fn fits(&self, body: &[&[u8]]) -> bool {
        let len: usize = body.iter().map(|piece| piece.len()).sum();
        len == self.len && sum(body) == self.sum
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

    const HEAD: FileHeader = FileHeader {
        kind: Kind::Log,
        store: 7,
        number: 3,
    };

    #[test]
    fn every_flipped_bit_of_a_head_is_found() {
        let bytes = HEAD.bytes();
        assert_eq!(FileHeader::read(&bytes), Ok(HEAD));
        for bit in 0..FILE_HEADER_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_passes_in_its_place_only() {
        let body = b"some bytes".as_slice();
        let head = record_header(3, 48, 4, &[&body[..4], &body[4..]]);
        let read = |file, place| RecordHeader::read(&head, file, place, 16);
        let good = read(3, 48).unwrap();
        assert!(good.fits(&[body]) && (good.kind, good.len) == (4, 10));
        assert!(!good.fits(&[b"some bytez"]) && !good.fits(&[&body[1..]]));
        assert!(read(3, 56).is_err() && read(4, 48).is_err());
        assert!(RecordHeader::read(&head, 3, 48, 15).is_err());
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            let mut head = head;
            head[bit / 8] ^= 1 << (bit % 8);
            let read = RecordHeader::read(&head, 3, 48, 16);
            assert!(!read.is_ok_and(|read| read.fits(&[body])), "bit {bit}");
        }
    }
}
