//! dm-reverb's service: bounds on what waits for a stream before the server stops reading it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use engram_core::{CellSpec, DType};
use engram_engine::Table;
use engram_reverb::encode_tensor;
use engram_reverb::pb::{self, chunk_data::Data};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use smallvec::smallvec;
use tonic::transport::Endpoint;

use crate::reverb::{
    Client, ReverbStream, chunk, connect, item, open_insert_stream, open_sample_stream, request,
    sample_request, size, table,
};
use crate::support::{engine, one_item_queue, options, start, wait_until};

/// A chunk of one row of incompressible bytes.
pub(crate) fn random_chunk(key: u64, bytes: usize) -> pb::ChunkData {
    let cell = CellSpec {
        dtype: DType::Uint8,
        shape: smallvec![bytes],
    };
    let mut raw = vec![0; bytes];
    Xoshiro256PlusPlus::seed_from_u64(key).fill_bytes(&mut raw);
    let tensor = encode_tensor(&cell, 1, &raw).unwrap();
    pb::ChunkData {
        chunk_key: key,
        data: Some(Data {
            tensors: vec![tensor],
        }),
        ..pb::ChunkData::default()
    }
}

/// Waits until a number no longer changes, and returns it.
async fn wait_until_stable(mut number: impl FnMut() -> u64) -> u64 {
    let mut previous = number();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let current = number();
        if current == previous {
            return current;
        }
        previous = current;
    }
}

type InsertStream = ReverbStream<pb::InsertStreamRequest, pb::InsertStreamResponse>;

/// Opens a stream and sends 40 items of 16 MiB each, all of the same chunk, in a message each.
async fn send_large_items(client: &mut Client, stream: u64) -> InsertStream {
    let writer = open_insert_stream(client).await;
    writer
        .send(request(vec![random_chunk(1, 16 << 20)], vec![], &[]))
        .await;
    let requests = writer.requests.clone().unwrap();
    tokio::spawn(async move {
        for key in 0..40 {
            let item = item(100 * stream + key, "one_item_queue", 1, 0, 1);
            if requests
                .send(request(vec![], vec![item], &[1]))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    writer
}

fn waiting_inserts(table: &Table) -> u64 {
    table.info().waiting_inserts as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_bytes_are_bounded_even_for_few_items() {
    let engine = engine(vec![one_item_queue("one_item_queue")]);
    let server = start(&engine);
    let one_item_queue = table(&engine, "one_item_queue");
    let mut client = connect(&server).await;
    let mut writers = Vec::new();
    // At most 256 MiB may wait for each stream: 16 items.
    for stream in 1..=4 {
        writers.push(send_large_items(&mut client, stream).await);
        wait_until("their items wait", || {
            waiting_inserts(&one_item_queue) >= 16 * stream
        })
        .await;
        assert_eq!(
            wait_until_stable(|| waiting_inserts(&one_item_queue)).await,
            16 * stream
        );
    }
    // Items of closed streams keep waiting, as long as they take at most 1 GiB in total.
    for _ in 0..3 {
        drop(writers.pop());
    }
    assert_eq!(
        wait_until_stable(|| waiting_inserts(&one_item_queue)).await,
        64
    );
    drop(writers.pop());
    wait_until("the items of the last stream are dropped", || {
        waiting_inserts(&one_item_queue) == 48
    })
    .await;
    assert_eq!(size(&one_item_queue), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_items_are_bounded_over_all_tables() {
    let names: Vec<String> = (0..12)
        .map(|index| format!("one_item_queue {index}"))
        .collect();
    let engine = engine(names.iter().map(|name| one_item_queue(name)).collect());
    let server = start(&engine);
    let tables: Vec<Arc<Table>> = names.iter().map(|name| table(&engine, name)).collect();
    let total_waiting = || {
        tables
            .iter()
            .map(|table| waiting_inserts(table))
            .sum::<u64>()
    };
    let mut client = connect(&server).await;
    let writer = open_insert_stream(&mut client).await;
    writer
        .send(request(vec![chunk(9, 0, 1)], vec![], &[]))
        .await;
    // 1,000 items for each table, the maximum that may wait for one, in messages of 100.
    for turn in 0..10 {
        for name in &names {
            let items = (0..100).map(|index| item(100 * turn + index, name, 9, 0, 1));
            let message = request(vec![], items.collect(), &[9]);
            writer.send(message).await;
        }
    }
    wait_until("10,000 items wait", || total_waiting() >= 10_000).await;
    // 101 messages were read, the last of them completely. One item of each table is inserted.
    assert_eq!(wait_until_stable(total_waiting).await, 10_100 - 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_does_not_read_confirmations_is_not_read() {
    // The server stops reading at this many confirmations that are not sent.
    const KEYS: u64 = 65_536;
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let table = table(&engine, "table");
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    // A small window: the server counts confirmations in it as sent.
    let endpoint = endpoint.initial_stream_window_size(65_535);
    let mut client = Client::new(endpoint.connect().await.unwrap());
    let mut writer = open_insert_stream(&mut client).await;
    writer
        .send(request(vec![chunk(9, 0, 1)], vec![], &[]))
        .await;
    let requests = writer.requests.take().unwrap();
    let (first, count) = (1 << 62, 4 * KEYS);
    let sender = tokio::spawn(async move {
        for start in (0..count).step_by(1024) {
            let items = (start..start + 1024).map(|index| item(first + index, "table", 9, 0, 1));
            let message = request(vec![], items.collect(), &[9]);
            requests.send(message).await.unwrap();
        }
        requests
    });
    wait_until("many are inserted", || size(&table) > KEYS).await;
    // Up to as many confirmations again are in buffered responses; others are in the client's window.
    let inserted = wait_until_stable(|| size(&table)).await;
    assert!(inserted < 3 * KEYS, "{inserted}");
    // Once the writer reads, no confirmation is lost or repeated.
    let mut keys = HashSet::new();
    while keys.len() as u64 != count {
        for key in writer.receive().await.keys {
            assert!((first..first + count).contains(&key) && keys.insert(key));
        }
    }
    drop(sender.await.unwrap());
    assert_eq!(writer.end_status().await.code(), tonic::Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_items_are_drawn_for_a_closed_reader() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await.max_decoding_message_size(64 << 20);
    let mut writer = open_insert_stream(&mut client).await;
    let item = item(1, "table", 9, 0, 1);
    let message = request(vec![random_chunk(9, 4096)], vec![item], &[]);
    writer.send(message).await;
    assert_eq!(writer.receive().await.keys, [1]);
    let table = table(&engine, "table");
    let drawn = || table.info().stats.limiter.samples;
    let readers = 8;
    for _ in 0..readers {
        let mut reader = open_sample_stream(&mut client).await;
        reader.send(sample_request("table", i64::MAX, 0)).await;
        for _ in 0..5 {
            reader.receive().await;
        }
        wait_until_stable(drawn).await;
    }
    // Responses have 2 MiB each: those that were read, three that waited, and those in flight.
    let drawn = wait_until_stable(drawn).await;
    assert!(drawn < readers * 20 * 512, "{drawn}");
}
