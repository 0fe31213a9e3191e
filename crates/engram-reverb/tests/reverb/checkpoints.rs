//! Checkpoint calls wait for each other without blocking other calls.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engram_core::TableOptions;
use engram_engine::{Durability, Engine, OpenOptions, StorageOptions};
use engram_reverb::pb::reverb_service_server::ReverbService as _;
use engram_reverb::{Reverb, pb};
use engram_testkit::table_options;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::yield_now;
use tonic::{Code, Request};

/// A store in a directory that is removed on drop.
struct TemporaryStore {
    path: PathBuf,
    engine: Arc<Engine>,
}

impl TemporaryStore {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("engram-{name}-{}", std::process::id()));
        let storage = StorageOptions {
            durability: Durability::Process,
            keep: 1,
        };
        let table = TableOptions {
            max_size: 10,
            ..table_options("table")
        };
        let opening = OpenOptions::default();
        let opened = Engine::open(&path, storage, &opening, vec![table], 1, &mut |_, _| {});
        let engine = Arc::new(opened.unwrap().0);
        Self { path, engine }
    }
}

impl Drop for TemporaryStore {
    fn drop(&mut self) {
        let _ = self.engine.close();
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A runtime with two blocking threads.
fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(1).max_blocking_threads(2);
    builder.enable_all().build().unwrap()
}

async fn checkpoint(reverb: Reverb) -> Result<String, tonic::Status> {
    let response = reverb
        .checkpoint(Request::new(pb::CheckpointRequest {}))
        .await;
    response.map(|response| response.into_inner().checkpoint_path)
}

/// Lets spawned tasks run.
async fn run_spawned_tasks() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[test]
fn concurrent_checkpoints_use_one_thread() {
    let store = TemporaryStore::new("concurrent");
    let (_stop, stopped) = watch::channel(false);
    let reverb = Reverb::new(Arc::clone(&store.engine), stopped, pb::Uint128::default());
    runtime().block_on(async {
        let (calls, completed) = (20, Arc::new(AtomicUsize::new(0)));
        let spawned = (0..calls).map(|_| {
            let (reverb, completed) = (reverb.clone(), Arc::clone(&completed));
            tokio::spawn(async move {
                let path = checkpoint(reverb).await.unwrap();
                completed.fetch_add(1, Ordering::SeqCst);
                path
            })
        });
        let spawned: Vec<_> = spawned.collect();
        run_spawned_tasks().await;
        // Another call that needs a blocking thread does not wait for all checkpoints.
        let reset = pb::ResetRequest {
            table: "table".into(),
        };
        reverb.reset(Request::new(reset)).await.unwrap();
        let before = completed.load(Ordering::SeqCst);
        assert!(before < calls / 2, "{before} checkpoints completed first");
        let mut paths = Vec::new();
        for call in spawned {
            paths.push(call.await.unwrap());
        }
        // Each call wrote a checkpoint.
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), calls);
    });
}

#[test]
fn aborted_calls_write_no_checkpoint_and_waiting_calls_end_when_the_server_stops() {
    let store = TemporaryStore::new("aborted");
    let (stop, stopped) = watch::channel(false);
    let reverb = Reverb::new(Arc::clone(&store.engine), stopped, pb::Uint128::default());
    runtime().block_on(async {
        // Both blocking threads are busy, so the first checkpoint cannot complete.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        for _ in 0..2 {
            let released = Arc::clone(&released);
            tokio::task::spawn_blocking(move || released.lock().unwrap().recv());
        }
        let first = tokio::spawn(checkpoint(reverb.clone()));
        run_spawned_tasks().await;
        let others: Vec<_> = (0..5)
            .map(|_| tokio::spawn(checkpoint(reverb.clone())))
            .collect();
        let last = tokio::spawn(checkpoint(reverb.clone()));
        run_spawned_tasks().await;
        for other in others {
            other.abort();
            assert!(other.await.unwrap_err().is_cancelled());
        }
        stop.send_replace(true);
        let outcome = tokio::time::timeout(Duration::from_secs(20), last).await;
        let status = outcome.unwrap().unwrap().unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "the server is stopping")
        );
        drop(release);
        let path = first.await.unwrap().unwrap();
        let next = store.engine.checkpoint().unwrap().number;
        let next = store.engine.checkpoint_path(next).unwrap();
        let number = |path: &str| path.rsplit('-').next().unwrap().parse::<u64>().unwrap();
        assert_eq!(number(&path) + 1, number(next.to_str().unwrap()));
    });
}
