//! Data that cannot be read is rejected when it is inserted; items that cannot be read are removed when they are
//! sampled.

use std::sync::Arc;

use engram_core::codec::Codec;
use engram_core::{AlignedBytes, Chunk};
use engram_engine::Table;
use engram_rpc::pb;
use engram_rpc::pb::error::Code;
use engram_rpc::pb::items::Trajectories;
use tonic::Code as Status;

use crate::insert::{
    chunk, first_message, items_message, layout, row_items, sample_values, schema,
};
use crate::insert_bounds::final_status;
use crate::sample::{SampleStream, batch_request};
use crate::support::{
    connect, engine, items, open_insert_stream, open_sample_stream, options, queue, start,
};
use crate::{reverb, support};

/// 100 zeros of 4 bytes each as one LZ4 block: a literal byte, a match of 394 bytes that repeats it, and 5 literals.
fn zeros_block() -> Vec<u8> {
    // The length of the match is encoded as 15 + 255 + 120, which excludes the minimum of 4.
    [&[0x1f, 0, 1, 0, 255, 120, 0x50][..], &[0; 5]].concat()
}

/// A chunk of schema 1 with 100 rows, stored as one block.
fn compressed_chunk(codec: u32, block: Vec<u8>) -> pb::Chunk {
    let stored = u32::try_from(block.len()).unwrap();
    pb::Chunk {
        extents: vec![pb::Extent {
            stored_bytes: stored,
            rows: 100,
            codec,
        }],
        payload_bytes: stored.into(),
        payload: block.into(),
        ..chunk(2, 100, 1, 0)
    }
}

