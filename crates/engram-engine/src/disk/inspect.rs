//! Looking at a directory without changing anything in it.

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

use super::byte_codec::TakeBytes;
use super::directory_lock::holder;
use super::file_format::{FileHeader, Kind, record_bytes};
use super::file_names::{LOCK, LOST, Name, checkpoint_name};
use super::file_system::FileSystem;
use super::record_codec::kind;
use super::record_reader::RecordReader;
use super::recover::{NOT_USED, recover};
use directory_snapshot::DirectorySnapshot;

pub use report::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection,
    InvalidRecord,
};

/// Of each log, if it can be used: serial and bytes of its chunks.
type Chunks = BTreeMap<u64, Option<Vec<(u64, u64)>>>;

/// Says what lies in a directory, what of it is damaged, and what a store opened there would begin with.
///
/// Takes as much memory as that store would. A store that is open there goes on undisturbed: what is said is of one
/// moment. Nothing is changed; only who opens the directory in the very moment in which its `LOCK` is looked at may find it
/// in use.
///
/// # Errors
/// [`Error::Storage`] where there is no such directory, or it cannot be listed.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let failed = |error: io::Error| {
        let path = path.display();
        Error::Storage(match error.kind() {
            io::ErrorKind::NotFound => format!("there is no directory {path}"),
            io::ErrorKind::NotADirectory => {
                format!("{path} is a file; a store lives in a directory")
            }
            _ => format!("{path} cannot be listed: {error}"),
        })
    };
    let user = user(path);
    let still = DirectorySnapshot::of(path).map_err(failed)?;
    let names = still.list().map_err(failed)?;
    let mut found = look(&still, &names);
    match user {
        Ok(user) => found.in_use = user,
        Err(error) => found.notes.push(format!(
            "{LOCK} cannot be looked at: {error}; whether somebody has the directory open is not known"
        )),
    }
    Ok(found)
}

/// Who has a directory open.
fn user(path: &Path) -> io::Result<Option<String>> {
    let lock = match File::open(path.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        lock => lock?,
    };
    // Given back at once: the file is closed.
    match lock.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(holder(&lock))),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Looks at the files of these names.
pub(super) fn look(files: &dyn FileSystem, names: &[String]) -> Inspection {
    let mut ours: Vec<(Name, &str)> = Vec::new();
    let (mut set_aside, mut others) = (Vec::new(), Vec::new());
    for name in names {
        let lost = name.strip_suffix(LOST).and_then(Name::of);
        match Name::of(name) {
            Some(known) => ours.push((known, name)),
            None if lost.is_some() => set_aside.push(name),
            None if name == LOCK => {}
            None => others.push(name.clone()),
        }
    }
    ours.sort_unstable();
    let mut notes = Vec::new();
    let (opening, refusal) = match opening(files, false, &mut notes) {
        Ok(opening) => (Some(opening), None),
        Err(why) => (opening(files, true, &mut notes).ok(), Some(why)),
    };
    let (opening, store) = opening.unzip();
    let store = store
        .flatten()
        .or_else(|| most(ours.iter().filter_map(|(_, name)| store_of(files, name))));
    let head = |kind, number| FileHeader {
        kind,
        store: store.unwrap_or_default(),
        number,
    };
    let mut chunks = Chunks::new();
    let mut tables = Vec::new();
    let mut reports = Vec::new();
    for (known, name) in ours {
        let report = match known {
            Name::Checkpoint(number) => {
                let head = head(Kind::Checkpoint, number);
                let (report, found) = checkpoint_check::read(files, name, head);
                tables.push((head, found));
                report
            }
            Name::Log(number) => {
                let (report, found) = read_log(files, name, head(Kind::Log, number));
                chunks.insert(number, found);
                report
            }
            Name::Unfinished => file_check::unread(files, name, FileState::Unfinished),
        };
        reports.push(report);
    }
    let set_aside = set_aside.into_iter();
    reports.extend(set_aside.map(|name| file_check::unread(files, name, FileState::SetAside)));
    tell_torn(&mut reports);
    let checkpoints = tables
        .into_iter()
        .map(|(head, tables)| checkpoint_check::verify(files, head, tables, &chunks))
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
    tell_from_notes(&mut found);
    count_replayed(&mut found);
    found
}

/// What a store would begin with, and its number.
fn opening(
    files: &dyn FileSystem,
    repair: bool,
    notes: &mut Vec<String>,
) -> Result<(InspectedOpening, Option<u64>), String> {
    let found = recover(files, repair, &mut |_, _| {}).map_err(|error| error.to_string())?;
    // A repair begins with why it is one.
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

/// What is wrong with a checkpoint that looks whole, where a store takes an older one.
fn tell_from_notes(found: &mut Inspection) {
    let Some(opening) = found.opening.as_ref().filter(|opening| !opening.repaired) else {
        return;
    };
    let taken = opening.checkpoint.unwrap_or_default();
    for checkpoint in &mut found.checkpoints {
        if checkpoint.number > taken && checkpoint.problem.is_none() {
            let name = checkpoint_name(checkpoint.number);
            let mut notes = found.notes.iter();
            let why = notes.find_map(|note| note.strip_prefix(&name)?.strip_prefix(NOT_USED));
            checkpoint.problem = Some(why.unwrap_or("a store does not take it").into());
        }
    }
}

/// Takes off the changes that came before the checkpoint.
fn count_replayed(found: &mut Inspection) {
    if let Some(opening) = &mut found.opening {
        let mut checkpoints = found.checkpoints.iter();
        let from = checkpoints.find(|checkpoint| Some(checkpoint.number) == opening.checkpoint);
        let first = from.and_then(|from| from.first_change).unwrap_or(1);
        opening.changes = opening.changes.saturating_sub(first.saturating_sub(1));
    }
}

/// What a file says of its store.
fn store_of(files: &dyn FileSystem, name: &str) -> Option<u64> {
    let scan = files.open(name).and_then(RecordReader::new).ok()?.ok()?;
    Some(scan.head.store)
}

/// The number that comes most often.
fn most(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts = BTreeMap::<u64, usize>::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(number, _)| number)
}

/// A log, and the chunks that it holds if it can be used.
fn read_log(
    files: &dyn FileSystem,
    name: &str,
    head: FileHeader,
) -> (InspectedFile, Option<Vec<(u64, u64)>>) {
    let mut chunks = Vec::new();
    let mut first_change = None;
    let looked = file_check::read(files, name, head, |kind, body| {
        match (kind, TakeBytes(body).u64()) {
            (kind::CHUNK, Ok(serial)) => chunks.push((serial, record_bytes(body.len()) as u64)),
            (kind::BEGIN, Ok(first)) => first_change = Some(first),
            _ => {}
        }
    });
    let report = InspectedFile {
        first_change,
        ..looked.report
    };
    (report, looked.is_usable.then_some(chunks))
}

/// What ends early is torn if it is a log, and if the next one that has changes goes on with the next; else it is damaged.
fn tell_torn(reports: &mut [InspectedFile]) {
    // Of the log after that has changes: the first of them.
    let mut after = None;
    for report in reports.iter_mut().rev() {
        let is_log = matches!(Name::of(&report.name), Some(Name::Log(_)));
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
