//! Chooses the shard of each item, and the order of the items.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::item::Slot;
use engram_core::table::{ITEM_OVERHEAD, SnapshotItem};
use engram_core::{Error, RateLimiter, Result, TableOptions};

use crate::engine::derive_number;

use super::division::{Scale, divide_limiter};
use super::source::{Source, SourceTable};

/// An item and its shard.
#[derive(Debug)]
pub(super) struct PlannedItem<'a> {
    /// Index of its source.
    pub(super) source: usize,
    pub(super) saved: SnapshotItem<'a>,
    /// Reading of the new clock at its insertion, in nanoseconds; 0 if the table has no ttl.
    pub(super) inserted_at: u64,
    /// Position among the updates of its source, until `update_number` is set.
    update_position: u64,
    /// Its new update number.
    pub(super) update_number: u64,
    pub(super) shard: u32,
}

/// A table whose items are distributed to shards.
#[derive(Debug)]
pub(super) struct ShardedTable<'a> {
    /// The options in the first source.
    first_options: &'a TableOptions,
    /// All items, in their new order.
    pub(super) items: Vec<PlannedItem<'a>>,
    /// For each shard, the indices of its items.
    shard_items: Vec<Vec<u32>>,
    /// Number of items of each shard.
    pub(super) shard_sizes: Vec<u64>,
    /// Number of items sampled at least once of each shard.
    pub(super) shard_sampled: Vec<u64>,
    /// Sums over the sources; its limits are the current ones.
    pub(super) limiter: RateLimiter,
    pub(super) deleted_episodes: u64,
    pub(super) sampled: u64,
    /// The largest number of each session in any source.
    pub(super) sessions: HashMap<u64, u64>,
    scale: Scale,
}

/// The shard of the last item with a chunk, by the chunk's address.
type Homes = HashMap<usize, u32>;

fn address(chunk: &Arc<Chunk>) -> usize {
    Arc::as_ptr(chunk).addr()
}

/// Merges the tables of the sources and chooses a shard for each item. `clock` is the current reading of the new clock.
///
/// # Errors
/// [`Error::InvalidArgument`] if two sources have an item with the same key in one table.
pub(super) fn plan_tables(
    sources: &[Source],
    shards: usize,
    clock: u64,
) -> Result<Vec<ShardedTable<'_>>> {
    let mut homes = Homes::new();
    let first_tables = sources.iter().take(1).flat_map(|source| &source.tables);
    let tables = first_tables.map(|first| {
        let name = &first.options.name;
        let tables: Vec<(u64, &SourceTable)> = sources
            .iter()
            .filter_map(|source| Some((source.clock, source.table(name)?)))
            .collect();
        let mut table = merge(&first.options, &tables, shards, clock);
        check_keys(&table, sources)?;
        table.assign(&mut homes);
        Ok(table)
    });
    tables.collect()
}

/// The fraction of `len` at which an entry with this index is, as a multiple of 2^-64.
fn fraction(index: usize, len: usize) -> u64 {
    let numerator = (2 * index as u128 + 1) << 63;
    u64::try_from(numerator / len.max(1) as u128).unwrap_or(u64::MAX)
}

/// Merges a table of all sources. Items of one source stay in their order. Sources are interleaved evenly: an item after
/// a third of its source's items is after a third of all items. With a ttl, items are ordered by age instead.
fn merge<'a>(
    options: &'a TableOptions,
    tables: &[(u64, &'a SourceTable)],
    shards: usize,
    clock: u64,
) -> ShardedTable<'a> {
    let mut positioned = Vec::new();
    let mut limiter = RateLimiter::new(options.limits.clone());
    let (mut deleted_episodes, mut sampled) = (0, 0);
    let mut sessions = HashMap::new();
    for (source, (source_clock, table)) in tables.iter().enumerate() {
        let counters = &table.snapshot.counters;
        limiter.limits.clone_from(&counters.limiter.limits);
        limiter.inserts += counters.limiter.inserts;
        limiter.samples += counters.limiter.samples;
        limiter.deletes += counters.limiter.deletes;
        deleted_episodes += counters.num_deleted_episodes;
        sampled += counters.num_unique_samples;
        for (number, _) in table.snapshot.sessions() {
            let last: &mut u64 = sessions.entry(number.session).or_default();
            *last = number.number.max(*last);
        }
        let mut items: Vec<SnapshotItem<'a>> = table.snapshot.items().collect();
        items.sort_unstable_by_key(|item| item.seq);
        let mut by_update: Vec<usize> = (0..items.len()).collect();
        by_update.sort_unstable_by_key(|index| items[*index].update_number);
        let mut update_positions = vec![0; items.len()];
        for (rank, index) in by_update.into_iter().enumerate() {
            update_positions[index] = fraction(rank, items.len());
        }
        let (len, mut newest) = (items.len(), 0);
        for (index, saved) in items.into_iter().enumerate() {
            let age = |inserted_at| source_clock.saturating_sub(inserted_at);
            let inserted_at = saved.inserted_at;
            let inserted_at = inserted_at.map_or(0, |time| clock.saturating_sub(age(time)));
            newest = inserted_at.max(newest);
            let position = match options.ttl {
                Some(_) => newest,
                None => fraction(index, len),
            };
            let item = PlannedItem {
                source,
                saved,
                inserted_at,
                update_position: update_positions[index],
                update_number: 0,
                shard: 0,
            };
            positioned.push((position, item));
        }
    }
    // Stable: items at the same position stay in the order of the sources.
    positioned.sort_by_key(|(position, _)| *position);
    let mut items: Vec<PlannedItem<'a>> = positioned.into_iter().map(|(_, item)| item).collect();
    let mut by_update: Vec<usize> = (0..items.len()).collect();
    by_update.sort_by_key(|index| (items[*index].update_position, items[*index].source));
    for (number, index) in (0..).zip(by_update) {
        items[index].update_number = number;
    }
    ShardedTable {
        first_options: options,
        items,
        shard_items: vec![Vec::new(); shards],
        shard_sizes: vec![0; shards],
        shard_sampled: vec![0; shards],
        limiter,
        deleted_episodes,
        sampled,
        sessions,
        scale: Scale {
            sources: tables.len(),
            shards,
        },
    }
}

