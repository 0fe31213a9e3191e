//! File headers and record headers, with their checksums. `docs/format.md` specifies them.

use std::io::{self, IoSlice, Write};

use super::byte_codec::{BodyReader, BodyWriter, UnusableData};

const MAGIC: [u8; 8] = *b"ENGRAM\r\n";

/// The format version that is written, and the only one that can be read.
pub(crate) const VERSION: u32 = 1;

/// Size of a file's header.
pub(crate) const FILE_HEADER_BYTES: usize = 48;

/// Size of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 24;

/// Why a file's header cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HeaderError {
    Corrupt(UnusableData),
    /// The header is intact, but this release cannot read its format version.
    UnsupportedVersion(u32),
}

impl From<UnusableData> for HeaderError {
    fn from(error: UnusableData) -> Self {
        Self::Corrupt(error)
    }
}

/// What a file is. Headers have these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Checkpoint = 1,
    Log = 2,
    /// The mark that a store writes when it is closed.
    Closed = 3,
    /// A saved replay buffer.
    SavedBuffer = 4,
    /// A replay buffer that is used in the file.
    MappedBuffer = 5,
}

impl FileKind {
    /// Every kind, from number 1 on.
    const ALL: [Self; 5] = [
        Self::Checkpoint,
        Self::Log,
        Self::Closed,
        Self::SavedBuffer,
        Self::MappedBuffer,
    ];

    /// Names the kind in error texts.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Checkpoint => "a checkpoint of a store",
            Self::Log => "a log of a store",
            Self::Closed => "the mark of a closed store",
            Self::SavedBuffer => "a saved replay buffer",
            Self::MappedBuffer => "the file of a mapped replay buffer",
        }
    }
}

/// A file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: FileKind,
    /// Random id of the store that the file belongs to, or of the replay buffer's file.
    pub(crate) store: u64,
    /// The file's number, as in its name; for a replay buffer, its id again.
    pub(crate) number: u64,
}

impl FileHeader {
    pub(crate) fn bytes(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
        bytes.put(&MAGIC);
        bytes.put_u32(VERSION);
        bytes.put_u32(self.kind as u32);
        bytes.put_u64(self.store);
        bytes.put_u64(self.number);
        // Reserved.
        bytes.put(&[0; 12]);
        let sum = crc32c::crc32c(&bytes);
        bytes.put_u32(sum);
        let mut header = [0; FILE_HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    pub(crate) fn read(bytes: &[u8; FILE_HEADER_BYTES]) -> Result<Self, HeaderError> {
        let mut reader = BodyReader(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(UnusableData(
                "it is not an Engram file, or its first 8 bytes are damaged".into(),
            )
            .into());
        }
        let version = reader.u32()?;
        let sum = crc32c::crc32c(&bytes[..FILE_HEADER_BYTES - 4]);
        if BodyReader(&bytes[FILE_HEADER_BYTES - 4..]).u32()? != sum {
            return Err(
                UnusableData("its file header (the first 48 bytes) is damaged".into()).into(),
            );
        }
        if version != VERSION {
            return Err(HeaderError::UnsupportedVersion(version));
        }
        let number = reader.u32()?;
        let mut kinds = FileKind::ALL.iter();
        let kind = kinds.find(|kind| **kind as u32 == number).ok_or_else(|| {
            UnusableData(format!(
                "it has the unknown file kind {number}, expected 1 to 5"
            ))
        })?;
        Ok(Self {
            kind: *kind,
            store: reader.u64()?,
            number: reader.u64()?,
        })
    }
}

/// Returns the header of a record at `offset` of the file with number `file`. The body is given in
/// pieces.
pub(crate) fn record_header(
    file: u64,
    offset: u64,
    kind: u32,
    body: &[&[u8]],
) -> [u8; RECORD_HEADER_BYTES] {
    let len: usize = body.iter().map(|piece| piece.len()).sum();
    let body_sum = checksum(body);
    let mut header = [0; RECORD_HEADER_BYTES];
    header[4..8].copy_from_slice(&kind.to_le_bytes());
    header[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    header[16..20].copy_from_slice(&low_half(file).to_le_bytes());
    header[20..].copy_from_slice(&body_sum.to_le_bytes());
    let header_sum = header_checksum(&header, offset);
    header[..4].copy_from_slice(&header_sum.to_le_bytes());
    header
}

fn checksum(body: &[&[u8]]) -> u32 {
    body.iter()
        .fold(0, |sum, piece| crc32c::crc32c_append(sum, piece))
}

/// Checksum of a record's header. It covers the record's offset: the same bytes are invalid at any
/// other offset.
fn header_checksum(header: &[u8; RECORD_HEADER_BYTES], offset: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&offset.to_le_bytes()), &header[4..])
}

/// Number of zero bytes after a body of `len` bytes.
pub(crate) const fn padding(len: usize) -> usize {
    len.wrapping_neg() % 8
}

/// Size of a record with a body of `len` bytes: header, body and padding.
pub(crate) const fn record_bytes(len: usize) -> usize {
    RECORD_HEADER_BYTES + len + padding(len)
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: u32,
    /// Length of the body, without padding.
    pub(crate) len: usize,
    /// Checksum of the body.
    body_sum: u32,
}

impl RecordHeader {
    /// Reads the header of the record at `offset` of the file with number `file`, which has `left` bytes after this
    /// header.
    pub(crate) fn read(
        bytes: &[u8; RECORD_HEADER_BYTES],
        file: u64,
        offset: u64,
        left: u64,
    ) -> Result<Self, UnusableData> {
        let mut reader = BodyReader(bytes);
        if reader.u32()? != header_checksum(bytes, offset) {
            return UnusableData::err("the checksum of the record's header is wrong");
        }
        let (kind, len) = (reader.u32()?, reader.u64()?);
        if reader.u32()? != low_half(file) {
            return UnusableData::err("the record was written to another file");
        }
        if len
            .checked_next_multiple_of(8)
            .is_none_or(|bytes| bytes > left)
        {
            return UnusableData::err(format!(
                "the record's length is {len} bytes, padded to a multiple of 8, but the file has only {left} \
                 more"
            ));
        }
        Ok(Self {
            kind,
            len: usize::try_from(len).unwrap_or(usize::MAX),
            body_sum: reader.u32()?,
        })
    }

