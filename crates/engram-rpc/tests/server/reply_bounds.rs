//! Replies that clients do not read: how much memory they may hold, and that other clients are served meanwhile.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engram_core::Chunk;
use engram_engine::Engine;
use engram_reverb::pb::reverb_service_client::ReverbServiceClient;
use engram_rpc::pb::engram_client::EngramClient;
use engram_rpc::{Server, ServerOptions};
use futures_util::future::join_all;
use tonic::transport::Endpoint;

use crate::reverb::{
    connect as connect_reverb, item, open_insert_stream, open_sample_stream as open_reverb_stream,
    request, sample_request,
};
use crate::reverb_backlog::random_chunk;
use crate::sample::{SampleStream, batch_request};
use crate::support::{Client, engine, fill, items, open_sample_stream, options, wait_until};

/// The server's budget for unread replies in these tests, in bytes.
const MAX_UNREAD_BYTES: u64 = 4 << 20;

/// Bytes of an item. A batch of one item has at most 64 KiB, with its header.
const ITEM_BYTES: u32 = 63 << 10;

fn start(engine: &Arc<Engine>) -> Server {
    let options = ServerOptions {
        max_unread_bytes: MAX_UNREAD_BYTES,
        ..ServerOptions::default()
    };
    Server::start(Arc::clone(engine), options).unwrap()
}

/// A window smaller than a batch: the batch is not sent unless the client reads.
const SMALL_WINDOW: u32 = 1_000;

/// Connects; each stream has a window of this many bytes.
async fn connect(server: &Server, window: u32) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    let endpoint = endpoint.initial_stream_window_size(window);
    EngramClient::new(endpoint.connect().await.unwrap())
}

/// Opens a stream with a window that is large enough for a batch.
async fn reader(server: &Server) -> SampleStream {
    open_sample_stream(&mut connect(server, 1 << 20).await).await
}

/// Opens this many connections, each with this many streams whose replies are not read. Each stream requests a batch of
/// an item of its own. Returns the streams and the chunks of the items, to which only the draws refer: a chunk is freed
/// once its batch is gathered.
async fn silent_streams(
    server: &Server,
    engine: &Engine,
    connections: u32,
    streams: u32,
) -> (Vec<SampleStream>, Vec<Weak<Chunk>>) {
    let table = engine.table("t").unwrap();
    let (mut silent, mut chunks) = (Vec::new(), Vec::new());
    let mut key = 1_000;
    for _ in 0..connections {
        let mut client = connect(server, SMALL_WINDOW).await;
        for _ in 0..streams {
            key += 1;
            let items = items(key, 1, ITEM_BYTES as usize / 4);
            chunks.extend(items[0].trajectory.chunks().iter().map(Arc::downgrade));
            table.insert(items).unwrap().await.unwrap();
            let stream = open_sample_stream(&mut client).await;
            let drawn = table.info().stats.limiter.samples;
            stream.request_batch(batch_request(1, 1)).await;
            wait_until("the item is drawn", || {
                table.info().stats.limiter.samples > drawn
            })
            .await;
            table.delete(&[key.into()]).unwrap();
            silent.push(stream);
        }
    }
    (silent, chunks)
}

