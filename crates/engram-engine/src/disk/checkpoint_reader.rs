//! Reading a checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{Lsn, RateLimiter, TableOptions, TableState, Volatile};

use super::byte_codec::{BodyReader, UnusableData};
use super::change_codec::read_rng;
use super::checkpoint_writer::CheckpointHeader;
use super::clock_reading::ClockReading;
use super::file_names::checkpoint_name;
use super::kind;
use super::options_codec::{read_limits, read_options};
use super::record_codec::{ReadDictionary, read_session_number};
use super::record_reader::{EndOfRecords, RecordReader};
use super::recovery_error::{RecoveryError, read_error, unusable_record};
use super::replay::{MAX_COUNTER, placeholder_chunk};
use super::serial_ranges::SerialRanges;

/// Reads only the first record; returns the checkpoint's header without the serials.
pub(super) fn read_first_record(
    mut file_reader: RecordReader,
) -> Result<CheckpointHeader, RecoveryError> {
    let offset = file_reader.offset();
    match next_record(&mut file_reader)? {
        Some((kind::LOGS, body)) => {
            let header = read_header(BodyReader(body));
            Ok(header.map_err(|reason| unusable_record("it", offset, &reason))?)
        }
        _ => corrupt("its first record is not a `logs` record"),
    }
}

/// Checks that a checkpoint is complete and intact, from its first record to its last; returns its
/// header.
pub(super) fn verify(mut file_reader: RecordReader) -> Result<CheckpointHeader, RecoveryError> {
    let mut header = None;
    let mut serials = Vec::new();
    let mut records = 0;
    let mut ended = false;
    loop {
        let offset = file_reader.offset();
        let Some((kind, body)) = next_record(&mut file_reader)? else {
            break;
        };
        if ended {
            return corrupt(format!(
                "it has a record at byte {offset}, after its `end` record"
            ));
        }
        let mut reader = BodyReader(body);
        let at_record = |reason: UnusableData| unusable_record("it", offset, &reason);
        match kind {
            kind::LOGS if header.is_none() => {
                header = Some(read_header(reader).map_err(at_record)?);
            }
            kind::LOGS => {
                return corrupt(format!("it has a second `logs` record, at byte {offset}"));
            }
            kind::SERIALS => {
                let ranges = reader.list(16, |reader| Ok((reader.u64()?, reader.u64()?)));
                serials.extend(ranges.map_err(at_record)?);
                reader.check_end().map_err(at_record)?;
            }
            kind::END => {
                // The number of tables, then the number of records.
                let count = reader.u32().and_then(|_| reader.u64());
                if count.map_err(at_record)? != records {
                    return corrupt("some of its records are missing");
                }
                reader.check_end().map_err(at_record)?;
                ended = true;
            }
            _ => {}
        }
        records += 1;
    }
    let Some(mut header) = header.filter(|_| ended) else {
        return corrupt("it is incomplete");
    };
    header.serials = SerialRanges(serials);
    Ok(header)
}

/// Tables by number; name and number of lost items of each table that has lost some.
type TablesAndLosses = (BTreeMap<u64, TableState>, Vec<(String, usize)>);

/// Reads the tables of a verified checkpoint. `get_chunk` returns a chunk by its serial. With `repair`, items
/// whose chunks are missing are left out, and count as lost.
pub(super) fn read_tables(
    mut file_reader: RecordReader,
    repair: bool,
    get_chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, UnusableData>,
) -> Result<TablesAndLosses, RecoveryError> {
    let mut tables = TablesReader {
        dictionary: ReadDictionary::default(),
        tables: BTreeMap::new(),
        lost_items: Vec::new(),
        table: None,
        repair,
        get_chunk,
    };
    loop {
        let offset = file_reader.offset();
        let Some((kind, body)) = next_record(&mut file_reader)? else {
            return corrupt("it is incomplete");
        };
        let added = tables.add_record(kind, body);
        added.map_err(|reason| unusable_record("it", offset, &reason))?;
        if kind == kind::END {
            return Ok((tables.tables, tables.lost_items));
        }
    }
}

