//! Intended differences from dm-reverb's server: the table in `docs/reverb-wire.md`.

use engram_core::{CellSpec, DType, SelectorKind, TableOptions};
use engram_reverb::encode_tensor;
use engram_reverb::pb;
use engram_reverb::pb::flat_trajectory::{ChunkSlice, Column};
use smallvec::smallvec;
use tonic::Code;

use crate::reverb::{
    chunk, connect, item, open_insert_stream, open_sample_stream, request, sample_request, size,
    table,
};
use crate::support::{STEP_TIMEOUT, engine, one_item_queue, options, start, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn waiting_items_are_not_confirmed_when_the_server_closes() {
    let engine = engine(vec![one_item_queue("full")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let items = (0..3).map(|key| item(key, "full", 9, 0, 1)).collect();
    writer
        .send(request(vec![chunk(9, 0, 1)], items, &[9]))
        .await;
    assert_eq!(writer.receive().await.keys, [0]);
    let full = table(&engine, "full");
    wait_until("two items wait", || full.info().waiting_inserts == 2).await;
    let closing = tokio::task::spawn_blocking(move || server.close());
    let end = writer.responses.message().await;
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    closing.await.unwrap();
    wait_until("they are withdrawn", || full.info().waiting_inserts == 0).await;
    assert_eq!(size(&full), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_of_a_table_that_keeps_items_stay_counted() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await.max_decoding_message_size(64 << 20);
    let mut writer = open_insert_stream(&mut client).await;
    let rows = 1 << 18;
    let items = vec![item(1, "table", 1, 0, rows)];
    writer
        .send(request(vec![chunk(1, 0, rows)], items, &[]))
        .await;
    assert_eq!(writer.receive().await.keys, [1]);
    let table = table(&engine, "table");
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("table", 60, 0)).await;
    assert_eq!(reader.receive().await.entries.len(), 2);
    drop(reader);
    // When another reader is served, the first one's unread samples would have been returned already.
    let mut other = open_sample_stream(&mut client).await;
    other.send(sample_request("table", 1, 0)).await;
    let entries = other.receive().await.entries;
    let item = entries[0].info.as_ref().unwrap().item.as_ref().unwrap();
    assert_eq!(item.times_sampled, 61);
    assert_eq!(table.info().stats.limiter.samples, 61);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_has_no_insertion_time() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let items = vec![item(1, "table", 1, 0, 1)];
    writer.send(request(vec![chunk(1, 0, 1)], items, &[])).await;
    assert_eq!(writer.receive().await.keys, [1]);
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("table", 1, 0)).await;
    let entries = reader.receive().await.entries;
    let item = entries[0].info.as_ref().unwrap().item.as_ref().unwrap();
    assert_eq!((item.key, item.inserted_at), (1, None));
}

/// A chunk of one row of one column of uint8.
fn uint8_chunk(key: u64) -> pb::ChunkData {
    let cell = CellSpec {
        dtype: DType::Uint8,
        shape: smallvec![],
    };
    pb::ChunkData {
        chunk_key: key,
        data: Some(pb::chunk_data::Data {
            tensors: vec![encode_tensor(&cell, 1, &[7]).unwrap()],
        }),
        ..pb::ChunkData::default()
    }
}

/// An item of one column. Each slice is given as chunk key, offset and length.
fn item_of_slices(key: u64, slices: &[(u64, i32, i32)]) -> pb::PrioritizedItem {
    let slices = slices.iter().map(|(chunk_key, offset, length)| ChunkSlice {
        chunk_key: *chunk_key,
        offset: *offset,
        length: *length,
        index: 0,
    });
    let column = Column {
        chunk_slices: slices.collect(),
        squeeze: false,
    };
    pb::PrioritizedItem {
        flat_trajectory: Some(pb::FlatTrajectory {
            columns: vec![column],
        }),
        ..item(key, "table", 0, 0, 0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_slices_are_rejected() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut corrupt = chunk(3, 0, 10);
    corrupt.data.as_mut().unwrap().tensors[0].tensor_content = vec![40, 0xff, 0xff].into();
    for (chunks, slices, text) in [
        (vec![chunk(1, 0, 10)], &[(1, 9, 2)][..], "column `0`"),
        (
            vec![chunk(1, 0, 10), uint8_chunk(2)],
            &[(1, 0, 1), (2, 0, 1)],
            "column `0`",
        ),
        (vec![chunk(1, 0, 10)], &[(1, 0, 0)], "column `0`"),
        (vec![chunk(1, 0, 10)], &[], "column `0`"),
        (
            vec![corrupt],
            &[(3, 0, 1)],
            "the compressed bytes of a tensor are corrupt",
        ),
    ] {
        let mut writer = open_insert_stream(&mut client).await;
        writer
            .send(request(chunks, vec![item_of_slices(5, slices)], &[]))
            .await;
        let end = writer.end_status().await;
        assert_eq!(end.code(), Code::InvalidArgument, "{end}");
        assert!(end.message().contains(text), "{end}");
    }
    assert_eq!(size(&table(&engine, "table")), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_priority_does_not_wait_for_the_limiter() {
    let heap = TableOptions {
        sampler: SelectorKind::MaxHeap,
        ..one_item_queue("heap")
    };
    let engine = engine(vec![heap]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let message = request(vec![chunk(9, 0, 1)], vec![item(1, "heap", 9, 0, 1)], &[9]);
    writer.send(message).await;
    assert_eq!(writer.receive().await.keys, [1]);
    assert!(!table(&engine, "heap").can_insert(1));
    let mut same_key = item(1, "heap", 9, 0, 1);
    same_key.priority = 7.0;
    writer.send(request(vec![], vec![same_key], &[9])).await;
    let confirmed = tokio::time::timeout(STEP_TIMEOUT, writer.receive()).await;
    assert_eq!(confirmed.unwrap().keys, [1]);
    let mut reader = open_sample_stream(&mut client).await;
    reader.send(sample_request("heap", 1, 0)).await;
    let entries = reader.receive().await.entries;
    let item = entries[0].info.as_ref().unwrap().item.as_ref().unwrap();
    assert!((item.priority - 7.0).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_no_worker_statistics() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let info = client.server_info(pb::ServerInfoRequest {}).await.unwrap();
    let time = info.into_inner().table_info[0].table_worker_time;
    assert_eq!(time, Some(pb::TableWorkerTime::default()));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_bounded() {
    let engine = engine(vec![options("table")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut writer = open_insert_stream(&mut client).await;
    let mut large = chunk(1, 0, 1);
    large.data.as_mut().unwrap().tensors[0].tensor_content = vec![0; 256 << 20].into();
    writer.send(request(vec![large], vec![], &[])).await;
    let end = writer.end_status().await;
    assert_eq!(end.code(), Code::OutOfRange, "{end}");
    assert!(
        end.message().contains("the limit is: 268435456 bytes"),
        "{end}"
    );
}
