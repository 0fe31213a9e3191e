//! Writes one new directory: a log with the chunks, an empty log, a checkpoint, and the mark of a close.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::table::{Counters, ITEM_OVERHEAD, Restore, SavedItem};
use engram_core::{
    Error, Lsn, NewItem, Result, Schema, SessionNumber, Snapshot, Spans, TableOptions, TableState,
    Trajectory, Volatile, WindowShape,
};

use super::super::checkpoint_writer::{self, CheckpointHeader, TableView};
use super::super::clock_reading::ClockReading;
use super::super::close_mark::CloseMark;
use super::super::directory::{Directory as _, ReadableDirectory as _};
use super::super::errors::failed;
use super::super::file_format::{FILE_HEADER_BYTES, FileHeader, FileKind};
use super::super::file_names::log_name;
use super::super::log::{self, Log};
use super::super::os_directory::OsDirectory;
use super::super::record_writer::RecordWriter;
use super::super::serial_ranges::SerialRanges;
use super::division::share;
use super::plan::{PlannedItem, ShardedTable};
use super::source::Source;

/// Number of the log with the chunks; the next one is empty.
const CHUNK_LOG: u64 = 1;

/// Number of the checkpoint.
const CHECKPOINT: u64 = 1;

/// A chunk's source and its serial there.
pub(super) type ChunkSource = (usize, u64);

/// A chunk of the new directory, without its payload.
#[derive(Debug)]
struct StoredChunk {
    chunk: Arc<Chunk>,
    /// Length and checksum of the payload.
    payload: (usize, u32),
}

/// A new directory that is being written.
#[derive(Debug)]
pub(super) struct ShardWriter {
    files: OsDirectory,
    /// Random id of the store.
    store: u64,
    records: RecordWriter,
    log: Arc<Log>,
    chunks: Vec<StoredChunk>,
    /// Indices in `chunks`.
    by_source: HashMap<ChunkSource, usize>,
    /// Indices in `chunks` by the chunk's key: the same chunk may come from several sources.
    by_key: HashMap<u64, usize>,
    schemas: Distinct<Schema>,
}

/// Equal definitions of several logs, so that each is written once.
#[derive(Debug)]
struct Distinct<T> {
    values: Vec<Arc<T>>,
    /// The given value, which keeps its address in use, and the equal one in `values`, by the address of the given one.
    by_address: HashMap<usize, (Arc<T>, Arc<T>)>,
}

impl<T: PartialEq> Distinct<T> {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            by_address: HashMap::new(),
        }
    }

    fn get(&mut self, value: &Arc<T>) -> Arc<T> {
        let entry = match self.by_address.entry(Arc::as_ptr(value).addr()) {
            Entry::Occupied(entry) => return Arc::clone(&entry.get().1),
            Entry::Vacant(entry) => entry,
        };
        let known = self.values.iter().find(|known| *known == value).cloned();
        let distinct = known.unwrap_or_else(|| {
            self.values.push(Arc::clone(value));
            Arc::clone(value)
        });
        entry.insert((Arc::clone(value), Arc::clone(&distinct)));
        distinct
    }
}

/// True if the chunks have the same origin, schema and extents.
fn is_same(one: &Chunk, other: &Chunk) -> bool {
    one.origin() == other.origin()
        && one.schema() == other.schema()
        && one.extents() == other.extents()
}

impl ShardWriter {
    /// # Errors
    /// [`Error::Storage`] if the first log cannot be created.
    pub(super) fn new(files: OsDirectory, store: u64) -> Result<Self> {
        let header = FileHeader {
            kind: FileKind::Log,
            store,
            number: CHUNK_LOG,
        };
        let file = files.create_large(&log_name(CHUNK_LOG));
        let file = file.map_err(|error| failed(files.path(), "written", &error))?;
        Ok(Self {
            records: RecordWriter::new(file, header),
            log: Log::new(store, CHUNK_LOG),
            files,
            store,
            chunks: Vec::new(),
            by_source: HashMap::new(),
            by_key: HashMap::new(),
            schemas: Distinct::new(),
        })
    }

