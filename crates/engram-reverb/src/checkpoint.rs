//! Imports dm-reverb's checkpoints. A checkpoint is a directory `<time>` with `tables.tfrecord`,
//! `items.tfrecord`, `chunks.tfrecord`, and an empty file `DONE` once it is complete.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_core::selector::TableRng;
use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::text::count;
use engram_core::{
    DeferredDrops, Error, Lsn, RateLimiter, RateLimits, Result, SelectorKind, TableOptions,
    TableState, Volatile,
};
use engram_engine::Engine;
use rand::SeedableRng as _;

use crate::chunk::ChunkDecoder;
use crate::item::{ChunksByKey, decode_item};
use crate::note_encoder::encode_note;
use crate::pb;
use crate::pb::key_distribution_options::Distribution;
use crate::tfrecord::TfRecordReader;

/// An imported checkpoint.
#[derive(Debug)]
pub struct Imported {
    /// Directory of the checkpoint.
    pub path: PathBuf,
    /// The added tables and their numbers of items.
    pub tables: BTreeMap<String, u64>,
    /// What could not be imported.
    pub notes: Vec<String>,
}

/// Adds the tables of a checkpoint to an engine. `path` is the checkpoint or a directory of checkpoints, of
/// which the newest complete one is imported. `seed` seeds the tables' random choices: dm-reverb does not
/// save the state of its generators.
///
/// # Errors
/// [`Error::Storage`] if there is no complete checkpoint, or it cannot be read or is invalid;
/// [`Error::InvalidArgument`] if a table of the same name exists; [`Error::Closed`] if the engine is closed. In all
/// cases, no table is added.
pub fn import(engine: &Engine, path: &Path, seed: u64) -> Result<Imported> {
    let path = find_checkpoint(path)?;
    let mut tables = read_tables(&path, seed)?;
    if let Some(name) = tables.keys().find(|name| engine.table(name).is_ok()) {
        return Err(Error::InvalidArgument(format!(
            "the store already has a table `{name}`; drop it, rename it when you open a store on disk \
             (`Store.open(path, rename=...)`), or import into another store"
        )));
    }
    let mut decoder = ChunkDecoder::default();
    let chunks = read_chunks(&path, &mut decoder)?;
    let mut file = TfRecordReader::open(&path, "items.tfrecord")?;
    while let Some(item) = file.message::<pb::PrioritizedItem>()? {
        let Some(table) = tables.get_mut(&item.table) else {
            return Err(file.error_in_last(&format!(
                "is an item of table `{}`, which the checkpoint does not contain",
                item.table
            )));
        };
        table
            .add(&mut decoder, &chunks, &item)
            .map_err(|error| file.error_in_last(&format!("cannot be imported: {error}")))?;
    }
    for table in tables.values_mut() {
        for item in std::mem::take(&mut table.inline_items) {
            let added = table.add(&mut decoder, &chunks, &item);
            added.map_err(|error| {
                Error::Storage(format!(
                    "an item of {} cannot be imported: {error}",
                    path.join("tables.tfrecord").display()
                ))
            })?;
        }
    }
    let unreadable = tables.iter().filter(|(_, table)| table.unreadable > 0);
    let unreadable = unreadable.map(|(name, table)| {
        format!(
            "table `{name}`: without {}, which dm-reverb has stored with a negative offset and cannot sample either",
            count(table.unreadable, "item")
        )
    });
    let signatures = tables.iter().filter_map(|(name, table)| {
        let missing = table.missing_signature_part?;
        Some(format!(
            "table `{name}`: dm-reverb's clients do not receive {missing}, which could not be imported. To send \
             them another signature, write a file that declares the table with all its options, and start `engram serve` \
             with it: with `--tables`, the signature is the key `reverb_signature` and has no bounds; with \
             `--reverb-config`, it can have bounds"
        ))
    });
    let notes = unreadable.chain(signatures).collect();
    let states = tables.into_values().map(ImportedTable::finish);
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

/// Returns `path` if it is a complete checkpoint, otherwise the newest complete one in it, which is the last by name.
fn find_checkpoint(path: &Path) -> Result<PathBuf> {
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
            "{} contains no complete checkpoint of dm-reverb: neither it nor a directory in it has a file DONE",
            path.display()
        ))
    })
}

fn read_tables(path: &Path, seed: u64) -> Result<BTreeMap<String, ImportedTable>> {
    let mut tables = BTreeMap::new();
    let mut file = TfRecordReader::open(path, "tables.tfrecord")?;
    while let Some(table) = file.message::<pb::PriorityTableCheckpoint>()? {
        let name = table.table_name.clone();
        let number = tables.len() as u64;
        let seed = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let table = ImportedTable::new(table, seed)
            .map_err(|problem| file.error_in_last(&format!("is an invalid table: {problem}")))?;
        if tables.insert(name, table).is_some() {
            return Err(file.error_in_last("repeats an earlier table"));
        }
    }
    Ok(tables)
}

fn read_chunks(path: &Path, decoder: &mut ChunkDecoder) -> Result<ChunksByKey> {
    let mut chunks = ChunksByKey::new();
    let mut file = TfRecordReader::open(path, "chunks.tfrecord")?;
    while let Some(message) = file.message::<pb::ChunkData>()? {
        // A chunk that a writer has sent twice, around a flush, is saved twice. dm-reverb loads the first.
        if chunks.contains_key(&message.chunk_key) {
            continue;
        }
        let chunk = decoder.decode(&message).map_err(|status| {
            file.error_in_last(&format!("cannot be imported: {}", status.message()))
        })?;
        chunks.insert(message.chunk_key, Arc::new(chunk));
    }
    Ok(chunks)
}

