//! What the tests have in common: servers, clients, tables with known items.

use std::sync::Arc;
use std::time::Duration;

use engram_core::chunk::{ChunkBuilder, Origin};
use engram_core::{
    CellSpec, Compression, Compressor, DType, Layout, NewItem, RateLimits, Schema, SelectorKind,
    TableOptions, Trajectory,
};
use engram_engine::{Engine, Table, WaitOptions, WaitOutcome, wait};
use engram_rpc::pb::engram_client::EngramClient;
use engram_rpc::{Server, ServerOptions, pb};
use smallvec::{SmallVec, smallvec};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = EngramClient<Channel>;

/// Longer than anything here takes.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn options(name: &str) -> TableOptions {
    TableOptions {
        name: name.into(),
        max_size: 1_000_000,
        max_bytes: None,
        max_times_sampled: 0,
        ttl: None,
        sampler: SelectorKind::Fifo,
        remover: SelectorKind::Fifo,
        limits: RateLimits {
            kind: "MinSize(1)".into(),
            samples_per_insert: 1.0,
            min_size: 1,
            min_diff: f64::MIN,
            max_diff: f64::MAX,
        },
        signature: None,
        seed: 7,
        note: None,
    }
}

/// A queue: each item is sampled once.
pub(crate) fn queue(name: &str) -> TableOptions {
    TableOptions {
        max_times_sampled: 1,
        ..options(name)
    }
}

/// A queue that takes one item before somebody samples.
pub(crate) fn narrow(name: &str) -> TableOptions {
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
    // As of our own client: the transport ends a connection on which more small frames wait than its window is worth.
    let endpoint = Endpoint::from_shared(url).unwrap();
    let endpoint = endpoint.initial_connection_window_size(64 << 20);
    EngramClient::new(endpoint.connect().await.unwrap())
}

/// A chunk of `rows` rows of `width` uint32s each; row `r` holds `first + r` everywhere.
pub(crate) fn chunk(rows: usize, width: usize, first: u32) -> Arc<engram_core::Chunk> {
    let layout = Arc::new(Layout {
        names: Box::new(["x".into()]),
        structure: "{}".into(),
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
    let values = (0..rows).flat_map(|row| vec![first + u32::try_from(row).unwrap(); width]);
    let bytes: Vec<u8> = values.flat_map(u32::to_le_bytes).collect();
    builder.column_mut(0).copy_from_slice(&bytes);
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

/// Items `first..first + n`, keyed and valued by their numbers, one row of `width` each.
pub(crate) fn items(first: u32, n: u32, width: usize) -> Vec<NewItem> {
    let chunk = chunk(n as usize, width, first);
    let items = (0..n).map(|row| NewItem {
        key: u64::from(first + row),
        trajectory: Trajectory::Rows {
            chunk: Arc::clone(&chunk),
            offset: row,
            len: 1,
            squeeze: true,
        },
        priority: 1.0,
    });
    items.collect()
}

/// Inserts [`items`].
pub(crate) fn fill(table: &Arc<Table>, first: u32, n: u32, width: usize) {
    let mut ticket = table.insert(items(first, n, width)).unwrap();
    let mut patience = WaitOptions {
        deadline: None,
        interrupted: &mut || false,
    };
    let WaitOutcome::Ready(Ok(())) = wait(&mut ticket, &mut patience) else {
        panic!("the items are not in");
    };
}

/// Waits until `done`, and panics with `what` if that takes too long.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 20 s: {what}");
}

/// Both ends of a stream.
pub(crate) struct Talk<Q, R> {
    pub(crate) requests: mpsc::Sender<Q>,
    pub(crate) replies: Streaming<R>,
}

impl<Q, R> Talk<Q, R> {
    pub(crate) async fn say(&self, request: Q) {
        assert!(self.requests.send(request).await.is_ok(), "stream is over");
    }

    /// The next reply, which must come soon.
    pub(crate) async fn hear(&mut self) -> R {
        self.end().await.unwrap().unwrap()
    }

    /// The next reply, the end, or the status it ends with.
    pub(crate) async fn end(&mut self) -> Result<Option<R>, tonic::Status> {
        let next = tokio::time::timeout(SOON, self.replies.message());
        next.await.unwrap()
    }
}

fn outbound<Q>() -> (mpsc::Sender<Q>, ReceiverStream<Q>) {
    let (requests, outbound) = mpsc::channel(4096);
    (requests, ReceiverStream::new(outbound))
}

pub(crate) async fn changes(client: &mut Client) -> Talk<pb::ChangeRequest, pb::ChangeResponse> {
    let (requests, outbound) = outbound();
    let replies = client.change(outbound).await.unwrap().into_inner();
    Talk { requests, replies }
}

pub(crate) async fn samples(client: &mut Client) -> Talk<pb::SampleRequest, pb::SampleResponse> {
    let (requests, outbound) = outbound();
    let replies = client.sample(outbound).await.unwrap().into_inner();
    Talk { requests, replies }
}

pub(crate) async fn inserts(client: &mut Client) -> Talk<pb::InsertRequest, pb::InsertResponse> {
    let (requests, outbound) = outbound();
    let replies = client.insert(outbound).await.unwrap().into_inner();
    Talk { requests, replies }
}

pub(crate) fn error_of(reply: pb::ManageResponse) -> pb::Error {
    match reply.outcome {
        Some(pb::manage_response::Outcome::Error(error)) => error,
        other => panic!("{other:?} is no error"),
    }
}
