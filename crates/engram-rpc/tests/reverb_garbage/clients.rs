//! Clients: a connection for calls with arbitrary bodies, and a client that makes valid calls.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use engram_core::{CellSpec, DType};
use engram_reverb::pb::reverb_service_client::ReverbServiceClient;
use engram_reverb::pb::{self, chunk_data::Data};
use engram_reverb::{check_tensor, encode_tensor};
use engram_testkit::reverb_messages::item;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use smallvec::smallvec;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tower::{Service as _, ServiceExt as _};

use crate::garbage_calls::{GarbageCall, METHODS};

/// The test fails if a call takes longer than this.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Number of bytes of its response after which a call is cancelled, because a request may ask for endless samples.
const MAX_RESPONSE_BYTES: usize = 100_000;

/// How a call ended.
pub(crate) enum CallOutcome {
    /// The server sent this gRPC status.
    Status(usize),
    /// The client cancelled it.
    Cancelled,
}

/// A connection to the server.
pub(crate) struct Connection(Channel);

/// Returns the gRPC status in headers or trailers, if there is a valid one.
fn parse_status(headers: &HeaderMap) -> Option<usize> {
    let number = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    // gRPC defines the status codes 0 to 16.
    (number <= 16).then_some(number)
}

impl Connection {
    pub(crate) async fn new(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self(endpoint.connect().await.unwrap())
    }

    /// Makes a call and returns how it ended. A call whose body is incomplete is cancelled after 2 ms.
    pub(crate) async fn call(&self, call: &GarbageCall) -> Result<CallOutcome, String> {
        let frame = Frame::data(Bytes::copy_from_slice(&call.body));
        let frames = stream::iter([Ok::<_, Status>(frame)]);
        let (_cancel, cancelled) = oneshot::channel::<()>();
        let body = if call.is_complete {
            Body::new(StreamBody::new(frames))
        } else {
            // The body ends with an error when this function returns and drops `_cancel`.
            let cancelled_body = async move {
                let _ = cancelled.await;
                Err(Status::cancelled("cancelled by the test"))
            };
            Body::new(StreamBody::new(frames.chain(stream::once(cancelled_body))))
        };
        let path = format!("{}{}", engram_reverb::PATH, METHODS[call.method]);
        let request = Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let response = self.read_response(request.body(body).unwrap());
        if call.is_complete {
            let outcome = timeout(CALL_TIMEOUT, response).await;
            return outcome.map_err(|_| "the call did not end".to_owned())?;
        }
        // The server may wait for more of the body.
        let outcome = timeout(Duration::from_millis(2), response).await;
        outcome.unwrap_or(Ok(CallOutcome::Cancelled))
    }

    async fn read_response(&self, request: Request<Body>) -> Result<CallOutcome, String> {
        let mut channel = self.0.clone();
        let channel = channel
            .ready()
            .await
            .map_err(|error| format!("{error:?}"))?;
        let response = channel.call(request).await;
        let (head, mut body) = response.map_err(|error| format!("{error:?}"))?.into_parts();
        if head.status != 200 {
            return Err(format!("{head:?}"));
        }
        if let Some(status) = parse_status(&head.headers) {
            return Ok(CallOutcome::Status(status));
        }
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("{error:?}"))?;
            match frame.into_data() {
                Ok(data) => bytes += data.len(),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let status = parse_status(&trailers).ok_or("the trailers have no status")?;
                    return Ok(CallOutcome::Status(status));
                }
            }
            if bytes > MAX_RESPONSE_BYTES {
                return Ok(CallOutcome::Cancelled);
            }
        }
        Err("the response has no status".into())
    }
}

/// A client that makes valid calls and keeps an insert stream and a sample stream open.
pub(crate) struct WellBehavedClient {
    table: String,
    insert_requests: Sender<pb::InsertStreamRequest>,
    insert_responses: Streaming<pb::InsertStreamResponse>,
    sample_requests: Sender<pb::SampleStreamRequest>,
    sample_responses: Streaming<pb::SampleStreamResponse>,
    next_key: u64,
}

impl WellBehavedClient {
    pub(crate) async fn new(connection: &Connection, table: &str) -> Self {
        let mut client = ReverbServiceClient::new(connection.0.clone());
        let (insert_requests, receiver) = mpsc::channel(1);
        let insert_responses = client.insert_stream(ReceiverStream::new(receiver)).await;
        let (sample_requests, receiver) = mpsc::channel(1);
        let sample_responses = client.sample_stream(ReceiverStream::new(receiver)).await;
        Self {
            table: table.into(),
            insert_requests,
            insert_responses: insert_responses.unwrap().into_inner(),
            sample_requests,
            sample_responses: sample_responses.unwrap().into_inner(),
            next_key: 1,
        }
    }

    /// Inserts an item and samples it.
    pub(crate) async fn check_round_trip(&mut self) {
        let key = self.next_key;
        self.next_key += 1;
        let cell = CellSpec {
            dtype: DType::Uint64,
            shape: smallvec![],
        };
        let tensors = vec![encode_tensor(&cell, 1, &key.to_le_bytes()).unwrap()];
        let chunk = pb::ChunkData {
            chunk_key: 1000 + key,
            data: Some(Data { tensors }),
            ..pb::ChunkData::default()
        };
        let slice = [i64::try_from(1000 + key).unwrap(), 0, 1, 0];
        let mut item = item(key, &[&[slice]]);
        item.table.clone_from(&self.table);
        let request = pb::InsertStreamRequest {
            chunks: vec![chunk],
            items: vec![item],
            keep_chunk_keys: vec![],
        };
        self.insert_requests.send(request).await.unwrap();
        let response = timeout(CALL_TIMEOUT, self.insert_responses.message()).await;
        assert_eq!(response.unwrap().unwrap().unwrap().keys, [key]);
        let request = pb::SampleStreamRequest {
            table: self.table.clone(),
            num_samples: 1,
            rate_limiter_timeout: None,
        };
        self.sample_requests.send(request).await.unwrap();
        let response = timeout(CALL_TIMEOUT, self.sample_responses.message()).await;
        let response = response.unwrap().unwrap().unwrap();
        let [entry] = &*response.entries else {
            panic!("{response:?}");
        };
        let tensor = &entry.data[0].data.as_ref().unwrap().tensors[0];
        let mut value = [0; 8];
        check_tensor(tensor)
            .unwrap()
            .decompress(&mut value)
            .unwrap();
        assert_eq!(u64::from_le_bytes(value), key);
    }
}

/// Returns the server's metrics as text.
pub(crate) fn scrape(address: SocketAddr) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Waits until `done` returns true. Panics with `condition` after 20 seconds.
pub(crate) async fn wait_until(condition: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("waited 20 s for {condition}");
}