/// Waits until a number no longer changes, and returns it.
async fn wait_until_stable(mut number: impl FnMut() -> usize) -> usize {
    let mut previous = usize::MAX;
    while number() != previous {
        previous = number();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    previous
}

/// Returns the number of gathered batches, whose chunks are freed.
fn gathered(chunks: &[Weak<Chunk>]) -> usize {
    (chunks.iter().filter(|chunk| chunk.strong_count() == 0)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_replies_of_one_connection_are_bounded_over_its_streams() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let (mut silent, chunks) = silent_streams(&server, &engine, 1, 40).await;
    // A quarter of the budget: 16 batches.
    assert_eq!(wait_until_stable(|| gathered(&chunks)).await, 16);
    // Another connection has its own part of the budget, so no client has to be disconnected.
    fill(&engine.table("t").unwrap(), 0, 1, ITEM_BYTES as usize / 4);
    let mut reader = reader(&server).await;
    for id in 0..100 {
        reader.request_batch(batch_request(id, 1)).await;
        assert_eq!(reader.receive_batch().await.0, id);
    }
    assert_eq!(gathered(&chunks), 16);
    // Reading these batches makes room for the others.
    for stream in &mut silent {
        assert_eq!(stream.receive_batch().await.0, 1);
    }
    assert_eq!(gathered(&chunks), chunks.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_is_served_while_others_hold_the_whole_budget() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let (mut silent, chunks) = silent_streams(&server, &engine, 4, 20).await;
    assert_eq!(wait_until_stable(|| gathered(&chunks)).await, 64);
    fill(&engine.table("t").unwrap(), 0, 1, ITEM_BYTES as usize / 4);
    let mut reader = reader(&server).await;
    let mut longest = Duration::ZERO;
    for id in 0..100 {
        let began = Instant::now();
        reader.request_batch(batch_request(id, 1)).await;
        assert_eq!(reader.receive_batch().await.0, id);
        longest = longest.max(began.elapsed());
    }
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    // Only one connection had to be closed; the batches that waited on it are not gathered.
    let mut ended = 0;
    for stream in &mut silent {
        let next = tokio::time::timeout(Duration::from_secs(20), stream.next_response()).await;
        ended += usize::from(next.unwrap().is_err());
    }
    assert_eq!(ended, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_larger_than_the_budget_is_sent_alone() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let n = 2 * u32::try_from(MAX_UNREAD_BYTES).unwrap() / ITEM_BYTES;
    fill(&engine.table("t").unwrap(), 0, n, ITEM_BYTES as usize / 4);
    let silent = open_sample_stream(&mut connect(&server, SMALL_WINDOW).await).await;
    silent.request_batch(batch_request(1, n)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Small batches have room, although the large one is not read.
    let mut reader = reader(&server).await;
    reader.request_batch(batch_request(1, 1)).await;
    assert_eq!(reader.receive_batch().await.0, 1);
    // Other large batches have none: the connection that does not read is closed.
    let mut silent = silent;
    for id in 2..5 {
        reader.request_batch(batch_request(id, n)).await;
    }
    for id in 2..5 {
        assert_eq!(reader.receive_batch().await.0, id);
    }
    let ended = async { while silent.next_response().await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(20), ended)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_samples_of_reverb_clients_are_bounded_too() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut writer = open_insert_stream(&mut connect_reverb(&server).await).await;
    let item = item(1, "t", 9, 0, 1);
    let chunk = random_chunk(9, ITEM_BYTES as usize);
    writer.send(request(vec![chunk], vec![item], &[])).await;
    assert_eq!(writer.receive().await.keys, [1]);
    let drawn = || usize::try_from(table.info().stats.limiter.samples).unwrap();
    // Each of 80 streams on 4 connections requests 1 MiB.
    let mut silent = Vec::new();
    for _ in 0..4 {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
        let endpoint = endpoint.initial_stream_window_size(SMALL_WINDOW);
        let mut client = ReverbServiceClient::new(endpoint.connect().await.unwrap());
        for _ in 0..20 {
            let stream = open_reverb_stream(&mut client).await;
            stream.send(sample_request("t", 16, 0)).await;
            silent.push(stream);
        }
    }
    wait_until_stable(drawn).await;
    let mut reader = reader(&server).await;
    for id in 0..100 {
        reader.request_batch(batch_request(id, 1)).await;
        assert_eq!(reader.receive_batch().await.0, id);
    }
    // Reads all streams at the same time: the streams of a connection share its part of the budget.
    let complete = join_all(silent.iter_mut().map(async |stream| {
        let mut missing = 16;
        while missing > 0 {
            let next = tokio::time::timeout(Duration::from_secs(20), stream.responses.message());
            let Ok(Some(response)) = next.await.unwrap() else {
                return false;
            };
            missing -= response.entries.len();
        }
        true
    }));
    let complete = complete.await.into_iter().filter(|it| *it).count();
    // At most one connection was closed; the streams of the others get all of their samples.
    assert!(complete == 60 || complete == 80, "{complete}");
}
