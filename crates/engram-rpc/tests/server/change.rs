//! Priority updates and deletions over the network.

use engram_core::gather::LengthPolicy;
use engram_engine::{BatchLease as _, SampleOptions};
use engram_rpc::client::{BatchRequest, Client, ClientOptions};
use engram_rpc::pb;
use engram_rpc::pb::change_request::Change;
use engram_rpc::pb::change_response::Outcome;
use engram_rpc::pb::error::Code;
use engram_rpc::wire::encode_numbers;

use crate::support::{STEP_TIMEOUT, connect, engine, fill, open_change_stream, options, start};

fn update(id: u64, keys: &[u64], priorities: &[f64]) -> pb::ChangeRequest {
    let priorities = encode_numbers(priorities.iter().copied());
    pb::ChangeRequest {
        change: Some(Change::PrioritiesLe(priorities)),
        ..delete(id, keys)
    }
}

fn delete(id: u64, keys: &[u64]) -> pb::ChangeRequest {
    pb::ChangeRequest {
        id,
        table: "t".into(),
        keys_le: encode_numbers(keys.iter().copied()),
        change: Some(Change::Delete(pb::Empty {})),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_applied_in_order_and_counted() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    fill(&engine.table("t").unwrap(), 0, 3_000, 1);
    let mut stream = open_change_stream(&mut client).await;
    // Each update finds both of its items, and each deletion one of its two keys: earlier requests are applied first,
    // however many are in flight.
    for id in 0..1_500 {
        stream
            .send(update(2 * id, &[id, id + 1], &[2.0, 3.0]))
            .await;
        stream.send(delete(2 * id + 1, &[id, 9_999])).await;
    }
    for id in 0..3_000 {
        let reply = stream.receive().await;
        assert_eq!(reply.id, id);
        let matched = if id % 2 == 0 { 2 } else { 1 };
        assert_eq!(
            reply.outcome,
            Some(Outcome::Matched(matched)),
            "request {id}"
        );
    }
    drop(stream.requests);
    let end = stream.responses.message().await.unwrap();
    assert!(end.is_none());
    assert_eq!(engine.table("t").unwrap().info().stats.size, 1_500);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_client_keep_their_order_while_an_acknowledgement_is_in_flight() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let options = ClientOptions {
        address: server.address().to_string(),
        token: None,
        tls: None,
        reconnect_timeout: STEP_TIMEOUT,
    };
    let client = Client::new(options).unwrap();
    fill(&engine.table("t").unwrap(), 0, 10_001, 1);
    for round in 0..20 {
        let request = BatchRequest {
            table: "t".into(),
            options: SampleOptions {
                n: 1,
                at_least: 1,
                lease: true,
                timeout: None,
            },
            length_policy: LengthPolicy::Ragged,
        };
        client.sample(request).await.unwrap().lease.acknowledge();
        // Each update finds the item that the next deletion removes.
        let changes = (round * 500..(round + 1) * 500).map(|key| {
            let updated = client.update_priorities("t", &[key], &[2.0]);
            (key, updated, client.delete("t", &[key]))
        });
        for (key, updated, deleted) in changes.collect::<Vec<_>>() {
            assert_eq!((updated.await, deleted.await), (Ok(1), Ok(1)), "key {key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_changes_are_answered_with_errors_in_order() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    fill(&engine.table("t").unwrap(), 0, 10, 1);
    let mut stream = open_change_stream(&mut client).await;
    let unknown_table = pb::ChangeRequest {
        table: "u".into(),
        ..delete(1, &[1])
    };
    let partial_key = pb::ChangeRequest {
        keys_le: vec![1, 2, 3].into(),
        ..delete(2, &[])
    };
    let empty = pb::ChangeRequest {
        change: None,
        ..delete(3, &[1])
    };
    let unequal = update(4, &[1, 2], &[1.0]);
    let nan = update(5, &[1], &[f64::NAN]);
    for request in [
        unknown_table,
        partial_key,
        empty,
        unequal,
        nan,
        delete(6, &[1]),
    ] {
        stream.send(request).await;
    }
    let texts = [
        "no table `u`; known tables: `t`",
        "`keys_le` must have a multiple of 8 bytes; got 3",
        "empty request; `priorities_le` or `delete` must be set",
        "`keys` has length 2 and `priorities` 1 for table `t`; each key needs one priority",
    ];
    for text in texts {
        let Some(Outcome::Error(error)) = stream.receive().await.outcome else {
            panic!("no error: {text}");
        };
        assert_eq!(error.text, text);
    }
    let Some(Outcome::Error(error)) = stream.receive().await.outcome else {
        panic!("NaN was accepted");
    };
    assert_eq!(error.code(), Code::Priority);
    assert_eq!(stream.receive().await.outcome, Some(Outcome::Matched(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stops_reading_requests_while_replies_are_not_read() {
    let engine = engine(vec![options("t")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let table = engine.table("t").unwrap();
    fill(&table, 0, 400_000, 1);
    let mut stream = open_change_stream(&mut client).await;
    let requests = stream.requests.clone();
    let sending = tokio::spawn(async move {
        for id in 0..200_000 {
            requests.send(delete(id, &[id])).await.unwrap();
        }
    });
    // The windows fill up, then the server's reply queue; the remaining requests wait in the client.
    let mut last_size = u64::MAX;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let size = table.info().stats.size;
        if size == last_size {
            break;
        }
        last_size = size;
    }
    assert!(
        last_size > 200_000,
        "all changes were applied; {last_size} items are left"
    );
    for id in 0..200_000 {
        assert_eq!(stream.receive().await.id, id);
    }
    sending.await.unwrap();
}
