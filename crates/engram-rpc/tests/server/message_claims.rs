//! A message's length is only a claim: memory is allocated as its bytes arrive.

use bytes::Bytes;
use engram_rpc::Server;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::{Request, Response};
use tonic::transport::{Channel, Endpoint};

use crate::support::{engine, options, start};

const INSERT: &str = "/engram.v1.Engram/Insert";
const INSERT_STREAM: &str = "/deepmind.reverb.ReverbService/InsertStream";

async fn connect(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    endpoint.connect().await.unwrap()
}

/// Begins a call, sends the first bytes of its messages, and leaves the call open.
async fn begin_call(channel: &mut Channel, path: &str, bytes: Vec<u8>) -> Response<Body> {
    let frame = Ok::<_, tonic::Status>(Frame::data(Bytes::from(bytes)));
    let body = tokio_stream::once(frame).chain(tokio_stream::pending());
    let request = Request::post(format!("http://server{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(body)))
        .unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context))
        .await
        .unwrap();
    channel.call(request).await.unwrap()
}

/// The gRPC prefix of a message, which claims that the message has this many bytes.
fn prefix(bytes: u32) -> Vec<u8> {
    [&[0][..], &bytes.to_be_bytes()].concat()
}

/// Address space of this process, in bytes.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn claimed_bytes_are_not_allocated() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    for (path, bytes) in [(INSERT_STREAM, 256 << 20), (INSERT, 4 << 20)] {
        let mut channel = connect(&server).await;
        let mut calls = vec![begin_call(&mut channel, path, prefix(bytes)).await];
        let before = address_space();
        for _ in 0..300 {
            calls.push(begin_call(&mut channel, path, prefix(bytes)).await);
        }
        let grown = address_space().saturating_sub(before);
        assert!(grown < 300 << 20, "{path}: {grown} bytes");
    }
}
