//! A random workload for stores in tests. It records a table's content after each call that changes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use engram_core::{
    Chunk, DeferredDrops, NewItem, RateLimits, SelectorKind, TableOptions, TableState, Trajectory,
};
use engram_testkit::byte_chunk;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::power_loss_directory::PowerLossDirectory;
use crate::disk::directory_reader::Recovered;
use crate::disk::journal::Durability;
use crate::disk::recover::recover;
use crate::disk::storage::{CheckpointView, Opened, Storage, StorageOptions};

/// Changes are synced at once, and two checkpoints are kept.
pub(super) const OPTIONS: StorageOptions = StorageOptions {
    durability: Durability::Disk {
        interval: Duration::ZERO,
    },
    keep: 2,
};

fn as_f64(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap())
}

pub(super) fn table_options(id: u64) -> TableOptions {
    TableOptions {
        max_size: 30,
        max_times_sampled: if id == 2 { 2 } else { 0 },
        ttl: (id == 3).then_some(500),
        sampler: match id {
            1 => SelectorKind::Uniform,
            2 => SelectorKind::Fifo,
            _ => SelectorKind::Prioritized { exponent: 0.7 },
        },
        remover: match id {
            1 => SelectorKind::Fifo,
            2 => SelectorKind::Uniform,
            _ => SelectorKind::MinHeap,
        },
        seed: id,
        ..engram_testkit::table_options(&format!("table {id}"))
    }
}

/// Creates a table, whose number must be the next one.
pub(super) fn create_table(opened: &mut Opened, id: u64) {
    let options = Arc::new(table_options(id));
    opened.storage.record_table_created(id, &options);
    let table = TableState::new(options, opened.storage.sink(id)).unwrap();
    opened.tables.insert(id, table);
    opened.next_table = id + 1;
}

/// Inserts an item with a chunk of its own.
pub(super) fn insert(table: &mut TableState, key: u64) {
    let item = NewItem {
        key,
        priority: 1.0,
        trajectory: Trajectory::Rows {
            chunk: byte_chunk(key, 4, 100),
            offset: 1,
            len: 2,
            squeeze: false,
        },
    };
    table.insert(item, 0, &mut DeferredDrops::default());
}

/// Number of each table, and how many items it has.
pub(super) fn sizes(tables: &BTreeMap<u64, TableState>) -> Vec<(u64, u64)> {
    let sizes = tables.iter().map(|(id, table)| (*id, table.stats().size));
    sizes.collect()
}

/// Waits until a table's last change is durable.
pub(super) fn wait_until_durable(opened: &Opened, id: u64) -> engram_core::Result<()> {
    let last = opened.tables[&id].last_lsn();
    loop {
        match opened.storage.sink(id).poll_durable(last, Waker::noop()) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => std::thread::sleep(Duration::from_micros(20)),
        }
    }
}

/// Describes a table's content; of the items' data, only the first byte of the first chunk.
pub(super) fn describe(table: &mut TableState) -> String {
    let snapshot = table.snapshot();
    let items = snapshot.items().map(|item| {
        let content = item.trajectory.chunks()[0].payload()[0];
        let usage = (
            item.update_number,
            item.times_sampled,
            item.leases,
            item.inserted_at,
        );
        (item.seq, item.key, item.priority.to_bits(), usage, content)
    });
    // The items are sorted below: a recovered table may have them in other slots.
    let mut items: Vec<_> = items.collect();
    let keys: Vec<u64> = items.iter().map(|item| item.1).collect();
    let orders = snapshot.orders().map(|order| {
        order.map(|order| {
            order
                .iter()
                .map(|position| keys[*position as usize])
                .collect::<Vec<_>>()
        })
    });
    items.sort_unstable();
    let mut sessions: Vec<_> = snapshot
        .sessions()
        .map(|entry| format!("{entry:?}"))
        .collect();
    sessions.sort_unstable();
    format!("{:?} {items:?} {orders:?} {sessions:?}", snapshot.counters)
}

