//! Sampling over the network: data, order, deadlines, leases.

use std::time::{Duration, Instant};

use engram_core::Trajectory;
use engram_engine::Table;
use engram_rpc::pb;
use engram_rpc::pb::column::TimeAxis;
use engram_rpc::pb::error::Code;
use engram_rpc::pb::sample_request::Request;
use engram_rpc::pb::sample_response::Outcome;
use engram_rpc::wire::{decode_f64s, decode_u32s, decode_u64s, encode_numbers};
use engram_rpc::{Server, ServerOptions};

use crate::support::{
    TestStream, connect, engine, fill, items, open_sample_stream, options, queue, start, wait_until,
};

pub(crate) type SampleStream = TestStream<pb::SampleRequest, pb::SampleResponse>;

/// A request for a batch of table `t`, with default options.
pub(crate) fn batch_request(id: u64, n: u32) -> pb::BatchRequest {
    pb::BatchRequest {
        id,
        table: "t".into(),
        n,
        ..pb::BatchRequest::default()
    }
}

impl SampleStream {
    pub(crate) async fn request_batch(&self, request: pb::BatchRequest) {
        self.send_request(Request::Batch(request)).await;
    }

    pub(crate) async fn send_request(&self, request: Request) {
        self.send(pb::SampleRequest {
            request: Some(request),
            ..pb::SampleRequest::default()
        })
        .await;
    }

    /// Receives the next batch with all its parts.
    pub(crate) async fn receive_batch(&mut self) -> (u64, pb::Batch) {
        let reply = self.receive().await;
        let Some(Outcome::Batch(mut batch)) = reply.outcome else {
            panic!("{:?} instead of a batch", reply.outcome);
        };
        let expected: u64 = batch.columns.iter().map(|column| column.bytes).sum();
        let mut payload = batch.payload.to_vec();
        while (payload.len() as u64) < expected {
            let next = self.receive().await;
            assert_eq!(next.id, reply.id, "parts of two batches are mixed");
            let Some(Outcome::BatchPart(part)) = next.outcome else {
                panic!("{:?} instead of a part", next.outcome);
            };
            assert!(part.len() <= 1 << 20, "{} bytes", part.len());
            payload.extend_from_slice(&part);
        }
        assert_eq!(payload.len() as u64, expected);
        batch.payload = payload.into();
        (reply.id, batch)
    }

    /// Receives the next batch and acknowledges it.
    pub(crate) async fn receive_and_acknowledge(&mut self) -> (u64, pb::Batch) {
        let (id, batch) = self.receive_batch().await;
        assert!(batch.leased, "nothing to acknowledge");
        self.send_request(Request::Acknowledge(id)).await;
        (id, batch)
    }

    pub(crate) async fn receive_error(&mut self) -> (u64, pb::Error) {
        let reply = self.receive().await;
        match reply.outcome {
            Some(Outcome::Error(error)) => (reply.id, error),
            other => panic!("{other:?} instead of an error"),
        }
    }
}

fn keys(batch: &pb::Batch) -> Vec<u64> {
    decode_u64s("keys_le", &batch.keys_le).unwrap()
}