/// The tables of a checkpoint that is being read.
struct TablesReader<'a> {
    dictionary: ReadDictionary,
    /// Tables that were read completely.
    tables: BTreeMap<u64, TableState>,
    /// Name and number of lost items of each table that has lost some.
    lost_items: Vec<(String, usize)>,
    /// The table that the next records belong to.
    table: Option<TableRestore>,
    /// Leave out items whose chunks are missing.
    repair: bool,
    /// Returns a chunk by its serial.
    get_chunk: &'a mut dyn FnMut(u64) -> Result<Arc<Chunk>, UnusableData>,
}

impl TablesReader<'_> {
    /// Adds the content of the next record.
    fn add_record(&mut self, kind: u32, body: &[u8]) -> Result<(), UnusableData> {
        if self.dictionary.add_record(kind, body)? {
            return Ok(());
        }
        let mut reader = BodyReader(body);
        match (kind, &mut self.table) {
            (kind::LOGS | kind::SERIALS, _) => return Ok(()),
            (kind::TABLE | kind::END, table) => {
                if let Some(table) = table.take() {
                    let (number, lost_items, state) = table.finish()?;
                    if lost_items > 0 {
                        let name = state.options().name.clone();
                        self.lost_items.push((name, lost_items));
                    }
                    self.tables.insert(number, state);
                }
                if kind == kind::END {
                    return Ok(());
                }
                *table = Some(TableRestore::read(&mut reader)?);
            }
            (kind::ITEMS, Some(table)) => {
                let (dictionary, repair) = (&self.dictionary, self.repair);
                // An item has 16 bytes before its trajectory, at least 5 in it, and 32 after it.
                let items = reader.list(53, |reader| {
                    read_item(reader, dictionary, repair, &mut *self.get_chunk)
                })?;
                for item in items {
                    match item {
                        Some(item) => table.restore.add_item(item)?,
                        None => table.lost_items += 1,
                    }
                }
            }
            (kind::ORDER, Some(table)) => {
                let of_remover = reader.bool()?;
                let earlier_entries = reader.u64()?;
                let order = &mut table.orders[usize::from(of_remover)];
                if earlier_entries != order.len() as u64 {
                    return UnusableData::err("parts of an item order are missing");
                }
                order.extend(reader.list(4, BodyReader::u32)?);
            }
            (kind::SESSIONS, Some(table)) => {
                let sessions = reader.list(24, |reader| {
                    Ok((read_session_number(reader)?, reader.u64()?))
                })?;
                for (number, last_use) in sessions {
                    table.restore.add_session(number, last_use);
                }
            }
            (other, _) => return UnusableData::err(format!("its kind {other} is unexpected")),
        }
        reader.check_end()
    }
}

/// A table that is being read.
struct TableRestore {
    /// The table's number in the store's files.
    number: u64,
    restore: Restore,
    /// Number of items left out because their chunks are missing.
    lost_items: usize,
    /// Item orders of the sampler and the remover.
    orders: [Vec<u32>; 2],
}

impl TableRestore {
    /// Reads a `table` record.
    fn read(reader: &mut BodyReader<'_>) -> Result<Self, UnusableData> {
        let (number, options, counters) = read_table_header(reader)?;
        Ok(Self {
            number,
            restore: Restore::new(Arc::new(options), Arc::new(Volatile), counters)?,
            lost_items: 0,
            orders: Default::default(),
        })
    }

    /// Returns the table's number, how many items it has lost, and its state.
    fn finish(mut self) -> Result<(u64, usize, TableState), UnusableData> {
        for (order, of_sampler) in self.orders.into_iter().zip([true, false]) {
            // An order contains positions of items: they are wrong if items were left out.
            if !order.is_empty() && self.lost_items == 0 {
                self.restore.set_order(of_sampler, order);
            }
        }
        Ok((self.number, self.lost_items, self.restore.finish()?))
    }
}

