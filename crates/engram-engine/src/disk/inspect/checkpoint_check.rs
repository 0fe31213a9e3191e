//! Checks a checkpoint, and whether everything that it requires exists.

use crate::disk::byte_codec::{BodyReader, CorruptRecord};
use crate::disk::checkpoint_reader::{read_first_record, read_table_header, verify};
use crate::disk::checkpoint_writer::CheckpointHeader;
use crate::disk::file_format::FileHeader;
use crate::disk::file_names::{checkpoint_name, log_name};
use crate::disk::file_system::FileSystem;
use crate::disk::record_codec::kind;

use super::Chunks;
use super::file_check;
use super::report::{FileState, InspectedCheckpoint, InspectedFile, InspectedTable, InvalidRecord};

/// Reads a checkpoint's file; returns its report and its tables.
pub(super) fn read_checkpoint(
    files: &dyn FileSystem,
    name: &str,
    header: FileHeader,
) -> (InspectedFile, Vec<InspectedTable>) {
    let mut tables: Vec<InspectedTable> = Vec::new();
    let checked = file_check::check_file(files, name, header, |kind, body| {
        let mut reader = BodyReader(body);
        match (kind, tables.last_mut()) {
            (kind::TABLE, _) => tables.extend(table(&mut reader)),
            (kind::ITEMS, Some(table)) => table.items += reader.u32().map_or(0, u64::from),
            _ => {}
        }
    });
    tables.sort_by(|one, other| one.name.cmp(&other.name));
    (checked.report, tables)
}

fn table(reader: &mut BodyReader<'_>) -> Option<InspectedTable> {
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
    files: &dyn FileSystem,
    header: FileHeader,
    tables: Vec<InspectedTable>,
    logs: &Chunks,
) -> InspectedCheckpoint {
    let name = checkpoint_name(header.number);
    let open = || file_check::open(files, &name, header).map_err(reason);
    let mut found = InspectedCheckpoint {
        number: header.number,
        made: None,
        first_change: None,
        tables,
        chunks: 0,
        chunk_bytes: 0,
        missing_chunks: 0,
        problem: None,
    };
    let header = match open().and_then(verify) {
        Ok(header) => {
            count_chunks(&mut found, &header, logs);
            Ok(header)
        }
        Err(CorruptRecord(reason)) => {
            found.problem = Some(reason);
            open().and_then(read_first_record)
        }
    };
    if let Ok(header) = header {
        found.made = Some(header.clock.system);
        found.first_change = Some(header.first_change);
    }
    found
}

/// The reason why a file cannot be opened.
fn reason(state: FileState) -> CorruptRecord {
    CorruptRecord(match state {
        FileState::Unusable(reason) | FileState::Damaged(InvalidRecord { reason, .. }) => reason,
        _ => "it cannot be used".into(),
    })
}

fn count_chunks(found: &mut InspectedCheckpoint, header: &CheckpointHeader, logs: &Chunks) {
    let before = header
        .earlier_logs
        .iter()
        .map(|(log, _)| *log)
        .chain([header.first_log]);
    let since = logs.range(header.first_log..).map(|(log, _)| *log);
    let mut needed: Vec<u64> = before.chain(since).collect();
    needed.sort_unstable();
    needed.dedup();
    let mut chunks = Vec::new();
    let mut problems = Vec::new();
    for log in needed {
        let problem = match logs.get(&log) {
            Some(Some(held)) => {
                chunks.extend(
                    held.iter()
                        .filter(|(serial, _)| header.serials.contains(*serial)),
                );
                continue;
            }
            Some(None) => "cannot be used",
            None => "is missing",
        };
        problems.push(format!("it needs {}, which {problem}", log_name(log)));
    }
    // A chunk that was moved can be in two logs.
    chunks.sort_unstable();
    chunks.dedup_by_key(|(serial, _)| *serial);
    let all = header.serials.len();
    let missing = all.saturating_sub(chunks.len() as u64);
    if missing > 0 {
        problems.push(format!(
            "{missing} of {all} chunks that its items refer to are missing"
        ));
    }
    found.chunks = all;
    found.chunk_bytes = chunks.iter().map(|(_, bytes)| bytes).sum();
    found.missing_chunks = missing;
    found.problem = (!problems.is_empty()).then(|| problems.join("; "));
}
