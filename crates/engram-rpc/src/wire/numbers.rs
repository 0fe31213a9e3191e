//! Encodes and decodes arrays of numbers as little-endian bytes.

use bytes::{BufMut, Bytes, BytesMut};
use engram_core::{Error, Result};

/// A number of fixed size.
pub trait Number: Copy {
    /// Size in bytes.
    const SIZE: usize;
    /// Appends the number to `out`, little-endian.
    fn put(self, out: &mut BytesMut);
}

macro_rules! number {
    ($($type:ty, $put:ident, $name:ident);+) => {$(
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            fn put(self, out: &mut BytesMut) {
                out.$put(self);
            }
        }

        /// Decodes the numbers of a field.
        ///
        /// # Errors
        /// [`Error::InvalidArgument`] if the length is not a multiple of the number's size.
        pub fn $name(field: &str, bytes: &[u8]) -> Result<Vec<$type>> {
            let (numbers, remainder) = bytes.as_chunks::<{ size_of::<$type>() }>();
            if remainder.is_empty() {
                return Ok(numbers.iter().map(|bytes| <$type>::from_le_bytes(*bytes)).collect());
            }
            Err(Error::InvalidArgument(format!(
                "`{field}` must have a multiple of {} bytes; got {}",
                size_of::<$type>(),
                bytes.len()
            )))
        }
    )+};
}

number!(u64, put_u64_le, decode_u64s; u32, put_u32_le, decode_u32s; i64, put_i64_le, decode_i64s; f64, put_f64_le, decode_f64s);

/// Encodes numbers end to end, little-endian.
pub fn encode_numbers<N: Number>(numbers: impl ExactSizeIterator<Item = N>) -> Bytes {
    let mut out = BytesMut::with_capacity(numbers.len() * N::SIZE);
    numbers.for_each(|number| number.put(&mut out));
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let bytes = encode_numbers([1.5, -2.0].into_iter());
        assert_eq!(decode_f64s("x", &bytes), Ok(vec![1.5, -2.0]));
        assert_eq!(
            decode_u64s("keys_le", &bytes[1..]).unwrap_err().to_string(),
            "`keys_le` must have a multiple of 8 bytes; got 15"
        );
    }
}
