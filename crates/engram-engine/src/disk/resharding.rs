//! Resharding: distributes the tables of closed directories to new ones.
//!
//! ```text
//! source 0 ──┐  recover without payloads     plan: merge the items of each table, and     ┌──> OUTPUT.tmp/shard-0
//! source 1 ──┼─────────────────────────────> choose a shard for each of them ─────────────┼──> OUTPUT.tmp/shard-1
//! source 2 ──┘                                                                            └──> OUTPUT.tmp/shard-2
//!      └── read the logs again, and copy each chunk to the shards that need it ──────────────────────┘
//!                                                      all is durable: rename OUTPUT.tmp to OUTPUT
//! ```
//!
//! Payloads are copied one by one, and only those with strings stay in memory. Apart from them, what stays there is about 300 bytes per item and chunk, and a few MiB per shard
//! for buffers. Each new directory needs three open files.
//!
//! * `source.rs`: the directories to read, and whether their tables agree
//! * `plan.rs`: the shard of each item, and the order of the items
//! * `division.rs`: how bounds, limits and counters are divided
//! * `shard_writer.rs`: writes one new directory
//! * `staging.rs`: the directory that is renamed at the end

mod division;
mod plan;
mod progress;
mod shard_writer;
mod source;
mod staging;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engram_core::text::count;
use engram_core::{Error, Result, TableOptions};

use crate::engine::derive_number;

pub use self::progress::ReshardProgress;

use self::plan::{ShardedTable, plan_tables};
use self::progress::Work;
use self::shard_writer::ShardWriter;
use self::source::{Source, check_agreement, open_sources};
use self::staging::{Staging, check_open_files, check_output, check_separate};
use super::byte_codec::{BodyReader, UnusableData};
use super::directory::ReadableDirectory as _;
use super::file_format::record_bytes;
use super::file_names::log_name;
use super::kind;
use super::record_codec::ReadDictionary;
use super::record_reader::{EndOfRecords, RecordReader};
use super::recovery_error::{RecoveryError, read_error, unusable_record};

/// Maximum number of new directories: the number of shard ids.
pub const MAX_SHARDS: u32 = 1023;

/// The result of [`reshard`].
#[derive(Clone, Debug, PartialEq)]
pub struct Resharded {
    /// The new directories, by shard.
    pub directories: Vec<PathBuf>,
    /// Name of each table, and its number of items in each shard.
    pub tables: Vec<(String, Vec<u64>)>,
    /// What was damaged or unfinished in the sources; each text begins with the directory.
    pub notes: Vec<String>,
}

/// Writes the tables of closed stores to `into` new directories, `output/shard-0` and so on. The sources are not changed.
/// `output` exists only once everything is durable; until then, all is in `output.tmp`, which a later call with the same
/// `output` removes. `entropy` must differ each time.
///
/// # Errors
/// [`Error::InvalidArgument`] if `directories` is empty, has a directory twice or copies of one store; if the tables of
/// two sources differ in a name or an option, or have an item with the same key; if `into` is not from 1 to
/// [`MAX_SHARDS`], or more than the process may open files for; if `output` exists and is not an empty directory, or is
/// in a source; if a source is in `output.tmp`. [`Error::Storage`] if a source is in use, damaged, of another format
/// version or has no store; if something cannot be read or written; if `output.tmp` is in use or was not created by this
/// function. [`Error::Closed`] if `progress` returns false.
pub fn reshard(
    directories: &[PathBuf],
    into: u32,
    output: &Path,
    entropy: u64,
    progress: ReshardProgress<'_>,
) -> Result<Resharded> {
    if !(1..=MAX_SHARDS).contains(&into) {
        return Err(Error::InvalidArgument(format!(
            "`into` must be from 1 to {MAX_SHARDS}; got {into}"
        )));
    }
    let output = check_output(output)?;
    check_open_files(directories.len(), into)?;
    let mut work = Work::new(progress);
    let sources = open_sources(directories, &mut work)?;
    check_agreement(&sources)?;
    check_separate(&output, &sources)?;
    let staging = Staging::create(output)?;
    // Readings of the sources' clocks are converted to this one, which continues at the largest.
    let clock = sources.iter().map(|source| source.clock).max();
    let clock = clock.unwrap_or_default();
    let tables = plan_tables(&sources, into as usize, clock)?;
    let mut writers = Vec::new();
    for shard in 0..into {
        let files = staging.create_shard(shard)?;
        let store = derive_number(entropy, shard.into()) | 1;
        writers.push(ShardWriter::new(files, store)?);
    }
    copy_chunks(&sources, &tables, &mut writers, &mut work)?;
    let options = tables.iter().map(|table| {
        table.options(|| {
            let used = writers.iter().enumerate();
            let used =
                used.map(|(shard, writer)| writer.table_bytes(table.items_of(shard), &sources));
            used.max().unwrap_or_default()
        })
    });
    let options: Vec<TableOptions> = options.collect();
    for (shard, writer) in writers.into_iter().enumerate() {
        let tables = tables.iter().zip(&options);
        writer.finish(shard, tables, &sources, clock)?;
    }
    let notes = sources.iter().flat_map(Source::notes).collect();
    Ok(Resharded {
        directories: staging.publish(into)?,
        tables: tables
            .into_iter()
            .map(|table| (table.name().to_owned(), table.shard_sizes))
            .collect(),
        notes,
    })
}

