//! One file's records: which pass, and what lies beyond the first that does not.

use crate::disk::bytes::{Damage, Take};
use crate::disk::file::{FILE_HEAD, FileHead, NoHead, VERSION};
use crate::disk::files::Files;
use crate::disk::scan::{End, Scan};
use crate::disk::things::kind;

use super::report::{FileState, InspectedFile, Tear};

/// Bytes of a file that are searched for records beyond places that do not pass.
const SEARCHED: u64 = 256 << 20;

/// A file that was read.
pub(super) struct Looked {
    pub(super) report: InspectedFile,
    /// Its head is right: a store reads it up to where it stops to pass.
    pub(super) is_usable: bool,
}

/// A file whose head should be this one, or what is wrong with it.
pub(super) fn open(files: &dyn Files, name: &str, head: FileHead) -> Result<Scan, FileState> {
    let unusable = |why: String| Err(FileState::Unusable(why));
    let scan = match files.open(name).and_then(Scan::new) {
        Err(error) => return unusable(format!("it cannot be read: {error}")),
        Ok(Err(NoHead::OtherVersion(version))) => {
            return unusable(format!(
                "it is of format version {version}; this release reads version {VERSION}"
            ));
        }
        Ok(Err(NoHead::Damaged(Damage(why)))) => {
            return Err(FileState::Damaged(Tear {
                why,
                ..Tear::default()
            }));
        }
        Ok(Ok(scan)) => scan,
    };
    if (scan.head.kind, scan.head.number) != (head.kind, head.number) {
        return unusable("it is another file under its name".into());
    }
    if scan.head.store != head.store {
        return unusable("it is of another store".into());
    }
    Ok(scan)
}

/// Reads a file whose head should be this one, and tells each record that passes.
pub(super) fn read(
    files: &dyn Files,
    name: &str,
    head: FileHead,
    mut tell: impl FnMut(u32, &[u8]),
) -> Looked {
    let mut report = unread(files, name, FileState::Whole);
    let mut scan = match open(files, name, head) {
        Ok(scan) => scan,
        Err(mut state) => {
            // Records know their places, and pass without a head.
            if let FileState::Damaged(tear) = &mut state
                && report.bytes > FILE_HEAD as u64
                && let Ok(file) = files.open(name)
            {
                count(&mut Scan::after(file, head, report.bytes), tear);
            }
            report.state = state;
            return Looked {
                report,
                is_usable: false,
            };
        }
    };
    report.state = loop {
        let place = scan.place();
        let mut tear = Tear {
            place,
            ..Tear::default()
        };
        match scan.next() {
            Ok(Ok(record)) => {
                report.records += 1;
                report.changes += changes(record.kind, record.body);
                tell(record.kind, record.body);
            }
            Ok(Err(End::Whole)) => break FileState::Whole,
            Ok(Err(End::Torn { why, .. })) => {
                tear.why = why;
                count(&mut scan, &mut tear);
                break match tear.records_after {
                    0 => FileState::Torn(tear),
                    _ => FileState::Damaged(tear),
                };
            }
            Err(error) => {
                tear.why = format!("it cannot be read: {error}");
                break FileState::Damaged(tear);
            }
        }
    };
    Looked {
        report,
        is_usable: true,
    }
}

/// A file of which nothing was read.
pub(super) fn unread(files: &dyn Files, name: &str, state: FileState) -> InspectedFile {
    let bytes = files.open(name).and_then(|file| file.len());
    InspectedFile {
        name: name.into(),
        bytes: bytes.unwrap_or_default(),
        records: 0,
        first_change: None,
        changes: 0,
        state,
    }
}

/// Counts the records that pass from here on, be there more places that do not.
fn count(scan: &mut Scan, tear: &mut Tear) {
    let mut most = SEARCHED;
    loop {
        while let Ok(Ok(record)) = scan.next() {
            tear.records_after += 1;
            tear.changes_after += changes(record.kind, record.body);
        }
        if !scan.search(&mut most).unwrap_or(false) {
            return;
        }
    }
}

/// Changes of a record.
fn changes(kind: u32, body: &[u8]) -> u64 {
    match kind {
        kind::CHANGES => {
            // Of which table, and the number of the first.
            let mut take = Take(body);
            let count = take.take(16).and_then(|_| take.u32());
            count.map_or(0, u64::from)
        }
        kind::TABLE_CREATED | kind::TABLE_DROPPED => 1,
        _ => 0,
    }
}
