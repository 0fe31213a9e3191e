//! How one column of a chunk is stored: raw, or compressed when that pays.

use lz4::block;

use crate::error::{Error, Result};
use crate::schema::CellSpec;

pub(crate) mod delta;

/// How the bytes of one column were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As they are.
    Raw,
    /// One LZ4 block; the raw length follows from rows and cell size.
    Lz4,
    /// The same of integers, each row but the first less the one before it, modulo 2 to their width.
    Delta,
}

/// Most raw bytes of a block of LZ4.
pub const MAX_LZ4_BYTES: usize = 0x7E00_0000;

/// When to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Try large columns, keep what shrinks to 3/4 or less.
    #[default]
    Auto,
    /// As `Auto`, integers of cells that are no scalars as differences from row to row.
    Delta,
    /// Never.
    Off,
}

/// Columns smaller than this are not worth a decompression on every read.
const MIN_COMPRESSED_BYTES: usize = 4096;

/// A column that did not shrink is left alone for this many chunks.
const CHUNKS_SKIPPED: u32 = 15;

/// Remembers, per column of one writer, whether compressing has paid lately.
#[derive(Debug, Default)]
pub struct Compressor {
    mode: Compression,
    skip: Vec<u32>,
}

impl Compressor {
    /// A compressor that has tried nothing yet.
    #[must_use]
    pub fn new(mode: Compression) -> Self {
        Self {
            mode,
            skip: Vec::new(),
        }
    }

    /// Compressed bytes of `raw`, rows of `cell`, when that pays.
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
        // An output that does not pay does not fit, either.
        let mut packed = vec![0; raw.len() / 4 * 3];
        let differences = (self.mode == Compression::Delta && !cell.shape.is_empty())
            .then(|| delta::differences(raw, cell))
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

/// Unpacks one LZ4 block into exactly `out.len()` bytes, at most [`MAX_LZ4_BYTES`].
///
/// # Errors
/// [`Error::Payload`] when the block is damaged or of another length.
pub fn decompress_lz4(stored: &[u8], out: &mut [u8]) -> Result<()> {
    let len = i32::try_from(out.len()).ok();
    let found = len.and_then(|len| block::decompress_to_buffer(stored, Some(len), out).ok());
    match found {
        Some(found) if found == out.len() => Ok(()),
        Some(found) => Err(Error::Payload(format!(
            "compressed column holds {found} bytes where {} are due",
            out.len()
        ))),
        None => Err(Error::Payload(format!(
            "compressed column is damaged, or holds more than the {} bytes that are due",
            out.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn bytes() -> CellSpec {
        CellSpec {
            dtype: DType::Uint8,
            shape: [].into_iter().collect(),
        }
    }

    #[test]
    fn compresses_what_pays_and_rests_after_what_does_not() {
        let mut compressor = Compressor::new(Compression::Auto);
        let flat = vec![7_u8; 10_000];
        let packed = compressor.compress(0, &flat, &bytes()).unwrap().1;
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
        assert_eq!(compressor.compress(1, &noise, &bytes()), None);
        for _ in 0..CHUNKS_SKIPPED {
            assert_eq!(compressor.compress(1, &flat, &bytes()), None);
        }
        assert!(compressor.compress(1, &flat, &bytes()).is_some());
        assert_eq!(compressor.compress(0, &flat[..100], &bytes()), None);
        assert_eq!(
            Compressor::new(Compression::Off).compress(0, &flat, &bytes()),
            None
        );
    }

    #[test]
    fn damage_is_an_error() {
        let packed = Compressor::default()
            .compress(0, &[1; 5000], &bytes())
            .unwrap()
            .1;
        let mut short = vec![0; 4999];
        assert!(decompress_lz4(&packed, &mut short).is_err());
        let mut long = vec![0; 5001];
        let error = decompress_lz4(&packed, &mut long).unwrap_err();
        assert_eq!(
            error.to_string(),
            "compressed column holds 5000 bytes where 5001 are due"
        );
    }
}
