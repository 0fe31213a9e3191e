//! Inspection of a directory: what it contains, what is damaged, and what opening it would restore.
//! Changes nothing.

mod checkpoint_check;
mod directory_snapshot;
mod file_check;
mod report;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use engram_core::{Error, Result};

use crate::clock::FIRST_READING;

use super::byte_codec::BodyReader;
use super::directory_lock::owner;
use super::file_format::{FileHeader, FileKind, record_bytes};
use super::file_names::{FileName, LOCK, LOST, checkpoint_name};
use super::file_system::FileSystem;
use super::record_codec::kind;
use super::record_reader::RecordReader;
use super::recover::{NOT_USED, recover};
use directory_snapshot::DirectorySnapshot;

pub use report::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection,
    InvalidRecord,
};

/// Serial and record size of the chunks of each log, by the log's number; `None` for an unusable log.
type Chunks = BTreeMap<u64, Option<Vec<(u64, u64)>>>;

/// Inspects a directory: its files, what is damaged, and what opening it would restore.
///
/// Uses as much memory as opening the store. The store may be open in another process, which is not
/// disturbed; the result describes one moment. Nothing is changed. A process that opens the
/// directory at the moment in which its lock is checked may find it in use.
///
/// # Errors
/// [`Error::Storage`] if the directory does not exist or cannot be listed.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let failed = |error: io::Error| {
        let path = path.display();
        Error::Storage(match error.kind() {
            io::ErrorKind::NotFound => {
                format!("{path} does not exist; give the directory of a store")
            }
            io::ErrorKind::NotADirectory => {
                format!("{path} is a file; a store is a directory")
            }
            _ => format!("{path} cannot be listed: {error}"),
        })
    };
    let user = current_user(path);
    let snapshot = DirectorySnapshot::of(path).map_err(failed)?;
    let names = snapshot.list().map_err(failed)?;
    let mut found = inspect_files(&snapshot, &names);
    match user {
        Ok(user) => found.in_use = user,
        Err(error) => found.notes.push(format!(
            "{LOCK} cannot be read: {error}; it is unknown whether a process has the directory open"
        )),
    }
    Ok(found)
}

/// The process that has a directory open.
fn current_user(path: &Path) -> io::Result<Option<String>> {
    let lock = match File::open(path.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        lock => lock?,
    };
    // Closing the file at the end releases the lock.
    match lock.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(owner(&lock))),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Inspects the files with these names.
pub(super) fn inspect_files(files: &dyn FileSystem, names: &[String]) -> Inspection {
    let mut engram_files: Vec<(FileName, &str)> = Vec::new();
    let (mut set_aside, mut others) = (Vec::new(), Vec::new());
    for name in names {
        let lost = name.strip_suffix(LOST).and_then(FileName::parse);
        match FileName::parse(name) {
            Some(kind) => engram_files.push((kind, name)),
            None if lost.is_some() => set_aside.push(name),
            None if name == LOCK => {}
            None => others.push(name.clone()),
        }
    }
    engram_files.sort_unstable();
    let mut notes = Vec::new();
    let (opening, refusal) = match preview_opening(files, false, &mut notes) {
        Ok(opening) => (Some(opening), None),
        Err(reason) => (preview_opening(files, true, &mut notes).ok(), Some(reason)),
    };
    let (opening, store) = opening.unzip();
    let store = store.flatten().or_else(|| {
        most_frequent(
            engram_files
                .iter()
                .filter_map(|(_, name)| store_of(files, name)),
        )
    });
    let header = |kind, number| FileHeader {
        kind,
        store: store.unwrap_or_default(),
        number,
    };
    let mut chunks = Chunks::new();
    let mut tables = Vec::new();
    let mut reports = Vec::new();
    for (kind, name) in engram_files {
        let report = match kind {
            FileName::Checkpoint(number) => {
                let header = header(FileKind::Checkpoint, number);
                let (report, found) = checkpoint_check::read_checkpoint(files, name, header);
                tables.push((header, found));
                report
            }
            FileName::Log(number) => {
                let (report, found) = read_log(files, name, header(FileKind::Log, number));
                chunks.insert(number, found);
                report
            }
            FileName::Unfinished => file_check::report_unread(files, name, FileState::Unfinished),
        };
        reports.push(report);
    }
    let set_aside = set_aside.into_iter();
    reports
        .extend(set_aside.map(|name| file_check::report_unread(files, name, FileState::SetAside)));
    classify_tears(&mut reports);
    let checkpoints = tables
        .into_iter()
        .map(|(header, tables)| checkpoint_check::check_checkpoint(files, header, tables, &chunks))
        .collect();
    let mut found = Inspection {
        in_use: None,
        store,
        files: reports,
        others,
        checkpoints,
        opening,
        refusal,
        notes,
    };
    add_checkpoint_problems(&mut found);
    subtract_checkpoint_changes(&mut found);
    found
}

