//! Writing a checkpoint: a snapshot of each table, as records of one file.

use std::io;
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::{Snapshot, TableOptions};

use super::byte_codec::BodyWriter;
use super::change_codec::put_rng;
use super::clock_reading::ClockReading;
use super::directory::Directory;
use super::file_format::{FileHeader, FileKind};
use super::file_names::{UNFINISHED_SUFFIX, checkpoint_name};
use super::kind;
use super::options_codec::{put_limits, put_options};
use super::record_codec::{DictionaryWriter as _, put_session_number};
use super::record_writer::{RecordWriter, WRITE_BYTES};
use super::serial_ranges::SerialRanges;

/// Maximum number of entries (items, order positions, sessions, serial ranges) per record.
pub(crate) const MAX_RECORD_ENTRIES: usize = 4096;

/// A table with the snapshot to write.
#[derive(Debug)]
pub(crate) struct TableView<'a> {
    /// The table's number in the store's files.
    pub(crate) number: u64,
    pub(crate) options: &'a TableOptions,
    pub(crate) snapshot: &'a Snapshot,
}

/// Contents of a checkpoint other than its tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CheckpointHeader {
    /// Number of the log at whose beginning replay starts.
    pub(crate) first_log: u64,
    /// Number of the first change of that log.
    pub(crate) first_change: u64,
    /// The store's clock and the wall-clock time when that log was started.
    pub(crate) clock: ClockReading,
    /// Serial that the next chunk gets: a chunk's number in the store, never reused.
    pub(crate) next_serial: u64,
    /// Number that the next table gets in the store's files.
    pub(crate) next_table: u64,
    /// The log before `first_log`, and each earlier one that contains chunks in use: number, and bytes of its records.
    pub(crate) earlier_logs: Vec<(u64, u64)>,
    /// True if the checkpoint has contents that a replay of the logs cannot produce, such as restored or imported
    /// tables.
    pub(crate) has_unlogged: bool,
    /// Serials of the chunks that the checkpoint's items refer to.
    pub(crate) serials: SerialRanges,
}

/// Writes a table with its items, orders and sessions.
fn write_table(out: &mut RecordWriter, table: &TableView<'_>) {
    let TableView {
        number,
        options,
        snapshot,
    } = *table;
    let counters = &snapshot.counters;
    let mut body = Vec::new();
    body.put_u64(number);
    put_options(&mut body, options);
    put_limits(&mut body, &counters.limiter.limits);
    for count in [
        counters.limiter.inserts,
        counters.limiter.samples,
        counters.limiter.deletes,
        counters.next_seq,
        counters.first_seq,
        counters.next_update_number,
        counters.num_deleted_episodes,
        counters.num_unique_samples,
        counters.leased,
        counters.last_lsn.0,
    ] {
        body.put_u64(count);
    }
    put_rng(&mut body, &counters.rng);
    out.write_record(kind::TABLE, &body);
    write_items(out, snapshot);
    // The item orders of the sampler (0) and the remover (1).
    for (order, selector) in snapshot.orders().into_iter().zip([0, 1]) {
        for (part, positions) in order
            .iter()
            .flat_map(|order| order.chunks(MAX_RECORD_ENTRIES))
            .enumerate()
        {
            let mut body = Vec::new();
            body.put_u8(selector);
            body.put_u64((part * MAX_RECORD_ENTRIES) as u64);
            body.put_len(positions.len());
            for position in positions {
                body.put_u32(*position);
            }
            out.write_record(kind::ORDER, &body);
        }
    }
    let mut sessions: Vec<_> = snapshot.sessions().collect();
    sessions.sort_unstable_by_key(|(_, last_use)| *last_use);
    for part in sessions.chunks(MAX_RECORD_ENTRIES) {
        let mut body = Vec::new();
        body.put_len(part.len());
        for (number, last_use) in part {
            put_session_number(&mut body, *number);
            body.put_u64(*last_use);
        }
        out.write_record(kind::SESSIONS, &body);
    }
}

fn write_items(out: &mut RecordWriter, snapshot: &Snapshot) {
    let store = out.header.store;
    let serial_of = |chunk: &Arc<Chunk>| chunk.location(store).map_or(0, |(serial, _)| serial);
    let mut items = snapshot.items().peekable();
    while items.peek().is_some() {
        let mut body = vec![0; 4];
        let mut count = 0_u32;
        while body.len() < WRITE_BYTES && (count as usize) < MAX_RECORD_ENTRIES {
            let Some(item) = items.next() else {
                break;
            };
            let (key, priority) = (item.key, item.priority);
            out.put_item(&mut body, key, priority, item.trajectory, &serial_of);
            body.put_u64(item.seq);
            body.put_u64(item.update_number);
            body.put_u32(item.times_sampled);
            body.put_u32(item.leases);
            body.put_u64(item.inserted_at.unwrap_or_default());
            count += 1;
        }
        body[..4].copy_from_slice(&count.to_le_bytes());
        out.write_record(kind::ITEMS, &body);
    }
}

/// Writes a checkpoint, whose chunks must all be in durable logs; returns its size in bytes. Once this
/// returns, the checkpoint is durable. After an error, its file is removed if possible.
pub(crate) fn write<'a>(
    files: &dyn Directory,
    (store, number): (u64, u64),
    header: &CheckpointHeader,
    tables: impl ExactSizeIterator<Item = TableView<'a>>,
) -> io::Result<u64> {
    let name = checkpoint_name(number);
    let unfinished = format!("{name}{UNFINISHED_SUFFIX}");
    let written =
        write_unfinished(files, &unfinished, (store, number), header, tables).and_then(|bytes| {
            files.rename(&unfinished, &name)?;
            Ok(bytes)
        });
    if written.is_err() {
        // If this fails, the file is removed when the directory is opened next.
        let _ = files.remove(&unfinished);
    }
    let bytes = written?;
    files.sync_directory().inspect_err(|_| {
        let _ = files.remove(&name);
    })?;
    Ok(bytes)
}

/// Writes and syncs the whole file under this name.
fn write_unfinished<'a>(
    files: &dyn Directory,
    name: &str,
    (store, number): (u64, u64),
    header: &CheckpointHeader,
    tables: impl ExactSizeIterator<Item = TableView<'a>>,
) -> io::Result<u64> {
    let file_header = FileHeader {
        kind: FileKind::Checkpoint,
        store,
        number,
    };
    let mut out = RecordWriter::new(files.create_large(name)?, file_header);
    let mut body = Vec::new();
    for number in [
        header.first_log,
        header.first_change,
        header.clock.store,
        header.clock.system,
        header.next_serial,
        header.next_table,
    ] {
        body.put_u64(number);
    }
    body.put_len(header.earlier_logs.len());
    for (number, bytes) in &header.earlier_logs {
        body.put_u64(*number);
        body.put_u64(*bytes);
    }
    body.put_u8(header.has_unlogged.into());
    out.write_record(kind::LOGS, &body);
    for ranges in header.serials.0.chunks(MAX_RECORD_ENTRIES) {
        let mut body = Vec::new();
        body.put_len(ranges.len());
        for (first, count) in ranges {
            body.put_u64(*first);
            body.put_u64(*count);
        }
        out.write_record(kind::SERIALS, &body);
    }
    let table_count = tables.len();
    for table in tables {
        write_table(&mut out, &table);
        out.check()?;
    }
    let mut body = Vec::new();
    body.put_len(table_count);
    body.put_u64(out.count());
    out.write_record(kind::END, &body);
    out.finish()
}
