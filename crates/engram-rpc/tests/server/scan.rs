//! Scan streams: their order of messages, invalid requests, and readers that do not read.

use std::sync::Arc;
use std::time::Duration;

use engram_rpc::pb;
use engram_rpc::pb::scan_request::Request;
use engram_rpc::pb::scan_response::Outcome;
use tonic::Code;

use crate::support::{
    Client, TestStream, connect, engine, fill, items, options, request_channel, start, wait_until,
};

pub(crate) type ScanStream = TestStream<pb::ScanRequest, pb::ScanResponse>;

/// Opens a stream and sends its first requests. The server answers the call itself at once.
pub(crate) async fn open(
    client: &mut Client,
    requests: impl IntoIterator<Item = Request>,
) -> ScanStream {
    let (sender, receiver) = request_channel();
    let responses = client.scan(receiver).await.unwrap().into_inner();
    let stream = TestStream {
        requests: sender,
        responses,
    };
    for request in requests {
        stream.send(message(request)).await;
    }
    stream
}

pub(crate) fn message(request: Request) -> pb::ScanRequest {
    pb::ScanRequest {
        request: Some(request),
    }
}

fn peek(table: &str, n: u32) -> Request {
    Request::Begin(pb::BeginScan {
        table: table.into(),
        batch_size: 1,
        peek: Some(pb::Peek {
            n,
            ..pb::Peek::default()
        }),
        ..pb::BeginScan::default()
    })
}

pub(crate) fn begin(table: &str, batch_size: u32) -> Request {
    Request::Begin(pb::BeginScan {
        table: table.into(),
        batch_size,
        ..pb::BeginScan::default()
    })
}

pub(crate) async fn outcome(stream: &mut ScanStream) -> Outcome {
    stream.receive().await.outcome.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_sent_when_they_are_requested() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    fill(&engine.table("t").unwrap(), 0, 5, 1);
    let mut stream = open(&mut connect(&server).await, [begin("t", 2)]).await;
    let begun = Outcome::Begun(pb::ScanBegun {
        num_items: 5,
        peeked: None,
    });
    assert_eq!(outcome(&mut stream).await, begun);
    for (requested, sizes) in [(1, &[2][..]), (3, &[2, 1, 0])] {
        let nothing = tokio::time::timeout(Duration::from_millis(100), stream.responses.message());
        assert!(nothing.await.is_err(), "an unrequested response");
        stream.send(message(Request::Batches(requested))).await;
        for size in sizes {
            match outcome(&mut stream).await {
                Outcome::Batch(batch) => {
                    assert_eq!(batch.keys_le.len(), size * 8);
                    assert!(!batch.leased);
                }
                Outcome::End(_) => assert_eq!(*size, 0),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(stream.next_response().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_end_the_stream() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let keys = |keys: usize| Request::KeysLe(vec![0; 8 * keys].into());
    let too_many_keys = vec![keys(400_000); 11];
    for (requests, code, text) in [
        (
            vec![Request::Batches(1)],
            Code::InvalidArgument,
            "the scan has not begun; `begin` must be set before `batches`",
        ),
        (
            vec![begin("t", 1), begin("t", 1)],
            Code::InvalidArgument,
            "the scan has begun already; only `batches` may follow `begin`",
        ),
        (
            vec![begin("t", 1), Request::Batches(1_025)],
            Code::ResourceExhausted,
            "too many batches: a scan may request at most 1024 at once; got 1025",
        ),
        (
            too_many_keys,
            Code::ResourceExhausted,
            "too many keys: a scan may have at most 4194304",
        ),
        (
            vec![Request::KeysLe(vec![0; 7].into())],
            Code::InvalidArgument,
            "`keys_le` must have a multiple of 8 bytes; got 7",
        ),
    ] {
        let mut stream = open(&mut client, requests).await;
        let status = loop {
            match stream.next_response().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("no status: {text}"),
                Err(status) => break status,
            }
        };
        assert_eq!((status.code(), status.message()), (code, text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_cannot_begin_ends_with_an_error() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    for (request, text) in [
        (begin("u", 1), "no table `u`; known tables: `t`"),
        (begin("t", 0), "`batch_size` must be from 1 to 65536; got 0"),
        (
            peek("t", 1025),
            "`n`: a peek returns at most 1024 items; got 1025; use `scan` to read more",
        ),
        (
            begin("t", 65_537),
            "`batch_size` must be from 1 to 65536; got 65537",
        ),
    ] {
        let mut stream = open(&mut client, [request]).await;
        let Outcome::Error(error) = outcome(&mut stream).await else {
            panic!("no error: {text}");
        };
        assert_eq!(error.text, text, "{error:?}");
        assert_eq!(stream.next_response().await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_gathering_of_batches() {
    const BATCHES: u32 = 100;
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    // Batches of one item of 1 MiB. After the reset, only the scan refers to the items' chunks, which are freed once
    // the batches are gathered.
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
    let gathered = || (chunks.iter().filter(|chunk| chunk.strong_count() == 0)).count();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The HTTP/2 windows and the budget for unread replies bound the number.
    assert!(gathered() < 80, "{} batches", gathered());
    let mut batches = 0;
    loop {
        match outcome(&mut stream).await {
            Outcome::Batch(_) => batches += 1,
            Outcome::BatchPart(_) => {}
            Outcome::End(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(batches, BATCHES);
    wait_until("all are freed", || gathered() == chunks.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_is_dropped_frees_its_items() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let items = items(0, 1, 4);
    let chunk = Arc::downgrade(&items[0].trajectory.chunks()[0]);
    table.insert(items).unwrap().await.unwrap();
    let mut stream = open(&mut connect(&server).await, [begin("t", 1)]).await;
    outcome(&mut stream).await;
    table.reset().unwrap();
    assert_eq!(chunk.strong_count(), 1);
    drop(stream);
    wait_until("the item is freed", || chunk.strong_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shuts_down_ends_its_scans() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    fill(&engine.table("t").unwrap(), 0, 5, 1);
    let mut stream = open(&mut connect(&server).await, [begin("t", 1)]).await;
    outcome(&mut stream).await;
    let text = format!("the server at {} is stopping", server.address());
    let stopping = tokio::task::spawn_blocking(move || drop(server));
    let Outcome::Error(error) = outcome(&mut stream).await else {
        panic!("no error");
    };
    assert_eq!(
        (error.code(), &error.text),
        (pb::error::Code::Closed, &text)
    );
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, &*text)
    );
    stopping.await.unwrap();
}
