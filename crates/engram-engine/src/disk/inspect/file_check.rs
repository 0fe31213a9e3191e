//! Checks the records of one file, and counts the valid ones after the first invalid one.

use crate::disk::byte_codec::{BodyReader, UnusableData};
use crate::disk::directory::ReadableDirectory;
use crate::disk::file_format::{FILE_HEADER_BYTES, FileHeader, HeaderError, VERSION};
use crate::disk::kind;
use crate::disk::record_reader::{EndOfRecords, RecordReader};

use super::report::{FileState, InspectedFile, InvalidRecord};

/// Maximum number of bytes searched for valid records after an invalid one.
const MAX_SEARCHED_BYTES: u64 = 256 << 20;

/// A file that was checked.
pub(super) struct CheckedFile {
    pub(super) report: InspectedFile,
    /// True if the header is valid: then recovery reads the file up to the first invalid record.
    pub(super) is_usable: bool,
}

/// Opens a file that should have this header.
///
/// # Errors
/// `Unusable`, or `Damaged` if the file header is damaged.
pub(super) fn open(
    files: &dyn ReadableDirectory,
    name: &str,
    header: FileHeader,
) -> Result<RecordReader, FileState> {
    let unusable = |reason: String| Err(FileState::Unusable(reason));
    let file_reader = match files.open(name).and_then(RecordReader::new) {
        Err(error) => return unusable(format!("it cannot be read: {error}")),
        Ok(Err(HeaderError::UnsupportedVersion(version))) => {
            return unusable(format!(
                "it has format version {version}, but this release reads only version {VERSION}"
            ));
        }
        Ok(Err(HeaderError::Corrupt(UnusableData(reason)))) => {
            return Err(FileState::Damaged(InvalidRecord {
                reason,
                ..InvalidRecord::default()
            }));
        }
        Ok(Ok(file_reader)) => file_reader,
    };
    if (file_reader.header.kind, file_reader.header.number) != (header.kind, header.number) {
        return unusable("it is another file, renamed or copied to this name".into());
    }
    if file_reader.header.store != header.store {
        return unusable("it belongs to another store".into());
    }
    Ok(file_reader)
}

/// Checks all records of a file that should have this header; calls `on_record` with each record up to the first
/// invalid one.
pub(super) fn check_file(
    files: &dyn ReadableDirectory,
    name: &str,
    header: FileHeader,
    mut on_record: impl FnMut(u32, &[u8]),
) -> CheckedFile {
    let mut report = report_unread(files, name, FileState::Whole);
    let mut file_reader = match open(files, name, header) {
        Ok(file_reader) => file_reader,
        Err(mut state) => {
            // Records can be checked without the file header: their checksums cover their offsets.
            if let FileState::Damaged(invalid) = &mut state
                && report.bytes > FILE_HEADER_BYTES as u64
                && let Ok(file) = files.open(name)
            {
                count_records_after(
                    &mut RecordReader::after_header(file, header, report.bytes),
                    invalid,
                );
            }
            report.state = state;
            return CheckedFile {
                report,
                is_usable: false,
            };
        }
    };
    report.state = loop {
        let offset = file_reader.offset();
        let mut invalid = InvalidRecord {
            offset,
            ..InvalidRecord::default()
        };
        match file_reader.next() {
            Ok(Ok(record)) => {
                report.records += 1;
                report.changes += count_changes(record.kind, record.body);
                on_record(record.kind, record.body);
            }
            Ok(Err(EndOfRecords::EndOfFile)) => break FileState::Whole,
            Ok(Err(EndOfRecords::Invalid { reason, .. })) => {
                invalid.reason = reason;
                count_records_after(&mut file_reader, &mut invalid);
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

/// Returns a report for a file whose records are not read.
pub(super) fn report_unread(
    files: &dyn ReadableDirectory,
    name: &str,
    state: FileState,
) -> InspectedFile {
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

/// Adds the valid records from the next record to the end, and their changes, to the counts in `invalid`.
fn count_records_after(file_reader: &mut RecordReader, invalid: &mut InvalidRecord) {
    let mut limit = MAX_SEARCHED_BYTES;
    loop {
        while let Ok(Ok(record)) = file_reader.next() {
            invalid.records_after += 1;
            invalid.changes_after += count_changes(record.kind, record.body);
        }
        if !file_reader.skip_to_valid(&mut limit).unwrap_or(false) {
            return;
        }
    }
}

/// Returns the number of changes in a record.
fn count_changes(kind: u32, body: &[u8]) -> u64 {
    match kind {
        kind::CHANGES => {
            // Skip the table and the number of the first change.
            let mut reader = BodyReader(body);
            let count = reader.bytes(16).and_then(|_| reader.u32());
            count.map_or(0, u64::from)
        }
        kind::TABLE_CREATED | kind::TABLE_DROPPED => 1,
        kind::UNLOGGED => {
            // Only a checkpoint has these changes, but they have numbers.
            let mut reader = BodyReader(body);
            let numbers = reader
                .u64()
                .and_then(|previous| Ok((previous, reader.u64()?)));
            numbers.map_or(0, |(previous, next)| next.saturating_sub(previous))
        }
        _ => 0,
    }
}
