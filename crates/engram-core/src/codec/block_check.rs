//! Checks LZ4 blocks without decompressing them: only the lengths and offsets are read, so the cost
//! does not grow with the decompressed size.
//!
//! A block is a list of sequences: a token, literals, and a match, which repeats earlier output and begins with an
//! offset of two bytes. The high nibble of the token is the number of literals, the low nibble the length of the match
//! minus 4. If a nibble is 15, further bytes are added to it, up to and including the first byte below 255: for the
//! literals, those after the token; for the match, those after its offset. The last sequence has no match.

/// A match must end at least this many bytes before the end of the output.
const LAST_LITERALS: usize = 5;

/// A match must begin at least this many bytes before the end of the output.
const MATCH_LIMIT: usize = 12;

/// Minimum length of a match.
const MIN_MATCH: usize = 4;

/// True if the block follows the LZ4 format and decompresses to exactly `raw` bytes.
pub(super) fn is_valid_block(block: &[u8], raw: usize) -> bool {
    if raw == 0 {
        return block == [0];
    }
    let mut rest = block;
    let mut output_len = 0_usize;
    loop {
        let Some((&token, after_token)) = rest.split_first() else {
            return false;
        };
        rest = after_token;
        let Some(literals) = read_length(token >> 4, &mut rest) else {
            return false;
        };
        let Some(after_literals) = rest.get(literals..) else {
            return false;
        };
        output_len += literals;
        let Some((offset, after_offset)) = after_literals.split_first_chunk::<2>() else {
            return after_literals.is_empty() && output_len == raw;
        };
        rest = after_offset;
        let offset = usize::from(u16::from_le_bytes(*offset));
        if offset == 0 || offset > output_len || output_len + MATCH_LIMIT > raw {
            return false;
        }
        let Some(length) = read_length(token & 15, &mut rest) else {
            return false;
        };
        output_len += length + MIN_MATCH;
        if output_len + LAST_LITERALS > raw {
            return false;
        }
    }
}

/// Returns the length that begins with `nibble`, and removes the bytes that are added to it from the front of `rest`.
/// `None` if the block ends before the length does.
fn read_length(nibble: u8, rest: &mut &[u8]) -> Option<usize> {
    let mut length = usize::from(nibble);
    if nibble == 15 {
        loop {
            let (&more, after) = rest.split_first()?;
            *rest = after;
            length += usize::from(more);
            if more < 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use lz4::block::{CompressionMode, compress};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::codec::decompress_lz4;

    /// Bytes from random, which do not compress, to repetitive.
    fn raw_bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            vec(any::<u8>(), 1..600),
            vec(0..3_u8, 1..3_000),
            (vec(any::<u8>(), 1..40), 1..400_usize).prop_map(|(part, times)| part.repeat(times)),
            (
                vec(any::<u8>(), 1..400),
                0..70_000_usize,
                vec(0..2_u8, 1..400)
            )
                .prop_map(|(start, zeros, end)| [start, vec![0; zeros], end].concat()),
        ]
    }

    fn mode() -> impl Strategy<Value = CompressionMode> {
        prop_oneof![
            Just(CompressionMode::DEFAULT),
            (1..50).prop_map(CompressionMode::FAST),
            (1..12).prop_map(CompressionMode::HIGHCOMPRESSION),
        ]
    }

    fn decompresses(block: &[u8], raw: usize) -> bool {
        decompress_lz4(block, &mut vec![0; raw]).is_ok()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn blocks_of_every_compression_mode_are_valid(raw in raw_bytes(), mode in mode()) {
            let block = compress(&raw, Some(mode), false).unwrap();
            prop_assert!(is_valid_block(&block, raw.len()));
            prop_assert!(!is_valid_block(&block, raw.len() + 1));
            prop_assert!(!is_valid_block(&block, raw.len() - 1));
        }

        #[test]
        fn a_block_that_is_accepted_can_be_decompressed(
            raw in raw_bytes(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let mut block = compress(&raw, None, false).unwrap();
            for (index, value) in changes {
                let index = index.index(block.len());
                block[index] = value;
            }
            if let Some(cut) = cut {
                block.truncate(cut.index(block.len()));
            }
            if is_valid_block(&block, raw.len()) {
                prop_assert!(decompresses(&block, raw.len()));
            }
        }

        #[test]
        fn a_short_block_that_is_accepted_can_be_decompressed(block in vec(prop_oneof![0..4_u8, any::<u8>()], 0..24), raw in 0..40_usize) {
            if is_valid_block(&block, raw) {
                prop_assert!(decompresses(&block, raw));
            }
        }
    }

    #[test]
    fn an_offset_of_zero_is_invalid() {
        // One literal, then a match of 6 bytes, then 8 literals.
        let block = |offset: u8| [&[0x12, 7, offset, 0, 0x80][..], &[1; 8]].concat();
        assert!(is_valid_block(&block(1), 15) && decompresses(&block(1), 15));
        assert!(!is_valid_block(&block(0), 15));
        assert!(!is_valid_block(&block(2), 15));
    }
}
