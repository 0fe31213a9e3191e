//! Reading one checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{Lsn, RateLimiter, TableOptions, TableState, Volatile};

use super::byte_codec::{CorruptRecord, TakeBytes};
use super::change_codec::rng_in;
use super::checkpoint_writer::CheckpointHeader;
use super::record_codec::{ReadDictionary, kind, limits_in, options_in, session_in};
use super::record_reader::{EndOfRecords, RecordReader};
use super::recover::ClockReading;
use super::replay::placeholder_chunk;
use super::serial_ranges::SerialRanges;

/// What a checkpoint says of logs, from its first record alone.
pub(super) fn first_logs(mut scan: RecordReader) -> Result<CheckpointHeader, CorruptRecord> {
    match step(&mut scan)? {
        Some((kind::LOGS, body)) => logs_in(&mut TakeBytes(body)),
        _ => CorruptRecord::err("its first record is another one"),
    }
}

/// Looks whether a checkpoint is whole, from its first record to its last; what it says of logs.
pub(super) fn check(mut scan: RecordReader) -> Result<CheckpointHeader, CorruptRecord> {
    let mut logs = None;
    let mut serials = Vec::new();
    let mut records = 0;
    let mut ended = false;
    while let Some((kind, body)) = step(&mut scan)? {
        if ended {
            return CorruptRecord::err("it goes on after its end");
        }
        let mut take = TakeBytes(body);
        match kind {
            kind::LOGS if logs.is_none() => logs = Some(logs_in(&mut take)?),
            kind::SERIALS => serials.extend(take.list(16, |take| Ok((take.u64()?, take.u64()?)))?),
            kind::END => {
                take.u32()?;
                if take.u64()? != records {
                    return CorruptRecord::err("records of it are missing");
                }
                ended = true;
            }
            _ => {}
        }
        records += 1;
    }
    let Some(mut logs) = logs.filter(|_| ended) else {
        return CorruptRecord::err("it was not finished");
    };
    logs.serials = SerialRanges(serials);
    Ok(logs)
}

/// Tables by their number, and items that were left out.
type Tables = (BTreeMap<u64, TableState>, Vec<(String, usize)>);

/// The tables of a checkpoint that was found whole; with `repair`, without items whose chunks are missing.
pub(super) fn tables(
    mut scan: RecordReader,
    repair: bool,
    chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, CorruptRecord>,
) -> Result<Tables, CorruptRecord> {
    let mut known = ReadDictionary::default();
    let mut done = BTreeMap::new();
    let mut lost = Vec::new();
    let mut table: Option<TableRestore> = None;
    while let Some((kind, body)) = step(&mut scan)? {
        if known.take(kind, body)? {
            continue;
        }
        let mut take = TakeBytes(body);
        match (kind, &mut table) {
            (kind::LOGS | kind::SERIALS, _) => continue,
            (kind::TABLE | kind::END, table) => {
                if let Some(table) = table.take() {
                    let (id, left_out, state) = table.finish()?;
                    if left_out > 0 {
                        lost.push((state.options().name.clone(), left_out));
                    }
                    done.insert(id, state);
                }
                if kind == kind::END {
                    return Ok((done, lost));
                }
                *table = Some(TableRestore::take(&mut take)?);
            }
            (kind::ITEMS, Some(table)) => {
                let items = take.list(53, |take| saved_item(take, &known, repair, chunk))?;
                for item in items {
                    match item {
                        Some(item) => table.restore.item(item)?,
                        None => table.left_out += 1,
                    }
                }
            }
            (kind::ORDER, Some(table)) => {
                let order = &mut table.orders[usize::from(take.bool()?)];
                if take.u64()? != order.len() as u64 {
                    return CorruptRecord::err("parts of an order are missing");
                }
                order.extend(take.list(4, TakeBytes::u32)?);
            }
            (kind::SESSIONS, Some(table)) => {
                for (number, used) in take.list(24, |take| Ok((session_in(take)?, take.u64()?)))? {
                    table.restore.session(number, used);
                }
            }
            (other, _) => {
                return CorruptRecord::err(format!(
                    "it has a record of kind {other} where none may be"
                ));
            }
        }
        take.end()?;
    }
    CorruptRecord::err("it was not finished")
}