fn chunk_message(chunk: pb::Chunk) -> pb::InsertRequest {
    pb::InsertRequest {
        chunks: vec![chunk],
        ..items_message([row_items("t", 1, 100, 2)])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_compressed_columns_are_rejected() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let table = engine.table("t").unwrap();
    for codec in [1, 2] {
        let mut too_long = zeros_block();
        too_long[5] += 1;
        let mut too_short = zeros_block();
        too_short[5] -= 1;
        let mut before_start = zeros_block();
        before_start[2] = 2;
        let mut cut = zeros_block();
        cut.pop();
        for block in [too_long, too_short, before_start, cut] {
            // The chunk is sent in one message, then with its last byte in another message.
            let whole = compressed_chunk(codec, block);
            let split = pb::Chunk {
                payload: whole.payload.slice(..whole.payload.len() - 1),
                ..whole.clone()
            };
            let part = pb::InsertRequest {
                chunk_part: whole.payload.slice(whole.payload.len() - 1..),
                ..items_message([])
            };
            for requests in [
                vec![first_message(1), chunk_message(whole)],
                vec![
                    first_message(1),
                    pb::InsertRequest {
                        chunks: vec![split],
                        ..items_message([])
                    },
                    part,
                ],
            ] {
                let status = final_status(&mut client, requests).await;
                let text =
                    "column `x` is corrupt: its LZ4 block cannot be decompressed to 400 bytes";
                assert_eq!(status, (Status::InvalidArgument, text.into()));
            }
        }
        assert_eq!(table.info().stats.size, 0);
        let mut stream = open_insert_stream(&mut client).await;
        stream.send(first_message(codec.into())).await;
        let valid = chunk_message(compressed_chunk(codec, zeros_block()));
        stream.send(valid).await;
        assert_eq!(stream.wait_completed("t", 100).await, []);
        assert_eq!(sample_values(&table, 100), [0; 100]);
        table.reset().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn structures_that_do_not_fit_the_columns_are_rejected() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let wrong_layout = |structure: &str| {
        Some(pb::Layout {
            structure: structure.into(),
            ..layout()
        })
    };
    for (structure, problem) in [
        (
            r#"{"d":[]}"#,
            "describes 0 columns, expected 1; it needs one leaf per column",
        ),
        (
            r#"{"t":[0,0]}"#,
            "describes 2 columns, expected 1; it needs one leaf per column",
        ),
        (
            r#"{"d":[["x",0],["x",0]]}"#,
            r#"cannot be read: the key "x" occurs twice at line 1 column 22"#,
        ),
        ("obs", "cannot be read: expected value at line 1 column 1"),
    ] {
        let bad_schema = pb::InsertRequest {
            session: Some(1),
            schemas: vec![pb::Schema {
                layout: wrong_layout(structure),
                ..schema(1)
            }],
            ..items_message([])
        };
        let column = pb::SpanColumn {
            slice_count: 1,
            squeeze: false,
        };
        let slice = pb::Slice {
            chunk: 0,
            column: 0,
            offset: 0,
            len: 1,
        };
        let bad_shape = pb::InsertRequest {
            window_shapes: vec![pb::WindowShape {
                id: 5,
                layout: wrong_layout(structure),
                columns: vec![column],
                slices: vec![slice],
            }],
            ..items_message([])
        };
        let bad_spans = pb::Items {
            trajectories: Some(Trajectories::Spans(pb::Spans {
                layout: wrong_layout(structure),
                chunks: vec![1],
                columns: vec![column],
                slices: vec![slice],
            })),
            ..row_items("t", 1, 1, 1)
        };
        for requests in [
            vec![bad_schema],
            vec![first_message(1), bad_shape],
            vec![first_message(1), items_message([bad_spans])],
        ] {
            let status = final_status(&mut client, requests).await;
            let text = format!("the structure of a layout {problem}");
            assert_eq!(status, (Status::InvalidArgument, text));
        }
    }
    assert_eq!(engine.table("t").unwrap().info().stats.size, 0);
}

/// Adds an item whose only column is corrupt, as a server of an earlier version could have accepted.
async fn insert_corrupt_item(table: &Arc<Table>, key: u64) {
    let intact = support::chunk(100, 1, 0);
    let mut extent = intact.extents()[0];
    (extent.codec, extent.stored) = (Codec::Lz4, 20);
    let payload = AlignedBytes::zeroed(20).unwrap();
    let (origin, schema) = (intact.origin().clone(), intact.schema().clone());
    let chunk = Chunk::from_parts(origin, schema, [extent].into_iter().collect(), payload);
    let item = support::item_of_row(key, &Arc::new(chunk.unwrap()), 0);
    table.insert(vec![item]).unwrap().await.unwrap();
}

const UNREADABLE: &str = "item 50 of table `t` cannot be read and was removed: column `x` is corrupt: its LZ4 block \
                          cannot be decompressed to 400 bytes";

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_continues_after_an_unreadable_item() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    support::fill(&table, 1, 1, 1);
    insert_corrupt_item(&table, 50).await;
    table.insert(items(2, 1, 1)).unwrap().await.unwrap();
    let mut stream: SampleStream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 3)).await;
    stream.request_batch(batch_request(2, 2)).await;
    let (id, error) = stream.receive_error().await;
    assert_eq!(
        (id, error.code(), &*error.text),
        (1, Code::Payload, UNREADABLE)
    );
    let (id, batch) = stream.receive_and_acknowledge().await;
    let keys = engram_rpc::wire::decode_u64s("keys_le", &batch.keys_le).unwrap();
    assert_eq!((id, keys), (2, vec![1, 2]));
    let infos = pb::manage_request::Call::Info(pb::ListTables::default());
    let request = pb::ManageRequest { call: Some(infos) };
    let reply = connect(&server).await.manage(request).await.unwrap();
    let Some(pb::manage_response::Outcome::Info(infos)) = reply.into_inner().outcome else {
        panic!("no infos");
    };
    assert_eq!(infos.tables[0].unreadable_items, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_dm_reverb_continues_after_an_unreadable_item() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    support::fill(&table, 1, 1, 1);
    insert_corrupt_item(&table, 50).await;
    table.insert(items(2, 1, 1)).unwrap().await.unwrap();
    let mut client = reverb::connect(&server).await;
    let mut reader = reverb::open_sample_stream(&mut client).await;
    reader.send(reverb::sample_request("t", 3, 0)).await;
    assert_eq!(reverb_keys(&reader.receive().await), [1]);
    assert_eq!(reader.end_status().await.message(), UNREADABLE);
    let mut reader = reverb::open_sample_stream(&mut client).await;
    reader.send(reverb::sample_request("t", 1, 0)).await;
    assert_eq!(reverb_keys(&reader.receive().await), [2]);
    assert_eq!(table.info().unreadable_items, 1);
}

fn reverb_keys(response: &engram_reverb::pb::SampleStreamResponse) -> Vec<u64> {
    let infos = response.entries.iter().flat_map(|entry| &entry.info);
    let items = infos.flat_map(|info| &info.item);
    items.map(|item| item.key).collect()
}
