//! Which fields of Engram's own messages take memory once decoded. `make generate` generates these tables.

use engram_codec::{
    DecodedSize, Field, message, repeated, repeated_number, repeated_string, string,
};

include!("../generated/decoded_size.rs");

#[cfg(test)]
mod tests {
    use prost::Message;

    use engram_codec::{MAX_DECODED_BYTES, check_decoded_size};

    use crate::pb;

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
