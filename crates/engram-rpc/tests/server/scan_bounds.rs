//! Bounds of scan streams: idle scans, open scans, and the memory of keys.

use std::sync::Arc;
use std::time::Duration;

use engram_engine::Engine;
use engram_rpc::pb;
use engram_rpc::pb::scan_request::Request;
use engram_rpc::pb::scan_response::Outcome;
use engram_rpc::{Server, ServerOptions};
use tonic::Code;

use crate::scan::{ScanStream, begin, message, open, outcome};
use crate::support::{connect, engine, fill, items, options, start, wait_until};

fn start_with_idle_timeout(engine: &Arc<Engine>, lease_timeout: Duration) -> Server {
    let options = ServerOptions {
        lease_timeout,
        ..ServerOptions::default()
    };
    Server::start(Arc::clone(engine), options).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_scan_is_ended() {
    let engine = engine(vec![options("t")]);
    let server = start_with_idle_timeout(&engine, Duration::from_millis(100));
    fill(&engine.table("t").unwrap(), 0, 5, 1);
    let mut client = connect(&server).await;
    for (requests, responses) in [
        (vec![], 0),
        (vec![Request::KeysLe(vec![0; 8].into())], 0),
        (vec![begin("t", 1)], 1),
        (vec![begin("t", 1), Request::Batches(2)], 3),
    ] {
        let mut stream = open(&mut client, requests).await;
        for _ in 0..responses {
            outcome(&mut stream).await;
        }
        let status = stream.next_response().await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (
                Code::DeadlineExceeded,
                "the scan was idle for 0.1 s; the server has ended it to release its memory (`lease_timeout`): begin \
                 it again, and read it without such pauses"
            )
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_whose_batches_are_not_read_is_ended() {
    const BATCHES: u32 = 100;
    let engine = engine(vec![options("t")]);
    let server = start_with_idle_timeout(&engine, Duration::from_millis(300));
    let table = engine.table("t").unwrap();
    // Batches of one item of 1 MiB: more than fit the windows of the transport.
    let mut chunks = Vec::new();
    for number in 0..BATCHES {
        let items = items(number, 1, 1 << 18);
        chunks.extend(items[0].trajectory.chunks().iter().map(Arc::downgrade));
        table.insert(items).unwrap().await.unwrap();
    }
    let requests = [begin("t", 1), Request::Batches(BATCHES + 1)];
    let mut stream = open(&mut connect(&server).await, requests).await;
    outcome(&mut stream).await;
    table.reset().unwrap();
    wait_until("the items are released", || {
        chunks.iter().all(|chunk| chunk.strong_count() == 0)
    })
    .await;
}

async fn error_text(stream: &mut ScanStream) -> String {
    match outcome(stream).await {
        Outcome::Error(error) => {
            assert_eq!(error.code(), pb::error::Code::OutOfMemory);
            error.text
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_scans_are_bounded() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut connections = Vec::new();
    let mut scans = Vec::new();
    for _ in 0..4 {
        let mut client = connect(&server).await;
        for _ in 0..64 {
            let mut scan = open(&mut client, [begin("t", 1)]).await;
            assert!(matches!(outcome(&mut scan).await, Outcome::Begun(_)));
            scans.push(scan);
        }
        connections.push(client);
    }
    let mut scan = open(&mut connections[0], [begin("t", 1)]).await;
    assert_eq!(
        error_text(&mut scan).await,
        "too many scans: this connection has 64 open ones already, its limit; close some, or begin this one later"
    );
    let mut other = connect(&server).await;
    let mut scan = open(&mut other, [begin("t", 1)]).await;
    assert_eq!(
        error_text(&mut scan).await,
        "too many scans: this server has 256 open ones already, its limit; close some, or begin this one later"
    );
    scans.pop();
    loop {
        let mut scan = open(&mut other, [begin("t", 1)]).await;
        if let Outcome::Begun(_) = outcome(&mut scan).await {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_scans_that_do_not_begin_do_not_delay_other_connections() {
    let engine = engine(vec![options("t")]);
    let options = ServerOptions {
        // Memory is reserved for 65,536 keys at a time, 2 MiB. A connection may reserve a quarter of the budget: two such
        // reservations. Four connections then use all of the budget.
        max_unread_bytes: 16 << 20,
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), options).unwrap();
    fill(&engine.table("t").unwrap(), 0, 5, 1);
    let mut holders = Vec::new();
    for _ in 0..4 {
        let mut client = connect(&server).await;
        let keys = || Request::KeysLe(vec![0; 8 * 65_536].into());
        let stream = open(&mut client, [keys(), keys(), keys()]).await;
        holders.push((client, stream));
    }
    // The first scans may come before the server has received all keys. Once it has, it closes one of the connections
    // that hold keys, to make room for a batch.
    let mut ended = 0;
    while ended == 0 {
        let requests = [begin("t", 5), Request::Batches(1)];
        let mut stream = open(&mut connect(&server).await, requests).await;
        outcome(&mut stream).await;
        assert!(matches!(outcome(&mut stream).await, Outcome::Batch(_)));
        for (_client, holder) in &mut holders {
            let next = holder.responses.message();
            let next = tokio::time::timeout(Duration::from_millis(100), next);
            ended += usize::from(next.await.is_ok());
        }
    }
    assert_eq!(ended, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_keys_is_released_when_the_scan_begins() {
    let engine = engine(vec![options("t")]);
    let options = ServerOptions {
        max_unread_bytes: 16 << 20,
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), options).unwrap();
    fill(&engine.table("t").unwrap(), 0, 5, 1);
    let mut client = connect(&server).await;
    for _ in 0..5 {
        // All that the connection may reserve.
        let keys = (0..131_072_u64)
            .flat_map(u64::to_le_bytes)
            .collect::<Vec<_>>();
        let Request::Begin(first) = begin("t", 5) else {
            unreachable!()
        };
        let only_keys = Request::Begin(pb::BeginScan {
            only_keys: true,
            ..first
        });
        let mut stream = open(&mut client, [Request::KeysLe(keys.into()), only_keys]).await;
        assert!(matches!(outcome(&mut stream).await, Outcome::Begun(_)));
        stream.send(message(Request::Batches(1))).await;
        assert!(matches!(outcome(&mut stream).await, Outcome::Batch(_)));
    }
}
