//! Tests of resharding.

mod contents;
mod runs;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engram_core::{NewItem, Result, TableOptions};

use super::{Resharded, reshard};
use crate::engine::{Engine, OpenOptions};
use crate::session::SessionRun;
use crate::table::Table;
use crate::wait::{WaitOptions, WaitOutcome, wait};
use crate::{Durability, StorageOptions};

/// A folder that is removed at the end of a test.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("engram-resharding-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path, tables: Vec<TableOptions>, entropy: u64) -> Engine {
    let storage = StorageOptions {
        durability: Durability::Process,
        keep: 1,
    };
    let options = OpenOptions::default();
    let opened = Engine::open(path, storage, &options, tables, entropy, &mut |_, _| {});
    opened.unwrap().0
}

fn wait_ready<T>(mut ticket: impl Future<Output = engram_core::Result<T>> + Unpin) -> T {
    let mut options = WaitOptions {
        deadline: None,
        interrupted: &mut || false,
    };
    match wait(&mut ticket, &mut options) {
        WaitOutcome::Ready(outcome) => outcome.unwrap(),
        _ => unreachable!("there is no deadline"),
    }
}

fn insert(table: &Arc<Table>, items: Vec<NewItem>, session: Option<(u64, u64)>) {
    let run = session.map(|(session, first_number)| SessionRun {
        session,
        first_number,
    });
    wait_ready(table.insert_numbered(items, run).unwrap());
}

fn run_reshard(directories: &[PathBuf], into: u32, output: &Path) -> Result<Resharded> {
    reshard(directories, into, output, 11, &mut |_, _| true)
}

fn error_text(outcome: Result<Resharded>) -> String {
    outcome.unwrap_err().to_string()
}
