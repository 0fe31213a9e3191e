//! Invalid insert requests, and bounds on the memory that a writer can make a server use.

use std::time::Duration;

use engram_rpc::pb;
use engram_rpc::pb::items::Trajectories;
use engram_rpc::wire::encode_numbers;
use tonic::Code;

use crate::insert::{InsertStream, chunk, first_message, items_message, layout, row_items, schema};
use crate::support::{
    Client, connect, engine, one_item_queue, open_insert_stream, open_sample_stream, queue, start,
};

/// Sends messages on a new stream; returns the code and text of the status that the stream ends with.
pub(crate) async fn final_status(
    client: &mut Client,
    requests: Vec<pb::InsertRequest>,
) -> (Code, String) {
    let mut stream: InsertStream = open_insert_stream(client).await;
    for request in requests {
        // The server may end the stream before it has read everything.
        let _ = stream.requests.send(request).await;
    }
    loop {
        match stream.next_response().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without an error"),
            Err(status) => return (status.code(), status.message().into()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
async fn invalid_messages_end_the_stream() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let with_trajectories = |trajectories| pb::Items {
        trajectories,
        ..row_items("t", 1, 2, 1)
    };
    let after_first_message = |request| vec![first_message(1), request];
    let chunks = |chunk| pb::InsertRequest {
        chunks: vec![chunk],
        ..items_message([])
    };
    let spans = pb::Spans {
        layout: Some(layout()),
        chunks: vec![1, 1],
        ..pb::Spans::default()
    };
    let shape = pb::WindowShape {
        id: 1,
        layout: Some(layout()),
        columns: vec![pb::SpanColumn {
            slice_count: u32::MAX,
            squeeze: false,
        }],
        slices: vec![],
    };
    let cases = [
        (
            vec![items_message([])],
            "`session` is missing; the first message of a stream must set it",
        ),
        (
            vec![first_message(1), first_message(1)],
            "`session` is set in a later message; only the first of a stream may set it",
        ),
        (
            after_first_message(items_message([row_items("t", 1, 2, 3)])),
            "unknown chunk 3: it was not sent on this stream, or was released or dropped; send it first",
        ),
        (
            after_first_message(items_message([with_trajectories(Some(
                Trajectories::WindowShape(4),
            ))])),
            "unknown window shape 4: it was not sent on this stream, or was released or dropped; send it first",
        ),
        (
            after_first_message(items_message([with_trajectories(Some(
                Trajectories::Spans(spans.clone()),
            ))])),
            "`spans` must describe exactly 1 item; got 2 keys",
        ),
        (
            after_first_message(items_message([pb::Items {
                trajectories: Some(Trajectories::Spans(spans)),
                ..row_items("t", 1, 1, 1)
            }])),
            "`spans` lists chunk 1 twice; list each chunk once",
        ),
        (
            after_first_message(items_message([with_trajectories(None)])),
            "the items have no trajectories; one of `rows`, `window_shape` and `spans` is required",
        ),
        (
            after_first_message(items_message([pb::Items {
                chunks_le: encode_numbers([1_u32].into_iter()),
                ..row_items("t", 1, 2, 1)
            }])),
            "`chunks_le` has 1 and `offsets_le` 2 numbers for 2 items; expected one per item",
        ),
        (
            after_first_message(items_message([pb::Items {
                priorities_le: encode_numbers([1.0; 3].into_iter()),
                ..row_items("t", 1, 2, 1)
            }])),
            "`priorities_le` has length 3 for 2 items; expected one priority for all items or one each",
        ),
        (
            after_first_message(items_message([pb::Items {
                first_number: u64::MAX,
                ..row_items("t", 1, 1, 1)
            }])),
            "`first_number` is 18446744073709551615 for 1 item; the numbers of all items must be at least 1 and below 2^64 - 1",
        ),
        (
            after_first_message(pb::InsertRequest {
                window_shapes: vec![shape],
                ..items_message([])
            }),
            "the `slice_count`s of the columns do not add up to the 0 slices",
        ),
        (
            after_first_message(pb::InsertRequest {
                chunk_part: vec![0; 5].into(),
                ..items_message([])
            }),
            "`chunk_part` has 5 bytes, but no chunk is incomplete",
        ),
        (
            after_first_message(chunks(pb::Chunk {
                payload_bytes: 39,
                ..chunk(2, 10, 1, 0)
            })),
            "received 40 bytes for chunk 2, which has 39",
        ),
        (
            after_first_message(chunks(pb::Chunk {
                payload_bytes: 1 << 32,
                ..chunk(2, 10, 1, 0)
            })),
            "chunk 2 has 4294967296 bytes; at most 4294967295 are allowed",
        ),
        (
            after_first_message(chunks(pb::Chunk {
                extents: vec![pb::Extent {
                    stored_bytes: 40,
                    rows: 10,
                    codec: 3,
                }],
                ..chunk(2, 10, 1, 0)
            })),
            "chunk 2 has a column with unknown codec 3; expected 0 to 2",
        ),
        (
            after_first_message(chunks(chunk(2, 10, 2, 0))),
            "column `x` has 80 bytes for 10 rows of uint32[1], which take 40",
        ),
    ];
    for (requests, text) in cases {
        let status = final_status(&mut client, requests).await;
        assert_eq!(status, (Code::InvalidArgument, text.into()));
    }
    assert_eq!(engine.table("t").unwrap().info().stats.size, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_columns_and_names_are_bounded() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut wide = schema(1);
    wide.cells = vec![wide.cells.swap_remove(0); 16_385];
    let schemas = pb::InsertRequest {
        schemas: vec![wide],
        ..items_message([])
    };
    let (code, text) = final_status(&mut client, vec![first_message(1), schemas]).await;
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(
        text,
        "a schema has 16385 columns; a server accepts at most 16384"
    );
    let mut many_names = schema(1);
    let names = vec![String::new(); 16_385];
    many_names.layout = Some(pb::Layout { names, ..layout() });
    let schemas = pb::InsertRequest {
        schemas: vec![many_names],
        ..items_message([])
    };
    let (_, text) = final_status(&mut client, vec![first_message(1), schemas]).await;
    assert_eq!(
        text,
        "a layout has 16385 columns; a server accepts at most 16384"
    );
    // Two bytes each in the message, hundreds in memory.
    let tiny = items_message(vec![pb::Items::default(); 1_000_000]);
    let (code, text) = final_status(&mut client, vec![first_message(1), tiny]).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(
        text,
        "message of 2000000 bytes takes more memory once decoded than the maximum of 33554432 bytes; send its \
         content in several messages"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_chunk_is_dropped_when_another_begins() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    // A chunk whose size is given as 4 GiB, but whose bytes are never sent: no memory is reserved for them.
    let huge = pb::Chunk {
        payload_bytes: u32::MAX.into(),
        ..chunk(2, 10, 1, 0)
    };
    for _ in 0..100 {
        let request = pb::InsertRequest {
            chunks: vec![huge.clone()],
            ..items_message([])
        };
        stream.send(request).await;
    }
    let request = pb::InsertRequest {
        chunks: vec![chunk(2, 10, 1, 0)],
        ..items_message([row_items("t", 1, 10, 2)])
    };
    stream.send(request).await;
    assert_eq!(stream.wait_completed("t", 10).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_a_maximum_number_of_chunks() {
    let engine = engine(vec![]);
    let server = start(&engine);
    let chunks = |from: u32, to: u32| pb::InsertRequest {
        chunks: (from..to).map(|id| chunk(id, 1, 1, id)).collect(),
        ..items_message([])
    };
    let mut requests = vec![first_message(1)];
    for index in 0..17 {
        requests.push(chunks(2 + index * 4_000, 2 + (index + 1) * 4_000));
    }
    let (code, text) = final_status(&mut connect(&server).await, requests).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(
        text,
        "the stream has 65537 chunks; at most 65536 are allowed; release chunks that no later \
         item refers to"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_per_message_are_bounded() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let slice = pb::Slice {
        chunk: 0,
        column: 0,
        offset: 0,
        len: 1,
    };
    let shape = pb::WindowShape {
        id: 1,
        layout: Some(layout()),
        columns: vec![pb::SpanColumn {
            slice_count: 100_000,
            squeeze: false,
        }],
        slices: vec![slice; 100_000],
    };
    let shapes = pb::InsertRequest {
        window_shapes: vec![shape],
        ..items_message([])
    };
    let items = pb::Items {
        trajectories: Some(Trajectories::WindowShape(1)),
        ..row_items("t", 1, 50_000, 1)
    };
    let requests = vec![first_message(1), shapes, items_message([items])];
    let (code, text) = final_status(&mut connect(&server).await, requests).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(
        text,
        "the message has 50000 items of 100000 slices each; at most 67108864 slices in total are \
         allowed; send fewer items per message"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stops_reading_while_too_many_bytes_wait() {
    let engine = engine(vec![one_item_queue("full")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = open_insert_stream(&mut client).await;
    // Chunks of 4 MB in four parts, released at once: only waiting items refer to them.
    let mut whole = chunk(1, 1, 1 << 20, 1);
    let payload = std::mem::take(&mut whole.payload);
    whole.payload = payload.slice(..1 << 20);
    stream
        .send(pb::InsertRequest {
            session: Some(1),
            schemas: vec![schema(1 << 20)],
            ..items_message([])
        })
        .await;
    let requests = stream.requests.clone();
    let sending = tokio::spawn(async move {
        for number in 1..=100 {
            let first = pb::InsertRequest {
                chunks: vec![whole.clone()],
                ..items_message([])
            };
            let parts = (1..4).map(|index| pb::InsertRequest {
                chunk_part: payload.slice(index << 20..(index + 1) << 20),
                ..items_message([])
            });
            let items = pb::InsertRequest {
                released_chunks: vec![1],
                ..items_message([row_items("full", number, 1, 1)])
            };
            for request in std::iter::once(first).chain(parts).chain([items]) {
                requests.send(request).await.unwrap();
            }
        }
    });
    sending.await.unwrap();
    let unread = || stream.requests.max_capacity() - stream.requests.capacity();
    let mut before = usize::MAX;
    while unread() != before {
        before = unread();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // The chunks of 16 items have 64 MiB, the bound. With the bytes counted for the items themselves, they exceed it. A
    // few messages more are in the connection's buffers.
    let read = (500 - before) / 5;
    assert!((16..20).contains(&read), "items of 4 MiB: {read}");
    // Other streams of the connection still work: the samples of this one make room for the items.
    let mut reader = open_sample_stream(&mut client).await;
    for id in 0..100 {
        reader.request_batch(batch_request(id, "full")).await;
        let (_, batch) = reader.receive_batch().await;
        assert_eq!(batch.payload[..8], [1, 0, 0, 0, 1, 0, 0, 0]);
    }
    assert_eq!(stream.wait_completed("full", 100).await, []);
}

fn batch_request(id: u64, table: &str) -> pb::BatchRequest {
    pb::BatchRequest {
        table: table.into(),
        ..crate::sample::batch_request(id, 1)
    }
}