fn hidden_items(table: &Table) -> u64 {
    table.info().stats.hidden_items
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_data_and_item_infos() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    fill(&engine.table("t").unwrap(), 5, 10, 3);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 4)).await;
    let (id, batch) = stream.receive_batch().await;
    // A FIFO table: the same item until it is removed.
    assert_eq!((id, keys(&batch)), (1, vec![5; 4]));
    assert_eq!(decode_u32s("payload", &batch.payload).unwrap(), [5; 12]);
    assert!(!batch.leased, "sampling removes no items");
    let layout = batch.layout.unwrap();
    assert_eq!(
        (&*layout.names, &*layout.structure),
        (&["x".into()][..], r#"{"d":[["x",0]]}"#)
    );
    let column = &batch.columns[0];
    let cell = column.cell.as_ref().unwrap();
    assert_eq!(
        (&*cell.dtype, &*cell.shape, column.bytes),
        ("uint32", &[3][..], 48)
    );
    assert_eq!(column.time_axis, Some(TimeAxis::Squeezed(pb::Empty {})));
    assert_eq!(
        decode_u32s("", &batch.times_sampled_le).unwrap(),
        [1, 2, 3, 4]
    );
    assert_eq!(decode_f64s("", &batch.priorities_le).unwrap(), [1.0; 4]);
    assert_eq!(decode_f64s("", &batch.probabilities_le).unwrap(), [1.0; 4]);
    let draw_run = &batch.draw_runs[0];
    assert_eq!(
        (batch.draw_runs.len(), draw_run.items, draw_run.table_size),
        (1, 4, 10)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_sent_in_parts() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    fill(&engine.table("t").unwrap(), 0, 40, 70_000);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 20)).await;
    stream.request_batch(batch_request(2, 20)).await;
    for (id, first) in [(1, 0), (2, 20)] {
        let (received_id, batch) = stream.receive_and_acknowledge().await;
        assert_eq!(received_id, id);
        let cells = decode_u32s("payload", &batch.payload).unwrap();
        let expected = (first..first + 20).flat_map(|item| vec![item; 70_000]);
        assert!(cells.into_iter().eq(expected));
    }
    wait_until("all are acknowledged", || {
        engine.table("t").unwrap().info().stats.size == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_different_lengths_are_ragged_or_padded() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut items = items(0, 6, 1);
    for (item, length) in items.iter_mut().zip([1, 2, 3, 1, 2, 1]) {
        if let Trajectory::Rows { len, squeeze, .. } = &mut item.trajectory {
            (*len, *squeeze) = (length, false);
        }
    }
    table.insert(items).unwrap().await.unwrap();
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 3)).await;
    let (_, batch) = stream.receive_batch().await;
    let splits = encode_numbers([0_i64, 1, 3, 6].into_iter());
    assert_eq!(
        batch.columns[0].time_axis,
        Some(TimeAxis::RowSplitsLe(splits))
    );
    assert_eq!(decode_u32s("", &batch.payload).unwrap(), [0, 1, 2, 2, 3, 4]);
    stream
        .request_batch(pb::BatchRequest {
            pad: true,
            ..batch_request(2, 2)
        })
        .await;
    let (_, batch) = stream.receive_batch().await;
    let lengths = encode_numbers([1_i64, 2].into_iter());
    assert_eq!(
        batch.columns[0].time_axis,
        Some(TimeAxis::PaddedLengthsLe(lengths))
    );
    assert_eq!(decode_u32s("", &batch.payload).unwrap(), [3, 0, 4, 5]);
    stream.request_batch(batch_request(3, 1)).await;
    let (_, batch) = stream.receive_batch().await;
    assert_eq!(batch.columns[0].time_axis, Some(TimeAxis::EqualLength(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_served_in_order_with_two_writers() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    // Ids need not be ascending.
    for id in (0..1_000).rev() {
        stream.request_batch(batch_request(id, 3)).await;
    }
    let table = engine.table("t").unwrap();
    let writers = [0, 1].map(|writer| {
        let table = table.clone();
        std::thread::spawn(move || {
            for index in 0..300 {
                fill(&table, (2 * index + writer) * 5, 5, 1);
            }
        })
    });
    let mut sampled = Vec::new();
    for id in (0..1_000).rev() {
        let (received_id, batch) = stream.receive_and_acknowledge().await;
        assert_eq!(received_id, id);
        sampled.extend(keys(&batch));
    }
    for writer in writers {
        writer.join().unwrap();
    }
    sampled.sort_unstable();
    assert!(sampled.into_iter().eq(0..3_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_error_reports_the_progress_and_returns_items() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 3, 1);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    let with_deadline = pb::BatchRequest {
        timeout_s: Some(0.1),
        ..batch_request(1, 5)
    };
    stream.request_batch(with_deadline.clone()).await;
    let (id, error) = stream.receive_error().await;
    assert_eq!((id, error.code()), (1, Code::DeadlineExceeded));
    let text = "table `t` had 3 of 5 samples available within 0.1 s; they were returned to it; the table has no other \
                item to sample: insert more, or sample fewer at once";
    assert_eq!(error.text, text);
    assert_eq!((table.info().stats.size, hidden_items(&table)), (3, 0));
    let smaller = pb::BatchRequest {
        id: 2,
        at_least: 1,
        ..with_deadline
    };
    stream.request_batch(smaller.clone()).await;
    let (_, batch) = stream.receive_and_acknowledge().await;
    assert_eq!(keys(&batch), [0, 1, 2]);
    wait_until("they are acknowledged", || table.info().stats.size == 0).await;
    stream
        .request_batch(pb::BatchRequest { id: 3, ..smaller })
        .await;
    let (_, error) = stream.receive_error().await;
    let text = "table `t` had 0 of 5 samples available within 0.1 s (at least 1 needed); `t`: ";
    assert!(error.text.starts_with(text), "{}", error.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_request_behind_one_without_a_deadline() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 5)).await;
    let with_deadline = pb::BatchRequest {
        timeout_s: Some(0.1),
        ..batch_request(2, 1)
    };
    stream.request_batch(with_deadline).await;
    assert_eq!(stream.receive_error().await.0, 2);
    fill(&engine.table("t").unwrap(), 0, 5, 1);
    assert_eq!(stream.receive_batch().await.0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_answered_in_order() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    let unknown_table = pb::BatchRequest {
        table: "u".into(),
        ..batch_request(1, 1)
    };
    let invalid_timeout = pb::BatchRequest {
        timeout_s: Some(f64::NAN),
        ..batch_request(2, 1)
    };
    for request in [
        unknown_table,
        invalid_timeout,
        batch_request(3, 0),
        batch_request(4, 65_537),
    ] {
        stream.request_batch(request).await;
    }
    let texts = [
        "no table `u`; known tables: `t`",
        "`timeout` must be at least 0, or None to wait without limit; got NaN s",
        "`n` must be at least 1; got 0 (a request for samples of table `t`)",
        "a batch of table `t` from a server has at most 65536 items; got 65537 (`n` or `batch_size`)",
    ];
    for (id, text) in (1..).zip(texts) {
        let (received_id, error) = stream.receive_error().await;
        assert_eq!((received_id, &*error.text), (id, text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_unblocks_the_next() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 2, 1);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 3)).await;
    stream.request_batch(batch_request(2, 2)).await;
    wait_until("two requests wait", || table.info().waiting_samples == 2).await;
    stream.send_request(Request::Cancel(1)).await;
    let (id, batch) = stream.receive_batch().await;
    assert_eq!((id, keys(&batch)), (2, vec![0, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_acknowledged_or_returned() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 8, 1);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    for id in 1..=4 {
        stream
            .request_batch(pb::BatchRequest {
                lease: true,
                ..batch_request(id, 2)
            })
            .await;
        stream.receive_batch().await;
    }
    assert_eq!(hidden_items(&table), 8);
    stream.send_request(Request::Acknowledge(2)).await;
    wait_until("one batch is acknowledged", || table.info().stats.size == 6).await;
    stream.send_request(Request::Cancel(3)).await;
    wait_until("one batch is returned", || hidden_items(&table) == 4).await;
    // Unknown ids and ended leases are ignored.
    for id in [2, 3, 99] {
        stream.send_request(Request::Acknowledge(id)).await;
        stream.send_request(Request::Cancel(id)).await;
    }
    stream.request_batch(batch_request(5, 1)).await;
    assert_eq!(keys(&stream.receive_and_acknowledge().await.1), [4]);
    wait_until("it is acknowledged", || table.info().stats.size == 5).await;
    drop(stream);
    wait_until("the other items are returned", || hidden_items(&table) == 0).await;
    assert_eq!(table.info().stats.size, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_a_batch_that_are_not_acknowledged_are_returned() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 8, 1);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    for (id, items, left) in [
        (1, Some(2), 6),
        (2, Some(0), 6),
        (3, Some(9), 2),
        (4, None, 0),
    ] {
        let table_has = table.info().stats.size;
        stream
            .request_batch(batch_request(id, 4.min(u32::try_from(table_has).unwrap())))
            .await;
        let first = *keys(&stream.receive_batch().await.1).first().unwrap();
        assert_eq!(first, 8 - table_has, "the order has changed");
        let request = pb::SampleRequest {
            request: Some(Request::Acknowledge(id)),
            used_items: items,
            number: None,
        };
        stream.send(request).await;
        wait_until("it is acknowledged", || {
            (table.info().stats.size, hidden_items(&table)) == (left, 0)
        })
        .await;
        assert_eq!(table.info().stats.limiter.samples, 8 - left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_a_queue_are_always_leased() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 4, 1);
    let mut client = connect(&server).await;
    let mut stream = open_sample_stream(&mut client).await;
    for id in 1..=2 {
        stream.request_batch(batch_request(id, 1)).await;
        let (_, batch) = stream.receive_batch().await;
        assert!(batch.leased);
    }
    stream.send_request(Request::Acknowledge(1)).await;
    // Once this is answered, all earlier requests are handled.
    stream.send_request(Request::Barrier(9)).await;
    let response = stream.receive().await;
    let expected = (9, Some(Outcome::BarrierDone(pb::BarrierDone::default())));
    assert_eq!((response.id, response.outcome), expected);
    assert_eq!((table.info().stats.size, hidden_items(&table)), (3, 1));
    // The connection is lost: items that were not acknowledged are sampled first again.
    drop((stream, client));
    wait_until("the second is returned", || hidden_items(&table) == 0).await;
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 3)).await;
    assert_eq!(keys(&stream.receive_batch().await.1), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_returned() {
    let engine = engine(vec![queue("t")]);
    let options = ServerOptions {
        lease_timeout: Duration::from_millis(200),
        ..ServerOptions::default()
    };
    let server = Server::start(engine.clone(), options).unwrap();
    let table = engine.table("t").unwrap();
    fill(&table, 0, 2, 1);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream
        .request_batch(pb::BatchRequest {
            lease: true,
            ..batch_request(1, 2)
        })
        .await;
    let began = Instant::now();
    stream.receive_batch().await;
    assert_eq!(hidden_items(&table), 2);
    wait_until("the batch is returned", || hidden_items(&table) == 0).await;
    assert!(began.elapsed() > Duration::from_millis(150));
    stream.send_request(Request::Acknowledge(1)).await;
    stream.request_batch(batch_request(2, 2)).await;
    assert_eq!(keys(&stream.receive_batch().await.1), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_served_after_a_half_close() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 1)).await;
    stream.half_close();
    wait_until("the request waits", || table.info().waiting_samples == 1).await;
    fill(&table, 0, 1, 1);
    assert_eq!(stream.receive_batch().await.0, 1);
    assert!(stream.next_response().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_server_ends_waiting_requests() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 2, 1);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream
        .request_batch(pb::BatchRequest {
            lease: true,
            ..batch_request(1, 2)
        })
        .await;
    stream.receive_batch().await;
    for id in 2..5 {
        stream.request_batch(batch_request(id, 1)).await;
    }
    wait_until("three requests wait", || table.info().waiting_samples == 3).await;
    let text = format!("the server at {} is stopping", server.address());
    let began = Instant::now();
    let closing = tokio::task::spawn_blocking(move || server.close());
    for id in 2..5 {
        let (received_id, error) = stream.receive_error().await;
        assert_eq!((received_id, &error.text), (id, &text));
        assert_eq!(error.code(), Code::Closed);
    }
    let end = stream.next_response().await.unwrap_err();
    assert_eq!(
        (end.code(), end.message()),
        (tonic::Code::Unavailable, &*text)
    );
    closing.await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    assert_eq!((hidden_items(&table), table.info().waiting_samples), (0, 0));
    assert!(engine.table("t").is_ok(), "the engine was closed, too");
}
