//! What recovery has read of a directory: opens its files, and counts the bytes read. `recover.rs`, `chunk_loader.rs` and
//! `replay.rs` read them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Weak};

use engram_core::TableState;
use engram_core::chunk::Chunk;
use engram_core::selector::TableRng;

use super::byte_codec::UnusableData;
use super::checkpoint_writer::CheckpointHeader;
use super::chunk_checkers::ChunkCheckers;
use super::clock_reading::ClockReading;
use super::close_mark::CloseMark;
use super::directory::ReadableDirectory;
use super::file_format::{FileKind, HeaderError, VERSION};
use super::file_names::log_name;
use super::log::Log;
use super::record_codec::ReadDictionary;
use super::record_reader::RecordReader;
use super::recovery_error::{RecoveryError, read_error};

/// Callback for progress: receives the number of bytes of logs read so far and the total number. A log that is replayed
/// is read twice, and counts twice. Each new attempt, from an older checkpoint or with a repair, begins at 0 again.
pub type ReadProgress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Bytes read between two calls of a [`ReadProgress`].
const PROGRESS_INTERVAL: u64 = 4 << 20;

/// Content of a directory, as recovered.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Random id of the store; `None` if the directory has no checkpoints and no logs.
    pub(crate) store: Option<u64>,
    /// Number of the checkpoint that was read; `None` if only logs were read.
    pub(crate) checkpoint_read: Option<u64>,
    /// Number and header of every checkpoint whose first record can be read; empty if only logs were read. The headers
    /// lack the serials.
    pub(crate) checkpoint_headers: Vec<(u64, CheckpointHeader)>,
    /// True if the checkpoint that was read has contents that the logs lack, and no `unlogged` record in the logs
    /// states it yet.
    pub(crate) has_unlogged: bool,
    /// Numbers of the logs that were replayed.
    pub(crate) replayed_logs: Vec<u64>,
    /// The log at whose first invalid record the replay ended: its number, and the record's offset. `None` if there is
    /// none, or if a later log continues with the next change.
    pub(crate) torn: Option<(u64, u64)>,
    /// Number of intact records found after that invalid record. If there are any, the log's tail is copied to a
    /// `.lost` file.
    pub(crate) intact_after_tear: u64,
    /// True if acknowledged data is missing: files that were not used must be set aside.
    pub(crate) repaired: bool,
    /// Tables by number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    /// By table number: the state of the table's random generator after choices with which the log ends, although
    /// the change that they were made for is missing.
    pub(crate) unfinished_choices: HashMap<u64, TableRng>,
    /// Number that the next table gets in the store's files.
    pub(crate) next_table: u64,
    /// Number that the next change gets.
    pub(crate) next_change: u64,
    /// Serial that the next chunk gets: its number in the store.
    pub(crate) next_serial: u64,
    /// Largest number of any checkpoint file.
    pub(crate) newest_checkpoint: u64,
    /// Largest number of any log file.
    pub(crate) newest_log: u64,
    /// Logs that were read for their chunks.
    pub(crate) logs: Vec<Arc<Log>>,
    /// Latest reading of the store's clock in the checkpoint, in `begin` records and in changes, in nanoseconds.
    pub(crate) clock: u64,
    /// Reading of both clocks at the start of the last log that was replayed; without one, the checkpoint's.
    pub(crate) clock_reading: ClockReading,
    /// What was damaged or unfinished, and how it was handled.
    pub(crate) notes: Vec<String>,
}

impl Recovered {
    /// Reading at which the store's clock continues.
    pub(crate) fn resumed_clock(&self) -> u64 {
        self.clock.max(self.clock_reading.resumed_clock())
    }
}

/// Reads a checkpoint and the logs after it, or, without a checkpoint, all logs.
pub(super) struct DirectoryReader<'a> {
    pub(super) files: &'a dyn ReadableDirectory,
    /// The result so far.
    pub(super) out: Recovered,
    /// Chunks that the checkpoint's items refer to, by serial.
    pub(super) chunks: HashMap<u64, Arc<Chunk>>,
    /// All other chunks, by serial.
    pub(super) unloaded_chunks: HashMap<u64, UnloadedChunk>,
    /// Logs that were read for their chunks, by number.
    pub(super) logs: BTreeMap<u64, LoadedLog>,
    /// The log from which a chunk was read last. Only one is kept open: there may be more logs than
    /// the process can have open files.
    pub(super) open_log: Option<(u64, RecordReader)>,
    pub(super) checkers: ChunkCheckers,
    /// Why the log with a chunk that a replayed change refers to cannot be read now; `None` if it can be
    /// read.
    pub(super) unreadable_log: Option<UnusableData>,
    /// The mark of the last close; `None` if there is no valid one.
    pub(super) close_mark: Option<CloseMark>,
    /// Describes where the last torn log ends, until a log that continues with the next change is replayed.
    pub(super) last_tear: Option<String>,
    /// True if recovery continues although data is missing or corrupt.
    pub(super) repair: bool,
    /// True if chunks are read without their payloads.
    pub(super) skip_payloads: bool,
    progress: ReadProgress<'a>,
    /// Bytes of logs read so far, counted as for [`ReadProgress`].
    bytes_read: u64,
    /// Value of `bytes_read` when `progress` was last called.
    bytes_reported: u64,
    /// Final value of `bytes_read`, as computed from the sizes of the logs.
    pub(super) bytes_total: u64,
}

