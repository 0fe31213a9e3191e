//! Both sides of a connection: calls whose bytes are ours, and a client that makes sense.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use engram_core::{CellSpec, DType};
use engram_reverb::pb::reverb_service_client::ReverbServiceClient;
use engram_reverb::pb::{self, chunk_data::Data};
use engram_reverb::{check_tensor, encode_tensor};
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

use crate::corpus::item;
use crate::messages::{Call, METHODS};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// Bytes of an answer after which no more of it is read: some requests ask for samples without end.
const ENOUGH: usize = 100_000;

/// How a call ended.
pub(crate) enum End {
    /// With this status's number.
    Status(usize),
    /// By us.
    Left,
}

/// A connection.
pub(crate) struct Link(Channel);

fn status(headers: &HeaderMap) -> Option<usize> {
    let number = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    (number <= 16).then_some(number)
}

impl Link {
    pub(crate) async fn new(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self(endpoint.connect().await.unwrap())
    }

    /// Makes a call and sees it through.
    pub(crate) async fn call(&self, call: &Call) -> Result<End, String> {
        let frame = Frame::data(Bytes::copy_from_slice(&call.body));
        let frames = stream::iter([Ok::<_, Status>(frame)]);
        let (_leaves, left) = oneshot::channel::<()>();
        let body = if call.is_over {
            Body::new(StreamBody::new(frames))
        } else {
            // Taken back when this returns.
            let rest = async move {
                let _ = left.await;
                Err(Status::cancelled("left"))
            };
            Body::new(StreamBody::new(frames.chain(stream::once(rest))))
        };
        let path = format!("{}{}", engram_reverb::PATH, METHODS[call.method]);
        let request = Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let answer = self.answer(request.body(body).unwrap());
        if call.is_over {
            let end = timeout(SOON, answer).await;
            return end.map_err(|_| "it does not end".to_owned())?;
        }
        // It may wait for more: it is left in the middle, or gets its status.
        let end = timeout(Duration::from_millis(2), answer).await;
        end.unwrap_or(Ok(End::Left))
    }

    async fn answer(&self, request: Request<Body>) -> Result<End, String> {
        let mut channel = self.0.clone();
        let channel = channel
            .ready()
            .await
            .map_err(|error| format!("{error:?}"))?;
        let answer = channel.call(request).await;
        let (head, mut body) = answer.map_err(|error| format!("{error:?}"))?.into_parts();
        if head.status != 200 {
            return Err(format!("{head:?}"));
        }
        if let Some(status) = status(&head.headers) {
            return Ok(End::Status(status));
        }
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("{error:?}"))?;
            match frame.into_data() {
                Ok(data) => bytes += data.len(),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let status = status(&trailers).ok_or("no status")?;
                    return Ok(End::Status(status));
                }
            }
            if bytes > ENOUGH {
                return Ok(End::Left);
            }
        }
        Err("an answer without a status".into())
    }
}

/// A client of sense, that keeps a stream of each kind open.
pub(crate) struct Neighbour {
    table: String,
    items: Sender<pb::InsertStreamRequest>,
    keys: Streaming<pb::InsertStreamResponse>,
    asks: Sender<pb::SampleStreamRequest>,
    samples: Streaming<pb::SampleStreamResponse>,
    next: u64,
}

impl Neighbour {
    pub(crate) async fn new(link: &Link, table: &str) -> Self {
        let mut client = ReverbServiceClient::new(link.0.clone());
        let (items, receiver) = mpsc::channel(1);
        let keys = client.insert_stream(ReceiverStream::new(receiver)).await;
        let (asks, receiver) = mpsc::channel(1);
        let samples = client.sample_stream(ReceiverStream::new(receiver)).await;
        Self {
            table: table.into(),
            items,
            keys: keys.unwrap().into_inner(),
            asks,
            samples: samples.unwrap().into_inner(),
            next: 1,
        }
    }

    /// Writes an item and samples it.
    pub(crate) async fn is_well(&mut self) {
        let key = self.next;
        self.next += 1;
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
        self.items.send(request).await.unwrap();
        let keys = timeout(SOON, self.keys.message()).await;
        assert_eq!(keys.unwrap().unwrap().unwrap().keys, [key]);
        let request = pb::SampleStreamRequest {
            table: self.table.clone(),
            num_samples: 1,
            rate_limiter_timeout: None,
        };
        self.asks.send(request).await.unwrap();
        let sample = timeout(SOON, self.samples.message()).await;
        let sample = sample.unwrap().unwrap().unwrap();
        let [entry] = &*sample.entries else {
            panic!("{sample:?}");
        };
        let tensor = &entry.data[0].data.as_ref().unwrap().tensors[0];
        let mut value = [0; 8];
        check_tensor(tensor).unwrap().decompress(&mut value).unwrap();
        assert_eq!(u64::from_le_bytes(value), key);
    }
}

/// What the server tells of itself.
pub(crate) fn scrape(address: SocketAddr) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Waits until `done`, and panics with `what` if that takes too long.
pub(crate) async fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 20 s: {what}");
}
