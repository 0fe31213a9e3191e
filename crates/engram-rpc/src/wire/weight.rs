//! What the messages of this protocol take in memory.

use engram_codec::{Field, Weighed, many, numbers, one, text, texts};

use crate::pb;

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

impl Weighed for pb::HelloResponse {
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

impl Weighed for pb::ManageResponse {
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
        many::<pb::WindowShape>(
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

impl Weighed for pb::InsertResponse {
    const FIELDS: &'static [Field] = &[
        many::<pb::Completed>(1, &[text(1), one(3, ERROR)]),
        many::<pb::Inserted>(2, &[text(1), one(3, ERROR)]),
    ];
}

impl Weighed for pb::SampleRequest {
    const FIELDS: &'static [Field] = &[one(1, &[text(2)])];
}

impl Weighed for pb::SampleResponse {
    const FIELDS: &'static [Field] = &[
        one(
            2,
            &[
                one(1, LAYOUT),
                many::<pb::Column>(2, &[one(1, CELL)]),
                many::<pb::DrawRun>(7, &[]),
            ],
        ),
        one(4, ERROR),
    ];
}

impl Weighed for pb::ChangeRequest {
    const FIELDS: &'static [Field] = &[text(2)];
}

impl Weighed for pb::ChangeResponse {
    const FIELDS: &'static [Field] = &[one(2, ERROR)];
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use engram_codec::{MOST, check};

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
            chunk_part: vec![0; 3 << 20].into(),
            ..pb::InsertRequest::default()
        };
        assert_eq!(check::<pb::InsertRequest>(&request.encode_to_vec()), Ok(()));
        assert_eq!(check::<pb::InsertRequest>(&[0xff; 100]), Ok(()));
    }
}
