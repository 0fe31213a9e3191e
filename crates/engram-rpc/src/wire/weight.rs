//! What a message will take in memory, found out before any is set aside for it.
//!
//! Two bytes can announce a structure of hundreds: a message of many of them is refused unread.

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::pb;

/// Bytes that the structures of one message may take, beside the bytes that came.
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
}

/// A repeated message.
const fn many<T>(number: u32, within: &'static [Field]) -> Field {
    field(number, size_of::<T>(), 0, within)
}

/// A message that is there once, within its parent.
const fn one(number: u32, within: &'static [Field]) -> Field {
    field(number, 0, 0, within)
}

const fn text(number: u32) -> Field {
    field(number, 0, 1, &[])
}

const fn texts(number: u32) -> Field {
    field(number, size_of::<String>() + size_of::<usize>(), 1, &[])
}

/// Numbers of variable length: each may take one byte on the way.
const fn numbers<T>(number: u32) -> Field {
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

const LAYOUT: &[Field] = &[texts(1), text(2)];
const CELL: &[Field] = &[text(1), numbers::<u64>(2)];
const ERROR: &[Field] = &[text(2), text(3), texts(4)];
const SIGNATURE: &[Field] = &[
    many::<pb::ColumnSpec>(1, &[text(1), text(2), numbers::<i64>(3)]),
    text(2),
];
const LIMITS: &[Field] = &[text(1)];
const OPTIONS: &[Field] = &[text(1), one(8, LIMITS), one(9, SIGNATURE)];

impl Weighed for pb::HelloRequest {
    const FIELDS: &'static [Field] = &[text(2)];
}

impl Weighed for pb::HelloReply {
    const FIELDS: &'static [Field] = &[text(2), text(5)];
}

impl Weighed for pb::ManageRequest {
    const FIELDS: &'static [Field] = &[
        text(2),
        one(3, OPTIONS),
        text(4),
        one(5, &[text(1), one(2, LIMITS)]),
        text(6),
        one(8, &[text(1)]),
        one(9, &[text(1)]),
    ];
}

impl Weighed for pb::ManageReply {
    const FIELDS: &'static [Field] = &[
        one(1, ERROR),
        one(3, &[texts(1)]),
        one(4, OPTIONS),
        one(
            5,
            &[many::<pb::TableInfo>(
                1,
                &[one(1, OPTIONS), text(15), text(16)],
            )],
        ),
    ];
}

impl Weighed for pb::InsertRequest {
    const FIELDS: &'static [Field] = &[
        many::<pb::Schema>(2, &[one(2, LAYOUT), many::<pb::Cell>(3, CELL)]),
        many::<pb::Shape>(
            3,
            &[
                one(2, LAYOUT),
                many::<pb::SpanColumn>(3, &[]),
                many::<pb::Slice>(4, &[]),
            ],
        ),
        many::<pb::Chunk>(4, &[many::<pb::Extent>(7, &[])]),
        many::<pb::Items>(
            6,
            &[
                text(1),
                one(
                    7,
                    &[
                        one(1, LAYOUT),
                        numbers::<u32>(2),
                        many::<pb::SpanColumn>(3, &[]),
                        many::<pb::Slice>(4, &[]),
                    ],
                ),
            ],
        ),
        numbers::<u32>(7),
    ];
}

impl Weighed for pb::InsertReply {
    const FIELDS: &'static [Field] = &[
        many::<pb::Settled>(1, &[text(1), one(3, ERROR)]),
        many::<pb::Taken>(2, &[text(1), one(3, ERROR)]),
    ];
}

impl Weighed for pb::SampleRequest {
    const FIELDS: &'static [Field] = &[one(1, &[text(2)])];
}

impl Weighed for pb::SampleReply {
    const FIELDS: &'static [Field] = &[
        one(
            2,
            &[
                one(1, LAYOUT),
                many::<pb::Column>(2, &[one(1, CELL)]),
                many::<pb::Grant>(7, &[]),
            ],
        ),
        one(4, ERROR),
    ];
}

impl Weighed for pb::ChangeRequest {
    const FIELDS: &'static [Field] = &[text(2)];
}

impl Weighed for pb::ChangeReply {
    const FIELDS: &'static [Field] = &[one(2, ERROR)];
}

/// Refuses a message whose structures would take too much.
///
/// # Errors
/// The text of the refusal. A message that is no message passes: whoever reads it finds out.
pub fn check<T: Weighed>(message: &[u8]) -> Result<(), String> {
    let mut room = MOST;
    match weigh(message, T::FIELDS, &mut room) {
        Some(()) => Ok(()),
        None => Err(format!(
            "what a message of {} bytes describes takes more than {MOST} bytes in memory, which \
             are the most that are allowed: send it in several",
            message.len()
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

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn structures_are_counted_before_they_are_made() {
        let most = MOST / size_of::<pb::Items>();
        let request = |items: usize| {
            let request = pb::InsertRequest {
                items: vec![pb::Items::default(); items],
                ..pb::InsertRequest::default()
            };
            request.encode_to_vec()
        };
        assert_eq!(check::<pb::InsertRequest>(&request(most)), Ok(()));
        let one_more = request(most + 1);
        assert_eq!(
            check::<pb::InsertRequest>(&one_more),
            Err(format!(
                "what a message of {} bytes describes takes more than 33554432 bytes in memory, \
                 which are the most that are allowed: send it in several",
                2 * (most + 1)
            ))
        );
    }

    #[test]
    fn those_within_others_are_counted_too() {
        let schema = pb::Schema {
            cells: vec![pb::Cell::default(); MOST / size_of::<pb::Cell>()],
            ..pb::Schema::default()
        };
        let request = pb::InsertRequest {
            schemas: vec![schema],
            ..pb::InsertRequest::default()
        };
        assert!(check::<pb::InsertRequest>(&request.encode_to_vec()).is_err());
    }

    #[test]
    fn bytes_and_garbage_pass() {
        let request = pb::InsertRequest {
            part: vec![0; 3 << 20].into(),
            ..pb::InsertRequest::default()
        };
        assert_eq!(check::<pb::InsertRequest>(&request.encode_to_vec()), Ok(()));
        assert_eq!(check::<pb::InsertRequest>(&[0xff; 100]), Ok(()));
    }
}
