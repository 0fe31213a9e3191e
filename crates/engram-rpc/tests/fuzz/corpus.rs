//! Valid messages of every [`Kind`], encoded as server and client encode them; `protocol-1.txt` has them all.

use std::sync::Arc;

use engram_core::chunk::{ChunkBuilder, Origin};
use engram_core::gather::{LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{
    CellSpec, Chunk, ColumnSpec, Compression, Compressor, DType, Draw, Error, Layout, NewItem,
    RateLimits, Schema, SelectorKind, Signature, Slice, SpanColumn, Spans, TableOptions,
    Trajectory, WindowShape,
};
use engram_engine::Engine;
use engram_rpc::pb::manage_request::Call;
use engram_rpc::pb::manage_response::Outcome as ManageOutcome;
use engram_rpc::pb::sample_request::Request;
use engram_rpc::pb::sample_response::Outcome as SampleOutcome;
use engram_rpc::pb::{self, change_request, change_response, scan_request};
use engram_rpc::wire::{
    InsertRequestBuilder, OutgoingBatch, SentDictionary, encode_error, encode_info, encode_limits,
    encode_numbers, encode_options,
};
use futures_util::FutureExt as _;
use prost::Message;
use smallvec::smallvec;

use crate::decoders::Kind;

/// Returns encoded messages and their kinds.
pub(crate) fn corpus() -> Vec<(Kind, Vec<u8>)> {
    let mut corpus = Vec::new();
    let mut add = |kind, message: Vec<u8>| corpus.push((kind, message));
    for request in insert_requests() {
        add(Kind::InsertRequest, request.encode_to_vec());
    }
    for request in sample_requests() {
        let request = pb::SampleRequest {
            request: Some(request),
            ..pb::SampleRequest::default()
        };
        add(Kind::SampleRequest, request.encode_to_vec());
    }
    for change in [
        change_request::Change::PrioritiesLe(encode_numbers([1.0, 2.0, 0.5].into_iter())),
        change_request::Change::Delete(pb::Empty {}),
    ] {
        let request = pb::ChangeRequest {
            id: 3,
            table: "table".into(),
            keys_le: encode_numbers([1_u64, 2, 3].into_iter()),
            change: Some(change),
        };
        add(Kind::ChangeRequest, request.encode_to_vec());
    }
    for request in scan_requests() {
        let request = Some(request);
        add(
            Kind::ScanRequest,
            pb::ScanRequest { request }.encode_to_vec(),
        );
    }
    for call in manage_calls() {
        let request = pb::ManageRequest { call: Some(call) };
        add(Kind::ManageRequest, request.encode_to_vec());
    }
    let hello = pb::HelloRequest {
        protocol: 1,
        version: "0.1.0".into(),
    };
    add(Kind::HelloRequest, hello.encode_to_vec());
    for response in manage_outcomes() {
        let response = pb::ManageResponse {
            outcome: Some(response),
        };
        add(Kind::ManageResponse, response.encode_to_vec());
    }
    for response in sample_outcomes() {
        let response = pb::SampleResponse {
            id: 5,
            outcome: Some(response),
            acknowledged: 0,
        };
        add(Kind::SampleResponse, response.encode_to_vec());
    }
    let completed = [Some(unknown_table()), None].map(|error| pb::Completed {
        table: "table".into(),
        number: 9,
        error,
    });
    let inserted = [Some(unknown_table()), None].map(|error| pb::Inserted {
        table: "table".into(),
        number: 9,
        durability_error: error,
    });
    let allowed = vec![pb::Allowed {
        table: "table".into(),
        number: 12,
    }];
    let response = pb::InsertResponse {
        completed: completed.into(),
        inserted: inserted.into(),
        allowed,
    };
    add(Kind::InsertResponse, response.encode_to_vec());
    for response in [
        change_response::Outcome::Matched(3),
        change_response::Outcome::Error(unknown_table()),
    ] {
        let response = pb::ChangeResponse {
            id: 3,
            outcome: Some(response),
        };
        add(Kind::ChangeResponse, response.encode_to_vec());
    }
    corpus.extend(hello_responses());
    corpus.extend(session_messages());
    corpus
}

/// A server's first response, and those with other values in each of the fields that came later.
fn hello_responses() -> Vec<(Kind, Vec<u8>)> {
    let hello = pb::HelloResponse {
        protocol: 1,
        version: "0.1.0".into(),
        instance: 77,
        port: 80,
        local_socket: "socket".into(),
        lease_timeout_s: Some(600.0),
        shard_id: 0,
        resumes_readers: false,
    };
    let sharded = pb::HelloResponse {
        shard_id: 1023,
        ..hello.clone()
    };
    let resuming = pb::HelloResponse {
        resumes_readers: true,
        ..sharded.clone()
    };
    [hello, sharded, resuming]
        .map(|hello| (Kind::HelloResponse, hello.encode_to_vec()))
        .into()
}

/// The messages of readers' sessions that have fields which others do not have.
fn session_messages() -> Vec<(Kind, Vec<u8>)> {
    let numbered = pb::SampleRequest {
        request: Some(Request::Acknowledge(5)),
        used_items: Some(3),
        number: Some(9),
    };
    let outcomes = [
        SampleOutcome::Lease(pb::LeaseState::PartlyHeld.into()),
        SampleOutcome::Resumed(pb::Empty {}),
    ];
    let responses = outcomes.map(|outcome| pb::SampleResponse {
        id: 5,
        outcome: Some(outcome),
        acknowledged: 8,
    });
    let responses = responses
        .iter()
        .map(|response| (Kind::SampleResponse, response.encode_to_vec()));
    let numbered = (Kind::SampleRequest, numbered.encode_to_vec());
    std::iter::once(numbered).chain(responses).collect()
}

fn scan_requests() -> [scan_request::Request; 4] {
    [
        scan_request::Request::KeysLe(encode_numbers([1_u64, 2, 3].into_iter())),
        scan_request::Request::Begin(pb::BeginScan {
            table: "table".into(),
            order: 1,
            only_keys: true,
            batch_size: 8,
            pad: true,
            peek: None,
        }),
        scan_request::Request::Begin(pb::BeginScan {
            table: "table".into(),
            batch_size: 1,
            peek: Some(pb::Peek {
                order: 3,
                n: 10,
                max_bytes: Some(1 << 20),
            }),
            ..pb::BeginScan::default()
        }),
        scan_request::Request::Batches(2),
    ]
}

fn unknown_table() -> pb::Error {
    encode_error(&Error::UnknownTable {
        name: "table".into(),
        known: vec!["a".into(), "b".into()],
    })
}

fn options() -> TableOptions {
    TableOptions {
        name: "table".into(),
        max_size: 100,
        max_bytes: Some(1 << 20),
        max_times_sampled: 3,
        ttl: Some(1 << 40),
        sampler: SelectorKind::Prioritized { exponent: 0.6 },
        remover: SelectorKind::Fifo,
        limits: RateLimits {
            kind: "MinSize".into(),
            samples_per_insert: 1.0,
            min_size: 1,
            min_diff: f64::MIN,
            max_diff: f64::MAX,
        },
        signature: Some(Arc::new(Signature {
            columns: Box::new([ColumnSpec {
                name: "x".into(),
                dtype: DType::Float32,
                shape: smallvec![None, Some(4)],
            }]),
            structure: "0".into(),
        })),
        seed: 1,
        note: None,
    }
}

fn manage_calls() -> Vec<Call> {
    let query = pb::LimiterQuery {
        table: "table".into(),
        n: 7,
    };
    vec![
        Call::Tables(pb::ListTables {
            paged: true,
            after: Some("a".into()),
        }),
        Call::Describe("table".into()),
        Call::Create(encode_options(&options())),
        Call::Drop("table".into()),
        Call::SetLimits(pb::SetLimits {
            table: "table".into(),
            limits: Some(encode_limits(&options().limits)),
        }),
        Call::Reset("table".into()),
        Call::Info(pb::ListTables::default()),
        Call::CanSample(query.clone()),
        Call::CanInsert(query),
        Call::Histogram(pb::HistogramQuery {
            table: "table".into(),
            of: 1,
            bins: 32,
        }),
    ]
}

fn manage_outcomes() -> Vec<ManageOutcome> {
    let engine = Engine::new(vec![options()], 1).unwrap();
    let table = engine.table("table").unwrap();
    let info = encode_info(&table.info());
    vec![
        ManageOutcome::Error(unknown_table()),
        ManageOutcome::Done(pb::Empty {}),
        ManageOutcome::Tables(pb::TableNames {
            names: vec!["a".into(), "b".into()],
            more: true,
        }),
        ManageOutcome::Options(encode_options(&options())),
        ManageOutcome::Info(pb::TableInfos {
            tables: vec![info.clone(), info],
            more: false,
        }),
        ManageOutcome::CanProceed(true),
        ManageOutcome::Histogram(pb::Histogram {
            counts: vec![3, 4],
            edges: vec![0.0, 1.0, 2.0],
            below: 1,
            above: 2,
            table_size: 10,
        }),
    ]
}

fn sample_requests() -> Vec<Request> {
    let batch = pb::BatchRequest {
        id: 5,
        table: "table".into(),
        n: 256,
        timeout_s: Some(1.5),
        pad: true,
        lease: true,
        at_least: 3,
    };
    vec![
        Request::Batch(batch),
        Request::Acknowledge(5),
        Request::Cancel(6),
        Request::Barrier(7),
        Request::Resume(pb::Resume {
            session: 77,
            keep_s: 5.0,
            lease: Some(pb::HeldLease {
                id: 5,
                table: "table".into(),
                keys_le: encode_numbers([1_u64, 2, 3].into_iter()),
                number: Some(8),
            }),
            more: true,
        }),
    ]
}

/// Returns a chunk of 8 steps with a column of numbers, one of byte strings, and one that can be compressed.
pub(crate) fn chunk(compression: Compression) -> Arc<Chunk> {
    let layout = Arc::new(Layout {
        names: Box::new(["number".into(), "string".into(), "zeros".into()]),
        structure: r#"{"d":[["number",0],["string",0],["zeros",0]]}"#.into(),
    });
    let cell = |dtype, shape| CellSpec { dtype, shape };
    let schema = Schema {
        layout,
        cells: Box::new([
            cell(DType::Uint32, smallvec![2]),
            cell(DType::Bytes, smallvec![]),
            cell(DType::Uint8, smallvec![64, 16]),
        ]),
    };
    let mut builder = ChunkBuilder::new(Arc::new(schema), 8).unwrap();
    builder.column_mut(0).fill(1);
    for _ in 0..8 {
        builder.push_string(1, b"\x02\0\0\0ab").unwrap();
    }
    builder.set_rows(0, 8);
    builder.set_rows(2, 8);
    let origin = Origin {
        key: 3,
        episodes: smallvec![4],
        first_step: 0,
        steps: 8,
    };
    let mut compressor = Compressor::new(compression);
    Arc::new(builder.seal(origin, &mut compressor).unwrap())
}

fn trajectories() -> Vec<Trajectory> {
    let (raw, packed) = (chunk(Compression::Off), chunk(Compression::Auto));
    let layout = Arc::clone(&raw.schema().layout);
    let columns = |len| {
        let column = |first_slice| SpanColumn {
            first_slice,
            len,
            squeeze: false,
        };
        (0..3).map(column).collect::<Box<[_]>>()
    };
    let slices = |offset, len| {
        let slice = |column| Slice {
            chunk: 0,
            column,
            offset,
            len,
        };
        (0..3).map(slice).collect::<Box<[_]>>()
    };
    let rows = |chunk: &Arc<Chunk>, offset| Trajectory::Rows {
        chunk: Arc::clone(chunk),
        offset,
        len: 2,
        squeeze: false,
    };
    let shape = Arc::new(WindowShape {
        layout: Arc::clone(&layout),
        columns: columns(2),
        slices: slices(0, 2),
    });
    let window = |chunk: &Arc<Chunk>, offset| Trajectory::Window {
        chunk: Arc::clone(chunk),
        offset,
        shape: Arc::clone(&shape),
    };
    let spans = Trajectory::Spans(Arc::new(Spans {
        layout,
        chunks: [Arc::clone(&raw)].into_iter().collect(),
        columns: columns(3).into(),
        slices: slices(1, 3),
    }));
    vec![
        rows(&raw, 0),
        rows(&raw, 3),
        rows(&packed, 1),
        window(&raw, 1),
        window(&raw, 2),
        spans,
    ]
}

fn items() -> Vec<NewItem> {
    let items = (1..).zip(trajectories()).map(|(key, trajectory)| NewItem {
        key,
        trajectory,
        priority: 1.0,
    });
    items.collect()
}

/// Returns the requests of an insert stream: definitions and items of all kinds, then items that refer to the same
/// definitions, then the rest of a chunk's payload. The requests of [`complete_insert_requests`] follow.
fn insert_requests() -> Vec<pb::InsertRequest> {
    let mut dictionary = SentDictionary::default();
    let mut requests = Vec::new();
    for first in [1, 7] {
        let mut builder = InsertRequestBuilder::default();
        for (number, item) in (first..).zip(items()) {
            builder.add_item(&mut dictionary, "table", number, &item, item.key);
        }
        requests.extend(builder.take_requests());
    }
    requests[0].session = Some(9);
    let part = requests[0].chunks[0].payload.split_off(100);
    requests.push(pb::InsertRequest {
        chunk_part: part,
        released_chunks: vec![1, 2],
        ..pb::InsertRequest::default()
    });
    requests.extend(complete_insert_requests());
    requests
}

/// Returns requests that repeat all definitions for each item.
fn complete_insert_requests() -> Vec<pb::InsertRequest> {
    let mut builder = InsertRequestBuilder::default();
    for (number, item) in (1..).zip(items()) {
        builder.add_item(
            &mut SentDictionary::default(),
            "table",
            number,
            &item,
            item.key,
        );
    }
    builder.take_requests().into()
}

/// Returns a first request of an insert stream, with the definitions that later requests refer to.
pub(crate) fn first_request() -> pb::InsertRequest {
    complete_insert_requests().swap_remove(0)
}

fn draws() -> Vec<Draw> {
    let engine = Engine::new(
        vec![TableOptions {
            signature: None,
            limits: options().limits,
            ..options()
        }],
        1,
    );
    let engine = engine.unwrap();
    let table = engine.table("table").unwrap();
    table
        .insert(items())
        .unwrap()
        .now_or_never()
        .unwrap()
        .unwrap();
    let ticket = table.sample(8, false).unwrap();
    ticket.now_or_never().unwrap().unwrap().draws
}

fn sample_outcomes() -> Vec<SampleOutcome> {
    let pool = Arc::<Pool>::default();
    let draws = draws();
    let mut outcomes = Vec::new();
    for length_policy in [LengthPolicy::Ragged, LengthPolicy::Pad] {
        for draws in [&draws[..], &draws[..1]] {
            let columns = gather(draws, length_policy, &pool).unwrap();
            let batch = OutgoingBatch::new(columns, draws, true, true).unwrap();
            outcomes.extend(batch.map(SampleOutcome::from));
        }
    }
    outcomes.push(SampleOutcome::BatchPart(vec![0; 100].into()));
    outcomes.push(SampleOutcome::Error(unknown_table()));
    outcomes.push(SampleOutcome::BarrierDone(pb::BarrierDone {
        durability_error: Some(pb::Error::default()),
    }));
    outcomes
}
