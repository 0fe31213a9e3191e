//! Column encodings: raw, or compressed if that saves enough memory.

use lz4::block;

use crate::error::{Error, Result};
use crate::schema::CellSpec;
use crate::text::count;

mod block_check;
mod delta;

pub use delta::decode_differences;

/// Encoding of a column. Files and messages have these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// Not compressed.
    Raw = 0,
    /// One LZ4 block. Its raw length is the number of rows times the cell size.
    Lz4 = 1,
    /// One LZ4 block of delta-encoded integers: every row except the first is stored as its difference from
    /// the row before it, with wrap-around.
    Delta = 2,
}

impl Codec {
    /// The encoding with this number; `None` if there is none.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Raw, Self::Lz4, Self::Delta];
        all.into_iter().find(|codec| *codec as u32 == number)
    }
}

/// Maximum raw bytes of an LZ4 block.
pub const MAX_LZ4_BYTES: usize = 0x7E00_0000;

/// Which columns a writer compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Columns of fixed-size cells, of at least 4 KiB, that shrink to at most 3/4 of their size. After a column did
    /// not, it is stored raw in the next 15 chunks without a try.
    #[default]
    Auto,
    /// Like `Auto`, but columns whose cells are arrays of integers are delta-encoded before they are compressed.
    /// Columns of scalars are not.
    Delta,
    /// No columns.
    Off,
}

/// Minimum size in bytes of a column that is compressed. For smaller columns, the saved memory is not worth
/// decompressing them on every read.
const MIN_COMPRESSED_BYTES: usize = 4096;

/// Number of chunks for which a column is not compressed after it did not shrink to 3/4 of its size.
const CHUNKS_SKIPPED: u32 = 15;

/// Compresses the columns of one writer; skips columns that recently did not shrink.
#[derive(Debug, Default)]
pub struct Compressor {
    mode: Compression,
    /// Per column: number of chunks for which it is still skipped.
    skip: Vec<u32>,
}

impl Compressor {
    /// A compressor that skips no column yet.
    #[must_use]
    pub fn new(mode: Compression) -> Self {
        Self {
            mode,
            skip: Vec::new(),
        }
    }

    /// Compresses `raw`, the rows of a column of `cell`. Returns `None` if the column is to be stored raw:
    /// compression is off, or the column is small, is being skipped, or does not shrink enough. The cells must not be
    /// strings.
    pub fn compress(
        &mut self,
        column: usize,
        raw: &[u8],
        cell: &CellSpec,
    ) -> Option<(Codec, Vec<u8>)> {
        if self.mode == Compression::Off || raw.len() < MIN_COMPRESSED_BYTES {
            return None;
        }
        if self.skip.len() <= column {
            self.skip.resize(column + 1, 0);
        }
        if self.skip[column] > 0 {
            self.skip[column] -= 1;
            return None;
        }
        // Compression fails if the output exceeds 3/4 of the input.
        let mut packed = vec![0; raw.len() / 4 * 3];
        let differences = (self.mode == Compression::Delta && !cell.shape.is_empty())
            .then(|| delta::encode_differences(raw, cell))
            .flatten();
        let codec = differences.as_ref().map_or(Codec::Lz4, |_| Codec::Delta);
        let raw = differences.as_deref().unwrap_or(raw);
        if let Ok(len) = block::compress_to_buffer(raw, None, false, &mut packed) {
            packed.truncate(len);
            packed.shrink_to_fit();
            return Some((codec, packed));
        }
        self.skip[column] = CHUNKS_SKIPPED;
        None
    }
}

/// Decompresses an LZ4 block into exactly `out.len()` bytes, at most [`MAX_LZ4_BYTES`].
///
/// # Errors
/// [`Error::Payload`] if the block is corrupt or decompresses to another length.
pub fn decompress_lz4(stored: &[u8], out: &mut [u8]) -> Result<()> {
    let max_len = i32::try_from(out.len()).ok();
    let len = max_len.and_then(|max| block::decompress_to_buffer(stored, Some(max), out).ok());
    if len == Some(out.len()) {
        return Ok(());
    }
    Err(corrupt_block(out.len()))
}

/// Checks that an LZ4 block can be decompressed to exactly `raw` bytes, without decompressing it.
///
/// # Errors
/// [`Error::Payload`] if it cannot.
pub(crate) fn check_lz4(stored: &[u8], raw: usize) -> Result<()> {
    if block_check::is_valid_block(stored, raw) {
        return Ok(());
    }
    Err(corrupt_block(raw))
}

fn corrupt_block(raw: usize) -> Error {
    Error::Payload(format!(
        "its LZ4 block cannot be decompressed to {}",
        count(raw, "byte")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn byte_cell() -> CellSpec {
        CellSpec {
            dtype: DType::Uint8,
            shape: [].into_iter().collect(),
        }
    }

    #[test]
    fn numbers_are_those_of_the_file_format() {
        let codecs = [Some(Codec::Raw), Some(Codec::Lz4), Some(Codec::Delta), None];
        assert_eq!([0, 1, 2, 3].map(Codec::from_number), codecs);
    }

    #[test]
    fn columns_that_do_not_shrink_are_skipped_for_a_while() {
        let mut compressor = Compressor::new(Compression::Auto);
        let flat = vec![7_u8; 10_000];
        let packed = compressor.compress(0, &flat, &byte_cell()).unwrap().1;
        let mut out = vec![0; flat.len()];
        decompress_lz4(&packed, &mut out).unwrap();
        assert_eq!(out, flat);

        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_le_bytes()[7]
        })
        .take(10_000)
        .collect();
        assert_eq!(compressor.compress(1, &noise, &byte_cell()), None);
        for _ in 0..CHUNKS_SKIPPED {
            assert_eq!(compressor.compress(1, &flat, &byte_cell()), None);
        }
        assert!(compressor.compress(1, &flat, &byte_cell()).is_some());
        assert_eq!(compressor.compress(0, &flat[..100], &byte_cell()), None);
        assert_eq!(
            Compressor::new(Compression::Off).compress(0, &flat, &byte_cell()),
            None
        );
    }

    #[test]
    fn corrupt_blocks_are_errors() {
        let packed = Compressor::default()
            .compress(0, &[1; 5000], &byte_cell())
            .unwrap()
            .1;
        let mut short = vec![0; 4999];
        assert!(decompress_lz4(&packed, &mut short).is_err());
        let mut long = vec![0; 5001];
        let error = decompress_lz4(&packed, &mut long).unwrap_err();
        assert_eq!(
            error.to_string(),
            "its LZ4 block cannot be decompressed to 5001 bytes"
        );
    }
}
