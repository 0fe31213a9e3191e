//! Readers that continue on another stream.

use engram_rpc::Server;
use engram_rpc::pb;
use engram_rpc::pb::LeaseState;
use engram_rpc::pb::sample_request::Request;
use engram_rpc::pb::sample_response::Outcome;
use engram_rpc::wire::encode_numbers;
use tonic::Code;

use crate::sample::{SampleStream, batch_request};
use crate::support::{connect, engine, fill, open_sample_stream, queue, start, wait_until};

fn resume(session: u64, lease: Option<pb::HeldLease>) -> Request {
    let (keep_s, more) = (60.0, lease.is_some());
    Request::Resume(pb::Resume {
        session,
        keep_s,
        lease,
        more,
    })
}

fn lease(id: u64, keys: &[u64], number: Option<u64>) -> pb::HeldLease {
    pb::HeldLease {
        id,
        table: "t".into(),
        keys_le: encode_numbers(keys.iter().copied()),
        number,
    }
}

/// Opens a stream that continues these leases; returns it with their states.
async fn open(
    server: &Server,
    session: u64,
    leases: Vec<pb::HeldLease>,
) -> (SampleStream, Vec<LeaseState>) {
    let mut stream = open_sample_stream(&mut connect(server).await).await;
    let ids: Vec<u64> = leases.iter().map(|lease| lease.id).collect();
    for lease in leases {
        stream.send_request(resume(session, Some(lease))).await;
    }
    stream.send_request(resume(session, None)).await;
    let mut states = Vec::new();
    for id in ids {
        let reply = stream.receive().await;
        assert_eq!(reply.id, id);
        let Some(Outcome::Lease(state)) = reply.outcome else {
            panic!("{:?} instead of the state of a lease", reply.outcome);
        };
        states.push(state.try_into().unwrap());
    }
    let reply = stream.receive().await;
    assert_eq!(reply.outcome, Some(Outcome::Resumed(pb::Empty {})));
    (stream, states)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_continues_its_leases_on_another_stream() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let table = engine.table("t").unwrap();
    fill(&table, 0, 10, 1);
    let (mut first, _) = open(&server, 7, vec![]).await;
    // Batches of the items 0, 1 and 2, and of the items 3 and 4.
    for (id, n) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        first.request_batch(batch_request(id, n)).await;
        first.receive_batch().await;
    }
    let acknowledge = pb::SampleRequest {
        request: Some(Request::Acknowledge(1)),
        used_items: None,
        number: Some(9),
    };
    first.send(acknowledge).await;
    wait_until("it is acknowledged", || table.info().stats.size == 9).await;
    // The server does not know that the first stream is not used any more.
    let leases = vec![
        lease(1, &[0], Some(9)),
        lease(2, &[1], Some(10)),
        lease(4, &[3, 4], None),
        lease(5, &[5, 6], None),
        lease(6, &[7, 77], None),
        lease(7, &[78], None),
    ];
    let (second, states) = open(&server, 7, leases).await;
    let expected = [
        LeaseState::Acknowledged,
        LeaseState::Held,
        LeaseState::Held,
        LeaseState::Held,
        LeaseState::PartlyHeld,
        LeaseState::Ended,
    ];
    assert_eq!(states, expected);
    // Items 1 and 3 to 7; item 2 has returned to the table.
    wait_until("the other lease ends", || table.info().stats.leased == 6).await;
    // The reader did not receive the answer.
    let (third, states) = open(&server, 7, vec![lease(6, &[7, 77], None)]).await;
    assert_eq!(states, [LeaseState::PartlyHeld]);
    wait_until("the other leases end", || table.info().stats.leased == 1).await;
    drop(second);
    // The reader ends the stream, so nothing is kept.
    drop(third);
    wait_until("all leases end", || table.info().stats.leased == 0).await;
    assert_eq!(table.info().stats.size, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_leases_that_a_reader_continues_is_limited() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    for id in 0..1_026 {
        stream
            .send_request(resume(7, Some(lease(id, &[id], None))))
            .await;
    }
    let mut replies = 0;
    let status = loop {
        match stream.next_response().await {
            Ok(_) => replies += 1,
            Err(status) => break status,
        }
    };
    assert!(replies <= 1_025, "{replies}");
    assert_eq!(
        (status.code(), status.message()),
        (
            Code::ResourceExhausted,
            "too many leases: a reader continues at most 1024"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_a_closed_store_has_not_ended() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    engine.close().unwrap();
    stream
        .send_request(resume(7, Some(lease(1, &[1], Some(1)))))
        .await;
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_precedes_all_other_requests() {
    let engine = engine(vec![queue("t")]);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 1)).await;
    stream.send_request(resume(7, None)).await;
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            Code::InvalidArgument,
            "invalid `resume`: it must precede all other requests of its stream"
        )
    );
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    let request = pb::Resume {
        session: 7,
        keep_s: -1.0,
        ..pb::Resume::default()
    };
    stream.send_request(Request::Resume(request)).await;
    let status = stream.next_response().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            Code::InvalidArgument,
            "invalid `keep_s`: -1; expected a number of seconds"
        )
    );
}
