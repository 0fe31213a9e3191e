//! Invalid sample requests, and bounds on the memory that a reader can make a server use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_rpc::{Server, ServerOptions, pb};
use tonic::Code;

use crate::sample::batch_request;
use crate::support::{
    connect, engine, fill, items, open_sample_stream, options, queue, start, wait_until,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_gathering_of_batches() {
    const BATCHES: u32 = 40;
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    // Batches of one item of 1 MiB. Only the draw refers to the item's chunk, which is freed once the batch is
    // gathered.
    let mut chunks = Vec::new();
    for id in 0..BATCHES {
        let items = items(id, 1, 1 << 18);
        chunks.extend(items[0].trajectory.chunks().iter().map(Arc::downgrade));
        table.insert(items).unwrap().await.unwrap();
        stream.request_batch(batch_request(id.into(), 1)).await;
        let drawn = || table.info().stats.limiter.samples == u64::from(id) + 1;
        wait_until("the item is drawn", drawn).await;
        table.delete(&[id.into()]).unwrap();
    }
    let gathered = || (chunks.iter().filter(|chunk| chunk.strong_count() == 0)).count();
    let mut last_gathered = usize::MAX;
    while gathered() != last_gathered {
        last_gathered = gathered();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // The HTTP/2 stream's window (2 MiB) holds two batches. The server also buffers four messages, and has gathered the
    // current batch.
    assert!((1..20).contains(&last_gathered), "{last_gathered} batches");
    for id in 0..BATCHES {
        assert_eq!(stream.receive_batch().await.0, u64::from(id));
    }
    wait_until("all are gathered", || gathered() == chunks.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_end_the_stream() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut client = connect(&server).await;
    let mut stream = open_sample_stream(&mut client).await;
    for id in 0..1_024 {
        stream.request_batch(batch_request(id, 1)).await;
    }
    wait_until("all wait", || table.info().waiting_samples == 1_024).await;
    stream.request_batch(batch_request(1_024, 1)).await;
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.message(),
        "too many batches: batch 1024 would exceed the 1024 that a stream may have requested or on \
         lease; acknowledge some first"
    );
    wait_until("none waits", || table.info().waiting_samples == 0).await;
    // Leased batches count too.
    fill(&table, 0, 1_024, 1);
    let mut stream = open_sample_stream(&mut client).await;
    for id in 0..1_024 {
        stream
            .request_batch(pb::BatchRequest {
                lease: true,
                ..batch_request(id, 1)
            })
            .await;
        stream.receive_batch().await;
    }
    stream.request_batch(batch_request(1_024, 1)).await;
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    wait_until("all are returned", || table.info().stats.hidden_items == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_id_ends_the_stream() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = open_sample_stream(&mut client).await;
    // An empty request is ignored.
    stream.send(pb::SampleRequest::default()).await;
    stream.request_batch(batch_request(7, 1)).await;
    stream.request_batch(batch_request(7, 1)).await;
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(
        status.message(),
        "duplicate `id` 7: a batch with this id is requested or on lease"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_delays_closing_only_briefly() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 8, 1 << 20);
    let stream = open_sample_stream(&mut connect(&server).await).await;
    stream
        .request_batch(pb::BatchRequest {
            lease: true,
            ..batch_request(1, 8)
        })
        .await;
    wait_until("the batch is being sent", || {
        table.info().stats.hidden_items == 8
    })
    .await;
    let options = ServerOptions {
        address: server.address(),
        ..ServerOptions::default()
    };
    let began = Instant::now();
    tokio::task::spawn_blocking(move || server.close())
        .await
        .unwrap();
    assert!(
        (1..4).contains(&began.elapsed().as_secs()),
        "{:?}",
        began.elapsed()
    );
    // The batch is returned, and the port is free.
    assert_eq!(table.info().stats.hidden_items, 0);
    assert!(Server::start(engine, options).is_ok());
}
