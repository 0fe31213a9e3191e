//! Invalid calls to dm-reverb's service do not harm the server or other streams: each call ends with a status, and
//! memory stays bounded.
//!
//! `ENGRAM_FUZZ=1000000 cargo test -p engram-rpc --test reverb_garbage` sets the number of calls. `ENGRAM_FUZZ_SEED`
//! changes the seed.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

mod clients;
mod garbage_calls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_core::{SelectorKind, TableOptions};
use engram_engine::{Engine, Table};
use engram_rpc::{Server, ServerOptions};
use engram_testkit::{RandomSource, env_number, table_options};

use clients::{CallOutcome, Connection, WellBehavedClient, wait_until};
use garbage_calls::{METHODS, ValidMessages};

/// Number of concurrent sequences of calls.
const TASKS: u64 = 4;

/// Number of calls after which a task checks that valid calls on its connection still work.
const CHECK_INTERVAL: u64 = 50;

/// Largest allowed increase of the process's peak memory, in bytes.
const MAX_ADDED_BYTES: u64 = 200 << 20;

/// Options of a small table. With `max_times_sampled` of 1 it is a queue.
fn options(name: &str, max_times_sampled: u32) -> TableOptions {
    TableOptions {
        max_size: 10,
        max_times_sampled,
        sampler: SelectorKind::Prioritized { exponent: 1.0 },
        ..table_options(name)
    }
}

/// Returns the peak resident memory of the process in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<u64>().unwrap() << 10
}

/// Numbers of finished calls.
#[derive(Default)]
struct CallCounts {
    /// Per method and gRPC status.
    statuses: [[u64; 17]; METHODS.len()],
    /// Calls that the test cancelled.
    cancelled: u64,
}

/// Makes `calls` invalid calls, one after the other.
async fn make_calls(
    connection: Connection,
    mut client: WellBehavedClient,
    tables: Vec<Arc<Table>>,
    task: u64,
    calls: u64,
) -> CallCounts {
    let seed = env_number("ENGRAM_FUZZ_SEED", 1).wrapping_mul(TASKS) + task;
    let mut random = RandomSource::new(seed);
    let messages = ValidMessages::new();
    let mut counts = CallCounts::default();
    for index in 0..calls {
        let call = messages.garbage_call(&mut random);
        match connection.call(&call).await {
            Ok(CallOutcome::Status(status)) => counts.statuses[call.method][status] += 1,
            Ok(CallOutcome::Cancelled) => counts.cancelled += 1,
            Err(error) => panic!("task {task}, seed {seed}, call {index}: {error}: {call:?}"),
        }
        // Sampling from an empty table could wait without limit.
        for table in &tables {
            garbage_calls::insert_if_empty(table);
        }
        if index % CHECK_INTERVAL == 0 {
            client.check_round_trip().await;
        }
    }
    client.check_round_trip().await;
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_call_affects_no_other_call() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let default_hook = std::panic::take_hook();
    // A stream whose task panics seems to end normally, so panics are counted.
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        default_hook(info);
    }));
    let names: Vec<String> = (0..TASKS).map(|task| format!("client {task}")).collect();
    let mut tables = vec![options("table", 0), options("other", 0)];
    tables.extend(names.iter().map(|name| options(name, 1)));
    let engine = Arc::new(Engine::new(tables, 1).unwrap());
    let settings = ServerOptions {
        metrics_port: Some(0),
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), settings).unwrap();
    let tables = ["table", "other"].map(|name| engine.table(name).unwrap());
    for table in &tables {
        garbage_calls::insert_if_empty(table);
    }
    let memory_before = peak_memory();
    let calls = env_number("ENGRAM_FUZZ", 12_000) / TASKS;
    let mut tasks = Vec::new();
    for (task, name) in names.iter().enumerate() {
        let connection = Connection::new(server.address()).await;
        // A client on the same connection.
        let client = WellBehavedClient::new(&connection, name).await;
        let tables = tables.to_vec();
        tasks.push(tokio::spawn(make_calls(
            connection,
            client,
            tables,
            task as u64,
            calls,
        )));
    }
    let mut counts = CallCounts::default();
    for task in tasks {
        let task_counts = task.await.unwrap();
        counts.cancelled += task_counts.cancelled;
        for (total, count) in counts
            .statuses
            .iter_mut()
            .flatten()
            .zip(task_counts.statuses.iter().flatten())
        {
            *total += count;
        }
    }
    let added_bytes = peak_memory() - memory_before;
    assert!(added_bytes < MAX_ADDED_BYTES, "{added_bytes} bytes");
    wait_until("all calls to end", || open_calls(&server) == 0).await;
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
    // Each method had failed calls. Each implemented one also had successful calls, except for `Checkpoint`: the store
    // has no directory.
    for (method, statuses) in METHODS.iter().zip(&counts.statuses) {
        let all: u64 = statuses.iter().sum();
        let [succeeded, failed] = [statuses[0], all - statuses[0]];
        let can_succeed = !matches!(*method, "Checkpoint" | "UnknownMethod");
        assert!(
            (succeeded > 0) == can_succeed && failed > 0,
            "{method}: {statuses:?}"
        );
    }
    assert!(counts.cancelled > 0);
    // A new connection is served.
    let connection = Connection::new(server.address()).await;
    let mut client = WellBehavedClient::new(&connection, "client 0").await;
    client.check_round_trip().await;
}

/// Returns the number of open calls of dm-reverb's service.
fn open_calls(server: &Server) -> u64 {
    let text = clients::scrape(server.metrics_address().unwrap());
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("engram_server_open_calls{protocol=\"reverb\""));
    let counts = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    counts.sum()
}