    /// True if the body, given in pieces, has the length and checksum of this header.
    pub(crate) fn matches(&self, body: &[&[u8]]) -> bool {
        let len: usize = body.iter().map(|piece| piece.len()).sum();
        len == self.len && checksum(body) == self.body_sum
    }
}

fn low_half(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// Writes all pieces in order.
pub(crate) fn write_all(file: &mut impl Write, pieces: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut slices = slices.as_mut_slice();
    // Skip empty pieces at the front: a write of 0 bytes would be reported as a full disk.
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

    const HEADER: FileHeader = FileHeader {
        kind: FileKind::Log,
        store: 7,
        number: 3,
    };

    #[test]
    fn every_flipped_bit_of_a_file_header_is_detected() {
        let bytes = HEADER.bytes();
        assert_eq!(FileHeader::read(&bytes), Ok(HEADER));
        for bit in 0..FILE_HEADER_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn kinds_have_the_numbers_of_the_file_format() {
        let kinds = [
            FileKind::Checkpoint,
            FileKind::Log,
            FileKind::Closed,
            FileKind::SavedBuffer,
            FileKind::MappedBuffer,
        ];
        for (number, kind) in (1..).zip(kinds) {
            let header = FileHeader { kind, ..HEADER };
            assert_eq!(header.bytes()[12], number);
            assert_eq!(FileHeader::read(&header.bytes()), Ok(header));
        }
    }

    #[test]
    fn a_record_is_valid_only_in_its_file_and_at_its_offset() {
        let body = b"some bytes".as_slice();
        let header = record_header(3, 48, 4, &[&body[..4], &body[4..]]);
        let read = |file, offset| RecordHeader::read(&header, file, offset, 16);
        let valid = read(3, 48).unwrap();
        assert!(valid.matches(&[body]) && (valid.kind, valid.len) == (4, 10));
        assert!(!valid.matches(&[b"some bytez"]) && !valid.matches(&[&body[1..]]));
        assert!(read(3, 56).is_err() && read(4, 48).is_err());
        assert!(RecordHeader::read(&header, 3, 48, 15).is_err());
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            let mut header = header;
            header[bit / 8] ^= 1 << (bit % 8);
            let read = RecordHeader::read(&header, 3, 48, 16);
            assert!(!read.is_ok_and(|read| read.matches(&[body])), "bit {bit}");
        }
    }
}