/// A table on its way back.
struct TableRestore {
    id: u64,
    restore: Restore,
    left_out: usize,
    /// Of the sampler and the remover.
    orders: [Vec<u32>; 2],
}

impl TableRestore {
    fn take(take: &mut TakeBytes<'_>) -> Result<Self, CorruptRecord> {
        let (id, options, counters) = table_in(take)?;
        Ok(Self {
            id,
            restore: Restore::new(Arc::new(options), Arc::new(Volatile), counters)?,
            left_out: 0,
            orders: Default::default(),
        })
    }

    fn finish(mut self) -> Result<(u64, usize, TableState), CorruptRecord> {
        for (order, of_sampler) in self.orders.into_iter().zip([true, false]) {
            // Without some of its items an order means nothing.
            if !order.is_empty() && self.left_out == 0 {
                self.restore.order(of_sampler, order);
            }
        }
        Ok((self.id, self.left_out, self.restore.finish()?))
    }
}

/// The next record of a file that must be whole.
fn step(scan: &mut RecordReader) -> Result<Option<(u32, &[u8])>, CorruptRecord> {
    match scan.next() {
        Err(error) => CorruptRecord::err(format!("it cannot be read: {error}")),
        Ok(Err(EndOfRecords::EndOfFile)) => Ok(None),
        Ok(Err(EndOfRecords::Invalid { place, why })) => {
            CorruptRecord::err(format!("it is damaged at byte {place}: {why}"))
        }
        Ok(Ok(record)) => Ok(Some((record.kind, record.body))),
    }
}

/// Nothing is counted so far: what was saved above it was not ours.
const MOST: u64 = 1 << 62;

fn logs_in(take: &mut TakeBytes<'_>) -> Result<CheckpointHeader, CorruptRecord> {
    let logs = logs_unchecked(take)?;
    let numbers = [
        logs.first,
        logs.first_change,
        logs.moment.clock,
        logs.next_serial,
        logs.next_table,
    ];
    if numbers.iter().any(|number| *number > MOST) {
        return CorruptRecord::err(format!("its numbers make no sense: {numbers:?}"));
    }
    Ok(logs)
}

fn logs_unchecked(take: &mut TakeBytes<'_>) -> Result<CheckpointHeader, CorruptRecord> {
    Ok(CheckpointHeader {
        first: take.u64()?,
        first_change: take.u64()?,
        moment: ClockReading {
            clock: take.u64()?,
            system: take.u64()?,
        },
        next_serial: take.u64()?,
        next_table: take.u64()?,
        needed: take.list(16, |take| Ok((take.u64()?, take.u64()?)))?,
        serials: SerialRanges::default(),
    })
}

/// A table's number, its options, and its counters.
pub(super) fn table_in(
    take: &mut TakeBytes<'_>,
) -> Result<(u64, TableOptions, Counters), CorruptRecord> {
    let id = take.u64()?;
    let options = options_in(take)?;
    let limits = limits_in(take)?;
    let counters = Counters {
        limiter: RateLimiter {
            limits,
            inserts: take.u64()?,
            samples: take.u64()?,
            deletes: take.u64()?,
        },
        next_seq: take.u64()?,
        first_seq: take.u64()?,
        next_touch: take.u64()?,
        num_deleted_episodes: take.u64()?,
        num_unique_samples: take.u64()?,
        leased: take.u64()?,
        last_lsn: Lsn(take.u64()?),
        rng: rng_in(take)?,
    };
    Ok((id, options, counters))
}

/// None where a chunk of it is missing and that is expected.
fn saved_item(
    take: &mut TakeBytes<'_>,
    known: &ReadDictionary,
    repair: bool,
    chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, CorruptRecord>,
) -> Result<Option<SavedItem>, CorruptRecord> {
    let mut is_missing = false;
    let mut or_none = |serial| match chunk(serial) {
        Err(_) if repair => {
            is_missing = true;
            placeholder_chunk()
        }
        found => found,
    };
    let item = SavedItem {
        item: known.item(take, &mut or_none)?,
        seq: take.u64()?,
        touched: take.u64()?,
        times_sampled: take.u32()?,
        leases: take.u32()?,
        inserted_at: take.u64()?,
    };
    if is_missing {
        return Ok(None);
    }
    item.item.trajectory.check_parts()?;
    Ok(Some(item))
}
