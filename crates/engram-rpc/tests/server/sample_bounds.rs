//! What a reader may not do, and what it cannot do to a server's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_rpc::{Server, ServerOptions, pb};
use tonic::Code;

use crate::sample::ask;
use crate::support::{connect, engine, fill, items, options, queue, samples, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_server_from_gathering() {
    const BATCHES: u32 = 200;
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut stream = samples(&mut connect(&server).await).await;
    // Batches of one item of 1 MiB, which only its draw refers to until it is gathered.
    let mut chunks = Vec::new();
    for id in 0..BATCHES {
        let items = items(id, 1, 1 << 18);
        chunks.extend(items[0].trajectory.chunks().iter().map(Arc::downgrade));
        table.insert(items).unwrap().await.unwrap();
        stream.ask(ask(id.into(), 1)).await;
        let drawn = || table.info().stats.limiter.samples == u64::from(id) + 1;
        until("the item is drawn", drawn).await;
        table.delete(&[id.into()]).unwrap();
    }
    let gathered = || (chunks.iter().filter(|chunk| chunk.strong_count() == 0)).count();
    let mut before = usize::MAX;
    while gathered() != before {
        before = gathered();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // The client's windows take little; then there are four messages and the batch at hand.
    assert!((1..20).contains(&before), "{before} batches");
    for id in 0..BATCHES {
        assert_eq!(stream.batch().await.0, u64::from(id));
    }
    until("all are gathered", || gathered() == chunks.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_asks_end_the_stream() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut client = connect(&server).await;
    let mut stream = samples(&mut client).await;
    for id in 0..1_024 {
        stream.ask(ask(id, 1)).await;
    }
    until("all wait", || table.info().waiting_samples == 1_024).await;
    stream.ask(ask(1_024, 1)).await;
    let status = stream.end().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.message(),
        "ask 1024 is one too many: 1024 batches of this stream are asked for or not acknowledged, \
         and no more may be"
    );
    until("none waits", || table.info().waiting_samples == 0).await;
    // What is on lease counts too.
    fill(&table, 0, 1_024, 1);
    let mut stream = samples(&mut client).await;
    let leased = true;
    for id in 0..1_024 {
        stream
            .ask(pb::BatchRequest {
                lease: leased,
                ..ask(id, 1)
            })
            .await;
        stream.batch().await;
    }
    stream.ask(ask(1_024, 1)).await;
    let status = stream.end().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    until("all are back", || table.info().stats.hidden == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_stands_for_one_ask_at_a_time() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = samples(&mut client).await;
    // An empty request means nothing.
    stream.say(pb::SampleRequest::default()).await;
    stream.ask(ask(7, 1)).await;
    stream.ask(ask(7, 1)).await;
    let status = stream.end().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(
        status.message(),
        "ask 7 comes while another of that id is not done with; each has its own"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_reads_nothing_does_not_hold_up_a_stop_for_long() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 8, 1 << 20);
    let stream = samples(&mut connect(&server).await).await;
    let leased = true;
    stream
        .ask(pb::BatchRequest {
            lease: leased,
            ..ask(1, 8)
        })
        .await;
    until("the batch is on its way", || table.info().stats.hidden == 8).await;
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
    // Its batch is back, and the port is free.
    assert_eq!(table.info().stats.hidden, 0);
    assert!(Server::start(engine, options).is_ok());
}