    /// Writes a chunk, unless this directory already has the same one from another source. `chunk` is without its payload.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be written.
    pub(super) fn add_chunk(
        &mut self,
        source: ChunkSource,
        chunk: Chunk,
        payload: &[u8],
    ) -> Result<()> {
        let checksum = (payload.len(), crc32c::crc32c(payload));
        let index = self.chunks.len();
        if let Some(known) = self.by_key.get(&chunk.origin().key) {
            let stored = &self.chunks[*known];
            if stored.payload == checksum && is_same(&stored.chunk, &chunk) {
                self.by_source.insert(source, *known);
                return Ok(());
            }
        }
        let schema = self.schemas.get(chunk.schema());
        let serial = index as u64 + 1;
        let added = self.records.add_chunk(&chunk, &schema, payload, serial);
        let bytes = added.map_err(|error| failed(self.files.path(), "written", &error))?;
        drop(self.log.add_chunk(&chunk, serial, bytes));
        self.by_key.insert(chunk.origin().key, index);
        self.by_source.insert(source, index);
        self.chunks.push(StoredChunk {
            chunk: Arc::new(chunk),
            payload: checksum,
        });
        Ok(())
    }

    /// Bytes that `max_bytes` counts for a table with these items.
    pub(super) fn table_bytes<'a>(
        &self,
        items: impl Iterator<Item = &'a PlannedItem<'a>>,
        sources: &[Source],
    ) -> u64 {
        let mut bytes = 0;
        let mut counted = HashSet::new();
        for item in items {
            bytes += ITEM_OVERHEAD + item.saved.trajectory.footprint() as u64;
            for chunk in item.saved.trajectory.chunks() {
                let serial = sources[item.source].serial(chunk);
                if let Some(index) = self.by_source.get(&(item.source, serial))
                    && counted.insert(*index)
                {
                    let (payload_bytes, _) = self.chunks[*index].payload;
                    let header_bytes = chunk.footprint() - chunk.payload().len();
                    bytes += (header_bytes + payload_bytes) as u64;
                }
            }
        }
        bytes
    }

    /// Writes the tables, given with their new options, and makes everything durable. `clock` is the current reading of
    /// the new clock.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be written; those of [`Restore`].
    pub(super) fn finish<'a>(
        self,
        shard: usize,
        tables: impl Iterator<Item = (&'a ShardedTable<'a>, &'a TableOptions)>,
        sources: &[Source],
        clock: u64,
    ) -> Result<()> {
        let Self {
            files,
            store,
            records,
            chunks,
            by_source,
            ..
        } = self;
        let mut contents = ShardContents {
            shard,
            sources,
            chunks: &chunks,
            by_source: &by_source,
            shapes: Distinct::new(),
            clock,
        };
        let mut views = Vec::new();
        for (table, options) in tables {
            views.push(contents.table(table, options)?);
        }
        let next_log = CHUNK_LOG + 1;
        let clock = ClockReading::now(clock);
        let written = records.finish().and_then(|log_bytes| {
            let header = CheckpointHeader {
                first_log: next_log,
                first_change: 1,
                clock,
                next_serial: chunks.len() as u64 + 1,
                next_table: views.len() as u64 + 1,
                earlier_logs: vec![(CHUNK_LOG, log_bytes - FILE_HEADER_BYTES as u64)],
                has_unlogged: true,
                serials: SerialRanges::from_serials((1..=chunks.len() as u64).collect()),
            };
            log::create(&files, store, next_log)?;
            let views = (1..)
                .zip(&views)
                .map(|(number, (options, snapshot))| TableView {
                    number,
                    options,
                    snapshot,
                });
            let views: Vec<TableView<'_>> = views.collect();
            checkpoint_writer::write(&files, (store, CHECKPOINT), &header, views.into_iter())?;
            let mark = CloseMark {
                store,
                log: next_log,
                bytes: FILE_HEADER_BYTES as u64,
                newest_log: next_log,
            };
            mark.write(&files, true)
        });
        written.map_err(|error| failed(files.path(), "written", &error))
    }
}

