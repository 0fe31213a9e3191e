//! Inserting over the network: kinds of trajectories, the order of items, acknowledgements.

use std::sync::Arc;
use std::time::Duration;

use engram_core::gather::{ColumnData, LengthPolicy, gather};
use engram_core::{RateLimits, TableOptions};
use engram_engine::{Engine, Table, wait_by};
use engram_rpc::pb;
use engram_rpc::pb::error::Code;
use engram_rpc::pb::items::Trajectories;
use engram_rpc::wire::encode_numbers;

use crate::support::{
    TestStream, connect, engine, fill, open_insert_stream, options, queue, start, wait_until,
};

pub(crate) type InsertStream = TestStream<pb::InsertRequest, pb::InsertResponse>;

pub(crate) fn layout() -> pb::Layout {
    pb::Layout {
        names: vec!["x".into()],
        structure: r#"{"d":[["x",0]]}"#.into(),
    }
}

/// Schema 1: one column of `width` uint32s.
pub(crate) fn schema(width: u64) -> pb::Schema {
    pb::Schema {
        id: 1,
        layout: Some(layout()),
        cells: vec![pb::Cell {
            dtype: "uint32".into(),
            shape: vec![width],
        }],
    }
}

/// A chunk of schema 1; all values of row `r` are `first + r`.
pub(crate) fn chunk(id: u32, rows: u32, width: u32, first: u32) -> pb::Chunk {
    let cells = (first..first + rows).flat_map(|value| vec![value; width as usize]);
    let payload = encode_numbers(cells.collect::<Vec<u32>>().into_iter());
    pb::Chunk {
        id,
        schema: 1,
        key: u64::from(id) + 1,
        episodes_le: encode_numbers([1_u64].into_iter()),
        first_step: 0,
        steps: rows,
        extents: vec![pb::Extent {
            stored_bytes: u32::try_from(payload.len()).unwrap(),
            rows,
            codec: 0,
        }],
        payload_bytes: payload.len() as u64,
        payload,
    }
}

/// Items of one row each: rows `0..n` of a chunk, keyed and numbered from `first` on.
pub(crate) fn row_items(table: &str, first: u64, n: u32, chunk: u32) -> pb::Items {
    pb::Items {
        table: table.into(),
        first_number: first,
        keys_le: encode_numbers(
            (first..first + u64::from(n))
                .collect::<Vec<_>>()
                .into_iter(),
        ),
        priorities_le: encode_numbers([1.0].into_iter()),
        trajectories: Some(Trajectories::Rows(pb::Rows {
            len: 1,
            squeeze: true,
        })),
        chunks_le: encode_numbers(vec![chunk; n as usize].into_iter()),
        offsets_le: encode_numbers((0..n).collect::<Vec<_>>().into_iter()),
    }
}

/// The first message of a stream: a session, schema 1 with one number per row, and chunk 1 of ten rows.
pub(crate) fn first_message(session: u64) -> pb::InsertRequest {
    pb::InsertRequest {
        session: Some(session),
        schemas: vec![schema(1)],
        chunks: vec![chunk(1, 10, 1, 100)],
        ..pb::InsertRequest::default()
    }
}

pub(crate) fn items_message(items: impl IntoIterator<Item = pb::Items>) -> pb::InsertRequest {
    pb::InsertRequest {
        items: items.into_iter().collect(),
        ..pb::InsertRequest::default()
    }
}

impl InsertStream {
    /// Waits until a table has completed items up to a number. Returns the errors received until then, each with the
    /// number of the last item that it rejects.
    pub(crate) async fn wait_completed(
        &mut self,
        table: &str,
        number: u64,
    ) -> Vec<(u64, pb::Error)> {
        let mut errors = Vec::new();
        let mut last = 0;
        while last < number {
            for completed in self.receive().await.completed {
                assert_eq!(completed.table, table, "for another table");
                assert!(completed.number > last, "{} after {last}", completed.number);
                last = completed.number;
                errors.extend(completed.error.map(|error| (last, error)));
            }
        }
        assert_eq!(last, number);
        errors
    }
}

/// Samples `n` items of a table; returns their values.
pub(crate) fn sample_values(table: &Arc<Table>, n: usize) -> Vec<u32> {
    let mut ticket = table.sample(n, false).unwrap();
    let Some(Ok(sample)) = wait_by(&mut ticket, None) else {
        panic!("no sample");
    };
    let pool = Arc::default();
    let columns = gather(&sample.draws, LengthPolicy::Ragged, &pool).unwrap();
    let ColumnData::Bytes(bytes) = &columns.columns[0].data else {
        panic!("a column of strings");
    };
    engram_rpc::wire::decode_u32s("x", bytes).unwrap()
}