/// What a store's tables contained after each call, and which changes were reported as durable.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Content of a table after each call, by table and number of the call's last change.
    pub(super) descriptions: BTreeMap<(u64, u64), String>,
    /// Number of each table's last change that was reported as durable, by table.
    durable: BTreeMap<u64, u64>,
    /// First byte of each item's data, by key.
    contents: BTreeMap<u64, u8>,
    next_key: u64,
    clock: u64,
}

impl History {
    /// Creates missing tables, then makes fewer than 200 random changes; stops early at the power loss.
    pub(super) fn run(&mut self, opened: &mut Opened, rng: &mut Xoshiro256PlusPlus) {
        let Opened {
            storage,
            tables,
            next_table,
            ..
        } = opened;
        while *next_table < 4 {
            let id = *next_table;
            storage.record_table_created(id, &table_options(id));
            tables.insert(
                id,
                TableState::new(Arc::new(table_options(id)), storage.sink(id)).unwrap(),
            );
            *next_table += 1;
        }
        let mut shared_chunks: Vec<Arc<Chunk>> = Vec::new();
        for _ in 0..rng.next_u64() % 200 {
            let id = 1 + rng.next_u64() % 3;
            let table = tables.get_mut(&id).unwrap();
            let deferred = &mut DeferredDrops::default();
            self.clock += 10;
            match rng.next_u64() % 10 {
                0..5 => {
                    let item = self.next_item(&mut shared_chunks, rng);
                    table.insert(item, self.clock, deferred);
                }
                5 => {
                    let keys = (0..3).map(|_| self.next_key.saturating_sub(rng.next_u64() % 20));
                    let keys: Vec<u64> = keys.collect();
                    table.update(keys.iter().map(|key| (*key, as_f64(key % 7))));
                }
                6 => {
                    let key = self.next_key.saturating_sub(rng.next_u64() % 20);
                    table.delete(&[key], deferred);
                }
                7 => while !table.expire(self.clock, deferred) {},
                8 => {
                    let mut draws = Vec::new();
                    let leased = rng.next_u64().is_multiple_of(2);
                    table.draw(3, leased, &mut draws, deferred);
                    let handles: Vec<_> = draws.iter().map(|draw| draw.handle).collect();
                    if !leased && rng.next_u64().is_multiple_of(4) {
                        table.undo_samples(handles.iter().copied());
                    }
                    if leased {
                        let (returned, acknowledged) = handles.split_at(handles.len() / 2);
                        table.acknowledge(acknowledged.iter().copied(), deferred);
                        if rng.next_u64().is_multiple_of(2) {
                            table.return_leases(returned.iter().copied());
                        }
                    }
                }
                _ if rng.next_u64().is_multiple_of(4) => {
                    let limits = RateLimits::min_size(1 + rng.next_u64() % 3);
                    table.set_limits(limits).unwrap();
                }
                _ if rng.next_u64().is_multiple_of(8) => table.reset(deferred),
                _ => {
                    let _ = storage.checkpoint(false, |start_log| {
                        let position = start_log(self.clock);
                        if rng.next_u64().is_multiple_of(2) {
                            // This change is both in the log and in the checkpoint.
                            let item = self.next_item(&mut shared_chunks, rng);
                            let table = tables.get_mut(&id).unwrap();
                            table.insert(item, self.clock, deferred);
                            while !table.shrink(deferred) {}
                            self.descriptions
                                .insert((id, table.last_lsn().0), describe(table));
                        }
                        let tables = tables.iter_mut().map(|(id, table)| {
                            (*id, Arc::clone(table.options()), *table.snapshot())
                        });
                        let view = CheckpointView {
                            tables: tables.collect(),
                            next_table: *next_table,
                        };
                        Ok((position, view))
                    });
                    continue;
                }
            }
            while !table.shrink(deferred) {}
            let lsn = table.last_lsn();
            self.descriptions.insert((id, lsn.0), describe(table));
            // A table without changes is not checked: its creation may not be durable.
            if rng.next_u64().is_multiple_of(4) && lsn.0 > 0 {
                loop {
                    match storage.sink(id).poll_durable(lsn, Waker::noop()) {
                        Poll::Ready(Ok(())) => {
                            self.durable.insert(id, lsn.0);
                            break;
                        }
                        Poll::Ready(Err(_)) => return,
                        Poll::Pending => std::thread::sleep(Duration::from_micros(20)),
                    }
                }
            }
        }
    }

