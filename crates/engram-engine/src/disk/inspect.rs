//! Inspection of a directory: what it contains, what is damaged, and what opening it would restore.
//! Changes nothing.

mod checkpoint_check;
mod directory_snapshot;
mod file_check;
mod report;

use std::collections::BTreeMap;
use std::fs::TryLockError;
use std::io;
use std::path::Path;

use engram_core::{Error, Result};
use rustix::fs::OFlags;

use crate::clock::FIRST_READING;

use super::byte_codec::BodyReader;
use super::close_mark::CloseMark;
use super::directory::ReadableDirectory;
use super::directory_lock::owner;
use super::file_format::{FileHeader, FileKind, record_bytes};
use super::file_names::{
    CLOSE_MARK_NAME, FileName, LOCK_NAME, checkpoint_name, log_name, name_before_loss,
};
use super::kind;
use super::os_directory::OsDirectory;
use super::record_reader::RecordReader;
use super::recover::{NOT_USED, recover};
use checkpoint_check::ChunksByLog;
use directory_snapshot::DirectorySnapshot;

pub use report::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection,
    InvalidRecord,
};

/// Inspects a directory: its files, what is damaged, and what opening it would restore.
///
/// Uses as much memory as opening the store. The store may be open in another process and continue to
/// change; the result describes one moment. A process that opens the directory while this function
/// checks the lock may fail because the directory seems to be in use.
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
    let directory = OsDirectory::open(path).map_err(failed)?;
    let process = current_process(&directory);
    let snapshot = DirectorySnapshot::open(directory).map_err(failed)?;
    let names = snapshot.list().map_err(failed)?;
    let mut inspection = inspect_files(&snapshot, &names);
    match process {
        Ok(process) => inspection.in_use = process,
        Err(error) => inspection.notes.push(format!(
            "{LOCK_NAME} cannot be read: {error}; it is unknown whether a process has the directory open"
        )),
    }
    Ok(inspection)
}