/// Checks that no key occurs twice.
fn check_keys(table: &ShardedTable<'_>, sources: &[Source]) -> Result<()> {
    let keys = table.items.iter().map(|item| (item.saved.key, item.source));
    let mut keys: Vec<(u64, usize)> = keys.collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(Error::InvalidArgument(format!(
            "table `{}` has an item with key {} both in {} and in {}; an item can be in one source only: delete it in the \
             other",
            table.name(),
            pair[0].0,
            sources[pair[0].1].name(),
            sources[pair[1].1].name()
        ))),
    }
}

impl ShardedTable<'_> {
    pub(super) fn name(&self) -> &str {
        &self.first_options.name
    }

    /// Chooses a shard for each item. An item gets the shard of an earlier item with one of its chunks, so that few
    /// chunks are copied to several shards, unless that shard has the square root of a shard's number of items more
    /// than the smallest one; it then gets the smallest.
    fn assign(&mut self, homes: &mut Homes) {
        let shards = self.shard_sizes.len();
        let max_lead = (self.items.len() as u64 / shards as u64).isqrt().max(1);
        let max_size = self.scale.bound(self.first_options.max_size);
        let mut by_size: BTreeSet<(u64, u32)> =
            (0..).take(shards).map(|shard| (0, shard)).collect();
        for (index, item) in (0..).zip(&mut self.items) {
            let Some((smallest, smallest_shard)) = by_size.first().copied() else {
                return;
            };
            let chunks = item.saved.trajectory.chunks();
            let home = chunks.iter().find_map(|chunk| homes.get(&address(chunk)));
            let shard = home.copied().filter(|shard| {
                let size = self.shard_sizes[*shard as usize];
                size < (smallest + max_lead).min(max_size)
            });
            let shard = shard.unwrap_or(smallest_shard);
            for chunk in chunks {
                homes.insert(address(chunk), shard);
            }
            item.shard = shard;
            self.shard_items[shard as usize].push(index);
            let size = &mut self.shard_sizes[shard as usize];
            by_size.remove(&(*size, shard));
            *size += 1;
            by_size.insert((*size, shard));
            let is_sampled = item.saved.times_sampled > 0;
            self.shard_sampled[shard as usize] += u64::from(is_sampled);
        }
    }

    /// The items of one shard, in the order of their new insertion numbers, which begin at 0.
    pub(super) fn items_of(&self, shard: usize) -> impl Iterator<Item = &PlannedItem<'_>> {
        let indices = self.shard_items[shard].iter();
        indices.map(|index| &self.items[*index as usize])
    }

    /// The limiter of each shard.
    pub(super) fn limiters(&self) -> Vec<RateLimiter> {
        let limits = self.scale.limits(&self.limiter.limits);
        divide_limiter(&self.limiter, &self.shard_sizes, &limits)
    }

    /// The options of all shards. `max_bytes` is at least `used_bytes`, what the largest shard uses.
    pub(super) fn options(&self, used_bytes: impl FnOnce() -> u64) -> TableOptions {
        let options = self.first_options;
        let max_bytes = options.max_bytes.map(|max_bytes| {
            let bound = self.scale.bound(max_bytes).max(ITEM_OVERHEAD + 1);
            bound.max(used_bytes())
        });
        TableOptions {
            max_size: self
                .scale
                .bound(options.max_size)
                .min(u64::from(Slot::MAX - 1)),
            max_bytes,
            limits: self.scale.limits(&options.limits),
            ..options.clone()
        }
    }

    /// The seed of a shard's table.
    pub(super) fn seed(&self, shard: usize) -> u64 {
        derive_number(self.first_options.seed, shard as u64)
    }
}
