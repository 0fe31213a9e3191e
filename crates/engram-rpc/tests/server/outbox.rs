//! What a client's writers send, and how long they retain it.

use std::sync::Arc;
use std::time::Duration;

use engram_core::chunk::Chunk;
use engram_core::{
    Error, Layout, NewItem, RateLimits, Slice, SpanColumn, TableOptions, Trajectory, WindowShape,
};
use engram_engine::Until;
use engram_rpc::Server;
use engram_rpc::client::{Client, ClientOptions, RemoteOutbox};
use tokio::time::timeout;

use crate::support::{STEP_TIMEOUT, chunk, engine, items, options, start, wait_until};

fn outbox(server: &Server) -> RemoteOutbox {
    let options = ClientOptions {
        address: server.address().to_string(),
        token: None,
        tls: None,
        reconnect_timeout: STEP_TIMEOUT,
    };
    RemoteOutbox::new(&Arc::new(Client::new(options).unwrap()))
}

async fn send(outbox: &mut RemoteOutbox, table: u32, items: Vec<NewItem>, max_in_flight: usize) {
    let items = items.into_iter().map(|item| (table, item));
    outbox.send(items).unwrap();
    let sent = timeout(
        STEP_TIMEOUT,
        outbox.until(Until::InFlightAtMost(max_in_flight)),
    )
    .await;
    sent.unwrap().unwrap();
}

/// Options of a table whose rate limiter allows one insert.
fn one_item_table(name: &str) -> TableOptions {
    let options = options(name);
    TableOptions {
        limits: RateLimits {
            max_diff: 1.0,
            ..options.limits
        },
        ..options
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_table_does_not_retain_items_of_other_tables() {
    let full = one_item_table("full");
    let free = TableOptions {
        max_size: 10,
        ..options("free")
    };
    let engine = engine(vec![full, free]);
    let server = start(&engine);
    let mut outbox = outbox(&server);
    let [full, free] = ["full", "free"].map(|name| engine.table(name).unwrap());
    let numbers = [&full, &free].map(|table| outbox.table_number(table.options()));
    send(&mut outbox, numbers[0], items(0, 2, 1), 1).await;
    // Each item has a chunk of its own. These are more chunks than a server keeps for a writer.
    let mut sent_chunks = Vec::new();
    for first in (0..70_000).step_by(1000) {
        let batch = (first..first + 1000).flat_map(|value| items(value, 1, 1));
        let batch: Vec<NewItem> = batch.collect();
        let chunk = &batch[0].trajectory.chunks()[0];
        // One chunk of each batch is enough to check that it is freed.
        sent_chunks.push(Arc::downgrade(chunk));
        send(&mut outbox, numbers[1], batch, 1).await;
    }
    assert_eq!(free.info().stats.limiter.inserts, 70_000);
    assert_eq!(
        (outbox.progress().in_flight(), full.info().waiting_inserts),
        (1, 1)
    );
    wait_until("completed items are dropped", || {
        sent_chunks.iter().all(|chunk| chunk.strong_count() == 0)
    })
    .await;
}

/// An item whose slices repeat a chunk's only cell.
fn item_of_repeated_cell(key: u64, chunk: &Arc<Chunk>, shape: &Arc<WindowShape>) -> NewItem {
    NewItem {
        key,
        trajectory: Trajectory::Window {
            chunk: Arc::clone(chunk),
            offset: 0,
            shape: Arc::clone(shape),
        },
        priority: 1.0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_many_slices_are_split_before_the_server_rejects_them() {
    const SLICES: u32 = 10_000;
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut outbox = outbox(&server);
    let table = engine.table("t").unwrap();
    let number = outbox.table_number(table.options());
    let shape = Arc::new(WindowShape {
        layout: Arc::new(Layout {
            names: Box::new(["x".into()]),
            structure: r#"{"d":[["x",0]]}"#.into(),
        }),
        columns: Box::new([SpanColumn {
            first_slice: 0,
            len: SLICES,
            squeeze: false,
        }]),
        slices: (0..SLICES)
            .map(|_| Slice {
                chunk: 0,
                column: 0,
                offset: 0,
                len: 1,
            })
            .collect(),
    });
    let chunk = chunk(1, 1, 7);
    let items = (0..10_000).map(|key| item_of_repeated_cell(key, &chunk, &shape));
    send(&mut outbox, number, items.collect(), 0).await;
    assert_eq!(table.info().stats.size, 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_items_count_as_left_until_the_error_of_their_table_is_returned() {
    let engine = engine(["a", "b"].map(one_item_table).to_vec());
    let server = start(&engine);
    let mut outbox = outbox(&server);
    let tables = ["a", "b"].map(|name| engine.table(name).unwrap());
    let numbers = tables.map(|table| outbox.table_number(table.options()));
    for number in numbers {
        let items = items(0, 3, 1).into_iter().map(|item| (number, item));
        outbox.send(items).unwrap();
    }
    wait_until("each table has an item", || {
        numbers.map(|number| outbox.progress().incomplete_items(number)) == [2, 2]
    })
    .await;
    for name in ["a", "b"] {
        engine.drop_table(name).unwrap();
    }
    wait_until("the other items are rejected", || {
        outbox.progress().in_flight() == 0
    })
    .await;
    // Each table has one error for its two rejected items.
    for left in [4, 2] {
        assert_eq!(outbox.progress().items_left(), left);
        assert!(outbox.check_errors().is_err());
    }
    assert_eq!(outbox.progress().items_left(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_failed_stream_is_not_final() {
    let engine = engine(vec![one_item_table("t")]);
    let server = start(&engine);
    let options = ClientOptions {
        address: server.address().to_string(),
        token: None,
        tls: None,
        reconnect_timeout: Duration::from_millis(100),
    };
    let mut outbox = RemoteOutbox::new(&Arc::new(Client::new(options).unwrap()));
    let number = outbox.table_number(engine.table("t").unwrap().options());
    send(&mut outbox, number, items(0, 3, 1), 2).await;
    drop(server);
    let sent = timeout(STEP_TIMEOUT, outbox.until(Until::Complete)).await;
    assert!(matches!(sent, Ok(Err(Error::Unavailable(_)))), "{sent:?}");
    assert!(!outbox.finish(STEP_TIMEOUT));
    assert_eq!(outbox.progress().incomplete_items(number), 2);
}
