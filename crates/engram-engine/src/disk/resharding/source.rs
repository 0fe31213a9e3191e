//! The directories to read, and whether their tables agree.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::{
    DeferredDrops, Error, RateLimits, Result, SelectorKind, Snapshot, TableOptions, TableState,
};

use super::super::directory::ReadableDirectory as _;
use super::super::directory_reader::Recovered;
use super::super::errors::failed;
use super::super::file_names::FileName;
use super::super::os_directory::OsDirectory;
use super::super::recover::ClosedDirectory;
use super::progress::Work;

/// A table of a source.
#[derive(Debug)]
pub(super) struct SourceTable {
    pub(super) options: Arc<TableOptions>,
    pub(super) snapshot: Box<Snapshot>,
}

/// A directory to read. No process can open it meanwhile.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) directory: ClosedDirectory,
    /// What was read; its tables are in `tables`.
    pub(super) recovered: Recovered,
    /// Tables in the order of their creation. Their chunks have no payloads.
    pub(super) tables: Vec<SourceTable>,
    /// Current reading of the store's clock, in nanoseconds.
    pub(super) clock: u64,
    /// Size of all logs, for progress.
    pub(super) log_bytes: u64,
}

impl Source {
    /// The directory, for messages.
    pub(super) fn name(&self) -> String {
        self.directory.files.path().display().to_string()
    }

    pub(super) fn table(&self, name: &str) -> Option<&SourceTable> {
        self.tables.iter().find(|table| table.options.name == name)
    }

    /// Serial of a chunk of this source.
    pub(super) fn serial(&self, chunk: &Chunk) -> u64 {
        let store = self.recovered.store.unwrap_or_default();
        chunk.location(store).map_or(0, |(serial, _)| serial)
    }

    /// Bytes of records in the logs with chunks in use.
    pub(super) fn record_bytes(&self) -> u64 {
        let usages = self.recovered.logs.iter().map(|log| log.usage());
        let used = usages.filter(|usage| usage.used_bytes > 0);
        used.map(|usage| usage.bytes).sum()
    }

    /// What was damaged or unfinished.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> + '_ {
        let notes = self.recovered.notes.iter();
        notes.map(|note| format!("{}: {note}", self.name()))
    }
}

/// Locks and reads all sources.
///
/// # Errors
/// Those of `reshard` for its sources.
pub(super) fn open_sources(directories: &[PathBuf], work: &mut Work<'_>) -> Result<Vec<Source>> {
    if directories.is_empty() {
        let text = "`directories` must have at least one directory of a store; got none";
        return Err(Error::InvalidArgument(text.into()));
    }
    let mut opened: Vec<(ClosedDirectory, _)> = Vec::new();
    for path in directories {
        let directory = ClosedDirectory::open(path)?;
        let id = directory
            .files
            .id(".")
            .map_err(|error| failed(path, "used", &error))?;
        if let Some((other, _)) = opened.iter().find(|(_, other)| *other == id) {
            return Err(Error::InvalidArgument(format!(
                "`directories`: {} and {} are the same directory; give each source once",
                other.files.path().display(),
                path.display()
            )));
        }
        opened.push((directory, id));
    }
    let sizes: Vec<u64> = opened
        .iter()
        .map(|(directory, _)| log_bytes(&directory.files))
        .collect();
    work.set_total(2 * sizes.iter().sum::<u64>());
    let mut sources: Vec<Source> = Vec::new();
    for ((directory, _), size) in opened.into_iter().zip(sizes) {
        let mut report = |done: u64, total: u64| work.advance(size, done, total);
        let recovered = directory.read(false, true, &mut report)?;
        work.complete(size);
        work.check()?;
        let source = Source::new(directory, recovered, size);
        let same_store = |other: &&Source| other.recovered.store == source.recovered.store;
        if let Some(other) = sources.iter().find(same_store) {
            return Err(Error::InvalidArgument(format!(
                "`directories`: {} and {} are copies of one store, so items would be in the result twice; give one of \
                 them",
                other.name(),
                source.name()
            )));
        }
        sources.push(source);
    }
    Ok(sources)
}

impl Source {
    fn new(directory: ClosedDirectory, mut recovered: Recovered, log_bytes: u64) -> Self {
        let tables = std::mem::take(&mut recovered.tables);
        let to_source_table = |mut state: TableState| {
            // The readers with these leases no longer exist.
            state.end_leases(&mut DeferredDrops::default());
            SourceTable {
                options: Arc::clone(state.options()),
                snapshot: state.snapshot(),
            }
        };
        Self {
            directory,
            clock: recovered.resumed_clock(),
            tables: tables.into_values().map(to_source_table).collect(),
            recovered,
            log_bytes,
        }
    }
}