/// The location of a chunk that no item of the checkpoint refers to. The chunk is read when a replayed change
/// refers to it.
pub(super) struct UnloadedChunk {
    /// Number of the log that contains it.
    pub(super) log: u64,
    /// Offset of its record.
    pub(super) offset: u64,
    /// Size of its record in bytes.
    pub(super) bytes: usize,
    /// The chunk, while a replayed item refers to it.
    pub(super) loaded: Weak<Chunk>,
}

/// A log that was read for its chunks.
pub(super) struct LoadedLog {
    pub(super) log: Arc<Log>,
    /// All layouts, schemas and window shapes that it defines.
    pub(super) dictionary: ReadDictionary,
    /// True if the log is intact and contains only chunks and definitions.
    pub(super) has_only_chunks: bool,
}

/// A directory's checkpoints, logs and mark of a close.
#[derive(Clone, Copy)]
pub(super) struct DirectoryContents<'a> {
    pub(super) files: &'a dyn ReadableDirectory,
    /// Numbers of the checkpoints, ascending.
    pub(super) checkpoints: &'a [u64],
    /// Numbers of the logs, ascending.
    pub(super) logs: &'a [u64],
    pub(super) close_mark: Option<CloseMark>,
    /// Read chunks without their payloads: for tables that are only moved to another directory.
    pub(super) skip_payloads: bool,
}

impl<'a> DirectoryReader<'a> {
    pub(super) fn new(
        contents: DirectoryContents<'a>,
        repair: bool,
        progress: ReadProgress<'a>,
    ) -> Self {
        let DirectoryContents {
            files,
            checkpoints,
            logs,
            close_mark,
            skip_payloads,
        } = contents;
        let out = Recovered {
            next_table: 1,
            next_change: 1,
            next_serial: 1,
            newest_checkpoint: checkpoints.last().copied().unwrap_or_default(),
            newest_log: logs.last().copied().unwrap_or_default(),
            ..Recovered::default()
        };
        Self {
            files,
            out,
            chunks: HashMap::new(),
            unloaded_chunks: HashMap::new(),
            logs: BTreeMap::new(),
            open_log: None,
            checkers: ChunkCheckers::default(),
            unreadable_log: None,
            close_mark,
            last_tear: None,
            repair,
            skip_payloads,
            progress,
            bytes_read: 0,
            bytes_reported: 0,
            bytes_total: 0,
        }
    }

    /// Opens a file and checks its header. The first file determines the store's id.
    pub(super) fn open(
        &mut self,
        name: &str,
        kind: FileKind,
        number: u64,
    ) -> Result<RecordReader, RecoveryError> {
        let opened = self.files.open(name).and_then(RecordReader::new);
        let opened = opened.map_err(|error| read_error(name, &error))?;
        let file_reader = opened.map_err(|error| match error {
            HeaderError::Corrupt(UnusableData(reason)) => {
                UnusableData(format!("{name} is damaged: {reason}")).into()
            }
            HeaderError::UnsupportedVersion(version) => {
                RecoveryError::Unreadable(UnusableData(format!(
                    "{name} has format version {version}, but this release reads only version {VERSION}"
                )))
            }
        })?;
        let header = file_reader.header;
        if (header.kind, header.number) != (kind, number) {
            return Err(UnusableData(format!(
                "{name} is another file, renamed or copied to this name"
            ))
            .into());
        }
        let store = *self.out.store.get_or_insert(header.store);
        if header.store != store {
            return Err(UnusableData(format!("{name} belongs to another store")).into());
        }
        Ok(file_reader)
    }

    /// Total size of these logs in bytes.
    pub(super) fn log_bytes(&self, logs: &[u64]) -> u64 {
        let lengths = logs
            .iter()
            .map(|log| self.files.open(&log_name(*log))?.len());
        lengths.filter_map(io::Result::ok).sum()
    }

    /// Adds bytes that were read, and reports progress every `PROGRESS_INTERVAL` bytes.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.bytes_read += bytes;
        if self.bytes_read >= self.bytes_reported + PROGRESS_INTERVAL {
            self.bytes_reported = self.bytes_read;
            (self.progress)(self.bytes_read.min(self.bytes_total), self.bytes_total);
        }
    }

    /// Reports that everything was read; returns the result.
    pub(super) fn finish(mut self) -> Recovered {
        (self.progress)(self.bytes_total, self.bytes_total);
        self.out.logs = self.logs.into_values().map(|loaded| loaded.log).collect();
        self.out
    }
}
