//! No bytes that come to dm-reverb's service bring the server down, or harm another stream: each call ends with a
//! status, and all of them together take little memory.
//!
//! `ENGRAM_FUZZ=1000000 cargo test -p engram-rpc --test reverb_garbage` makes so many calls; `ENGRAM_FUZZ_SEED`
//! others than usual.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

#[path = "../../../engram-reverb/tests/fuzz/corpus.rs"]
mod corpus;
mod messages;
#[path = "../fuzz/mutate.rs"]
mod mutate;
mod talk;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_core::{RateLimits, SelectorKind, TableOptions};
use engram_engine::{Engine, Table};
use engram_rpc::{Server, ServerOptions};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng as _;

use messages::{METHODS, Messages};
use mutate::Chance;
use talk::{End, Link, Neighbour, wait_for};

/// Calls that go on at a time.
const TASKS: u64 = 4;

/// Calls of one task after which its neighbour is asked for a sign of life.
const ROUND: u64 = 50;

/// Bytes that the process may take beside what it took before.
const MOST: u64 = 200 << 20;

/// A table of few items, all of them worth nothing; the neighbours' are queues.
fn options(name: &str, max_times_sampled: u32) -> TableOptions {
    TableOptions {
        name: name.into(),
        max_size: 10,
        max_bytes: None,
        max_times_sampled,
        ttl: None,
        sampler: SelectorKind::Prioritized { exponent: 1.0 },
        remover: SelectorKind::Fifo,
        limits: RateLimits::min_size(1),
        signature: None,
        note: None,
        seed: 1,
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => otherwise,
    }
}

/// The most bytes that the process had so far.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<u64>().unwrap() << 10
}

/// How calls of each method ended: by their statuses' numbers, and how many were left open.
#[derive(Default)]
struct Seen {
    statuses: [[u64; 17]; METHODS.len()],
    left: u64,
}

/// Makes so many calls, one after the other.
async fn sweep(
    link: Link,
    mut neighbour: Neighbour,
    tables: Vec<Arc<Table>>,
    task: u64,
    calls: u64,
) -> Seen {
    let number = setting("ENGRAM_FUZZ_SEED", 1).wrapping_mul(TASKS) + task;
    let mut chance = Chance(Xoshiro256PlusPlus::seed_from_u64(number));
    let messages = Messages::new();
    let mut seen = Seen::default();
    for at in 0..calls {
        let call = messages.call(&mut chance);
        match link.call(&call).await {
            Ok(End::Status(status)) => seen.statuses[call.method][status] += 1,
            Ok(End::Left) => seen.left += 1,
            Err(problem) => panic!("{at} of task {task} of seed {number}: {problem}: {call:?}"),
        }
        // Whoever samples may wait for ever where there is nothing.
        for table in &tables {
            messages::refill(table);
        }
        if at % ROUND == 0 {
            neighbour.is_well().await;
        }
    }
    neighbour.is_well().await;
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_call_at_most() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let usual = std::panic::take_hook();
    // A stream whose task panics ends as if it were over.
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(info);
    }));
    let names: Vec<String> = (0..TASKS).map(|task| format!("neighbour {task}")).collect();
    let mut all = vec![options("table", 0), options("other", 0)];
    all.extend(names.iter().map(|name| options(name, 1)));
    let engine = Arc::new(Engine::new(all, 1).unwrap());
    let settings = ServerOptions {
        metrics_port: Some(0),
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), settings).unwrap();
    let tables = ["table", "other"].map(|name| engine.table(name).unwrap());
    for table in &tables {
        messages::refill(table);
    }
    let before = peak();
    let calls = setting("ENGRAM_FUZZ", 12_000) / TASKS;
    let mut tasks = Vec::new();
    for (task, name) in names.iter().enumerate() {
        let link = Link::new(server.address()).await;
        // On the same connection.
        let neighbour = Neighbour::new(&link, name).await;
        let tables = tables.to_vec();
        tasks.push(tokio::spawn(sweep(
            link,
            neighbour,
            tables,
            task as u64,
            calls,
        )));
    }
    let mut seen = Seen::default();
    for task in tasks {
        let one = task.await.unwrap();
        seen.left += one.left;
        for (all, one) in seen
            .statuses
            .iter_mut()
            .flatten()
            .zip(one.statuses.iter().flatten())
        {
            *all += one;
        }
    }
    let grown = peak() - before;
    assert!(grown < MOST, "{grown} bytes");
    wait_for("all calls are over", || open(&server) == 0).await;
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
    // Each method had calls that it took, and others that it refused.
    for (method, statuses) in METHODS.iter().zip(&seen.statuses) {
        let all: u64 = statuses.iter().sum();
        let [good, bad] = [statuses[0], all - statuses[0]];
        let taken = !matches!(*method, "Checkpoint" | "Nothing");
        assert!((good > 0) == taken && bad > 0, "{method}: {statuses:?}");
    }
    assert!(seen.left > 0);
    // One that comes now is served.
    let link = Link::new(server.address()).await;
    let mut late = Neighbour::new(&link, "neighbour 0").await;
    late.is_well().await;
}

/// Calls of the service that are open.
fn open(server: &Server) -> u64 {
    let text = talk::scrape(server.metrics_address().unwrap());
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("engram_server_open_calls{protocol=\"reverb\""));
    let counts = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    counts.sum()
}
