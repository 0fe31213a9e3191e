//! dm-reverb's checkpoints: a directory `<time>` with `tables.tfrecord`, `items.tfrecord`, `chunks.tfrecord`, and
//! an empty file `DONE` once it is complete.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_core::selector::TableRng;
use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{
    DeferredDrops, Error, Lsn, RateLimiter, RateLimits, Result, SelectorKind, TableOptions,
    TableState, Volatile,
};
use engram_engine::Engine;
use rand::SeedableRng as _;

use crate::chunk::Chunks;
use crate::item::{ByKey, Items};
use crate::note::note;
use crate::pb;
use crate::pb::key_distribution_options::Distribution;
use crate::records::Records;

/// A checkpoint that was read.
#[derive(Debug)]
pub struct Imported {
    /// Where it lies.
    pub path: PathBuf,
    /// The tables that were added, and how many items each has.
    pub tables: BTreeMap<String, u64>,
    /// What could not be taken over.
    pub notes: Vec<String>,
}

/// Adds the tables of a checkpoint to an engine: `path`, or the newest complete one in it. `seed` is what their
/// random choices begin with: those of dm-reverb are not saved.
///
/// # Errors
/// [`Error::Storage`] where none is complete, or it cannot be read, or says what cannot be;
/// [`Error::InvalidArgument`] for a table whose name is taken; [`Error::Closed`]. Nothing was added then.
pub fn import(engine: &Engine, path: &Path, seed: u64) -> Result<Imported> {
    let path = find(path)?;
    let mut tables = tables(&path, seed)?;
    let mut chunks = Chunks::default();
    let by_key = read_chunks(&path, &mut chunks)?;
    let mut file = Records::open(&path, "items.tfrecord")?;
    while let Some(item) = file.message::<pb::PrioritizedItem>()? {
        let Some(table) = tables.get_mut(&item.table) else {
            return Err(file.problem(&format!(
                "is an item of table `{}`, which the checkpoint does not have",
                item.table
            )));
        };
        table
            .add(&mut chunks, &by_key, &item)
            .map_err(|error| file.problem(&format!("cannot be taken: {error}")))?;
    }
    for table in tables.values_mut() {
        for item in std::mem::take(&mut table.old) {
            let added = table.add(&mut chunks, &by_key, &item);
            added.map_err(|error| {
                Error::Storage(format!("tables.tfrecord: an item cannot be taken: {error}"))
            })?;
        }
    }
    let lost = (tables.iter()).filter(|(_, table)| !table.told_all);
    let lost = lost.map(|(name, _)| {
        format!("table `{name}`: its signature could not be kept whole, and is without its bounds or gone")
    });
    let notes = lost.collect();
    let states = tables.into_values().map(Saved::finish);
    let states: Vec<TableState> = states.collect::<Result<_>>()?;
    let sizes = states
        .iter()
        .map(|state| (state.options().name.clone(), state.stats().size));
    let tables = sizes.collect();
    engine.add_tables(states)?;
    Ok(Imported {
        path,
        tables,
        notes,
    })
}

/// The checkpoint itself, or the newest complete one in a directory of them: the last by name.
fn find(path: &Path) -> Result<PathBuf> {
    if path.join("DONE").is_file() {
        return Ok(path.to_owned());
    }
    let failed = |error| Error::Storage(format!("{} cannot be read: {error}", path.display()));
    let mut newest = None;
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?.path();
        if entry.join("DONE").is_file() && newest.as_ref().is_none_or(|newest| *newest < entry) {
            newest = Some(entry);
        }
    }
    newest.ok_or_else(|| {
        Error::Storage(format!(
            "{} has no complete checkpoint of dm-reverb: neither it nor a directory in it has a file DONE",
            path.display()
        ))
    })
}

fn tables(path: &Path, seed: u64) -> Result<BTreeMap<String, Saved>> {
    let mut tables = BTreeMap::new();
    let mut file = Records::open(path, "tables.tfrecord")?;
    while let Some(table) = file.message::<pb::PriorityTableCheckpoint>()? {
        let name = table.table_name.clone();
        let number = tables.len() as u64;
        let seed = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let saved = Saved::new(table, seed)
            .map_err(|problem| file.problem(&format!("is a table that cannot be: {problem}")))?;
        if tables.insert(name, saved).is_some() {
            return Err(file.problem("is a table that came before"));
        }
    }
    Ok(tables)
}

fn read_chunks(path: &Path, chunks: &mut Chunks) -> Result<ByKey> {
    let mut by_key = ByKey::new();
    let mut file = Records::open(path, "chunks.tfrecord")?;
    while let Some(message) = file.message::<pb::ChunkData>()? {
        let chunk = chunks
            .make(&message)
            .map_err(|status| file.problem(&format!("cannot be taken: {}", status.message())))?;
        if by_key.insert(message.chunk_key, Arc::new(chunk)).is_some() {
            return Err(file.problem(&format!(
                "is chunk {}, which came before",
                message.chunk_key
            )));
        }
    }
    Ok(by_key)
}

