//! dm-reverb's service: what its clients rely on, message by message. `tests/interop` has the real client.

use std::sync::Arc;

use engram_core::{CellSpec, DType, SelectorKind, TableOptions};
use engram_engine::{Engine, Table};
use engram_reverb::pb::flat_trajectory::{ChunkSlice, Column};
use engram_reverb::pb::reverb_service_client::ReverbServiceClient;
use engram_reverb::pb::{self, chunk_data::Data};
use engram_reverb::{check_tensor, encode_tensor};
use engram_rpc::{Server, ServerOptions};
use smallvec::smallvec;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::support::{engine, one_item_queue, options, queue, start, wait_until};

pub(crate) type Client = ReverbServiceClient<Channel>;

pub(crate) async fn connect(server: &Server) -> Client {
    let url = format!("http://{}", server.address());
    let endpoint = Endpoint::from_shared(url).unwrap();
    ReverbServiceClient::new(endpoint.connect().await.unwrap())
}

/// The client's side of a stream. Setting `requests` to `None` half-closes the stream.
pub(crate) struct ReverbStream<T, U> {
    pub(crate) requests: Option<mpsc::Sender<T>>,
    pub(crate) responses: Streaming<U>,
}

impl<T, U> ReverbStream<T, U> {
    pub(crate) async fn send(&self, request: T) {
        self.requests.as_ref().unwrap().send(request).await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> U {
        self.responses.message().await.unwrap().unwrap()
    }

    /// Receives responses until the stream ends; returns its status.
    pub(crate) async fn end_status(&mut self) -> Status {
        loop {
            match self.responses.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }
}

pub(crate) async fn open_insert_stream(
    client: &mut Client,
) -> ReverbStream<pb::InsertStreamRequest, pb::InsertStreamResponse> {
    let (requests, receiver) = mpsc::channel(8);
    let responses = client.insert_stream(ReceiverStream::new(receiver)).await;
    ReverbStream {
        requests: Some(requests),
        responses: responses.unwrap().into_inner(),
    }
}

pub(crate) async fn open_sample_stream(
    client: &mut Client,
) -> ReverbStream<pb::SampleStreamRequest, pb::SampleStreamResponse> {
    let (requests, receiver) = mpsc::channel(8);
    let responses = client.sample_stream(ReceiverStream::new(receiver)).await;
    ReverbStream {
        requests: Some(requests),
        responses: responses.unwrap().into_inner(),
    }
}

/// A chunk of one column: rows `first..first + rows` of int32.
pub(crate) fn chunk(key: u64, first: i32, rows: i32) -> pb::ChunkData {
    let cell = CellSpec {
        dtype: DType::Int32,
        shape: smallvec![],
    };
    let raw: Vec<u8> = (first..first + rows).flat_map(i32::to_le_bytes).collect();
    let tensor = encode_tensor(&cell, usize::try_from(rows).unwrap(), &raw).unwrap();
    pb::ChunkData {
        chunk_key: key,
        data: Some(Data {
            tensors: vec![tensor],
        }),
        ..pb::ChunkData::default()
    }
}

/// An item of `length` rows of a chunk, from `offset` on.
pub(crate) fn item(
    key: u64,
    table: &str,
    chunk: u64,
    offset: i32,
    length: i32,
) -> pb::PrioritizedItem {
    pb::PrioritizedItem {
        key,
        table: table.into(),
        priority: 1.0,
        flat_trajectory: Some(pb::FlatTrajectory {
            columns: vec![Column {
                chunk_slices: vec![ChunkSlice {
                    chunk_key: chunk,
                    offset,
                    length,
                    index: 0,
                }],
                squeeze: false,
            }],
        }),
        ..pb::PrioritizedItem::default()
    }
}

pub(crate) fn request(
    chunks: Vec<pb::ChunkData>,
    items: Vec<pb::PrioritizedItem>,
    keep_chunk_keys: &[u64],
) -> pb::InsertStreamRequest {
    pb::InsertStreamRequest {
        chunks,
        items,
        keep_chunk_keys: keep_chunk_keys.to_vec(),
    }
}

/// A request for samples, which may wait for the rate limiter for this many milliseconds; 0 means without limit.
pub(crate) fn sample_request(
    table: &str,
    num_samples: i64,
    milliseconds: i64,
) -> pb::SampleStreamRequest {
    pb::SampleStreamRequest {
        table: table.into(),
        num_samples,
        rate_limiter_timeout: Some(pb::Timeout { milliseconds }),
    }
}

/// Returns the values of a sample that has one column, of one slice of one chunk.
pub(crate) fn values(entry: &pb::sample_stream_response::SampleEntry) -> Vec<i32> {
    let info = entry.info.as_ref().unwrap();
    let trajectory = info.item.as_ref().unwrap().flat_trajectory.as_ref();
    let [slice] = &*trajectory.unwrap().columns[0].chunk_slices else {
        panic!("{entry:?}");
    };
    let [chunk] = &*entry.data else {
        panic!("{entry:?}");
    };
    assert_eq!(slice.chunk_key, chunk.chunk_key);
    let header = check_tensor(&chunk.data.as_ref().unwrap().tensors[0]).unwrap();
    // The chunk has only the item's rows.
    assert_eq!((slice.offset, slice.length), (0, header.rows.cast_signed()));
    let mut bytes = vec![0; 4 * header.rows as usize];
    header.decompress(&mut bytes).unwrap();
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|number| i32::from_le_bytes(*number)).collect()
}

pub(crate) fn table(engine: &Engine, name: &str) -> Arc<Table> {
    engine.table(name).unwrap()
}

pub(crate) fn size(table: &Table) -> u64 {
    table.info().stats.size
}

#[tokio::test(flavor = "multi_thread")]
async fn items_are_confirmed_once_and_sampled_without_unused_rows() {
    let engine = engine(vec![queue("queue")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    // The highest bit of a key is dropped, except in its confirmation.
    let key_with_high_bit = 1 << 63 | 5;
    let items = vec![
        item(key_with_high_bit, "queue", 9, 2, 3),
        item(6, "queue", 9, 0, 1),
    ];
    writer
        .send(request(vec![chunk(9, 100, 10)], vec![], &[]))
        .await;
    writer.send(request(vec![], items, &[9])).await;
    let mut keys = writer.receive().await.keys;
    if keys.len() < 2 {
        keys.extend(writer.receive().await.keys);
    }
    assert_eq!(keys, [key_with_high_bit, 6]);
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("queue", 2, 0)).await;
    let entries = reader.receive().await.entries;
    assert_eq!(
        entries.iter().map(values).collect::<Vec<_>>(),
        [vec![102, 103, 104], vec![100]]
    );
    let infos: Vec<&pb::SampleInfo> = entries.iter().flat_map(|entry| &entry.info).collect();
    let sampled = infos.iter().map(|info| {
        let item = info.item.as_ref().unwrap();
        (item.key, item.times_sampled, info.table_size)
    });
    assert_eq!(sampled.collect::<Vec<_>>(), [(5, 1, 2), (6, 1, 1)]);
    reader.requests = None;
    assert_eq!(reader.end_status().await.code(), Code::Ok);
    writer.requests = None;
    assert_eq!(writer.end_status().await.code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn inserting_an_existing_key_updates_its_priority() {
    let heap = TableOptions {
        sampler: SelectorKind::MaxHeap,
        ..options("heap")
    };
    let engine = engine(vec![heap]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let mut same_key = item(1, "heap", 9, 5, 1);
    same_key.priority = 7.0;
    let items = vec![item(1, "heap", 9, 0, 1), item(2, "heap", 9, 1, 1), same_key];
    writer
        .send(request(vec![chunk(9, 0, 10)], items, &[]))
        .await;
    let mut keys = Vec::new();
    while keys.len() < 3 {
        keys.extend(writer.receive().await.keys);
    }
    keys.sort_unstable();
    assert_eq!(keys, [1, 1, 2]);
    let info = table(&engine, "heap").info();
    assert_eq!((info.stats.size, info.stats.limiter.inserts), (2, 2));
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("heap", 1, 0)).await;
    let entry = &reader.receive().await.entries[0];
    // The item's data is unchanged.
    assert_eq!(values(entry), [0]);
    let item = entry.info.as_ref().unwrap().item.as_ref().unwrap();
    assert!((item.priority - 7.0).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_limiter_blocks_a_writer() {
    let small = TableOptions {
        max_size: 20,
        ..one_item_queue("small")
    };
    let engine = engine(vec![small]);
    let server = start(&engine);
    let small = table(&engine, "small");
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    for key in 0..6 {
        let (chunk, item) = (chunk(key, 0, 1), item(key, "small", key, 0, 1));
        writer.send(request(vec![chunk], vec![item], &[])).await;
    }
    assert_eq!(writer.receive().await.keys, [0]);
    wait_until("two items wait", || small.info().waiting_inserts == 2).await;
    // A tenth of the table's size may wait; further items are not read.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(small.info().waiting_inserts, 2);
    // Waiting items are inserted although their writer is gone; unread items are lost, unless the server has read them
    // before it noticed that.
    drop(writer);
    let mut reader = open_sample_stream(&mut client).await;
    for _ in 0..3 {
        reader.send(sample_request("small", 1, 10_000)).await;
        reader.receive().await;
    }
    let end = loop {
        reader.send(sample_request("small", 1, 100)).await;
        match reader.responses.message().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::DeadlineExceeded);
    assert_eq!(
        end.message(),
        "Rate Limiter: Timeout exceeded before the right to insert was acquired."
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_end_the_stream() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let valid_chunk = || chunk(9, 0, 10);
    for (requests, code, text) in [
        (
            vec![request(vec![], vec![], &[9])],
            Code::InvalidArgument,
            "the request lacks both chunks and item",
        ),
        (
            vec![request(
                vec![valid_chunk()],
                vec![item(1, "table", 8, 0, 1)],
                &[],
            )],
            Code::Internal,
            "Could not find sequence chunk 8.",
        ),
        (
            vec![request(
                vec![valid_chunk()],
                vec![item(1, "other", 9, 0, 1)],
                &[],
            )],
            Code::NotFound,
            "Priority table other was not found",
        ),
        (
            vec![request(
                vec![valid_chunk()],
                vec![item(1, "table", 9, 0, 1)],
                &[9, 8],
            )],
            Code::FailedPrecondition,
            "Kept less chunks than expected: 1 of 2.",
        ),
        (
            // The chunk was not kept.
            vec![
                request(vec![valid_chunk()], vec![item(2, "table", 9, 0, 1)], &[]),
                request(vec![], vec![item(3, "table", 9, 0, 1)], &[]),
            ],
            Code::Internal,
            "Could not find sequence chunk 9.",
        ),
        (
            // Without items, the list of chunks to keep is ignored.
            vec![
                request(vec![valid_chunk()], vec![], &[5]),
                request(vec![], vec![item(4, "table", 9, 9, 2)], &[]),
            ],
            Code::InvalidArgument,
            "column `0`",
        ),
    ] {
        let mut writer = open_insert_stream(&mut client).await;
        for request in requests {
            writer.send(request).await;
        }
        let end = writer.end_status().await;
        assert_eq!(end.code(), code, "{end}");
        assert!(end.message().contains(text), "{end}");
    }
    // Items before the invalid request are inserted.
    wait_until("items 1 and 2", || size(&table(&engine, "table")) == 2).await;
    for (request, code, text) in [
        (
            sample_request("table", 0, 0),
            Code::InvalidArgument,
            "`num_samples` must be > 0 (got 0).",
        ),
        (
            sample_request("other", 1, 0),
            Code::NotFound,
            "Priority table other was not found",
        ),
    ] {
        let mut reader = open_sample_stream(&mut client).await;
        reader.send(request).await;
        let end = reader.end_status().await;
        assert_eq!((end.code(), end.message()), (code, text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_samples_are_sent_in_separate_messages() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await.max_decoding_message_size(64 << 20);
    let mut writer = open_insert_stream(&mut client).await;
    let rows = 1 << 18;
    let item = item(1, "table", 9, 0, rows);
    writer
        .send(request(vec![chunk(9, 0, rows)], vec![item], &[]))
        .await;
    assert_eq!(writer.receive().await.keys, [1]);
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("table", 10, 0)).await;
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 10 {
        sizes.push(reader.receive().await.entries.len());
    }
    // About 1 MiB each: a message is full from 2 MiB on.
    assert_eq!(sizes, [2; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_streams_end_when_the_server_closes() {
    let engine = engine(vec![one_item_queue("full")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("full", 1, 0)).await;
    let full = table(&engine, "full");
    wait_until("the call waits", || full.info().waiting_samples == 1).await;
    let end = tokio::spawn(async move { reader.end_status().await });
    tokio::task::spawn_blocking(move || server.close())
        .await
        .unwrap();
    assert_eq!(end.await.unwrap().code(), Code::Unavailable);
    wait_until("the call no longer waits", || {
        full.info().waiting_samples == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_token_rejects_dm_reverb_clients() {
    let engine = engine(vec![options("table")]);
    let options = ServerOptions {
        token: Some("secret".into()),
        ..ServerOptions::default()
    };
    let server = Server::start(engine, options).unwrap();
    let mut client = connect(&server).await;
    let response = client.server_info(pb::ServerInfoRequest {}).await;
    let status = response.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(
        status
            .message()
            .contains("dm-reverb clients cannot send one")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_reports_another_process_and_a_stable_state_id() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let (requests, receiver) = mpsc::channel(1);
    let call = client.initialize_connection(ReceiverStream::new(receiver));
    let request = pb::InitializeConnectionRequest {
        pid: std::process::id().into(),
        table_name: "table".into(),
        ownership_transferred: false,
    };
    requests.send(request).await.unwrap();
    let mut replies = call.await.unwrap().into_inner();
    let reply = replies.message().await.unwrap().unwrap();
    // 0: the client cannot access the tables in memory.
    assert_eq!(reply.address, 0);
    assert_eq!(replies.message().await.unwrap(), None);
    let mut states = Vec::new();
    for _ in 0..2 {
        let info = client.server_info(pb::ServerInfoRequest {}).await.unwrap();
        states.push(info.into_inner().tables_state_id);
    }
    assert_eq!(states[0], states[1]);
    let other = start(&engine);
    let info = connect(&other)
        .await
        .server_info(pb::ServerInfoRequest {})
        .await;
    assert_ne!(info.unwrap().into_inner().tables_state_id, states[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_atomic() {
    let weighted = TableOptions {
        sampler: SelectorKind::Prioritized { exponent: 1.0 },
        ..options("weighted")
    };
    let engine = engine(vec![weighted]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let writer = open_insert_stream(&mut client).await;
    let items = vec![item(1, "weighted", 9, 0, 1), item(2, "weighted", 9, 1, 1)];
    writer.send(request(vec![chunk(9, 0, 2)], items, &[])).await;
    let weighted = table(&engine, "weighted");
    wait_until("both are inserted", || size(&weighted) == 2).await;
    let update = |key, priority| pb::KeyWithPriority { key, priority };
    let mut changes = pb::MutatePrioritiesRequest {
        table: "weighted".into(),
        updates: vec![update(1, 3.0), update(2, f64::NAN)],
        delete_keys: vec![2],
    };
    let status = client.mutate_priorities(changes.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(size(&weighted), 2);
    // Deletions are applied first: updates of deleted items are ignored.
    changes.updates[1].priority = 5.0;
    client.mutate_priorities(changes).await.unwrap();
    assert_eq!(size(&weighted), 1);
    let request = pb::ResetRequest {
        table: "weighted".into(),
    };
    client.reset(request).await.unwrap();
    assert_eq!(size(&weighted), 0);
}
