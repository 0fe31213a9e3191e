//! Shared by the tests: servers, clients, tables with known items.

use std::sync::Arc;
use std::time::Duration;

use engram_core::chunk::{ChunkBuilder, Origin};
use engram_core::{
    CellSpec, Compression, Compressor, DType, Layout, NewItem, RateLimits, Schema, TableOptions,
    Trajectory,
};
use engram_engine::{Engine, Table, wait_by};
use engram_rpc::pb::engram_client::EngramClient;
use engram_rpc::{Server, ServerOptions, pb};
use engram_testkit::table_options;
use smallvec::{SmallVec, smallvec};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = EngramClient<Channel>;

/// A test fails if one of its steps takes longer than this.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of a table of up to a million items. Its rate limiter requires one item for sampling.
pub(crate) fn options(name: &str) -> TableOptions {
    TableOptions {
        max_size: 1_000_000,
        ..table_options(name)
    }
}

/// Options of a table whose items are sampled once. Its rate limiter never blocks inserts.
pub(crate) fn queue(name: &str) -> TableOptions {
    TableOptions {
        max_times_sampled: 1,
        ..options(name)
    }
}

/// Options of a queue whose rate limiter allows one insert more than samples.
pub(crate) fn one_item_queue(name: &str) -> TableOptions {
    TableOptions {
        limits: RateLimits {
            kind: "Queue".into(),
            max_diff: 1.0,
            ..options(name).limits
        },
        ..queue(name)
    }
}

pub(crate) fn engine(tables: Vec<TableOptions>) -> Arc<Engine> {
    Arc::new(Engine::new(tables, 1).unwrap())
}

pub(crate) fn start(engine: &Arc<Engine>) -> Server {
    Server::start(Arc::clone(engine), ServerOptions::default()).unwrap()
}

pub(crate) async fn connect(server: &Server) -> Client {
    let url = format!("http://{}", server.address());
    // A large window, as Engram's client has: the transport closes a connection on which too many small frames wait for
    // space in the window.
    let endpoint = Endpoint::from_shared(url).unwrap();
    let endpoint = endpoint.initial_connection_window_size(64 << 20);
    EngramClient::new(endpoint.connect().await.unwrap())
}

/// A chunk of `rows` rows of `width` uint32s each; all values of row `r` are `first + r`.
pub(crate) fn chunk(rows: usize, width: usize, first: u32) -> Arc<engram_core::Chunk> {
    let layout = Arc::new(Layout {
        names: Box::new(["x".into()]),
        structure: r#"{"d":[["x",0]]}"#.into(),
    });
    let cell = CellSpec {
        dtype: DType::Uint32,
        shape: smallvec![width],
    };
    let schema = Schema {
        layout,
        cells: Box::new([cell]),
    };
    let mut builder = ChunkBuilder::new(Arc::new(schema), rows).unwrap();
    let values = (first..).take(rows).map(u32::to_le_bytes);
    let rows_of_values: Vec<_> = values.map(|value| value.repeat(width)).collect();
    (builder.column_mut(0)).copy_from_slice(&rows_of_values.concat());
    builder.set_rows(0, u32::try_from(rows).unwrap());
    let origin = Origin {
        key: u64::from(first) + 1,
        episodes: SmallVec::from_elem(1, 1),
        first_step: 0,
        steps: u32::try_from(rows).unwrap(),
    };
    let mut compressor = Compressor::new(Compression::Off);
    Arc::new(builder.seal(origin, &mut compressor).unwrap())
}

/// Items with keys `first..first + n`, one row each; all values of a row are the item's key.
pub(crate) fn items(first: u32, n: u32, width: usize) -> Vec<NewItem> {
    let chunk = chunk(n as usize, width, first);
    let items = (0..n).map(|row| item_of_row(u64::from(first + row), &chunk, row));
    items.collect()
}

/// An item of one row of a chunk, without a time axis.
pub(crate) fn item_of_row(key: u64, chunk: &Arc<engram_core::Chunk>, row: u32) -> NewItem {
    NewItem {
        key,
        trajectory: Trajectory::Rows {
            chunk: Arc::clone(chunk),
            offset: row,
            len: 1,
            squeeze: true,
        },
        priority: 1.0,
    }
}

/// Inserts [`items`] into a table.
pub(crate) fn fill(table: &Arc<Table>, first: u32, n: u32, width: usize) {
    let mut ticket = table.insert(items(first, n, width)).unwrap();
    let Some(Ok(())) = wait_by(&mut ticket, None) else {
        panic!("the items were not inserted");
    };
}

/// Waits until `done` returns true. Panics with `condition` after 20 seconds.
pub(crate) async fn wait_until(condition: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 20 s: {condition}");
}

/// The client's side of a stream.
pub(crate) struct TestStream<Q, R> {
    pub(crate) requests: mpsc::Sender<Q>,
    pub(crate) responses: Streaming<R>,
}

impl<Q, R> TestStream<Q, R> {
    pub(crate) async fn send(&self, request: Q) {
        assert!(
            self.requests.send(request).await.is_ok(),
            "the stream has ended"
        );
    }

    /// Receives the next response within [`STEP_TIMEOUT`].
    pub(crate) async fn receive(&mut self) -> R {
        self.next_response().await.unwrap().unwrap()
    }

    /// Half-closes the stream: drops the sender of its requests.
    pub(crate) fn half_close(&mut self) {
        self.requests = mpsc::channel(1).0;
    }

    /// Receives the next response, `None` at the end, or the status that the stream ends with.
    pub(crate) async fn next_response(&mut self) -> Result<Option<R>, tonic::Status> {
        let response = tokio::time::timeout(STEP_TIMEOUT, self.responses.message());
        response.await.unwrap()
    }
}

/// Returns the ends of a channel for requests: the sender for the test, and the receiver for the client.
pub(crate) fn request_channel<Q>() -> (mpsc::Sender<Q>, ReceiverStream<Q>) {
    let (requests, receiver) = mpsc::channel(4096);
    (requests, ReceiverStream::new(receiver))
}

pub(crate) async fn open_change_stream(
    client: &mut Client,
) -> TestStream<pb::ChangeRequest, pb::ChangeResponse> {
    let (requests, receiver) = request_channel();
    let responses = client.change(receiver).await.unwrap().into_inner();
    TestStream {
        requests,
        responses,
    }
}

pub(crate) async fn open_sample_stream(
    client: &mut Client,
) -> TestStream<pb::SampleRequest, pb::SampleResponse> {
    let (requests, receiver) = request_channel();
    let responses = client.sample(receiver).await.unwrap().into_inner();
    TestStream {
        requests,
        responses,
    }
}

pub(crate) async fn open_insert_stream(
    client: &mut Client,
) -> TestStream<pb::InsertRequest, pb::InsertResponse> {
    let (requests, receiver) = request_channel();
    let responses = client.insert(receiver).await.unwrap().into_inner();
    TestStream {
        requests,
        responses,
    }
}

pub(crate) fn expect_error(response: pb::ManageResponse) -> pb::Error {
    match response.outcome {
        Some(pb::manage_response::Outcome::Error(error)) => error,
        other => panic!("{other:?} is not an error"),
    }
}