/// A table on its way.
struct Saved {
    options: Arc<TableOptions>,
    counters: Counters,
    items: Vec<SavedItem>,
    keys: HashSet<u64>,
    /// Items that its own record has: checkpoints once had them there.
    old: Vec<pb::PrioritizedItem>,
    /// Its note has all of its signature.
    told_all: bool,
}

impl Saved {
    fn new(mut table: pb::PriorityTableCheckpoint, seed: u64) -> Result<Self, String> {
        let old = std::mem::take(&mut table.deprecated_items);
        let limiter = table.rate_limiter.unwrap_or_default();
        let limits = limits(&limiter)?;
        let mut counts = RateLimiter::new(limits.clone());
        counts.inserts = number("insert_count", limiter.insert_count)?;
        counts.samples = number("sample_count", limiter.sample_count)?;
        counts.deletes = number("delete_count", limiter.delete_count)?;
        let counters = Counters {
            limiter: counts,
            rng: TableRng::seed_from_u64(seed),
            next_seq: 0,
            first_seq: 0,
            next_touch: 0,
            num_deleted_episodes: number("num_deleted_episodes", table.num_deleted_episodes)?,
            num_unique_samples: number("num_unique_samples", table.num_unique_samples)?,
            leased: 0,
            last_lsn: Lsn::default(),
        };
        let (note, told_all) = note(table.max_times_sampled, table.signature.as_ref());
        let options = TableOptions {
            note: Some(note.into()),
            name: table.table_name,
            max_size: number("max_size", table.max_size)?,
            max_bytes: None,
            max_times_sampled: u32::try_from(table.max_times_sampled).unwrap_or(0),
            ttl: None,
            sampler: selector("sampler", table.sampler)?,
            remover: selector("remover", table.remover)?,
            limits,
            signature: None,
            seed,
        };
        options.check().map_err(|error| error.to_string())?;
        Ok(Self {
            options: Arc::new(options),
            counters,
            items: Vec::new(),
            keys: HashSet::new(),
            old,
            told_all,
        })
    }

    fn add(
        &mut self,
        chunks: &mut Chunks,
        by_key: &ByKey,
        message: &pb::PrioritizedItem,
    ) -> Result<(), String> {
        let item = Items::make(chunks, by_key, &self.options, message);
        let item = item.map_err(|status| status.message().to_owned())?;
        let checked = self.options.check_item(&item);
        checked.map_err(|error| error.to_string())?;
        if !self.keys.insert(item.key) {
            return Err(format!(
                "its key, {}, without the highest bit is that of an earlier one",
                message.key
            ));
        }
        let number = self.items.len() as u64;
        self.items.push(SavedItem {
            item,
            seq: number,
            touched: number,
            times_sampled: u32::try_from(message.times_sampled).unwrap_or(0),
            leases: 0,
            inserted_at: 0,
        });
        Ok(())
    }

    fn finish(self) -> Result<TableState> {
        let limiter = &self.counters.limiter;
        let counted = limiter.inserts.checked_sub(limiter.deletes);
        if counted != Some(self.items.len() as u64) {
            return Err(Error::Storage(format!(
                "table `{}` of the checkpoint has {} items, but counts {} inserts and {} deletes: items are missing",
                self.options.name,
                self.items.len(),
                limiter.inserts,
                limiter.deletes
            )));
        }
        let counters = Counters {
            next_seq: self.items.len() as u64,
            next_touch: self.items.len() as u64,
            ..self.counters
        };
        let mut restore = Restore::new(self.options, Arc::new(Volatile), counters)?;
        for item in self.items {
            restore.item(item)?;
        }
        let mut state = restore.finish()?;
        // Those that were sampled as often as they may leave, and those beyond the table's size.
        state.end_leases(&mut DeferredDrops::default());
        Ok(state)
    }
}

fn limits(limiter: &pb::RateLimiterCheckpoint) -> Result<RateLimits, String> {
    Ok(RateLimits {
        kind: "RateLimiter".into(),
        samples_per_insert: limiter.samples_per_insert,
        min_size: number("min_size_to_sample", limiter.min_size_to_sample)?,
        min_diff: limiter.min_diff,
        max_diff: limiter.max_diff,
    })
}

fn number(what: &str, number: i64) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("{what} is {number}; it must be at least 0"))
}

fn selector(
    role: &str,
    options: Option<pb::KeyDistributionOptions>,
) -> Result<SelectorKind, String> {
    Ok(match options.and_then(|options| options.distribution) {
        Some(Distribution::Fifo(_)) => SelectorKind::Fifo,
        Some(Distribution::Lifo(_)) => SelectorKind::Lifo,
        Some(Distribution::Uniform(_)) => SelectorKind::Uniform,
        Some(Distribution::Heap(heap)) if heap.min_heap => SelectorKind::MinHeap,
        Some(Distribution::Heap(_)) => SelectorKind::MaxHeap,
        Some(Distribution::Prioritized(prioritized)) => SelectorKind::Prioritized {
            exponent: prioritized.priority_exponent,
        },
        None => return Err(format!("its {role} is missing")),
    })
}