/// What opening the directory would restore, and the store's id.
fn preview_opening(
    files: &dyn FileSystem,
    repair: bool,
    notes: &mut Vec<String>,
) -> Result<(InspectedOpening, Option<u64>), String> {
    let found = recover(files, repair, &mut |_, _| {})
        .map_err(|error| error.into_error(files).to_string())?;
    // The first note of a repair is its reason, which is reported as `refusal`.
    notes.extend_from_slice(&found.notes[usize::from(found.repaired)..]);
    let tables = found.tables.values().map(|table| {
        let stats = table.stats();
        InspectedTable {
            name: table.options().name.clone(),
            items: stats.size,
            bytes: Some(stats.bytes),
            last_change: table.last_lsn().0,
        }
    });
    let mut tables: Vec<InspectedTable> = tables.collect();
    tables.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let opening = InspectedOpening {
        repaired: found.repaired,
        checkpoint: found.from,
        changes: found.next_change.saturating_sub(1),
        age: found.resumed().saturating_sub(FIRST_READING),
        tables,
    };
    Ok((opening, found.store))
}

/// For checkpoints that look intact although recovery uses an older one, adds the reason.
fn add_checkpoint_problems(found: &mut Inspection) {
    let Some(opening) = found.opening.as_ref().filter(|opening| !opening.repaired) else {
        return;
    };
    let used = opening.checkpoint.unwrap_or_default();
    for checkpoint in &mut found.checkpoints {
        if checkpoint.number > used && checkpoint.problem.is_none() {
            let name = checkpoint_name(checkpoint.number);
            let mut notes = found.notes.iter();
            let reason = notes.find_map(|note| note.strip_prefix(&name)?.strip_prefix(NOT_USED));
            checkpoint.problem = Some(reason.unwrap_or("recovery uses an older one").into());
        }
    }
}

/// Subtracts the changes that are in the checkpoint from `changes`.
fn subtract_checkpoint_changes(found: &mut Inspection) {
    if let Some(opening) = &mut found.opening {
        let mut checkpoints = found.checkpoints.iter();
        let from = checkpoints.find(|checkpoint| Some(checkpoint.number) == opening.checkpoint);
        let first = from.and_then(|from| from.first_change).unwrap_or(1);
        opening.changes = opening.changes.saturating_sub(first.saturating_sub(1));
    }
}

/// The store's id in a file's header.
fn store_of(files: &dyn FileSystem, name: &str) -> Option<u64> {
    let file_reader = files.open(name).and_then(RecordReader::new).ok()?.ok()?;
    Some(file_reader.header.store)
}

/// The most frequent number.
fn most_frequent(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts = BTreeMap::<u64, usize>::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(number, _)| number)
}

/// Reads a log; returns its report, and its chunks if it can be used.
fn read_log(
    files: &dyn FileSystem,
    name: &str,
    header: FileHeader,
) -> (InspectedFile, Option<Vec<(u64, u64)>>) {
    let mut chunks = Vec::new();
    let mut first_change = None;
    let checked = file_check::check_file(files, name, header, |kind, body| {
        match (kind, BodyReader(body).u64()) {
            (kind::CHUNK, Ok(serial)) => chunks.push((serial, record_bytes(body.len()) as u64)),
            (kind::BEGIN, Ok(first)) => first_change = Some(first),
            _ => {}
        }
    });
    let report = InspectedFile {
        first_change,
        ..checked.report
    };
    (report, checked.is_usable.then_some(chunks))
}

/// Decides for each file with an invalid record whether it is torn or damaged. It is torn if it is a
/// log, and the next log with changes continues with the next change.
fn classify_tears(reports: &mut [InspectedFile]) {
    // First change of the next log that has changes.
    let mut after = None;
    for report in reports.iter_mut().rev() {
        let is_log = matches!(FileName::parse(&report.name), Some(FileName::Log(_)));
        let first = report.first_change;
        let next = first.map(|first| first.saturating_add(report.changes));
        if let FileState::Torn(invalid) = &report.state
            && !(is_log && (after.is_none() || next.is_none() || next == after))
        {
            report.state = FileState::Damaged(invalid.clone());
        }
        after = first.or(after);
    }
}