/// What the tables of a new directory are built from.
#[derive(Debug)]
struct ShardContents<'a> {
    shard: usize,
    sources: &'a [Source],
    chunks: &'a [StoredChunk],
    by_source: &'a HashMap<ChunkSource, usize>,
    shapes: Distinct<WindowShape>,
    clock: u64,
}

impl ShardContents<'_> {
    /// A table's options and snapshot.
    fn table(
        &mut self,
        table: &ShardedTable<'_>,
        options: &TableOptions,
    ) -> Result<(TableOptions, Box<Snapshot>)> {
        let (shard, shards) = (self.shard, table.shard_sizes.len());
        let options = TableOptions {
            seed: table.seed(shard),
            ..options.clone()
        };
        let shared_options = Arc::new(options.clone());
        let sampled_now = table.shard_sampled.iter().sum();
        let empty = TableState::new(Arc::clone(&shared_options), Arc::new(Volatile))?;
        let counters = Counters {
            limiter: table.limiters().swap_remove(shard),
            rng: empty.generator().clone(),
            next_seq: table.shard_sizes[shard],
            first_seq: 0,
            next_update_number: table.items.len() as u64,
            num_deleted_episodes: share(table.deleted_episodes, shards, shard),
            num_unique_samples: table.shard_sampled[shard]
                + share(table.sampled.saturating_sub(sampled_now), shards, shard),
            leased: 0,
            last_lsn: Lsn::default(),
        };
        let mut restore = Restore::new(shared_options, Arc::new(Volatile), counters)?;
        for (seq, item) in (0..).zip(table.items_of(shard)) {
            let saved = &item.saved;
            restore.add_item(SavedItem {
                item: NewItem {
                    key: saved.key,
                    priority: saved.priority,
                    trajectory: self.trajectory(item.source, saved.trajectory)?,
                },
                seq,
                update_number: item.update_number,
                times_sampled: saved.times_sampled,
                leases: 0,
                inserted_at: item.inserted_at,
            })?;
        }
        // The time until a session is forgotten begins again: resharding may take longer.
        for (session, number) in &table.sessions {
            let number = SessionNumber {
                session: *session,
                number: *number,
            };
            restore.add_session(number, self.clock);
        }
        Ok((options, restore.finish()?.snapshot()))
    }

    /// The same trajectory with the chunks of this directory.
    fn trajectory(&mut self, source: usize, trajectory: &Trajectory) -> Result<Trajectory> {
        let new_chunk = |chunk: &Arc<Chunk>| {
            let serial = self.sources[source].serial(chunk);
            let index = self.by_source.get(&(source, serial));
            index
                .map(|index| Arc::clone(&self.chunks[*index].chunk))
                .ok_or_else(|| {
                    let name = self.sources[source].name();
                    Error::Storage(format!("{name}: chunk {serial} was not copied"))
                })
        };
        Ok(match trajectory {
            Trajectory::Rows {
                chunk,
                offset,
                len,
                squeeze,
            } => Trajectory::Rows {
                chunk: new_chunk(chunk)?,
                offset: *offset,
                len: *len,
                squeeze: *squeeze,
            },
            Trajectory::Window {
                chunk,
                offset,
                shape,
            } => Trajectory::Window {
                chunk: new_chunk(chunk)?,
                offset: *offset,
                shape: self.shapes.get(shape),
            },
            Trajectory::Spans(spans) => {
                let chunks = spans.chunks.iter().map(new_chunk);
                let chunks: Vec<_> = chunks.collect::<Result<_>>()?;
                Trajectory::Spans(Arc::new(Spans {
                    layout: Arc::clone(&spans.layout),
                    chunks: chunks.into(),
                    columns: Arc::clone(&spans.columns),
                    slices: spans.slices.clone(),
                }))
            }
        })
    }
}
