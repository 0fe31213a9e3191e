//! Arbitrary insert requests do not crash a server.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engram_core::Error;
use engram_core::gather::{LengthPolicy, gather};
use engram_rpc::pb;
use engram_rpc::pb::items::Trajectories;
use engram_rpc::wire::encode_numbers;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::insert::{first_message, items_message, row_items};
use crate::support::{connect, engine, open_insert_stream, options, start};

/// Numbers that are mostly valid, sometimes too large, rarely arbitrary.
fn mostly_small_u32() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..4_u32, 2 => 0..70_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn mostly_small_u64() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..4_u64, 2 => 0..300_u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn bytes() -> impl Strategy<Value = Bytes> {
    let numbers = prop_oneof![
        vec(any::<u8>(), 0..80),
        vec(mostly_small_u32(), 0..8)
            .prop_map(|numbers| encode_numbers(numbers.into_iter()).to_vec()),
        vec(mostly_small_u64(), 0..8)
            .prop_map(|numbers| encode_numbers(numbers.into_iter()).to_vec()),
        vec(0.0..2.0, 0..4).prop_map(|numbers| encode_numbers(numbers.into_iter()).to_vec()),
    ];
    numbers.prop_map(Bytes::from)
}

prop_compose! {
    fn layout()(
        names in vec("[a-b]{0,2}", 0..3),
        structure in prop_oneof![
            1 => "[a-z{}]{0,4}",
            3 => (0..3_usize).prop_map(|leaves| format!(r#"{{"t":[{}]}}"#, vec!["0"; leaves].join(","))),
        ],
    ) -> pb::Layout {
        pb::Layout { names, structure }
    }
}

prop_compose! {
    fn cell()(
        dtype in prop_oneof![Just("uint8"), Just("uint32"), Just("string"), Just("unknown")],
        shape in vec(mostly_small_u64(), 0..3),
    ) -> pb::Cell {
        pb::Cell { dtype: dtype.into(), shape }
    }
}

prop_compose! {
    fn schema()(id in mostly_small_u32(), layout in option::weighted(0.9, layout()), cells in vec(cell(), 0..3))
        -> pb::Schema {
        pb::Schema { id, layout, cells }
    }
}

prop_compose! {
    fn column()(slices in mostly_small_u32(), squeeze in any::<bool>()) -> pb::SpanColumn {
        pb::SpanColumn { slice_count: slices, squeeze }
    }
}

prop_compose! {
    fn slice()(chunk in mostly_small_u32(), column in mostly_small_u32(), offset in mostly_small_u32(), len in mostly_small_u32())
        -> pb::Slice {
        pb::Slice { chunk, column, offset, len }
    }
}

prop_compose! {
    fn shape()(
        id in mostly_small_u32(),
        layout in option::weighted(0.9, layout()),
        columns in vec(column(), 0..3),
        slices in vec(slice(), 0..5),
    ) -> pb::WindowShape {
        pb::WindowShape { id, layout, columns, slices }
    }
}

prop_compose! {
    fn extent()(stored in mostly_small_u32(), rows in mostly_small_u32(), codec in 0..4_u32) -> pb::Extent {
        pb::Extent { stored_bytes: stored, rows, codec }
    }
}

prop_compose! {
    fn chunk()(
        (id, schema, steps) in (mostly_small_u32(), mostly_small_u32(), mostly_small_u32()),
        (key, first_step, bytes) in (any::<u64>(), mostly_small_u64(), mostly_small_u64()),
        episodes_le in bytes(),
        extents in vec(extent(), 0..3),
        payload in bytes(),
        is_whole in any::<bool>(),
    ) -> pb::Chunk {
        let bytes = if is_whole { payload.len() as u64 } else { bytes };
        pb::Chunk { id, schema, key, episodes_le, first_step, steps, extents, payload_bytes: bytes, payload }
    }
}

fn trajectories() -> impl Strategy<Value = Trajectories> {
    prop_oneof![
        (mostly_small_u32(), any::<bool>())
            .prop_map(|(len, squeeze)| Trajectories::Rows(pb::Rows { len, squeeze })),
        mostly_small_u32().prop_map(Trajectories::WindowShape),
        (
            layout(),
            vec(mostly_small_u32(), 0..3),
            vec(column(), 0..3),
            vec(slice(), 0..5)
        )
            .prop_map(|(layout, chunks, columns, slices)| {
                Trajectories::Spans(pb::Spans {
                    layout: Some(layout),
                    chunks,
                    columns,
                    slices,
                })
            }),
    ]
}

prop_compose! {
    fn items()(
        table in "[tu]",
        first in mostly_small_u64(),
        trajectories in option::weighted(0.9, trajectories()),
        n in 0..4_usize,
        well_formed in any::<bool>(),
        (keys, priorities, chunks, offsets) in (bytes(), bytes(), bytes(), bytes()),
        (some_chunks, some_offsets) in (vec(mostly_small_u32(), 4), vec(mostly_small_u32(), 4)),
    ) -> pb::Items {
        let garbage = pb::Items {
            table,
            first_number: first,
            trajectories,
            keys_le: keys,
            priorities_le: priorities,
            chunks_le: chunks,
            offsets_le: offsets,
        };
        if !well_formed {
            return garbage;
        }
        pb::Items {
            keys_le: encode_numbers((0..n as u64).collect::<Vec<_>>().into_iter()),
            priorities_le: encode_numbers([1.0].into_iter()),
            chunks_le: encode_numbers(some_chunks.into_iter().take(n).collect::<Vec<_>>().into_iter()),
            offsets_le: encode_numbers(some_offsets.into_iter().take(n).collect::<Vec<_>>().into_iter()),
            ..garbage
        }
    }
}

prop_compose! {
    fn request()(
        session in option::weighted(0.02, any::<u64>()),
        schemas in vec(schema(), 0..2),
        shapes in vec(shape(), 0..2),
        chunks in vec(chunk(), 0..2),
        part in prop_oneof![3 => Just(Bytes::new()), 1 => bytes()],
        items in vec(items(), 0..3),
        released in vec(mostly_small_u32(), 0..2),
    ) -> pb::InsertRequest {
        pb::InsertRequest { session, schemas, window_shapes: shapes, chunks, chunk_part: part, items, released_chunks: released }
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap())
}

prop_compose! {
    /// A well-formed shape of schema 1's column. Its slices are mostly of chunk 0 and column 0, the only ones that
    /// exist; the other numbers of a slice may or may not fit a chunk.
    fn fitting_shape()(slices in vec(slice(), 1..4), squeeze in any::<bool>(), case in 0..10)
        -> pb::WindowShape {
        let count = u32::try_from(slices.len()).unwrap();
        let slices = slices.into_iter().map(|slice| pb::Slice {
            chunk: if case > 0 { 0 } else { slice.chunk },
            column: if case > 1 { 0 } else { slice.column },
            ..slice
        });
        pb::WindowShape {
            id: 1,
            layout: Some(crate::insert::layout()),
            columns: vec![pb::SpanColumn { slice_count: count, squeeze }],
            slices: slices.collect(),
        }
    }
}

prop_compose! {
    /// A chunk of schema 1: raw, or compressed and mostly corrupt.
    fn fitting_chunk()(id in 1..4_u32, rows in 1..12_u32, raw in any::<bool>(), noise in vec(any::<u8>(), 1..40))
        -> pb::Chunk {
        let mut chunk = crate::insert::chunk(id, rows, 1, 0);
        if !raw {
            chunk.payload_bytes = noise.len() as u64;
            chunk.extents[0].stored_bytes = u32::try_from(noise.len()).unwrap();
            chunk.extents[0].codec = 1;
            chunk.payload = noise.into();
        }
        chunk
    }
}

fn fitting_trajectories() -> impl Strategy<Value = Trajectories> {
    let spans = |shape: pb::WindowShape| {
        Trajectories::Spans(pb::Spans {
            layout: shape.layout,
            chunks: vec![1],
            columns: shape.columns,
            slices: shape.slices,
        })
    };
    prop_oneof![
        (1..4_u32, any::<bool>())
            .prop_map(|(len, squeeze)| Trajectories::Rows(pb::Rows { len, squeeze })),
        Just(Trajectories::WindowShape(1)),
        fitting_shape().prop_map(spans),
    ]
}

prop_compose! {
    fn fitting_items()(
        first in 1..20_u64,
        keys in vec(prop_oneof![9 => 0..500_u64, 1 => any::<u64>()], 1..5),
        trajectories in fitting_trajectories(),
        offsets in vec(0..12_u32, 5),
    ) -> pb::Items {
        let n = if matches!(trajectories, Trajectories::Spans(_)) { 1 } else { keys.len() };
        pb::Items {
            keys_le: encode_numbers(keys.into_iter().take(n).collect::<Vec<_>>().into_iter()),
            chunks_le: encode_numbers(vec![1_u32; n].into_iter()),
            offsets_le: encode_numbers(offsets.into_iter().take(n).collect::<Vec<_>>().into_iter()),
            trajectories: Some(trajectories),
            ..row_items("t", first, 1, 1)
        }
    }
}

prop_compose! {
    fn fitting_request()(
        shape in fitting_shape(),
        chunks in vec(fitting_chunk(), 0..2),
        items in vec(fitting_items(), 1..4),
    ) -> pb::InsertRequest {
        pb::InsertRequest { window_shapes: vec![shape], chunks, items, ..items_message([]) }
    }
}

/// Sends all requests, gathers the items that were inserted, and checks that the next writer is served.
async fn check_server_survives(session: u64, requests: Vec<pb::InsertRequest>) {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = open_insert_stream(&mut client).await;
    for request in requests {
        let _ = stream.requests.send(request).await;
    }
    stream.half_close();
    while let Ok(Some(_)) = stream.next_response().await {}
    let table = engine.table("t").unwrap();
    let size_before = table.info().stats.size;
    for length_policy in [LengthPolicy::Pad, LengthPolicy::Ragged] {
        let snapshot = table.snapshot().unwrap();
        let items: Vec<_> = snapshot
            .items()
            .map(|item| item.trajectory.clone())
            .collect();
        // Items of different columns cannot form one batch.
        let _ = gather(&items, length_policy, &Arc::default());
        for item in items {
            item.layout().check().unwrap();
            // An inserted item can be read; it may still be too large for a batch.
            let alone = gather(&[item], length_policy, &Arc::default());
            assert!(!matches!(alone, Err(Error::Payload(_))), "{alone:?}");
        }
    }
    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(session.wrapping_add(1))).await;
    let mut valid = row_items("t", 1, 10, 1);
    valid.keys_le = encode_numbers((1_000..1_010_u64).collect::<Vec<_>>().into_iter());
    stream.send(items_message([valid])).await;
    assert_eq!(stream.wait_completed("t", 10).await, []);
    assert_eq!(table.info().stats.size, size_before + 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn arbitrary_requests_end_only_their_stream(
        requests in vec(request(), 1..6),
        defines_schema in any::<bool>(),
        session in any::<u64>(),
    ) {
        let first = if defines_schema {
            first_message(session)
        } else {
            pb::InsertRequest { session: Some(session), ..items_message([]) }
        };
        let requests = std::iter::once(first).chain(requests).collect();
        runtime().block_on(check_server_survives(session, requests));
    }

    #[test]
    fn well_formed_items_are_inserted_or_rejected(
        requests in vec(fitting_request(), 1..4),
        session in any::<u64>(),
    ) {
        let requests = std::iter::once(first_message(session)).chain(requests).collect();
        runtime().block_on(check_server_survives(session, requests));
    }
}
