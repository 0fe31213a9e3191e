//! How far rate limiters let writers go: what the server reports, and which items a client counts as waiting.

use std::sync::Arc;

use engram_core::{RateLimits, TableOptions};
use engram_engine::{Table, Until};
use engram_rpc::client::{Client, ClientOptions, RemoteOutbox};
use engram_rpc::{Server, pb};
use tokio::time::timeout;

use crate::insert::{InsertStream, first_message, items_message, row_items, sample_values};
use crate::support::{
    STEP_TIMEOUT, connect, engine, fill, items, open_insert_stream, options, start, wait_until,
};

/// A table whose rate limiter allows `n` inserts more than samples.
fn limited(name: &str, n: u32) -> TableOptions {
    TableOptions {
        limits: RateLimits {
            max_diff: n.into(),
            ..options(name).limits
        },
        ..options(name)
    }
}

impl InsertStream {
    /// Receives responses until one reports up to which number table `t` allows items, and returns that number.
    async fn receive_allowed(&mut self) -> u64 {
        loop {
            let response: pb::InsertResponse = self.receive().await;
            if let [allowed] = &response.allowed[..] {
                assert_eq!(allowed.table, "t");
                return allowed.number;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_report_how_many_items_the_limiter_allows() {
    let engine = engine(vec![limited("t", 6)]);
    let table = engine.table("t").unwrap();
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream.send(items_message([row_items("t", 1, 2, 1)])).await;
    assert_eq!(stream.receive_allowed().await, 6);
    // Another writer inserts two items, so this one may insert fewer.
    fill(&table, 1_000, 2, 1);
    stream.send(items_message([row_items("t", 3, 1, 1)])).await;
    assert_eq!(stream.receive_allowed().await, 4);
    // Number 5 waits.
    stream.send(items_message([row_items("t", 4, 2, 1)])).await;
    assert_eq!(stream.wait_completed("t", 4).await, []);
    assert_eq!(sample_values(&table, 4).len(), 4);
    assert_eq!(stream.receive_allowed().await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_is_freed_while_the_stream_is_open() {
    let engine = engine(vec![options("t")]);
    let table = Arc::downgrade(&engine.table("t").unwrap());
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream.send(items_message([row_items("t", 1, 2, 1)])).await;
    stream.wait_completed("t", 2).await;
    engine.drop_table("t").unwrap();
    wait_until("the table is freed", || table.upgrade().is_none()).await;
    stream.send(items_message([row_items("t", 3, 1, 1)])).await;
    let errors = stream.wait_completed("t", 3).await;
    assert!(
        errors[0].1.text.starts_with("no table `t`;"),
        "{:?}",
        errors[0]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_waits_is_reported_without_an_acknowledgement() {
    let engine = engine(vec![limited("t", 3)]);
    let table = engine.table("t").unwrap();
    let server = start(&engine);
    let mut stream = open_insert_stream(&mut connect(&server).await).await;
    stream.send(first_message(1)).await;
    stream.send(items_message([row_items("t", 1, 1, 1)])).await;
    assert_eq!(stream.receive_allowed().await, 3);
    fill(&table, 1_000, 2, 1);
    stream.send(items_message([row_items("t", 2, 1, 1)])).await;
    let expected = pb::InsertResponse {
        allowed: vec![pb::Allowed {
            table: "t".into(),
            number: 1,
        }],
        ..pb::InsertResponse::default()
    };
    assert_eq!(stream.receive().await, expected);
}

fn outbox(server: &Server) -> RemoteOutbox {
    let options = ClientOptions {
        address: server.address().to_string(),
        token: None,
        tls: None,
        reconnect_timeout: STEP_TIMEOUT,
    };
    RemoteOutbox::new(&Arc::new(Client::new(options).unwrap()))
}

fn send(outbox: &mut RemoteOutbox, table: &Arc<Table>, first: u32, n: u32) {
    let number = outbox.table_number(table.options());
    let items = items(first, n, 1).into_iter().map(|item| (number, item));
    outbox.send(items).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn items_that_the_limiter_allows_do_not_wait() {
    let engine = engine(vec![limited("t", 100), options("open")]);
    let [table, open] = ["t", "open"].map(|name| engine.table(name).unwrap());
    let server = start(&engine);
    let mut outbox = outbox(&server);
    // Before the first response, the client does not know how many items the limiter of `t` allows.
    send(&mut outbox, &table, 0, 2);
    send(&mut outbox, &open, 0, 1_000);
    assert!(outbox.progress().waiting() <= 2);
    let complete = timeout(STEP_TIMEOUT, outbox.until(Until::Complete)).await;
    complete.unwrap().unwrap();
    assert_eq!(outbox.progress().waiting(), 0);
    // These are allowed, whether or not the server has answered.
    send(&mut outbox, &table, 2, 98);
    assert_eq!(outbox.progress().waiting(), 0);
    send(&mut outbox, &table, 100, 10);
    assert_eq!(outbox.progress().waiting(), 10);
    wait_until("the limiter is closed", || {
        table.info().waiting_inserts == 1
    })
    .await;
    assert_eq!(outbox.progress().waiting(), 10);
    // Each sample allows one insert.
    assert_eq!(sample_values(&table, 4).len(), 4);
    let fewer = timeout(STEP_TIMEOUT, outbox.until(Until::WaitingAtMost(6))).await;
    fewer.unwrap().unwrap();
    assert_eq!(outbox.progress().waiting(), 6);
    assert_eq!(sample_values(&table, 6).len(), 6);
    let none = timeout(STEP_TIMEOUT, outbox.until(Until::WaitingAtMost(0))).await;
    none.unwrap().unwrap();
}
