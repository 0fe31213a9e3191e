//! Bounds on the memory that rejected items cost a server, and on the length of table names.

use std::time::Duration;

use engram_rpc::pb;
use engram_rpc::pb::error::Code;
use engram_rpc::wire::encode_numbers;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use crate::insert::{InsertStream, first_message, items_message, row_items, sample_values};
use crate::support::{
    connect, engine, expect_error, one_item_queue, open_change_stream, open_insert_stream,
    open_sample_stream, options, queue, start, wait_until,
};

/// A server that reads nothing for this long has stopped reading.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Longer than the longest allowed name.
fn long_name() -> String {
    "n".repeat(2 << 20)
}

fn name_too_long_error() -> String {
    format!(
        "the table name `{}...` has 2097152 bytes; at most 1024 are allowed",
        "n".repeat(32)
    )
}

/// An item that every table rejects.
fn invalid_item(table: &str, number: u64) -> pb::Items {
    pb::Items {
        priorities_le: encode_numbers([f64::NAN].into_iter()),
        ..row_items(table, number, 1, 1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stops_reading_while_too_many_rejections_are_pending() {
    let engine = engine(vec![one_item_queue("full")]);
    let server = start(&engine);
    // The channel holds one request. All others that were sent are in the stream's window, or the server has read them.
    let (requests, receiver) = mpsc::channel(1);
    let mut client = connect(&server).await;
    let receiver = ReceiverStream::new(receiver);
    let responses = client.insert(receiver).await.unwrap().into_inner();
    let mut stream = InsertStream {
        requests,
        responses,
    };
    stream.send(first_message(1)).await;
    stream
        .send(items_message([row_items("full", 1, 2, 1)]))
        .await;
    stream.wait_completed("full", 1).await;
    let full = engine.table("full").unwrap();
    wait_until("an item waits", || full.info().waiting_inserts == 1).await;
    // Rejected items are acknowledged only after the waiting item before them.
    for message in 0.. {
        let first = 3 + 1_000 * message;
        let items = (first..first + 1_000).map(|number| invalid_item("full", number));
        let sending = stream.requests.send(items_message(items));
        if timeout(STALL_TIMEOUT, sending).await.is_err() {
            break;
        }
        // It stops after about 280 messages: 64 MiB of pending rejections, at about 600 bytes each, then the stream's
        // window of 8 MiB, at about 50 bytes per item.
        assert!(message < 1_000, "the server never stops reading");
    }
    assert_eq!(sample_values(&full, 1), [100]);
    let reply = stream.receive().await;
    let numbers: Vec<u64> = reply.completed.iter().map(|ack| ack.number).collect();
    assert!(numbers.len() > 100, "{numbers:?}");
    assert!(numbers.into_iter().eq(2..2 + reply.completed.len() as u64));
    let errors: Vec<_> = reply.completed.into_iter().map(|ack| ack.error).collect();
    assert_eq!(errors[0], None);
    assert_eq!(errors[1].as_ref().unwrap().code(), Code::Priority);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_error_texts_per_message_are_bounded() {
    let tables = (0..100).map(|number| options(&format!("{number:0>100}")));
    let engine = engine(tables.collect());
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    let names: Vec<String> = (0..3_000)
        .map(|number| format!("unknown {number}"))
        .collect();
    let items = names.iter().map(|name| row_items(name, 1, 1, 1));
    stream.send(items_message(items)).await;
    let (mut received, mut bytes) = (Vec::new(), 0);
    while received.len() < names.len() {
        let reply = stream.receive().await;
        bytes += reply.encoded_len();
        received.extend(reply.completed);
    }
    // The first 64 errors are detailed, the other 2,936 short.
    assert!(bytes < 64 * 20_000 + 3_000 * 400, "{bytes} bytes");
    for (ack, name) in received.iter().zip(&names) {
        assert_eq!((&ack.table, ack.number), (name, 1));
        let error = ack.error.as_ref().unwrap();
        assert_eq!((error.code(), &error.table), (Code::UnknownTable, name));
        let text = format!("no table `{name}`; known tables: `0000");
        assert!(error.text.starts_with(&text), "{}", error.text);
        assert_eq!(error.known_tables.last().unwrap(), "...");
    }
    let first = received[0].error.as_ref().unwrap();
    assert_eq!(first.known_tables[64], format!("{:0>100}", 64));
    let last = received[2_999].error.as_ref().unwrap();
    assert_eq!((last.known_tables.len(), last.text.len()), (3, 259));
    // The next message may have 64 detailed errors again.
    stream
        .send(items_message([row_items("unknown again", 1, 1, 1)]))
        .await;
    let again = stream.receive().await.completed.remove(0).error.unwrap();
    assert_eq!(again.known_tables, first.known_tables);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_a_table_is_bounded() {
    let longest = "t".repeat(1024);
    let engine = engine(vec![queue(&longest)]);
    let server = start(&engine);
    let mut client = connect(&server).await;

    let mut stream = open_insert_stream(&mut client).await;
    stream.send(first_message(1)).await;
    stream
        .send(items_message([row_items(&longest, 1, 1, 1)]))
        .await;
    assert_eq!(stream.wait_completed(&longest, 1).await, []);
    stream
        .send(items_message([row_items(&long_name(), 1, 1, 1)]))
        .await;
    let end = stream.next_response().await.unwrap_err();
    assert_eq!(
        (end.code(), end.message()),
        (tonic::Code::InvalidArgument, &*name_too_long_error())
    );

    let mut stream = open_sample_stream(&mut client).await;
    let request = pb::BatchRequest {
        table: long_name(),
        ..crate::sample::batch_request(1, 1)
    };
    stream.request_batch(request).await;
    let Some(pb::sample_response::Outcome::Error(error)) = stream.receive().await.outcome else {
        panic!("no error");
    };
    assert_eq!(
        (error.code(), error.text),
        (Code::InvalidArgument, name_too_long_error())
    );

    let mut stream = open_change_stream(&mut client).await;
    let change = pb::ChangeRequest {
        table: long_name(),
        ..pb::ChangeRequest::default()
    };
    stream.send(change).await;
    let Some(pb::change_response::Outcome::Error(error)) = stream.receive().await.outcome else {
        panic!("no error");
    };
    assert_eq!(
        (error.code(), error.text),
        (Code::InvalidArgument, name_too_long_error())
    );

    let query = || pb::LimiterQuery {
        table: long_name(),
        n: 1,
    };
    for call in [
        pb::manage_request::Call::Describe(long_name()),
        pb::manage_request::Call::Create(pb::TableOptions {
            name: long_name(),
            ..engram_rpc::wire::encode_options(&options("t"))
        }),
        pb::manage_request::Call::Drop(long_name()),
        pb::manage_request::Call::SetLimits(pb::SetLimits {
            table: long_name(),
            limits: None,
        }),
        pb::manage_request::Call::Reset(long_name()),
        pb::manage_request::Call::CanSample(query()),
        pb::manage_request::Call::CanInsert(query()),
    ] {
        let request = pb::ManageRequest { call: Some(call) };
        let error = expect_error(client.manage(request).await.unwrap().into_inner());
        assert_eq!(
            (error.code(), error.text),
            (Code::InvalidArgument, name_too_long_error())
        );
    }
}
