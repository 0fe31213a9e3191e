//! Calls that take long leave room for others.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engram_core::{RateLimits, SelectorKind, TableOptions};
use engram_engine::{Durability, Engine, OpenOptions, StorageOptions};
use engram_reverb::pb::reverb_service_server::ReverbService as _;
use engram_reverb::{Reverb, pb};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::yield_now;
use tonic::{Code, Request};

/// A store in a directory that goes with it.
struct Directory {
    path: PathBuf,
    engine: Arc<Engine>,
}

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("engram-{name}-{}", std::process::id()));
        let storage = StorageOptions {
            durability: Durability::Process,
            keep: 1,
        };
        let table = TableOptions {
            name: "table".into(),
            max_size: 10,
            max_bytes: None,
            max_times_sampled: 0,
            ttl: None,
            sampler: SelectorKind::Fifo,
            remover: SelectorKind::Fifo,
            limits: RateLimits::min_size(1),
            signature: None,
            note: None,
            seed: 1,
        };
        let opening = OpenOptions::default();
        let opened = Engine::open(&path, storage, &opening, vec![table], 1, &mut |_, _| {});
        let engine = Arc::new(opened.unwrap().0);
        Self { path, engine }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = self.engine.close();
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// One that has two threads for what takes long.
fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(1).max_blocking_threads(2);
    builder.enable_all().build().unwrap()
}

async fn checkpoint(reverb: Reverb) -> Result<String, tonic::Status> {
    let answer = reverb
        .checkpoint(Request::new(pb::CheckpointRequest {}))
        .await;
    answer.map(|answer| answer.into_inner().checkpoint_path)
}

/// Lets what was spawned begin.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[test]
fn checkpoints_take_turns_and_one_thread() {
    let directory = Directory::new("turns");
    let (_stop, stopped) = watch::channel(false);
    let reverb = Reverb::new(Arc::clone(&directory.engine), stopped).unwrap();
    runtime().block_on(async {
        let (calls, made) = (20, Arc::new(AtomicUsize::new(0)));
        let begun = (0..calls).map(|_| {
            let (reverb, made) = (reverb.clone(), Arc::clone(&made));
            tokio::spawn(async move {
                let path = checkpoint(reverb).await.unwrap();
                made.fetch_add(1, Ordering::SeqCst);
                path
            })
        });
        let begun: Vec<_> = begun.collect();
        settle().await;
        // What needs a thread too does not wait for all of them.
        let reset = pb::ResetRequest {
            table: "table".into(),
        };
        reverb.reset(Request::new(reset)).await.unwrap();
        let before = made.load(Ordering::SeqCst);
        assert!(before < calls / 2, "{before} checkpoints came before");
        let mut paths = Vec::new();
        for call in begun {
            paths.push(call.await.unwrap());
        }
        // Each call made one of its own.
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), calls);
    });
}

#[test]
fn who_goes_before_its_turn_makes_no_checkpoint_and_who_waits_when_the_server_stops_is_told() {
    let directory = Directory::new("leaves");
    let (stop, stopped) = watch::channel(false);
    let reverb = Reverb::new(Arc::clone(&directory.engine), stopped).unwrap();
    runtime().block_on(async {
        // All of its threads are busy, so that a turn lasts.
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let end = Arc::new(std::sync::Mutex::new(end));
        for _ in 0..2 {
            let end = Arc::clone(&end);
            tokio::task::spawn_blocking(move || end.lock().unwrap().recv());
        }
        let first = tokio::spawn(checkpoint(reverb.clone()));
        settle().await;
        let others: Vec<_> = (0..5)
            .map(|_| tokio::spawn(checkpoint(reverb.clone())))
            .collect();
        let last = tokio::spawn(checkpoint(reverb.clone()));
        settle().await;
        for other in others {
            other.abort();
            assert!(other.await.unwrap_err().is_cancelled());
        }
        stop.send_replace(true);
        let told = tokio::time::timeout(Duration::from_secs(20), last).await;
        let status = told.unwrap().unwrap().unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "the server is stopping")
        );
        drop(ends);
        let path = first.await.unwrap().unwrap();
        let next = directory.engine.checkpoint().unwrap().number;
        let next = directory.engine.checkpoint_path(next).unwrap();
        let number = |path: &str| path.rsplit('-').next().unwrap().parse::<u64>().unwrap();
        assert_eq!(number(&path) + 1, number(next.to_str().unwrap()));
    });
}
