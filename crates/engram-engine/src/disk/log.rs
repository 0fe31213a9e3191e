//! Log files: creating them, and counting how many of their bytes belong to chunks in use. A chunk is in use as long as
//! it is in memory: an item refers to it, or a new item may.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::chunk::{Chunk, ChunkFile, ChunkLocation};

use super::directory::{Directory, WritableFile};
use super::file_format::{FileHeader, FileKind};
use super::file_names::{UNFINISHED_SUFFIX, log_name};

/// A log's size, and how much of it belongs to chunks in use.
#[derive(Debug)]
pub(crate) struct Log {
    store: u64,
    number: u64,
    /// Bytes of the records of chunks that are in use.
    used_bytes: AtomicU64,
    /// Bytes of all records, written or pending, without the file header.
    bytes: AtomicU64,
}

impl Log {
    pub(crate) fn new(store: u64, number: u64) -> Arc<Self> {
        Arc::new(Self {
            store,
            number,
            used_bytes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Makes this log the location of a chunk whose record has `bytes` bytes; returns the chunk's
    /// previous location.
    pub(crate) fn add_chunk(
        self: &Arc<Self>,
        chunk: &Chunk,
        serial: u64,
        bytes: u64,
    ) -> Option<ChunkLocation> {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        chunk.set_location(Some(ChunkLocation {
            serial,
            bytes,
            file: Arc::clone(self) as Arc<dyn ChunkFile>,
        }))
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> LogUsage {
        LogUsage {
            log: self.number,
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
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
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// How many of a log's bytes belong to chunks in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LogUsage {
    /// The log's number.
    pub(crate) log: u64,
    /// Bytes of the records of chunks that are in use.
    pub(crate) used_bytes: u64,
    /// Bytes of all records, written or pending, without the file header.
    pub(crate) bytes: u64,
}

/// Percentage of used bytes below which a checkpoint copies a log's chunks in use to another log.
const MIN_USED_PERCENT: u64 = 50;

impl LogUsage {
    /// True if a checkpoint should copy this log's chunks in use, so that the log can be removed later.
    pub(crate) fn is_sparse(&self) -> bool {
        self.used_bytes * 100 < self.bytes * MIN_USED_PERCENT
    }
}

/// Creates a log with a complete, durable file header. It is renamed into place, so that a log with
/// its final name always has a complete header.
pub(crate) fn create(
    files: &dyn Directory,
    store: u64,
    number: u64,
) -> io::Result<Box<dyn WritableFile>> {
    let header = FileHeader {
        kind: FileKind::Log,
        store,
        number,
    };
    let name = log_name(number);
    let unfinished = format!("{name}{UNFINISHED_SUFFIX}");
    let mut file = files.create(&unfinished)?;
    file.append(&[&header.bytes()])?;
    file.sync()?;
    files.rename(&unfinished, &name)?;
    files.sync_directory()?;
    Ok(file)
}