/// Returns the next record's kind and body; `None` at the end of the file. Fails at an invalid record.
fn next_record(file_reader: &mut RecordReader) -> Result<Option<(u32, &[u8])>, RecoveryError> {
    let name = checkpoint_name(file_reader.header.number);
    match file_reader.next() {
        Err(error) => Err(read_error(&name, &error)),
        Ok(Err(EndOfRecords::EndOfFile)) => Ok(None),
        Ok(Err(EndOfRecords::Invalid { offset, reason })) => {
            corrupt(format!("it is damaged at byte {offset}: {reason}"))
        }
        Ok(Ok(record)) => Ok(Some((record.kind, record.body))),
    }
}

/// Returns an `Err` for a corrupt checkpoint.
fn corrupt<T>(reason: impl Into<String>) -> Result<T, RecoveryError> {
    Ok(UnusableData::err(reason)?)
}

/// Reads and checks the body of a `logs` record.
fn read_header(mut reader: BodyReader<'_>) -> Result<CheckpointHeader, UnusableData> {
    let header = read_header_unchecked(&mut reader)?;
    reader.check_end()?;
    let numbers = [
        header.first_log,
        header.first_change,
        header.clock.store,
        header.next_serial,
        header.next_table,
    ];
    if numbers.iter().any(|number| *number > MAX_COUNTER) {
        return UnusableData::err(format!(
            "the `logs` record has a number above 2^62: {numbers:?}"
        ));
    }
    Ok(header)
}

fn read_header_unchecked(reader: &mut BodyReader<'_>) -> Result<CheckpointHeader, UnusableData> {
    Ok(CheckpointHeader {
        first_log: reader.u64()?,
        first_change: reader.u64()?,
        clock: ClockReading {
            store: reader.u64()?,
            system: reader.u64()?,
        },
        next_serial: reader.u64()?,
        next_table: reader.u64()?,
        earlier_logs: reader.list(16, |reader| Ok((reader.u64()?, reader.u64()?)))?,
        has_unlogged: reader.bool()?,
        serials: SerialRanges::default(),
    })
}

/// Reads a table's number, options and counters.
pub(super) fn read_table_header(
    reader: &mut BodyReader<'_>,
) -> Result<(u64, TableOptions, Counters), UnusableData> {
    let number = reader.u64()?;
    let options = read_options(reader)?;
    let limits = read_limits(reader)?;
    let counters = Counters {
        limiter: RateLimiter {
            limits,
            inserts: reader.u64()?,
            samples: reader.u64()?,
            deletes: reader.u64()?,
        },
        next_seq: reader.u64()?,
        first_seq: reader.u64()?,
        next_update_number: reader.u64()?,
        num_deleted_episodes: reader.u64()?,
        num_unique_samples: reader.u64()?,
        leased: reader.u64()?,
        last_lsn: Lsn(reader.u64()?),
        rng: read_rng(reader)?,
    };
    Ok((number, options, counters))
}

/// Reads an item. With `repair`, returns `None` if one of its chunks is missing.
fn read_item(
    reader: &mut BodyReader<'_>,
    dictionary: &ReadDictionary,
    repair: bool,
    get_chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, UnusableData>,
) -> Result<Option<SavedItem>, UnusableData> {
    let mut is_missing = false;
    let mut chunk_or_placeholder = |serial| match get_chunk(serial) {
        Err(_) if repair => {
            is_missing = true;
            placeholder_chunk()
        }
        outcome => outcome,
    };
    let item = SavedItem {
        item: dictionary.read_item(reader, &mut chunk_or_placeholder)?,
        seq: reader.u64()?,
        update_number: reader.u64()?,
        times_sampled: reader.u32()?,
        leases: reader.u32()?,
        inserted_at: reader.u64()?,
    };
    if is_missing {
        return Ok(None);
    }
    item.item.trajectory.check_parts()?;
    Ok(Some(item))
}
