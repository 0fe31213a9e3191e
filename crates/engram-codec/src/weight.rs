//! What a message will take in memory, found out before any is set aside for it.
//!
//! Two bytes can announce a structure of hundreds: a message of many of them is refused unread.

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Bytes that the structures of one message may take, beside the bytes that came, unless it says otherwise.
pub const MOST: usize = 32 << 20;

/// A field that takes memory beyond the bytes it came in.
#[derive(Debug)]
pub struct Field {
    number: u32,
    /// Bytes for each time it comes.
    each: usize,
    /// Bytes for each byte of its content.
    per_byte: usize,
    /// Those within it.
    within: &'static [Field],
}

/// A message whose fields are known here.
pub trait Weighed {
    /// Those that take memory.
    const FIELDS: &'static [Field];

    /// Bytes that its structures may take.
    const MOST: usize = MOST;
}

/// A repeated message.
#[must_use]
pub const fn many<T>(number: u32, within: &'static [Field]) -> Field {
    field(number, size_of::<T>(), 0, within)
}

/// A message that is there once, within its parent.
#[must_use]
pub const fn one(number: u32, within: &'static [Field]) -> Field {
    field(number, 0, 0, within)
}

/// A string.
#[must_use]
pub const fn text(number: u32) -> Field {
    field(number, 0, 1, &[])
}

/// A repeated string.
#[must_use]
pub const fn texts(number: u32) -> Field {
    field(number, size_of::<String>() + size_of::<usize>(), 1, &[])
}

/// Numbers of variable length: each may take one byte on the way.
#[must_use]
pub const fn numbers<T>(number: u32) -> Field {
    field(number, size_of::<T>(), size_of::<T>(), &[])
}

const fn field(number: u32, each: usize, per_byte: usize, within: &'static [Field]) -> Field {
    Field {
        number,
        each,
        per_byte,
        within,
    }
}

/// Refuses a message whose structures would take too much.
///
/// # Errors
/// The text of the refusal. A message that is no message passes: whoever reads it finds out.
pub fn check<T: Weighed>(message: &[u8]) -> Result<(), String> {
    let mut room = T::MOST;
    match weigh(message, T::FIELDS, &mut room) {
        Some(()) => Ok(()),
        None => Err(format!(
            "what a message of {} bytes describes takes more than {} bytes in memory, which are \
             the most that are allowed: send it in several",
            message.len(),
            T::MOST
        )),
    }
}

/// Takes a message out of the room there is; `None` when it does not fit.
fn weigh(mut message: &[u8], fields: &[Field], room: &mut usize) -> Option<()> {
    while let Ok((number, wire)) = decode_key(&mut message) {
        let content = if wire == WireType::LengthDelimited {
            let len = decode_varint(&mut message).unwrap_or(u64::MAX);
            let Some(len) = usize::try_from(len)
                .ok()
                .filter(|len| *len <= message.len())
            else {
                break;
            };
            let content = &message[..len];
            message.advance(len);
            content
        } else if skip_field(wire, number, &mut message, DecodeContext::default()).is_ok() {
            &[]
        } else {
            break;
        };
        if let Some(field) = fields.iter().find(|field| field.number == number) {
            *room = room.checked_sub(field.each + field.per_byte * content.len())?;
            if !field.within.is_empty() {
                weigh(content, field.within, room)?;
            }
        }
    }
    Some(())
}