fn table_size(engine: &Engine, table: &str) -> u64 {
    engine.table(table).unwrap().info().stats.size
}

/// A queue whose rate limiter allows `n` inserts more than samples.
fn queue_of_size(name: &str, n: u32) -> TableOptions {
    TableOptions {
        limits: RateLimits {
            kind: "Queue".into(),
            max_diff: n.into(),
            ..options(name).limits
        },
        ..queue(name)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn items_with_every_kind_of_trajectory_are_inserted() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    let column = pb::SpanColumn {
        slice_count: 1,
        squeeze: false,
    };
    let slice = pb::Slice {
        chunk: 0,
        column: 0,
        offset: 1,
        len: 2,
    };
    let shape = pb::WindowShape {
        id: 5,
        layout: Some(layout()),
        columns: vec![column],
        slices: vec![slice],
    };
    let windows = pb::Items {
        trajectories: Some(Trajectories::WindowShape(5)),
        offsets_le: encode_numbers([0_u32, 7].into_iter()),
        ..row_items("t", 3, 2, 1)
    };
    let spans = pb::Items {
        trajectories: Some(Trajectories::Spans(pb::Spans {
            layout: Some(layout()),
            chunks: vec![2, 1],
            columns: vec![pb::SpanColumn {
                slice_count: 2,
                ..column
            }],
            slices: vec![slice, pb::Slice { chunk: 1, ..slice }],
        })),
        ..row_items("t", 5, 1, 1)
    };
    stream.send(first_message(1)).await;
    let request = pb::InsertRequest {
        window_shapes: vec![shape],
        chunks: vec![chunk(2, 10, 1, 200)],
        released_chunks: vec![1, 2],
        ..items_message([row_items("t", 1, 2, 1), windows, spans])
    };
    stream.send(request).await;
    assert_eq!(stream.wait_completed("t", 5).await, []);
    let table = engine.table("t").unwrap();
    assert_eq!(sample_values(&table, 2), [100, 101]);
    assert_eq!(sample_values(&table, 2), [101, 102, 108, 109]);
    assert_eq!(sample_values(&table, 1), [201, 202, 101, 102]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_can_be_sent_in_parts() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    let mut whole = chunk(7, 3, 1 << 20, 1);
    let payload = std::mem::take(&mut whole.payload);
    whole.payload = payload.slice(..1_000_001);
    let first = pb::InsertRequest {
        schemas: vec![schema(1 << 20)],
        chunks: vec![whole],
        ..first_message(1)
    };
    stream.send(first).await;
    let mut sent_bytes = 1_000_001;
    while sent_bytes < payload.len() {
        let end = payload.len().min(sent_bytes + (1 << 20));
        let part = payload.slice(sent_bytes..end);
        stream
            .send(pb::InsertRequest {
                chunk_part: part,
                ..items_message([])
            })
            .await;
        sent_bytes = end;
    }
    stream.send(items_message([row_items("t", 1, 3, 7)])).await;
    assert_eq!(stream.wait_completed("t", 3).await, []);
    let sampled = sample_values(&engine.table("t").unwrap(), 3);
    let expected = (1..4_u32).flat_map(|row| vec![row; 1 << 20]);
    assert!(sampled.into_iter().eq(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn items_sent_again_are_not_inserted_twice() {
    let engine = engine(vec![queue("t"), queue("u")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(9)).await;
    stream.send(items_message([row_items("t", 1, 6, 1)])).await;
    stream.wait_completed("t", 6).await;
    // Items that were removed by sampling are not inserted again either.
    assert_eq!(sample_values(&engine.table("t").unwrap(), 2), [100, 101]);
    drop(stream);
    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(9)).await;
    stream.send(items_message([row_items("t", 1, 8, 1)])).await;
    stream.wait_completed("t", 8).await;
    assert_eq!(table_size(&engine, "t"), 6);
    assert_eq!(engine.table("t").unwrap().info().stats.limiter.inserts, 8);
    stream.send(items_message([row_items("u", 1, 3, 1)])).await;
    stream.wait_completed("u", 3).await;
    // Another session has its own numbers.
    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(10)).await;
    let mut other_keys = row_items("t", 1, 2, 1);
    other_keys.keys_le = encode_numbers([50_u64, 51].into_iter());
    stream.send(items_message([other_keys])).await;
    stream.wait_completed("t", 2).await;
    assert_eq!((table_size(&engine, "t"), table_size(&engine, "u")), (8, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_blocks_does_not_hold_up_the_others() {
    let engine = engine(vec![queue_of_size("full", 2), queue("t")]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([
            row_items("full", 1, 2, 1),
            row_items("full", 3, 4, 1),
        ]))
        .await;
    stream.wait_completed("full", 2).await;
    for index in 0..50 {
        stream
            .send(items_message([row_items("t", 1 + 10 * index, 10, 1)]))
            .await;
        stream.wait_completed("t", 10 + 10 * index).await;
    }
    let full = engine.table("full").unwrap();
    assert_eq!(full.info().waiting_inserts, 1);
    assert_eq!(sample_values(&full, 4), [100, 101, 100, 101]);
    stream.wait_completed("full", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_items_are_withdrawn_when_their_stream_ends() {
    let engine = engine(vec![queue_of_size("full", 2)]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([
            row_items("full", 1, 2, 1),
            row_items("full", 3, 4, 1),
        ]))
        .await;
    stream.wait_completed("full", 2).await;
    let full = engine.table("full").unwrap();
    wait_until("the other items wait", || full.info().waiting_inserts == 1).await;
    drop(stream);
    wait_until("nothing waits", || full.info().waiting_inserts == 0).await;
    // After a half-close, inserted items are acknowledged and the others are withdrawn.
    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([row_items("full", 3, 2, 1)]))
        .await;
    wait_until("items wait again", || full.info().waiting_inserts == 1).await;
    assert_eq!(sample_values(&full, 1), [100]);
    stream.wait_completed("full", 3).await;
    stream.half_close();
    assert!(stream.next_response().await.unwrap().is_none());
    assert_eq!(full.info().waiting_inserts, 0);
    assert_eq!(sample_values(&full, 2), [101, 100]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_items_are_acknowledged_with_the_tables_error() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    let mut mixed = row_items("t", 1, 8, 1);
    mixed.priorities_le =
        encode_numbers([1.0, f64::NAN, f64::NAN, 1.0, f64::NAN, 1.0, 1.0, 1.0].into_iter());
    // Offsets 8 to 15 in a chunk of ten rows: only the first two items are valid.
    let mut beyond = row_items("t", 9, 8, 1);
    beyond.offsets_le = encode_numbers((8..16_u32).collect::<Vec<_>>().into_iter());
    stream.send(items_message([mixed, beyond])).await;
    let errors = stream.wait_completed("t", 16).await;
    let numbers: Vec<u64> = errors.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [3, 5, 11, 12, 13, 14, 15, 16]);
    assert_eq!(errors[0].1.code(), Code::Priority);
    assert_eq!(
        errors[2].1.text,
        "column `x` of the item refers to cells 10..11 of a chunk that has 10"
    );
    assert_eq!(table_size(&engine, "t"), 7);
    stream
        .send(items_message([row_items("nowhere", 1, 2, 1)]))
        .await;
    let errors = stream.wait_completed("nowhere", 2).await;
    assert_eq!(errors[0].1.text, "no table `nowhere`; known tables: `t`");
    engine.close().unwrap();
    stream.send(items_message([row_items("t", 17, 2, 1)])).await;
    let errors = stream.wait_completed("t", 18).await;
    assert_eq!(errors[0].1.text, "the store is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_table_completes_its_waiting_items() {
    let engine = engine(vec![queue_of_size("full", 1), options("open")]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([
            row_items("full", 1, 1, 1),
            row_items("full", 2, 4, 1),
        ]))
        .await;
    stream.wait_completed("full", 1).await;
    stream
        .send(items_message([
            row_items("full", 6, 4, 1),
            row_items("open", 10, 1, 1),
        ]))
        .await;
    // The server has read all items before this one.
    stream.wait_completed("open", 10).await;
    engine.drop_table("full").unwrap();
    let errors = stream.wait_completed("full", 9).await;
    assert!(errors.iter().all(|(number, _)| *number > 1));
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[0].1.text, "table `full` was dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_server_leaves_waiting_items_to_be_sent_again() {
    let engine = engine(vec![queue_of_size("full", 2)]);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([
            row_items("full", 1, 2, 1),
            row_items("full", 3, 4, 1),
        ]))
        .await;
    stream.wait_completed("full", 2).await;
    let full = engine.table("full").unwrap();
    wait_until("the other items wait", || full.info().waiting_inserts == 1).await;
    let text = format!("the server at {} is stopping", server.address());
    let began = std::time::Instant::now();
    tokio::task::spawn_blocking(move || server.close())
        .await
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
    // The items are not acknowledged: the writer would not send them again.
    let end = stream.next_response().await.unwrap_err();
    assert_eq!(
        (end.code(), end.message()),
        (tonic::Code::Unavailable, &*text)
    );
    assert_eq!(full.info().waiting_inserts, 0);
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([row_items("full", 1, 6, 1)]))
        .await;
    assert_eq!(sample_values(&full, 6), [100, 101, 102, 103, 104, 105]);
    stream.wait_completed("full", 6).await;
    fill(&full, 0, 1, 1);
    assert_eq!(table_size(&engine, "full"), 1);
}
