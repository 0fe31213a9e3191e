//! Reading from tables whose items are removed when they are sampled: when the removal is durable, when leases end.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::{Error, Lsn, OpSink, Result, TableOp};
use engram_engine::{
    BatchLease as _, BatchStream, Engine, MonotonicClock, SampleOptions, StreamOptions, Table,
    WaitOptions, WaitOutcome,
};
use engram_rpc::client::{BatchRequest, Client, ClientOptions};
use engram_rpc::pb;
use engram_rpc::pb::sample_request::Request;
use engram_rpc::pb::sample_response::Outcome;
use engram_rpc::{Server, ServerOptions};
use tokio::time::timeout;
use tonic::Code;

use crate::reverb;
use crate::sample::batch_request;
use crate::support::{
    STEP_TIMEOUT, connect, engine, fill, one_item_queue, open_sample_stream, options, queue, start,
    wait_until,
};

/// How long a test waits for a message that must not arrive.
const SILENCE: Duration = Duration::from_millis(150);

/// A log whose changes are durable, except while it is stalled or broken, and after it has ended.
#[derive(Debug, Default)]
struct StallingLog(Mutex<StallingLogState>);

#[derive(Debug, Default)]
struct StallingLogState {
    appended: u64,
    /// While stalled, the number of the last durable change.
    stalled_at: Option<u64>,
    /// True if waiting for durability fails at the moment.
    is_broken: bool,
    /// True if the log has ended: no change can become durable any more.
    has_ended: bool,
    wakers: Vec<Waker>,
}

impl StallingLog {
    fn stall(&self) {
        let mut log = self.0.lock().unwrap();
        log.stalled_at = Some(log.appended);
    }

    fn resume(&self) {
        self.set_broken(false);
    }

    /// Makes waiting for durability fail, until the log resumes.
    fn fail(&self) {
        self.set_broken(true);
    }

    fn set_broken(&self, is_broken: bool) {
        let mut log = self.0.lock().unwrap();
        (log.stalled_at, log.is_broken) = (None, is_broken);
        log.wakers.drain(..).for_each(Waker::wake);
    }

    fn end(&self) {
        self.0.lock().unwrap().has_ended = true;
    }
}

impl OpSink for StallingLog {
    fn append(&self, _table: &str, _op: &TableOp<'_>) -> Lsn {
        let mut log = self.0.lock().unwrap();
        log.appended += 1;
        Lsn(log.appended)
    }

    fn last(&self) -> Lsn {
        Lsn(self.0.lock().unwrap().appended)
    }

