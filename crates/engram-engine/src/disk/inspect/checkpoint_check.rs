//! Checks a checkpoint, and whether everything that it requires exists.

use std::collections::BTreeMap;

use crate::disk::byte_codec::{BodyReader, UnusableData};
use crate::disk::checkpoint_reader::{read_first_record, read_table_header, verify};
use crate::disk::checkpoint_writer::CheckpointHeader;
use crate::disk::directory::ReadableDirectory;
use crate::disk::file_format::FileHeader;
use crate::disk::file_names::{checkpoint_name, log_name};
use crate::disk::kind;
use crate::disk::recovery_error::{RecoveryError, missing_chunks, problem_of_checkpoint};

use super::file_check;
use super::report::{FileState, InspectedCheckpoint, InspectedFile, InspectedTable, InvalidRecord};

/// By a log's number: serial and record size in bytes of each of its chunks; `None` if the log cannot be used. A
/// chunk's serial is its number in its store.
pub(super) type ChunksByLog = BTreeMap<u64, Option<Vec<(u64, u64)>>>;

/// Reads a checkpoint's file; returns its report and its tables.
pub(super) fn read_checkpoint(
    files: &dyn ReadableDirectory,
    name: &str,
    header: FileHeader,
) -> (InspectedFile, Vec<InspectedTable>) {
    let mut tables: Vec<InspectedTable> = Vec::new();
    let checked = file_check::check_file(files, name, header, |kind, body| {
        let mut reader = BodyReader(body);
        match (kind, tables.last_mut()) {
            (kind::TABLE, _) => tables.extend(parse_table(&mut reader)),
            (kind::ITEMS, Some(table)) => table.items += reader.u32().map_or(0, u64::from),
            _ => {}
        }
    });
    tables.sort_by(|one, other| one.name.cmp(&other.name));
    (checked.report, tables)
}

/// Parses a `table` record. Its items are counted later: they follow in records of their own.
fn parse_table(reader: &mut BodyReader<'_>) -> Option<InspectedTable> {
    let (_, options, counters) = read_table_header(reader).ok()?;
    Some(InspectedTable {
        name: options.name,
        items: 0,
        bytes: None,
        last_change: counters.last_lsn.0,
    })
}

/// Checks that a checkpoint is complete, and that the logs contain all of its chunks.
pub(super) fn check_checkpoint(
    files: &dyn ReadableDirectory,
    file_header: FileHeader,
    tables: Vec<InspectedTable>,
    chunks_by_log: &ChunksByLog,
) -> InspectedCheckpoint {
    let name = checkpoint_name(file_header.number);
    let open = || {
        let opened = file_check::open(files, &name, file_header);
        opened.map_err(|state| RecoveryError::from(opening_error(state)))
    };
    let mut report = InspectedCheckpoint {
        number: file_header.number,
        created_at: None,
        first_change: None,
        tables,
        chunks: 0,
        chunk_bytes: 0,
        missing_chunks: 0,
        problem: None,
    };
    let header = match open().and_then(verify) {
        Ok(header) => {
            check_chunks(&mut report, &header, chunks_by_log);
            Ok(header)
        }
        Err(error) => {
            let UnusableData(reason) = error.into();
            report.problem = Some(problem_of_checkpoint(&name, &reason));
            open().and_then(read_first_record)
        }
    };
    if let Ok(header) = header {
        report.created_at = Some(header.clock.system);
        report.first_change = Some(header.first_change);
    }
    report
}

/// The reason why a file cannot be opened.
fn opening_error(state: FileState) -> UnusableData {
    UnusableData(match state {
        FileState::Unusable(reason) | FileState::Damaged(InvalidRecord { reason, .. }) => reason,
        // `file_check::open` fails with no other state.
        _ => "it cannot be opened".into(),
    })
}

/// Counts the checkpoint's chunks; sets the checkpoint's problem if logs or chunks are missing or unusable.
fn check_chunks(
    report: &mut InspectedCheckpoint,
    header: &CheckpointHeader,
    chunks_by_log: &ChunksByLog,
) {
    let logs_before_replay = header.earlier_logs.iter().map(|(log, _)| *log);
    let replayed_logs = chunks_by_log.range(header.first_log..).map(|(log, _)| *log);
    let mut required_logs: Vec<u64> = logs_before_replay
        .chain([header.first_log])
        .chain(replayed_logs)
        .collect();
    required_logs.sort_unstable();
    required_logs.dedup();
    let mut existing = Vec::new();
    let mut problems = Vec::new();
    for log in required_logs {
        let problem = match chunks_by_log.get(&log) {
            Some(Some(chunks)) => {
                let required = chunks
                    .iter()
                    .filter(|(serial, _)| header.serials.contains(*serial));
                existing.extend(required);
                continue;
            }
            Some(None) => "cannot be used",
            None => "is missing",
        };
        problems.push(format!("it needs {}, which {problem}", log_name(log)));
    }
    // A checkpoint copies the chunks in use of a sparse log to a new log. Until the sparse log is
    // removed, both logs contain these chunks.
    existing.sort_unstable();
    existing.dedup_by_key(|(serial, _)| *serial);
    let count = header.serials.len();
    let missing = count.saturating_sub(existing.len() as u64);
    if missing > 0 {
        problems.push(missing_chunks(missing, count));
    }
    report.chunks = count;
    report.chunk_bytes = existing.iter().map(|(_, bytes)| bytes).sum();
    report.missing_chunks = missing;
    report.problem = (!problems.is_empty()).then(|| problems.join("; "));
}
