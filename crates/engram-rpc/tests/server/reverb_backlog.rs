//! dm-reverb's service: how much of a stream waits before no more of it is read.

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
    Client, Talk, ask, chunk, connect, inserts, item, request, samples, size, table,
};
use crate::support::{engine, narrow, options, start, until};

/// Bytes that cannot be made fewer, in one row.
fn noise(key: u64, bytes: usize) -> pb::ChunkData {
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

/// A number once it stays what it is.
async fn settled(mut number: impl FnMut() -> u64) -> u64 {
    let mut before = number();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = number();
        if now == before {
            return now;
        }
        before = now;
    }
}

type Inserts = Talk<pb::InsertStreamRequest, pb::InsertStreamResponse>;

/// A stream that says 40 items of 16 MiB each, all of the same chunk, in messages of their own.
async fn heavy(client: &mut Client, stream: u64) -> Inserts {
    let writer = inserts(client).await;
    writer
        .say(request(vec![noise(1, 16 << 20)], vec![], &[]))
        .await;
    let requests = writer.requests.clone().unwrap();
    tokio::spawn(async move {
        for key in 0..40 {
            let item = item(100 * stream + key, "narrow", 1, 0, 1);
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

fn waiting(table: &Table) -> u64 {
    table.info().waiting_inserts as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_wait_are_bounded_also_where_few_items_have_them() {
    let engine = engine(vec![narrow("narrow")]);
    let server = start(&engine);
    let narrow = table(&engine, "narrow");
    let mut client = connect(&server).await;
    let mut writers = Vec::new();
    // 256 MiB in all wait for each stream.
    for stream in 1..=4 {
        writers.push(heavy(&mut client, stream).await);
        until("they wait", || waiting(&narrow) >= 16 * stream).await;
        assert_eq!(settled(|| waiting(&narrow)).await, 16 * stream);
    }
    // Of streams that are over, less than 1 GiB waits on.
    for _ in 0..3 {
        drop(writers.pop());
    }
    assert_eq!(settled(|| waiting(&narrow)).await, 64);
    drop(writers.pop());
    until("the last are given up", || waiting(&narrow) == 48).await;
    assert_eq!(size(&narrow), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn items_that_wait_are_bounded_over_all_tables() {
    let names: Vec<String> = (0..12).map(|at| format!("narrow {at}")).collect();
    let engine = engine(names.iter().map(|name| narrow(name)).collect());
    let server = start(&engine);
    let tables: Vec<Arc<Table>> = names.iter().map(|name| table(&engine, name)).collect();
    let all = || tables.iter().map(|table| waiting(table)).sum::<u64>();
    let mut client = connect(&server).await;
    let writer = inserts(&mut client).await;
    writer.say(request(vec![chunk(9, 0, 1)], vec![], &[])).await;
    // As many for each table as may wait for it, in hundreds.
    for turn in 0..10 {
        for name in &names {
            let items = (0..100).map(|at| item(100 * turn + at, name, 9, 0, 1));
            let message = request(vec![], items.collect(), &[9]);
            writer.say(message).await;
        }
    }
    until("very many wait", || all() >= 10_000).await;
    // One of each table is in; the message with which it became too many was taken whole.
    assert_eq!(settled(all).await, 10_100 - 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_does_not_listen_is_read_no_further() {
    const KEYS: u64 = 65_536;
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let table = table(&engine, "table");
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    // What fits in here counts as heard.
    let endpoint = endpoint.initial_stream_window_size(65_535);
    let mut client = Client::new(endpoint.connect().await.unwrap());
    let mut writer = inserts(&mut client).await;
    writer.say(request(vec![chunk(9, 0, 1)], vec![], &[])).await;
    let requests = writer.requests.take().unwrap();
    let (first, count) = (1 << 62, 4 * KEYS);
    let said = tokio::spawn(async move {
        for start in (0..count).step_by(1024) {
            let items = (start..start + 1024).map(|at| item(first + at, "table", 9, 0, 1));
            let message = request(vec![], items.collect(), &[9]);
            requests.send(message).await.unwrap();
        }
        requests
    });
    until("many are in", || size(&table) > KEYS).await;
    // As many are on their way to it, and a window full.
    let taken = settled(|| size(&table)).await;
    assert!(taken < 3 * KEYS, "{taken}");
    // It listens, and nothing is lost or told twice.
    let mut keys = HashSet::new();
    while keys.len() as u64 != count {
        for key in writer.hear().await.keys {
            assert!((first..first + count).contains(&key) && keys.insert(key));
        }
    }
    drop(said.await.unwrap());
    assert_eq!(writer.end().await.code(), tonic::Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn for_a_reader_that_is_gone_nothing_is_drawn() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await.max_decoding_message_size(64 << 20);
    let mut writer = inserts(&mut client).await;
    let item = item(1, "table", 9, 0, 1);
    let message = request(vec![noise(9, 4096)], vec![item], &[]);
    writer.say(message).await;
    assert_eq!(writer.hear().await.keys, [1]);
    let table = table(&engine, "table");
    let drawn = || table.info().stats.limiter.samples;
    let readers = 8;
    for _ in 0..readers {
        let mut reader = samples(&mut client).await;
        reader.say(ask("table", i64::MAX, 0)).await;
        for _ in 0..5 {
            reader.hear().await;
        }
        settled(drawn).await;
    }
    // Responses of 2 MiB each: what was heard, three that waited, and what was on its way.
    let drawn = settled(drawn).await;
    assert!(drawn < readers * 20 * 512, "{drawn}");
}