/// By serial of a chunk of one source: the shards that need it.
type Placements = BTreeMap<u64, Vec<u32>>;

/// Copies each chunk to the shards whose items refer to it.
fn copy_chunks(
    sources: &[Source],
    tables: &[ShardedTable<'_>],
    writers: &mut [ShardWriter],
    work: &mut Work<'_>,
) -> Result<()> {
    for (index, source) in sources.iter().enumerate() {
        let mut placements = Placements::new();
        let items = tables.iter().flat_map(|table| &table.items);
        for item in items.filter(|item| item.source == index) {
            for chunk in item.saved.trajectory.chunks() {
                let shards = placements.entry(source.serial(chunk)).or_default();
                if !shards.contains(&item.shard) {
                    shards.push(item.shard);
                }
            }
        }
        let all = source.record_bytes();
        let mut done = 0;
        for usage in source.recovered.logs.iter().map(|log| log.usage()) {
            if usage.used_bytes > 0 {
                let mut advance = |bytes| {
                    done += bytes;
                    work.advance(source.log_bytes, done, all);
                    work.check()
                };
                copy_log(
                    source,
                    index,
                    usage.log,
                    &mut placements,
                    writers,
                    &mut advance,
                )?;
            }
        }
        work.complete(source.log_bytes);
        work.check()?;
        if let Some((serial, _)) = placements.first_key_value() {
            let left = count(placements.len(), "chunk");
            return Err(Error::Storage(format!(
                "{}: its files changed while they were read: {left} cannot be found, for example chunk {serial}; try \
                 again",
                source.name()
            )));
        }
    }
    Ok(())
}

/// Copies the chunks of one log, and removes them from `placements`.
fn copy_log(
    source: &Source,
    index: usize,
    log: u64,
    placements: &mut Placements,
    writers: &mut [ShardWriter],
    advance: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let files = &source.directory.files;
    let name = log_name(log);
    let failed = |error: RecoveryError| error.into_error(files);
    let opened = files.open(&name).and_then(RecordReader::new);
    let opened = opened.map_err(|error| failed(read_error(&name, &error)))?;
    let Ok(mut reader) = opened else {
        let reason = format!("{name} has changed since it was first read");
        return Err(failed(UnusableData(reason).into()));
    };
    let mut dictionary = ReadDictionary::new(true);
    loop {
        let offset = reader.offset();
        let at_record = |reason| unusable_record(&name, offset, &reason);
        let record = match reader.next() {
            Err(error) => return Err(failed(read_error(&name, &error))),
            // What follows an invalid record was not used by the recovery either.
            Ok(Err(EndOfRecords::EndOfFile | EndOfRecords::Invalid { .. })) => return Ok(()),
            Ok(Ok(record)) => record,
        };
        let bytes = record_bytes(record.body.len()) as u64;
        if record.kind == kind::CHUNK {
            let serial = BodyReader(record.body).u64();
            let serial = serial.map_err(|reason| failed(at_record(reason).into()))?;
            for shard in placements.remove(&serial).unwrap_or_default() {
                let read = dictionary.read_chunk(record.body, |_| true);
                let (_, chunk) = read.map_err(|error| failed(error.map_reason(at_record)))?;
                let payload = dictionary.payload(record.body);
                let payload = payload.map_err(|reason| failed(at_record(reason).into()))?;
                if let Some(chunk) = chunk {
                    writers[shard as usize].add_chunk((index, serial), chunk, payload)?;
                }
            }
        } else {
            let added = dictionary.add_record(record.kind, record.body);
            added.map_err(|reason| failed(at_record(reason).into()))?;
        }
        advance(bytes)?;
    }
}
