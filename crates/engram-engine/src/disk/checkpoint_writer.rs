//! Writing a checkpoint: all tables at one moment each, as records of one file.

use std::io;
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::{Snapshot, TableOptions};

use super::byte_codec::PutBytes;
use super::change_codec::put_rng;
use super::file_format::{FileHeader, Kind};
use super::file_names::{UNFINISHED, checkpoint_name};
use super::file_system::FileSystem;
use super::record_codec::{
    DictionaryWriter, ItemRef, WrittenDictionary, kind, put_limits, put_options, put_session,
};
use super::record_writer::{AT_ONCE, RecordWriter};
use super::recover::ClockReading;
use super::serial_ranges::SerialRanges;

/// Items of one record.
pub(crate) const ITEMS: usize = 4096;

/// A table and its state at one moment.
#[derive(Debug)]
pub(crate) struct TableView<'a> {
    pub(crate) id: u64,
    pub(crate) options: &'a TableOptions,
    pub(crate) snapshot: &'a Snapshot,
}

/// What a checkpoint says beside its tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CheckpointHeader {
    /// Where replay begins: a log, and its first change.
    pub(crate) first: u64,
    pub(crate) first_change: u64,
    pub(crate) moment: ClockReading,
    pub(crate) next_serial: u64,
    pub(crate) next_table: u64,
    /// Number and bytes of each earlier log that is still needed.
    pub(crate) needed: Vec<(u64, u64)>,
    /// The chunks that items refer to.
    pub(crate) serials: SerialRanges,
}

/// A checkpoint that is not finished.
#[derive(Debug)]
struct CheckpointWriter {
    records: RecordWriter,
    store: u64,
    told: WrittenDictionary,
}

impl DictionaryWriter for CheckpointWriter {
    fn told(&mut self) -> &mut WrittenDictionary {
        &mut self.told
    }

    fn record(&mut self, kind: u32, body: &[u8]) {
        self.records.add(kind, body, &[]);
    }
}

impl CheckpointWriter {
    fn table(&mut self, saved: &TableView<'_>) {
        let TableView {
            id,
            options,
            snapshot,
        } = *saved;
        let counters = &snapshot.counters;
        let mut body = Vec::new();
        body.put_u64(id);
        put_options(&mut body, options);
        put_limits(&mut body, &counters.limiter.limits);
        for count in [
            counters.limiter.inserts,
            counters.limiter.samples,
            counters.limiter.deletes,
            counters.next_seq,
            counters.first_seq,
            counters.next_touch,
            counters.num_deleted_episodes,
            counters.num_unique_samples,
            counters.leased,
            counters.last_lsn.0,
        ] {
            body.put_u64(count);
        }
        put_rng(&mut body, &counters.rng);
        self.record(kind::TABLE, &body);
        self.items(snapshot);
        for (order, which) in snapshot.orders().into_iter().zip([0, 1]) {
            for (part, places) in order
                .iter()
                .flat_map(|order| order.chunks(ITEMS))
                .enumerate()
            {
                let mut body = Vec::new();
                body.put_u8(which);
                body.put_u64((part * ITEMS) as u64);
                body.put_len(places.len());
                for place in places {
                    body.put_u32(*place);
                }
                self.record(kind::ORDER, &body);
            }
        }
        let mut sessions: Vec<_> = snapshot.sessions().collect();
        sessions.sort_unstable_by_key(|(_, used)| *used);
        for some in sessions.chunks(ITEMS) {
            let mut body = Vec::new();
            body.put_len(some.len());
            for (number, used) in some {
                put_session(&mut body, *number);
                body.put_u64(*used);
            }
            self.record(kind::SESSIONS, &body);
        }
    }

    fn items(&mut self, snapshot: &Snapshot) {
        let store = self.store;
        let serial = |chunk: &Arc<Chunk>| chunk.location(store).map_or(0, |(serial, _)| serial);
        let mut items = snapshot.items().peekable();
        while items.peek().is_some() {
            let mut body = vec![0; 4];
            let mut count = 0_u32;
            while body.len() < AT_ONCE && (count as usize) < ITEMS {
                let Some(item) = items.next() else {
                    break;
                };
                let what = ItemRef {
                    key: item.key,
                    priority: item.priority,
                    trajectory: item.trajectory,
                };
                self.item(&mut body, what, &serial);
                body.put_u64(item.seq);
                body.put_u64(item.touched);
                body.put_u32(item.times_sampled);
                body.put_u32(item.leases);
                body.put_u64(item.inserted_at.unwrap_or_default());
                count += 1;
            }
            body[..4].copy_from_slice(&count.to_le_bytes());
            self.record(kind::ITEMS, &body);
        }
    }
}

/// Writes a checkpoint whose chunks are all in logs; it counts once this returns. Returns its bytes.
pub(crate) fn write<'a>(
    files: &dyn FileSystem,
    head: (u64, u64),
    logs: &CheckpointHeader,
    tables: impl ExactSizeIterator<Item = TableView<'a>>,
) -> io::Result<u64> {
    let name = checkpoint_name(head.1);
    let unfinished = format!("{name}{UNFINISHED}");
    let written = write_unfinished(files, &unfinished, head, logs, tables).and_then(|bytes| {
        files.rename(&unfinished, &name)?;
        files.sync_directory()?;
        Ok(bytes)
    });
    if written.is_err() {
        // What is left is removed by the next to open the directory, if not now.
        let _ = files.remove(&unfinished);
    }
    written
}

fn write_unfinished<'a>(
    files: &dyn FileSystem,
    name: &str,
    (store, number): (u64, u64),
    logs: &CheckpointHeader,
    tables: impl ExactSizeIterator<Item = TableView<'a>>,
) -> io::Result<u64> {
    let head = FileHeader {
        kind: Kind::Checkpoint,
        store,
        number,
    };
    let mut out = CheckpointWriter {
        records: RecordWriter::new(files.create_large(name)?, number, head.bytes().to_vec()),
        store,
        told: WrittenDictionary::default(),
    };
    let mut body = Vec::new();
    for count in [
        logs.first,
        logs.first_change,
        logs.moment.clock,
        logs.moment.system,
        logs.next_serial,
        logs.next_table,
    ] {
        body.put_u64(count);
    }
    body.put_len(logs.needed.len());
    for (number, bytes) in &logs.needed {
        body.put_u64(*number);
        body.put_u64(*bytes);
    }
    out.record(kind::LOGS, &body);
    for ranges in logs.serials.0.chunks(ITEMS) {
        let mut body = Vec::new();
        body.put_len(ranges.len());
        for (first, count) in ranges {
            body.put_u64(*first);
            body.put_u64(*count);
        }
        out.record(kind::SERIALS, &body);
    }
    let count = tables.len();
    for saved in tables {
        out.table(&saved);
        out.records.check()?;
    }
    let mut body = Vec::new();
    body.put_len(count);
    body.put_u64(out.records.count());
    out.record(kind::END, &body);
    out.records.finish()
}