    /// Creates an item with the next key. Its chunk may be shared with other items.
    fn next_item(
        &mut self,
        shared_chunks: &mut Vec<Arc<Chunk>>,
        rng: &mut Xoshiro256PlusPlus,
    ) -> NewItem {
        self.next_key += 1;
        if shared_chunks.is_empty() || rng.next_u64().is_multiple_of(3) {
            shared_chunks.push(byte_chunk(self.next_key, 4, 100));
        }
        let index = usize::try_from(rng.next_u64()).unwrap() % shared_chunks.len();
        let chunk = Arc::clone(&shared_chunks[index]);
        if shared_chunks.len() > 3 {
            shared_chunks.remove(0);
        }
        self.contents.insert(self.next_key, chunk.payload()[0]);
        NewItem {
            key: self.next_key,
            priority: as_f64(rng.next_u64() % 100),
            trajectory: Trajectory::Rows {
                chunk,
                offset: 1,
                len: 2,
                squeeze: false,
            },
        }
    }

    /// Checks that durable changes were recovered, and that each table with durable changes has the content that it
    /// had after its last recovered change, if that content was recorded. Returns the number of tables compared.
    pub(super) fn check_after_power_loss(
        &self,
        tables: &mut BTreeMap<u64, TableState>,
        case: &str,
    ) -> usize {
        let mut compared = 0;
        for (id, durable) in &self.durable {
            let table = tables
                .get_mut(id)
                .unwrap_or_else(|| panic!("{case}: table {id} is missing"));
            let last = table.last_lsn().0;
            assert!(
                last >= *durable,
                "{case}: table {id} ends with {last}, {durable} was durable"
            );
            if let Some(expected) = self.descriptions.get(&(*id, last)) {
                assert_eq!(
                    &describe(table),
                    expected,
                    "{case}: table {id} after {last}"
                );
                compared += 1;
            }
        }
        compared
    }

    /// Checks that each item has its original data and, without a repair, that each table has the content that it
    /// had after its last recovered change, if that content was recorded.
    pub(super) fn check_recovered(
        &self,
        tables: &mut BTreeMap<u64, TableState>,
        repaired: bool,
        case: &str,
    ) {
        for (id, table) in tables {
            for item in table.snapshot().items() {
                let content = item.trajectory.chunks()[0].payload()[0];
                assert_eq!(
                    self.contents.get(&item.key),
                    Some(&content),
                    "{case}: item {}",
                    item.key
                );
            }
            let last = table.last_lsn().0;
            let expected = self.descriptions.get(&(*id, last));
            if let Some(expected) = expected.filter(|_| !repaired) {
                assert_eq!(
                    &describe(table),
                    expected,
                    "{case}: table {id} after {last}"
                );
            }
        }
    }
}

/// Recovers a directory without a repair.
pub(super) fn read_back(files: &PowerLossDirectory) -> engram_core::Result<Recovered> {
    recover(files, false, &mut |_, _| {}).map_err(|error| error.into_error(files))
}

/// Opens a store without a repair, creating it if necessary.
pub(super) fn open_store(files: &PowerLossDirectory, entropy: u64) -> engram_core::Result<Opened> {
    let recovered = read_back(files)?;
    Storage::start(Arc::new(files.clone()), recovered, OPTIONS, entropy)
}
