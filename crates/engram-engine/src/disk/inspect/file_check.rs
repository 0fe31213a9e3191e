//! One file's records: which pass, and what lies beyond the first that does not.

use crate::disk::byte_codec::{CorruptRecord, TakeBytes};
use crate::disk::file_format::{FILE_HEADER_BYTES, FileHeader, HeaderError, VERSION};
use crate::disk::file_system::FileSystem;
use crate::disk::record_codec::kind;
use crate::disk::record_reader::{EndOfRecords, RecordReader};

use super::report::{FileState, InspectedFile, InvalidRecord};

/// Bytes of a file that are searched for records beyond places that do not pass.
const SEARCHED: u64 = 256 << 20;

/// A file that was read.
pub(super) struct CheckedFile {
    pub(super) report: InspectedFile,
    /// Its head is right: a store reads it up to where it stops to pass.
    pub(super) is_usable: bool,
}

/// A file whose head should be this one, or what is wrong with it.
pub(super) fn open(
    files: &dyn FileSystem,
    name: &str,
    head: FileHeader,
) -> Result<RecordReader, FileState> {
    let unusable = |why: String| Err(FileState::Unusable(why));
    let scan = match files.open(name).and_then(RecordReader::new) {
        Err(error) => return unusable(format!("it cannot be read: {error}")),
        Ok(Err(HeaderError::UnsupportedVersion(version))) => {
            return unusable(format!(
                "it is of format version {version}; this release reads version {VERSION}"
            ));
        }
        Ok(Err(HeaderError::Corrupt(CorruptRecord(why)))) => {
            return Err(FileState::Damaged(InvalidRecord {
                reason: why,
                ..InvalidRecord::default()
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
    files: &dyn FileSystem,
    name: &str,
    head: FileHeader,
    mut tell: impl FnMut(u32, &[u8]),
) -> CheckedFile {
    let mut report = unread(files, name, FileState::Whole);
    let mut scan = match open(files, name, head) {
        Ok(scan) => scan,
        Err(mut state) => {
            // RecordWriter know their places, and pass without a head.
            if let FileState::Damaged(invalid) = &mut state
                && report.bytes > FILE_HEADER_BYTES as u64
                && let Ok(file) = files.open(name)
            {
                count(&mut RecordReader::after(file, head, report.bytes), invalid);
            }
            report.state = state;
            return CheckedFile {
                report,
                is_usable: false,
            };
        }
    };
    report.state = loop {
        let place = scan.place();
        let mut invalid = InvalidRecord {
            offset: place,
            ..InvalidRecord::default()
        };
        match scan.next() {
            Ok(Ok(record)) => {
                report.records += 1;
                report.changes += changes(record.kind, record.body);
                tell(record.kind, record.body);
            }
            Ok(Err(EndOfRecords::EndOfFile)) => break FileState::Whole,
            Ok(Err(EndOfRecords::Invalid { why, .. })) => {
                invalid.reason = why;
                count(&mut scan, &mut invalid);
                break match invalid.records_after {
                    0 => FileState::Torn(invalid),
                    _ => FileState::Damaged(invalid),
                };
            }
            Err(error) => {
                invalid.reason = format!("it cannot be read: {error}");
                break FileState::Damaged(invalid);
            }
        }
    };
    CheckedFile {
        report,
        is_usable: true,
    }
}

/// A file of which nothing was read.
pub(super) fn unread(files: &dyn FileSystem, name: &str, state: FileState) -> InspectedFile {
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
fn count(scan: &mut RecordReader, invalid: &mut InvalidRecord) {
    let mut most = SEARCHED;
    loop {
        while let Ok(Ok(record)) = scan.next() {
            invalid.records_after += 1;
            invalid.changes_after += changes(record.kind, record.body);
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
            let mut take = TakeBytes(body);
            let count = take.take(16).and_then(|_| take.u32());
            count.map_or(0, u64::from)
        }
        kind::TABLE_CREATED | kind::TABLE_DROPPED => 1,
        _ => 0,
    }
}
