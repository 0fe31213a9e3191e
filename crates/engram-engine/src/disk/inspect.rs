//! Looking at a directory without changing anything in it.

mod checkpoint;
mod records;
mod report;
mod still;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use engram_core::{Error, Result};

use super::bytes::Take;
use super::file::{FileHead, Kind, record_bytes};
use super::files::Files;
use super::names::{LOCK, Name, checkpoint_name};
use super::recover::{NOT_USED, recover};
use super::scan::Scan;
use super::storage::{holder, resumed};
use super::things::kind;
use records::Looked;
use still::Still;

pub use report::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedTable, Inspection, Opening, Tear,
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
    let still = Still::of(path).map_err(failed)?;
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
fn look(files: &dyn Files, names: &[String]) -> Inspection {
    let mut ours: Vec<(Name, &str)> = Vec::new();
    let mut others = Vec::new();
    for name in names {
        match Name::of(name) {
            Some(known) => ours.push((known, name)),
            None if name == LOCK => {}
            None => others.push(name.clone()),
        }
    }
    ours.sort_unstable();
    let (opening, mut store, notes) = opening(files);
    if store.is_none() {
        store = most(ours.iter().filter_map(|(_, name)| store_of(files, name)));
    }
    let head = |kind, number| FileHead {
        kind,
        store: store.unwrap_or_default(),
        number,
        first_change: 0,
    };
    let mut chunks = Chunks::new();
    let mut tables = Vec::new();
    let mut reports = Vec::new();
    for (known, name) in ours {
        let report = match known {
            Name::Checkpoint(number) => {
                let head = head(Kind::Checkpoint, number);
                let (report, found) = checkpoint::read(files, name, head);
                tables.push((head, found));
                report
            }
            Name::Log(number) => {
                let (report, found) = read_log(files, name, head(Kind::Log, number));
                chunks.insert(number, found);
                report
            }
            Name::Unfinished => records::unfinished(files, name),
        };
        reports.push(report);
    }
    tell_torn(&mut reports);
    let checkpoints = tables
        .into_iter()
        .map(|(head, tables)| checkpoint::verify(files, head, tables, &chunks))
        .collect();
    let mut found = Inspection {
        in_use: None,
        store,
        files: reports,
        others,
        checkpoints,
        opening,
        notes,
    };
    tell_from_notes(&mut found);
    count_replayed(&mut found);
    found
}

/// What a store would begin with, its number, and what it would say.
fn opening(files: &dyn Files) -> (Result<Opening, String>, Option<u64>, Vec<String>) {
    let found = match recover(files) {
        Ok(found) => found,
        Err(error) => return (Err(error.to_string()), None, Vec::new()),
    };
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
    let opening = Opening {
        checkpoint: found.from,
        changes: found.next_change.saturating_sub(1),
        age: resumed(&found),
        tables,
    };
    (Ok(opening), found.store, found.notes)
}

/// What is wrong with a checkpoint that a store found no use for, and that looks whole.
fn tell_from_notes(found: &mut Inspection) {
    let taken = found
        .opening
        .as_ref()
        .map_or(u64::MAX, |opening| opening.checkpoint.unwrap_or(0));
    let newer = found
        .checkpoints
        .iter_mut()
        .filter(|checkpoint| checkpoint.number > taken);
    for checkpoint in newer.filter(|checkpoint| checkpoint.problem.is_none()) {
        let name = checkpoint_name(checkpoint.number);
        let why = found
            .notes
            .iter()
            .find_map(|note| note.strip_prefix(&name)?.strip_prefix(NOT_USED));
        checkpoint.problem = Some(why.unwrap_or("a store does not take it").into());
    }
}

/// Takes off the changes that came before the checkpoint.
fn count_replayed(found: &mut Inspection) {
    if let Ok(opening) = &mut found.opening {
        let mut checkpoints = found.checkpoints.iter();
        let from = checkpoints.find(|checkpoint| Some(checkpoint.number) == opening.checkpoint);
        let first = from.and_then(|from| from.first_change).unwrap_or(1);
        opening.changes = opening.changes.saturating_sub(first.saturating_sub(1));
    }
}

/// What a file says of its store.
fn store_of(files: &dyn Files, name: &str) -> Option<u64> {
    let scan = files.open(name).and_then(Scan::new).ok()?.ok()?;
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
    files: &dyn Files,
    name: &str,
    head: FileHead,
) -> (InspectedFile, Option<Vec<(u64, u64)>>) {
    let mut chunks = Vec::new();
    let Looked { report, head } = records::read(files, name, head, |kind, body| {
        if kind == kind::CHUNK
            && let Ok(serial) = Take(body).u64()
        {
            chunks.push((serial, record_bytes(body.len()) as u64));
        }
    });
    let first_change = head.map(|head| head.first_change);
    let report = InspectedFile {
        first_change,
        ..report
    };
    (report, first_change.map(|_| chunks))
}

/// What ends early is torn if it is the newest log, or if the next one goes on with the next change; else it is damaged.
fn tell_torn(reports: &mut [InspectedFile]) {
    // Of the log after: its first change.
    let mut after: Option<Option<u64>> = None;
    for report in reports.iter_mut().rev() {
        let is_log = matches!(Name::of(&report.name), Some(Name::Log(_)));
        let next = report
            .first_change
            .map(|first| first.saturating_add(report.changes));
        if let FileState::Torn(tear) = &report.state
            && !(is_log && after.is_none_or(|first| first.is_some() && first == next))
        {
            report.state = FileState::Damaged(tear.clone());
        }
        if is_log {
            after = Some(report.first_change);
        }
    }
}