/// Returns the process that has a directory open, as recorded in its `LOCK` file; `None` if no process has.
fn current_process(directory: &OsDirectory) -> io::Result<Option<String>> {
    let lock = match directory.open_file(LOCK_NAME, OFlags::RDONLY) {
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
pub(super) fn inspect_files(files: &dyn ReadableDirectory, names: &[String]) -> Inspection {
    let mut engram_files: Vec<(FileName, &str)> = Vec::new();
    let (mut set_aside, mut others) = (Vec::new(), Vec::new());
    for name in names {
        let original = name_before_loss(name).and_then(FileName::parse);
        match FileName::parse(name) {
            Some(kind) => engram_files.push((kind, name)),
            None if original.is_some() => set_aside.push(name),
            None if name == LOCK_NAME || name == CLOSE_MARK_NAME => {}
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
                .filter_map(|(_, name)| read_store_id(files, name)),
        )
    });
    let expected_header = |kind, number| FileHeader {
        kind,
        store: store.unwrap_or_default(),
        number,
    };
    let mut chunks_by_log = ChunksByLog::new();
    let mut checkpoint_tables = Vec::new();
    let mut reports = Vec::new();
    for (kind, name) in engram_files {
        let report = match kind {
            FileName::Checkpoint(number) => {
                let header = expected_header(FileKind::Checkpoint, number);
                let (report, tables) = checkpoint_check::read_checkpoint(files, name, header);
                checkpoint_tables.push((header, tables));
                report
            }
            FileName::Log(number) => {
                let (report, chunks) =
                    read_log(files, name, expected_header(FileKind::Log, number));
                chunks_by_log.insert(number, chunks);
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
    if let Ok(Some(mark)) = CloseMark::read(files, names)
        && store.is_none_or(|store| store == mark.store)
    {
        report_loss_since_close(&mark, &mut reports);
    }
    let checkpoints = checkpoint_tables
        .into_iter()
        .map(|(header, tables)| {
            checkpoint_check::check_checkpoint(files, header, tables, &chunks_by_log)
        })
        .collect();
    let mut inspection = Inspection {
        in_use: None,
        store,
        files: reports,
        others,
        checkpoints,
        opening,
        refusal,
        notes,
    };
    add_checkpoint_problems(&mut inspection);
    subtract_checkpoint_changes(&mut inspection);
    inspection
}

/// Returns what opening the directory would restore, and the store's id; adds the notes of that recovery to `notes`.
///
/// # Errors
/// Why it cannot be opened.
fn preview_opening(
    files: &dyn ReadableDirectory,
    repair: bool,
    notes: &mut Vec<String>,
) -> Result<(InspectedOpening, Option<u64>), String> {
    let recovered = recover(files, repair, &mut |_, _| {})
        .map_err(|error| error.into_error(files).to_string())?;
    // The first note of a repair is its reason, which is reported as `refusal`.
    notes.extend_from_slice(&recovered.notes[usize::from(recovered.repaired)..]);
    let tables = recovered.tables.values().map(|table| {
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
        repaired: recovered.repaired,
        checkpoint: recovered.checkpoint_read,
        // Including those in the checkpoint: see `subtract_checkpoint_changes`.
        changes: recovered.next_change.saturating_sub(1),
        age: recovered.resumed_clock().saturating_sub(FIRST_READING),
        tables,
    };
    Ok((opening, recovered.store))
}

/// For each checkpoint that seems intact although recovery uses an older one, adds the reason as its problem.
fn add_checkpoint_problems(inspection: &mut Inspection) {
    let Some(opening) = inspection
        .opening
        .as_ref()
        .filter(|opening| !opening.repaired)
    else {
        return;
    };
    let used_number = opening.checkpoint.unwrap_or_default();
    for checkpoint in &mut inspection.checkpoints {
        if checkpoint.number > used_number && checkpoint.problem.is_none() {
            let name = checkpoint_name(checkpoint.number);
            let mut notes = inspection.notes.iter();
            let reason = notes.find_map(|note| note.strip_prefix(&name)?.strip_prefix(NOT_USED));
            checkpoint.problem = Some(reason.unwrap_or("recovery uses an older one").into());
        }
    }
}

/// Subtracts the changes before the first replayed one from `InspectedOpening::changes`.
fn subtract_checkpoint_changes(inspection: &mut Inspection) {
    if let Some(opening) = &mut inspection.opening {
        let mut checkpoints = inspection.checkpoints.iter();
        let used = checkpoints.find(|checkpoint| Some(checkpoint.number) == opening.checkpoint);
        let first_change = used.and_then(|used| used.first_change).unwrap_or(1);
        opening.changes = opening
            .changes
            .saturating_sub(first_change.saturating_sub(1));
    }
}

/// Reads the store's id in a file's header; `None` if the header cannot be read.
fn read_store_id(files: &dyn ReadableDirectory, name: &str) -> Option<u64> {
    let file_reader = files.open(name).and_then(RecordReader::new).ok()?.ok()?;
    Some(file_reader.header.store)
}

/// Returns the most frequent of the numbers; `None` without any.
fn most_frequent(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts = BTreeMap::<u64, usize>::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    let winner = counts.into_iter().max_by_key(|(_, count)| *count);
    winner.map(|(number, _)| number)
}

/// Reads a log; returns its report, and serial and record size in bytes of each of its chunks, if it can be used.
fn read_log(
    files: &dyn ReadableDirectory,
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

/// Reports that the log that was open when the store was closed is missing, or lost or changed bytes since the store was closed.
fn report_loss_since_close(mark: &CloseMark, reports: &mut Vec<InspectedFile>) {
    let name = log_name(mark.log);
    let reason = "it is missing, but was there when the store was closed";
    let Some(report) = reports.iter_mut().find(|report| report.name == name) else {
        reports.push(InspectedFile {
            name,
            bytes: 0,
            records: 0,
            first_change: None,
            changes: 0,
            state: FileState::Unusable(reason.into()),
        });
        return;
    };
    match &report.state {
        FileState::Torn(invalid) if mark.covers(mark.log, invalid.offset) => {
            report.state = FileState::Damaged(invalid.clone());
        }
        FileState::Whole if report.bytes < mark.bytes => {
            report.state = FileState::Damaged(InvalidRecord {
                offset: report.bytes,
                reason: format!(
                    "the file ends there, but had {} bytes when the store was closed",
                    mark.bytes
                ),
                ..InvalidRecord::default()
            });
        }
        _ => {}
    }
}

/// Changes the state of torn files to damaged. These logs stay torn, because no change is known to be missing:
///
/// * a log after which no log with a `begin` record follows (chunk logs have none),
/// * a log after which the next log with a `begin` record continues with the next change,
/// * a log without a `begin` record: the number of its next change is unknown.
fn classify_tears(reports: &mut [InspectedFile]) {
    // The number in the `begin` record of the next newer log that has one: the loop visits the newest log first.
    let mut first_of_next_log = None;
    for report in reports.iter_mut().rev() {
        let is_log = matches!(FileName::parse(&report.name), Some(FileName::Log(_)));
        let first = report.first_change;
        let next_change = first.map(|first| first.saturating_add(report.changes));
        if let FileState::Torn(invalid) = &report.state
            && !(is_log
                && (first_of_next_log.is_none()
                    || next_change.is_none()
                    || next_change == first_of_next_log))
        {
            report.state = FileState::Damaged(invalid.clone());
        }
        first_of_next_log = first.or(first_of_next_log);
    }
}