    fn poll_durable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<()>> {
        let mut log = self.0.lock().unwrap();
        if log.is_broken {
            return Poll::Ready(Err(Error::Storage("the disk is full".into())));
        }
        if log.has_ended {
            return Poll::Ready(Err(Error::Storage("the disk is gone".into())));
        }
        if log.stalled_at.is_some_and(|last| lsn.0 > last) {
            log.wakers.push(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn has_ended(&self) -> bool {
        self.0.lock().unwrap().has_ended
    }
}

/// Returns an engine with the queue `t` and the table `kept`, the queue, and the engine's log.
fn engine_with_log() -> (Arc<Engine>, Arc<Table>, Arc<StallingLog>) {
    let log = Arc::new(StallingLog::default());
    let clock = Arc::new(MonotonicClock::default());
    let tables = vec![queue("t"), options("kept")];
    let engine = Engine::with_clock_and_sink(tables, 1, clock, log.clone()).unwrap();
    let table = engine.table("t").unwrap();
    fill(&table, 0, 4, 1);
    fill(&engine.table("kept").unwrap(), 0, 4, 1);
    (Arc::new(engine), table, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_waits_until_acknowledgements_that_remove_items_are_durable() {
    let (engine, table, log) = engine_with_log();
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    let kept = pb::BatchRequest {
        table: "kept".into(),
        lease: true,
        ..batch_request(1, 1)
    };
    stream.request_batch(kept).await;
    assert!(!stream.receive_batch().await.1.durable);
    stream.request_batch(batch_request(2, 2)).await;
    let (_, batch) = stream.receive_batch().await;
    assert!(batch.leased && batch.durable);
    log.stall();
    let done = |id| (id, Some(Outcome::BarrierDone(pb::BarrierDone::default())));
    // A barrier does not wait for samples that remove nothing.
    stream.send_request(Request::Acknowledge(1)).await;
    stream.send_request(Request::Barrier(7)).await;
    let reply = stream.receive().await;
    assert_eq!((reply.id, reply.outcome), done(7));
    stream.send_request(Request::Acknowledge(2)).await;
    stream.send_request(Request::Barrier(8)).await;
    wait_until("the items are removed", || table.info().stats.size == 2).await;
    assert!(timeout(SILENCE, stream.receive()).await.is_err());
    // Other batches do not wait.
    stream.request_batch(batch_request(3, 1)).await;
    assert_eq!(stream.receive_batch().await.0, 3);
    log.resume();
    let reply = stream.receive().await;
    assert_eq!((reply.id, reply.outcome), done(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_waits_for_the_acknowledgement_of_a_batch_that_is_being_sent() {
    // Numbers in an item: more than the windows of a connection hold, so that the batch is not sent completely before
    // it is read.
    const WIDTH: usize = 8 << 20;
    let (engine, table, log) = engine_with_log();
    let server = start(&engine);
    let mut client = connect(&server).await;
    let mut stream = open_sample_stream(&mut client).await;
    stream.request_batch(batch_request(1, 4)).await;
    stream.receive_batch().await;
    stream.send_request(Request::Acknowledge(1)).await;
    fill(&table, 4, 1, WIDTH);
    stream.request_batch(batch_request(2, 1)).await;
    assert_eq!(stream.receive().await.id, 2);
    log.stall();
    stream.send_request(Request::Acknowledge(2)).await;
    stream.send_request(Request::Barrier(7)).await;
    wait_until("the item is removed", || table.info().stats.size == 0).await;
    let resumed = tokio::spawn(async move {
        tokio::time::sleep(SILENCE).await;
        log.resume();
        Instant::now()
    });
    loop {
        let reply = stream.receive().await;
        if reply.id == 7 {
            break;
        }
    }
    let answered = Instant::now();
    assert!(resumed.await.unwrap() <= answered);
}

#[tokio::test(flavor = "multi_thread")]
async fn barriers_fail_until_earlier_acknowledgements_are_durable() {
    let (engine, table, log) = engine_with_log();
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 2)).await;
    stream.receive_batch().await;
    log.stall();
    stream.send_request(Request::Acknowledge(1)).await;
    wait_until("the items are removed", || table.info().stats.size == 2).await;
    stream.send_request(Request::Barrier(7)).await;
    stream.send_request(Request::Barrier(8)).await;
    assert!(timeout(SILENCE, stream.receive()).await.is_err());
    log.fail();
    for id in [7, 8, 9] {
        if id == 9 {
            stream.send_request(Request::Barrier(id)).await;
        }
        let reply = stream.receive().await;
        let Some(Outcome::BarrierDone(done)) = reply.outcome else {
            panic!("{reply:?} is no answer to a barrier");
        };
        assert_eq!(reply.id, id);
        assert_eq!(done.durability_error.unwrap().text, "the disk is full");
    }
    log.resume();
    stream.send_request(Request::Barrier(10)).await;
    let done = Some(Outcome::BarrierDone(pb::BarrierDone::default()));
    let reply = stream.receive().await;
    assert_eq!((reply.id, reply.outcome), (10, done));
}

fn client(server: &Server) -> Client {
    let options = ClientOptions {
        address: server.address().to_string(),
        token: None,
        tls: None,
        reconnect_timeout: STEP_TIMEOUT,
    };
    Client::new(options).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_durable_is_not_waited_for_again() {
    let (engine, _, log) = engine_with_log();
    let server = start(&engine);
    let client = client(&server);
    for _ in 0..2 {
        let batch = client.sample(BatchRequest {
            table: "t".into(),
            options: SampleOptions {
                n: 1,
                at_least: 1,
                lease: false,
                timeout: None,
            },
            length_policy: LengthPolicy::Ragged,
        });
        let batch = timeout(STEP_TIMEOUT, batch).await.unwrap().unwrap();
        log.stall();
        let durable = batch.lease.acknowledge().unwrap();
        assert!(!client.are_acks_flushed());
        log.resume();
        timeout(STEP_TIMEOUT, durable).await.unwrap().unwrap();
        assert!(client.are_acks_flushed());
    }
}

#[test]
fn a_stream_fails_until_its_acknowledgements_are_durable() {
    let (engine, table, log) = engine_with_log();
    let server = start(&engine);
    let client = client(&server);
    let options = StreamOptions {
        batch_size: 1,
        at_least: 1,
        prefetch: 1,
        max_batches: None,
        max_items: None,
        length_policy: LengthPolicy::Ragged,
        hold: false,
    };
    let mut stream = client.stream(table.options(), options).unwrap();
    let mut interrupted = || false;
    let mut wait = WaitOptions {
        deadline: Some(Instant::now() + STEP_TIMEOUT),
        interrupted: &mut interrupted,
    };
    for delivered in [1, 2] {
        let next = stream.next(&mut wait);
        assert!(matches!(next, Ok(Some(_))), "{next:?}");
        log.fail();
        assert!(stream.deliver(delivered));
        for _ in 0..2 {
            let next = stream.next(&mut wait);
            assert!(matches!(next, Err(Error::Storage(_))), "{next:?}");
        }
        if delivered == 1 {
            log.resume();
        }
    }
    for _ in 0..2 {
        let closed = stream.close(Duration::MAX, &mut wait);
        let WaitOutcome::Ready(Err(Error::Storage(text))) = closed else {
            panic!("{closed:?} is not the error of the store");
        };
        assert_eq!(text, "the disk is full");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_a_store_in_memory_need_no_barrier() {
    let engine = engine(vec![queue("t")]);
    fill(&engine.table("t").unwrap(), 0, 1, 1);
    let server = start(&engine);
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    stream.request_batch(batch_request(1, 1)).await;
    let (_, batch) = stream.receive_batch().await;
    assert!(batch.leased && !batch.durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_for_a_reverb_client_is_sent_once_its_removal_is_durable() {
    let (engine, table, log) = engine_with_log();
    let server = start(&engine);
    let mut client = reverb::connect(&server).await;
    let mut reader = reverb::open_sample_stream(&mut client).await;
    log.stall();
    reader.send(reverb::sample_request("t", 2, 0)).await;
    wait_until("the items are removed", || table.info().stats.size == 2).await;
    assert!(timeout(SILENCE, reader.receive()).await.is_err());
    log.resume();
    assert_eq!(reader.receive().await.entries.len(), 2);
    log.stall();
    reader.send(reverb::sample_request("kept", 2, 0)).await;
    assert_eq!(reader.receive().await.entries.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_for_a_reverb_client_is_sent_before_the_server_stops() {
    let (engine, table, log) = engine_with_log();
    let server = start(&engine);
    let mut client = reverb::connect(&server).await;
    let mut idle = reverb::open_sample_stream(&mut client).await;
    let mut reader = reverb::open_sample_stream(&mut client).await;
    log.stall();
    reader.send(reverb::sample_request("t", 2, 0)).await;
    wait_until("the items are removed", || table.info().stats.size == 2).await;
    let closing = tokio::task::spawn_blocking(move || server.close());
    assert_eq!(idle.end_status().await.code(), Code::Unavailable);
    log.resume();
    let response = timeout(STEP_TIMEOUT, reader.responses.message()).await;
    assert_eq!(response.unwrap().unwrap().unwrap().entries.len(), 2);
    assert_eq!(reader.end_status().await.code(), Code::Unavailable);
    closing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reverb_client_learns_that_a_store_has_failed() {
    let (engine, _, log) = engine_with_log();
    let server = start(&engine);
    let mut client = reverb::connect(&server).await;
    let mut reader = reverb::open_sample_stream(&mut client).await;
    log.end();
    reader.send(reverb::sample_request("t", 2, 0)).await;
    let status = timeout(STEP_TIMEOUT, reader.end_status()).await.unwrap();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "the disk is gone")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_silent_reader_wait_until_it_sends_a_message() {
    let engine = engine(vec![one_item_queue("t")]);
    let options = ServerOptions {
        lease_timeout: Duration::from_millis(100),
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), options).unwrap();
    let table = engine.table("t").unwrap();
    let mut client = connect(&server).await;
    let hello = pb::HelloRequest {
        protocol: 1,
        version: String::new(),
    };
    let hello = client.hello(hello).await.unwrap().into_inner();
    assert_eq!(hello.lease_timeout_s, Some(0.1));
    let mut stream = open_sample_stream(&mut client).await;
    for id in 1..=4 {
        stream.request_batch(batch_request(id, 1)).await;
    }
    wait_until("four requests wait", || table.info().waiting_samples == 4).await;
    fill(&table, 0, 1, 1);
    assert_eq!(stream.receive_batch().await.0, 1);
    wait_until("the lease has ended", || table.info().waiting_samples == 0).await;
    assert!(timeout(SILENCE, stream.receive()).await.is_err());
    assert_eq!(table.info().stats.hidden_items, 0);
    stream.send_request(Request::Cancel(3)).await;
    // The requests keep their order.
    assert_eq!(stream.receive_batch().await.0, 2);
    stream.send_request(Request::Acknowledge(2)).await;
    fill(&table, 1, 1, 1);
    assert_eq!(stream.receive_batch().await.0, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_silent_reader_that_has_half_closed_its_stream_are_served() {
    let engine = engine(vec![one_item_queue("t")]);
    let options = ServerOptions {
        lease_timeout: Duration::from_millis(100),
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), options).unwrap();
    let table = engine.table("t").unwrap();
    let mut stream = open_sample_stream(&mut connect(&server).await).await;
    for id in 1..=3 {
        stream.request_batch(batch_request(id, 1)).await;
    }
    wait_until("three requests wait", || table.info().waiting_samples == 3).await;
    stream.half_close();
    fill(&table, 0, 1, 1);
    // Nothing can be acknowledged: each lease ends, and the item is sampled again.
    for id in 1..=3 {
        assert_eq!(stream.receive_batch().await.0, id);
    }
    assert!(stream.next_response().await.unwrap().is_none());
    wait_until("the item is returned", || {
        table.info().stats.hidden_items == 0
    })
    .await;
}
