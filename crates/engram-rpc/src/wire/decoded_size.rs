//! Which fields of Engram's own messages take memory once decoded.
//!
//! Fields are given by their numbers in `engram.proto`. Fields of type `bytes` are left out: they share the memory of
//! the encoded message.

use engram_codec::{
    DecodedSize, Field, message, repeated, repeated_number, repeated_string, string,
};

use crate::pb;

const LAYOUT: &[Field] = &[repeated_string(1), string(2)];
const CELL: &[Field] = &[string(1), repeated_number::<u64>(2)];
const ERROR: &[Field] = &[string(2), string(3), repeated_string(4)];
const SIGNATURE: &[Field] = &[
    repeated::<pb::ColumnSpec>(1, &[string(1), string(2), repeated_number::<i64>(3)]),
    string(2),
];
const LIMITS: &[Field] = &[string(1)];
const LIST_TABLES: &[Field] = &[string(2)];
const BATCH: &[Field] = &[
    message(1, LAYOUT),
    repeated::<pb::Column>(2, &[message(1, CELL)]),
    repeated::<pb::DrawRun>(7, &[]),
];
const OPTIONS: &[Field] = &[
    string(1),
    message(8, LIMITS),
    message(9, SIGNATURE),
    string(11),
];

impl DecodedSize for pb::HelloRequest {
    const FIELDS: &'static [Field] = &[string(2)];
}

impl DecodedSize for pb::HelloResponse {
    const FIELDS: &'static [Field] = &[string(2), string(5)];
}

impl DecodedSize for pb::ManageRequest {
    const FIELDS: &'static [Field] = &[
        message(1, LIST_TABLES),
        string(2),
        message(3, OPTIONS),
        string(4),
        message(5, &[string(1), message(2, LIMITS)]),
        string(6),
        message(7, LIST_TABLES),
        message(8, &[string(1)]),
        message(9, &[string(1)]),
    ];
}

impl DecodedSize for pb::ManageResponse {
    const FIELDS: &'static [Field] = &[
        message(1, ERROR),
        message(3, &[repeated_string(1)]),
        message(4, OPTIONS),
        message(
            5,
            &[repeated::<pb::TableInfo>(
                1,
                &[message(1, OPTIONS), string(15), string(16), string(18)],
            )],
        ),
    ];
}

impl DecodedSize for pb::InsertRequest {
    const FIELDS: &'static [Field] = &[
        repeated::<pb::Schema>(2, &[message(2, LAYOUT), repeated::<pb::Cell>(3, CELL)]),
        repeated::<pb::WindowShape>(
            3,
            &[
                message(2, LAYOUT),
                repeated::<pb::SpanColumn>(3, &[]),
                repeated::<pb::Slice>(4, &[]),
            ],
        ),
        repeated::<pb::Chunk>(4, &[repeated::<pb::Extent>(7, &[])]),
        repeated::<pb::Items>(
            6,
            &[
                string(1),
                message(
                    7,
                    &[
                        message(1, LAYOUT),
                        repeated_number::<u32>(2),
                        repeated::<pb::SpanColumn>(3, &[]),
                        repeated::<pb::Slice>(4, &[]),
                    ],
                ),
            ],
        ),
        repeated_number::<u32>(7),
    ];
}

impl DecodedSize for pb::InsertResponse {
    const FIELDS: &'static [Field] = &[
        repeated::<pb::Completed>(1, &[string(1), message(3, ERROR)]),
        repeated::<pb::Inserted>(2, &[string(1), message(3, ERROR)]),
        repeated::<pb::Allowed>(3, &[string(1)]),
    ];
}

impl DecodedSize for pb::SampleRequest {
    const FIELDS: &'static [Field] = &[message(1, &[string(2)])];
}

impl DecodedSize for pb::SampleResponse {
    const FIELDS: &'static [Field] = &[
        message(2, BATCH),
        message(4, ERROR),
        message(5, &[message(1, ERROR)]),
    ];
}

impl DecodedSize for pb::ScanRequest {
    const FIELDS: &'static [Field] = &[message(2, &[string(1)])];
}

impl DecodedSize for pb::ScanResponse {
    const FIELDS: &'static [Field] = &[message(2, BATCH), message(4, ERROR)];
}

impl DecodedSize for pb::ChangeRequest {
    const FIELDS: &'static [Field] = &[string(2)];
}

impl DecodedSize for pb::ChangeResponse {
    const FIELDS: &'static [Field] = &[message(2, ERROR)];
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use engram_codec::{MAX_DECODED_BYTES, check_decoded_size};

    use super::*;

    #[test]
    fn a_message_with_too_many_items_is_rejected() {
        let max_items = MAX_DECODED_BYTES / size_of::<pb::Items>();
        let request = |items: usize| {
            let request = pb::InsertRequest {
                items: vec![pb::Items::default(); items],
                ..pb::InsertRequest::default()
            };
            request.encode_to_vec()
        };
        assert_eq!(
            check_decoded_size::<pb::InsertRequest>(&request(max_items)),
            Ok(())
        );
        let one_more = request(max_items + 1);
        assert_eq!(
            check_decoded_size::<pb::InsertRequest>(&one_more),
            Err(format!(
                "message of {} bytes takes more memory once decoded than the maximum of 33554432 bytes",
                2 * (max_items + 1)
            ))
        );
    }

    #[test]
    fn nested_messages_are_counted() {
        let schema = pb::Schema {
            cells: vec![pb::Cell::default(); MAX_DECODED_BYTES / size_of::<pb::Cell>()],
            ..pb::Schema::default()
        };
        let request = pb::InsertRequest {
            schemas: vec![schema],
            ..pb::InsertRequest::default()
        };
        assert!(check_decoded_size::<pb::InsertRequest>(&request.encode_to_vec()).is_err());
    }

    #[test]
    fn the_texts_of_a_table_are_counted() {
        let text = || Some("x".repeat(MAX_DECODED_BYTES / 4));
        let info = pb::TableInfo {
            options: Some(pb::TableOptions {
                note: text(),
                ..pb::TableOptions::default()
            }),
            inserting_blocked: text(),
            sampling_blocked: text(),
            storage_problem: text(),
            ..pb::TableInfo::default()
        };
        let tables = vec![info];
        let response = pb::ManageResponse {
            outcome: Some(pb::manage_response::Outcome::Info(pb::TableInfos {
                tables,
                more: false,
            })),
        };
        assert!(check_decoded_size::<pb::ManageResponse>(&response.encode_to_vec()).is_err());
    }

    #[test]
    fn byte_fields_and_malformed_messages_pass() {
        let request = pb::InsertRequest {
            chunk_part: vec![0; 3 << 20].into(),
            ..pb::InsertRequest::default()
        };
        assert_eq!(
            check_decoded_size::<pb::InsertRequest>(&request.encode_to_vec()),
            Ok(())
        );
        assert_eq!(
            check_decoded_size::<pb::InsertRequest>(&[0xff; 100]),
            Ok(())
        );
    }
}
