//! Streams of dm-reverb's service: which samples are returned, items that wait for their table, and an idle stream.

use std::sync::Arc;

use engram_core::chunk::{ChunkBuilder, Origin};
use engram_core::{
    CellSpec, Compression, Compressor, DType, Layout, NewItem, Schema, SelectorKind, TableOptions,
};
use smallvec::smallvec;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::reverb::{
    chunk, connect, item, open_insert_stream, open_sample_stream, request, sample_request, size,
    table, values,
};
use crate::support::{engine, item_of_row, one_item_queue, options, queue, start, wait_until};

/// Returns the keys of the items in a response.
fn keys(response: &engram_reverb::pb::SampleStreamResponse) -> Vec<u64> {
    let infos = response.entries.iter().flat_map(|entry| &entry.info);
    let items = infos.flat_map(|info| &info.item);
    items.map(|item| item.key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_samples_of_a_batch_are_not_returned() {
    let engine = engine(vec![queue("queue")]);
    let server = start(&engine);
    let mut client = connect(&server).await.max_decoding_message_size(64 << 20);
    let writer = open_insert_stream(&mut client).await;
    let (rows, count) = (1 << 18, 60);
    for key in 0..count {
        let (chunk, item) = (chunk(1, 0, rows), item(key, "queue", 1, 0, rows));
        let chunks = if key == 0 { vec![chunk] } else { Vec::new() };
        writer.send(request(chunks, vec![item], &[1])).await;
    }
    let queue = table(&engine, "queue");
    wait_until("all are inserted", || size(&queue) == count).await;
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("queue", 60, 0)).await;
    let mut received = keys(&reader.receive().await);
    received.extend(keys(&reader.receive().await));
    assert_eq!(received, [0, 1, 2, 3]);
    drop(reader);
    wait_until("the other items are returned", || {
        let stats = queue.info().stats;
        stats.hidden_items == 0 && stats.size < count
    })
    .await;
    // Samples passed to the transport count as delivered, whether they were read or not.
    assert!(size(&queue) > count / 2, "{}", size(&queue));
    let left = size(&queue);
    let mut other = open_sample_stream(&mut client).await;
    other.send(sample_request("queue", 1, 0)).await;
    assert_eq!(keys(&other.receive().await), [count - left]);
}

/// An item with a dtype that dm-reverb's clients do not support.
fn item_of_unsupported_dtype(key: u64) -> NewItem {
    let cell = CellSpec {
        dtype: DType::Float8E5m2,
        shape: smallvec![],
    };
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::new(["x".into()]),
            structure: r#"{"d":[["x",0]]}"#.into(),
        }),
        cells: Box::new([cell]),
    };
    let mut builder = ChunkBuilder::new(Arc::new(schema), 1).unwrap();
    builder.set_rows(0, 1);
    let mut compressor = Compressor::new(Compression::Off);
    let chunk = builder.seal(Origin::default(), &mut compressor).unwrap();
    item_of_row(key, &Arc::new(chunk), 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_before_an_invalid_one_are_sent() {
    let engine = engine(vec![queue("queue")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let items = (0..3).map(|key| item(key, "queue", 9, 0, 1));
    let message = request(vec![chunk(9, 0, 1)], items.collect(), &[]);
    writer.send(message).await;
    let queue = table(&engine, "queue");
    wait_until("three are inserted", || size(&queue) == 3).await;
    queue
        .insert(vec![item_of_unsupported_dtype(3)])
        .unwrap()
        .await
        .unwrap();
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("queue", 4, 0)).await;
    assert_eq!(keys(&reader.receive().await), [0, 1, 2]);
    assert_eq!(reader.end_status().await.code(), Code::InvalidArgument);
    wait_until("the fourth item is returned", || {
        queue.info().stats.hidden_items == 0
    })
    .await;
    assert_eq!(size(&queue), 1);
    writer.requests = None;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_blocks_does_not_hold_up_another() {
    let free = TableOptions {
        max_size: 10,
        ..options("free")
    };
    let engine = engine(vec![one_item_queue("full"), free]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    for key in 1..=20 {
        let items = [
            item(key, "full", key, 0, 1),
            item(100 + key, "free", key, 0, 1),
        ];
        for (chunks, item) in [vec![chunk(key, 0, 1)], vec![]].into_iter().zip(items) {
            writer.send(request(chunks, vec![item], &[key])).await;
        }
    }
    let mut keys = Vec::new();
    while keys.len() < 21 {
        keys.extend(writer.receive().await.keys);
    }
    keys.sort_unstable();
    assert_eq!(keys, [1].into_iter().chain(101..=120).collect::<Vec<_>>());
    assert_eq!(table(&engine, "full").info().waiting_inserts, 19);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_items_are_inserted_when_others_expire() {
    let expiring = TableOptions {
        ttl: Some(20_000_000),
        ..one_item_queue("expiring")
    };
    let engine = engine(vec![expiring]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let items = (0..5).map(|key| item(key, "expiring", 9, 0, 1));
    writer
        .send(request(vec![chunk(9, 0, 1)], items.collect(), &[]))
        .await;
    let mut keys = Vec::new();
    while keys.len() < 5 {
        keys.extend(writer.receive().await.keys);
    }
    assert_eq!(keys, [0, 1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_key_gets_its_new_priority() {
    let heap = TableOptions {
        sampler: SelectorKind::MaxHeap,
        max_times_sampled: 0,
        ..one_item_queue("heap")
    };
    let engine = engine(vec![heap]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let mut same_key = item(2, "heap", 9, 2, 1);
    same_key.priority = 7.0;
    let items = vec![item(1, "heap", 9, 0, 1), item(2, "heap", 9, 1, 1), same_key];
    writer
        .send(request(vec![chunk(9, 0, 10)], items, &[]))
        .await;
    let heap = table(&engine, "heap");
    wait_until("both wait", || heap.info().waiting_inserts == 2).await;
    let mut reader = open_sample_stream(&mut client).await;
    for _ in 0..2 {
        reader.send(sample_request("heap", 1, 10_000)).await;
        reader.receive().await;
    }
    let mut keys = Vec::new();
    while keys.len() < 3 {
        keys.extend(writer.receive().await.keys);
    }
    assert_eq!(keys, [1, 2, 2]);
    reader.send(sample_request("heap", 1, 10_000)).await;
    let entry = &reader.receive().await.entries[0];
    // The data is that of the first item with this key.
    assert_eq!(values(entry), [1]);
    let item = entry.info.as_ref().unwrap().item.as_ref().unwrap();
    assert_eq!(item.key, 2);
    assert!((item.priority - 7.0).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_initialize_connection_call_ends_when_the_server_closes() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let (_requests, receiver) = mpsc::channel(1);
    let call = client.initialize_connection(ReceiverStream::new(receiver));
    let mut replies = call.await.unwrap().into_inner();
    let end = tokio::spawn(async move { replies.message().await });
    tokio::task::spawn_blocking(move || server.close())
        .await
        .unwrap();
    let status = end.await.unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "the server is stopping")
    );
}
