//! CheckpointHeader, and how much of what they hold somebody uses.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::chunk::{Chunk, ChunkFile, ChunkLocation};

use super::file_format::{FileHeader, Kind};
use super::file_names::{UNFINISHED, log_name};
use super::file_system::{FileSystem, WritableFile};

/// A log, and what it holds of chunks that are still used.
#[derive(Debug)]
pub(crate) struct Log {
    store: u64,
    number: u64,
    /// Of chunks that somebody uses.
    used: AtomicU64,
    /// Of all that was told.
    bytes: AtomicU64,
}

impl Log {
    pub(crate) fn new(store: u64, number: u64) -> Arc<Self> {
        Arc::new(Self {
            store,
            number,
            used: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Says that it holds a chunk; returns what held it before.
    pub(crate) fn hold(
        self: &Arc<Self>,
        chunk: &Chunk,
        serial: u64,
        bytes: u64,
    ) -> Option<ChunkLocation> {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        chunk.set_location(Some(ChunkLocation {
            serial,
            bytes,
            file: Arc::clone(self) as Arc<dyn ChunkFile>,
        }))
    }

    /// Counts bytes told.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What is used of it.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            log: self.number,
            used: self.used.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl ChunkFile for Log {
    fn store(&self) -> u64 {
        self.store
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn released(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// How much of a log's chunks somebody uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    pub(crate) log: u64,
    pub(crate) used: u64,
    pub(crate) bytes: u64,
}

/// Of a log's bytes, so many per 100 are in use, or a checkpoint moves them elsewhere.
const WORTH_KEEPING: u64 = 50;

impl Usage {
    /// Whether it is worth moving what it holds.
    pub(crate) fn is_sparse(&self) -> bool {
        self.used * 100 < self.bytes * WORTH_KEEPING
    }
}

/// Begins a log: where there is one of that name, its head is whole.
pub(crate) fn begin(
    files: &dyn FileSystem,
    store: u64,
    number: u64,
) -> io::Result<Box<dyn WritableFile>> {
    let head = FileHeader {
        kind: Kind::Log,
        store,
        number,
    };
    let name = log_name(number);
    let unfinished = format!("{name}{UNFINISHED}");
    let mut file = files.create(&unfinished)?;
    file.append(&[&head.bytes()])?;
    file.sync()?;
    files.rename(&unfinished, &name)?;
    files.sync_directory()?;
    Ok(file)
}