/// A table being imported.
struct ImportedTable {
    options: Arc<TableOptions>,
    counters: Counters,
    items: Vec<SavedItem>,
    keys: HashSet<u64>,
    /// Number of items that dm-reverb cannot sample, and that are left out.
    unreadable: u64,
    /// Items stored in the table's own record, as in old checkpoints.
    inline_items: Vec<pb::PrioritizedItem>,
    /// The part of the signature that the note lacks, as the subject of a sentence; `None` if the note contains the
    /// whole signature.
    missing_signature_part: Option<&'static str>,
}

impl ImportedTable {
    fn new(mut table: pb::PriorityTableCheckpoint, seed: u64) -> Result<Self, String> {
        let inline_items = std::mem::take(&mut table.deprecated_items);
        let limiter = table.rate_limiter.unwrap_or_default();
        let limits = decode_limits(&limiter)?;
        let mut counts = RateLimiter::new(limits.clone());
        counts.inserts = non_negative("insert_count", limiter.insert_count)?;
        counts.samples = non_negative("sample_count", limiter.sample_count)?;
        counts.deletes = non_negative("delete_count", limiter.delete_count)?;
        let counters = Counters {
            limiter: counts,
            rng: TableRng::seed_from_u64(seed),
            next_seq: 0,
            first_seq: 0,
            next_update_number: 0,
            num_deleted_episodes: non_negative("num_deleted_episodes", table.num_deleted_episodes)?,
            num_unique_samples: non_negative("num_unique_samples", table.num_unique_samples)?,
            leased: 0,
            last_lsn: Lsn::default(),
        };
        let (note, missing_signature_part) =
            encode_note(table.max_times_sampled, table.signature.as_ref());
        let options = TableOptions {
            note: Some(note.into()),
            name: table.table_name,
            max_size: non_negative("max_size", table.max_size)?,
            max_bytes: None,
            max_times_sampled: u32::try_from(table.max_times_sampled).unwrap_or(0),
            ttl: None,
            sampler: decode_selector("sampler", table.sampler)?,
            remover: decode_selector("remover", table.remover)?,
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
            unreadable: 0,
            inline_items,
            missing_signature_part,
        })
    }

    fn add(
        &mut self,
        decoder: &mut ChunkDecoder,
        chunks: &ChunksByKey,
        message: &pb::PrioritizedItem,
    ) -> Result<(), String> {
        // dm-reverb has stored an item that begins before its first chunk.
        let columns = message.flat_trajectory.iter().flat_map(|it| &it.columns);
        let mut slices = columns.flat_map(|column| &column.chunk_slices);
        if slices.any(|slice| slice.offset < 0) {
            self.unreadable += 1;
            return Ok(());
        }
        let item = decode_item(decoder, chunks, &self.options, message);
        let item = item.map_err(|status| status.message().to_owned())?;
        let checked = self.options.check_item(&item);
        checked.map_err(|error| error.to_string())?;
        if !self.keys.insert(item.key) {
            return Err(format!(
                "Engram's keys have 63 bits: without its highest bit, key {} equals that of an earlier item",
                message.key
            ));
        }
        let number = self.items.len() as u64;
        self.items.push(SavedItem {
            item,
            seq: number,
            update_number: number,
            times_sampled: u32::try_from(message.times_sampled).unwrap_or(0),
            leases: 0,
            inserted_at: 0,
        });
        Ok(())
    }

    fn finish(self) -> Result<TableState> {
        let mut limiter = self.counters.limiter;
        limiter.deletes += self.unreadable;
        let mut counted = limiter.inserts.checked_sub(limiter.deletes);
        // dm-reverb inserts an item, removes another from a full table, and counts the insert last. While it waits in
        // between, a checkpoint can have one item that is not counted.
        if counted.is_some_and(|counted| counted + 1 == self.items.len() as u64) {
            limiter.inserts += 1;
            counted = Some(self.items.len() as u64);
        }
        if counted != Some(self.items.len() as u64) {
            return Err(Error::Storage(format!(
                "table `{}` of the checkpoint is incomplete: it has {}, but counts {} and {}",
                self.options.name,
                count(self.items.len(), "item"),
                count(limiter.inserts, "insert"),
                count(limiter.deletes, "delete")
            )));
        }
        let counters = Counters {
            next_seq: self.items.len() as u64,
            next_update_number: self.items.len() as u64,
            limiter,
            ..self.counters
        };
        let mut restore = Restore::new(self.options, Arc::new(Volatile), counters)?;
        for item in self.items {
            restore.add_item(item)?;
        }
        let mut state = restore.finish()?;
        // There are no leases to end. But `end_leases` also removes items sampled as often as allowed, and items beyond
        // the table's size.
        state.end_leases(&mut DeferredDrops::default());
        Ok(state)
    }
}

fn decode_limits(limiter: &pb::RateLimiterCheckpoint) -> Result<RateLimits, String> {
    Ok(RateLimits {
        kind: "RateLimiter".into(),
        samples_per_insert: limiter.samples_per_insert,
        min_size: non_negative("min_size_to_sample", limiter.min_size_to_sample)?,
        min_diff: limiter.min_diff,
        max_diff: limiter.max_diff,
    })
}

fn non_negative(field: &str, number: i64) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("{field} must be at least 0; got {number}"))
}

fn decode_selector(
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
        None => return Err(format!("its {role} is missing or of an unknown kind")),
    })
}
