//! How much memory a Protobuf message takes once decoded, computed before any of it is allocated.
//!
//! Two encoded bytes can stand for a struct of hundreds of bytes. A message that would take too much memory is
//! rejected before it is decoded.

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Default limit on the memory of a decoded message, in bytes. The buffer of the encoded message does not count, nor do
/// fields of type `bytes`, which share it; copies of strings do.
pub const MAX_DECODED_BYTES: usize = 32 << 20;

/// A Protobuf field whose content takes memory outside the struct of its message.
#[derive(Debug)]
pub struct Field {
    number: u32,
    /// Bytes of memory for each occurrence of the field, whatever its content.
    per_occurrence: usize,
    /// Bytes of memory for each encoded byte of the field's content.
    per_byte: usize,
    /// Those of the nested message's fields that take memory outside its struct; empty if the field is not a message.
    nested: &'static [Field],
}

/// A message type whose decoded size can be computed from its encoded bytes.
pub trait DecodedSize {
    /// The fields whose content takes memory outside the struct of the message.
    const FIELDS: &'static [Field];

    /// Limit on the decoded size, in bytes.
    const MAX_DECODED_BYTES: usize = MAX_DECODED_BYTES;
}

/// A repeated message field of type `T`.
#[must_use]
pub const fn repeated<T>(number: u32, nested: &'static [Field]) -> Field {
    field(number, size_of::<T>(), 0, nested)
}

/// A message field that is not repeated. Its struct is part of the parent's struct, so only its nested fields take
/// memory.
#[must_use]
pub const fn message(number: u32, nested: &'static [Field]) -> Field {
    field(number, 0, 0, nested)
}

/// A string field that is not repeated.
#[must_use]
pub const fn string(number: u32) -> Field {
    field(number, 0, 1, &[])
}

/// A repeated string field. Each string takes a `String`, its bytes, and about one word for its allocation.
#[must_use]
pub const fn repeated_string(number: u32) -> Field {
    field(number, size_of::<String>() + size_of::<usize>(), 1, &[])
}

/// A repeated field of numbers of type `T`. In the unpacked encoding, each occurrence is one number; in the packed
/// encoding, every byte can be one.
#[must_use]
pub const fn repeated_number<T>(number: u32) -> Field {
    field(number, size_of::<T>(), size_of::<T>(), &[])
}

const fn field(
    number: u32,
    per_occurrence: usize,
    per_byte: usize,
    nested: &'static [Field],
) -> Field {
    Field {
        number,
        per_occurrence,
        per_byte,
        nested,
    }
}

/// Rejects an encoded message whose decoded size exceeds the limit of its type.
///
/// Malformed messages pass: decoding rejects them afterwards.
///
/// # Errors
/// The error text if the message is too large.
pub fn check_decoded_size<T: DecodedSize>(encoded: &[u8]) -> Result<(), String> {
    let mut remaining = T::MAX_DECODED_BYTES;
    subtract_size(encoded, T::FIELDS, &mut remaining).ok_or_else(|| {
        format!(
            "message of {} bytes takes more memory once decoded than the maximum of {} bytes",
            encoded.len(),
            T::MAX_DECODED_BYTES
        )
    })
}

/// Subtracts the decoded size of `encoded` from `remaining`; `None` if the size exceeds `remaining`.
fn subtract_size(mut encoded: &[u8], fields: &[Field], remaining: &mut usize) -> Option<()> {
    while let Ok((number, wire)) = decode_key(&mut encoded) {
        let content = if wire == WireType::LengthDelimited {
            let len = decode_varint(&mut encoded).unwrap_or(u64::MAX);
            let Some(len) = usize::try_from(len)
                .ok()
                .filter(|len| *len <= encoded.len())
            else {
                break;
            };
            let content = &encoded[..len];
            encoded.advance(len);
            content
        } else if skip_field(wire, number, &mut encoded, DecodeContext::default()).is_ok() {
            &[]
        } else {
            break;
        };
        if let Some(field) = fields.iter().find(|field| field.number == number) {
            let size = field.per_occurrence + field.per_byte * content.len();
            *remaining = remaining.checked_sub(size)?;
            if !field.nested.is_empty() {
                subtract_size(content, field.nested, remaining)?;
            }
        }
    }
    Some(())
}