/// Size of all logs of a directory; logs that cannot be opened are left out.
fn log_bytes(files: &OsDirectory) -> u64 {
    let names = files.list().unwrap_or_default();
    let logs = names
        .iter()
        .filter(|name| matches!(FileName::parse(name), Some(FileName::Log(_))));
    let sizes = logs.map(|name| files.open(name)?.len());
    sizes.filter_map(io::Result::ok).sum()
}

/// Checks that all sources have the same tables with the same options, except for the seed, and the same current limits.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the table, the difference, and two sources.
pub(super) fn check_agreement(sources: &[Source]) -> Result<()> {
    let Some((first, others)) = sources.split_first() else {
        return Ok(());
    };
    for other in others {
        for (one, two) in [(first, other), (other, first)] {
            let missing = one
                .tables
                .iter()
                .find(|table| two.table(&table.options.name).is_none());
            if let Some(table) = missing {
                return Err(Error::InvalidArgument(format!(
                    "{} has a table `{}`, but {} has none; all sources must have the same tables: create or drop the \
                     table",
                    one.name(),
                    table.options.name,
                    two.name()
                )));
            }
        }
        for table in &first.tables {
            let Some(other_table) = other.table(&table.options.name) else {
                continue;
            };
            if let Some((option, one, two)) = first_difference(table, other_table) {
                let advice = match option {
                    CURRENT_LIMITER => {
                        "open both stores, set the same limiter with `set_rate_limiter`, close them and try again"
                    }
                    _ => "open the stores with the same options, close them and try again",
                };
                return Err(Error::InvalidArgument(format!(
                    "table `{}`: {option} is {one} in {}, but {two} in {}; {advice}",
                    table.options.name,
                    first.name(),
                    other.name()
                )));
            }
        }
    }
    Ok(())
}

const CURRENT_LIMITER: &str = "the current rate limiter";

/// The name of the first option that differs, and its values.
fn first_difference(
    one: &SourceTable,
    two: &SourceTable,
) -> Option<(&'static str, String, String)> {
    let describe = |table: &SourceTable| {
        let limiter = &table.snapshot.counters.limiter;
        // Exhaustive, so that no new option is forgotten.
        let TableOptions {
            name: _,
            max_size,
            max_bytes,
            max_times_sampled,
            ttl,
            sampler,
            remover,
            limits,
            signature,
            seed: _,
            note,
        } = &*table.options;
        [
            ("`max_size`", format!("{max_size}")),
            ("`max_bytes`", describe_option(max_bytes.as_ref())),
            (
                "`max_times_sampled`",
                match max_times_sampled {
                    0 => "unlimited".into(),
                    _ => format!("{max_times_sampled}"),
                },
            ),
            ("`ttl`", describe_ttl(*ttl)),
            ("`sampler`", describe_selector(sampler)),
            ("`remover`", describe_selector(remover)),
            ("`rate_limiter`", describe_limits(limits)),
            (CURRENT_LIMITER, describe_limits(&limiter.limits)),
            ("`signature`", describe_option(signature.as_ref())),
            ("`note`", describe_option(note.as_ref())),
        ]
    };
    let pairs = describe(one).into_iter().zip(describe(two));
    let mut differences = pairs.filter(|((_, one), (_, two))| one != two);
    differences
        .next()
        .map(|((option, one), (_, two))| (option, one, two))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "differences of less than a nanosecond in a ttl of many days are not described"
)]
fn describe_ttl(ttl: Option<u64>) -> String {
    ttl.map_or_else(|| "None".into(), |ttl| format!("{} s", ttl as f64 / 1e9))
}

fn describe_selector(selector: &SelectorKind) -> String {
    match selector {
        SelectorKind::Prioritized { exponent } => format!("Prioritized({exponent})"),
        other => format!("{other:?}"),
    }
}

fn describe_limits(limits: &RateLimits) -> String {
    let RateLimits {
        kind,
        samples_per_insert,
        min_size,
        min_diff,
        max_diff,
    } = limits;
    format!(
        "{kind}(samples_per_insert={samples_per_insert}, min_size={min_size}, min_diff={min_diff}, max_diff={max_diff})"
    )
}

fn describe_option<T: std::fmt::Debug>(value: Option<&T>) -> String {
    value.map_or_else(|| "None".into(), |value| format!("{value:?}"))
}
