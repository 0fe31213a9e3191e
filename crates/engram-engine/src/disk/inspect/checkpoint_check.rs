//! A checkpoint: what it says, and whether all that it needs is there.

use crate::disk::byte_codec::{CorruptRecord, TakeBytes};
use crate::disk::checkpoint_reader::{check, first_logs, table_in};
use crate::disk::checkpoint_writer::CheckpointHeader;
use crate::disk::file_format::FileHeader;
use crate::disk::file_names::{checkpoint_name, log_name};
use crate::disk::file_system::FileSystem;
use crate::disk::record_codec::kind;

use super::Chunks;
use super::file_check;
use super::report::{FileState, InspectedCheckpoint, InspectedFile, InspectedTable, InvalidRecord};

/// Reads its file, and the tables in it.
pub(super) fn read(
    files: &dyn FileSystem,
    name: &str,
    head: FileHeader,
) -> (InspectedFile, Vec<InspectedTable>) {
    let mut tables: Vec<InspectedTable> = Vec::new();
    let looked = file_check::read(files, name, head, |kind, body| {
        let mut take = TakeBytes(body);
        match (kind, tables.last_mut()) {
            (kind::TABLE, _) => tables.extend(table(&mut take)),
            (kind::ITEMS, Some(table)) => table.items += take.u32().map_or(0, u64::from),
            _ => {}
        }
    });
    tables.sort_by(|one, other| one.name.cmp(&other.name));
    (looked.report, tables)
}

fn table(take: &mut TakeBytes<'_>) -> Option<InspectedTable> {
    let (_, options, counters) = table_in(take).ok()?;
    Some(InspectedTable {
        name: options.name,
        items: 0,
        bytes: None,
        last_change: counters.last_lsn.0,
    })
}

/// Looks whether the file is whole, and whether logs hold all of its chunks.
pub(super) fn verify(
    files: &dyn FileSystem,
    head: FileHeader,
    tables: Vec<InspectedTable>,
    logs: &Chunks,
) -> InspectedCheckpoint {
    let name = checkpoint_name(head.number);
    let open = || file_check::open(files, &name, head).map_err(told);
    let mut found = InspectedCheckpoint {
        number: head.number,
        made: None,
        first_change: None,
        tables,
        chunks: 0,
        chunk_bytes: 0,
        missing_chunks: 0,
        problem: None,
    };
    let said = match open().and_then(check) {
        Ok(said) => {
            count_chunks(&mut found, &said, logs);
            Ok(said)
        }
        Err(CorruptRecord(why)) => {
            found.problem = Some(why);
            open().and_then(first_logs)
        }
    };
    if let Ok(said) = said {
        found.made = Some(said.moment.system);
        found.first_change = Some(said.first_change);
    }
    found
}

/// What is wrong with a file that cannot be begun.
fn told(state: FileState) -> CorruptRecord {
    CorruptRecord(match state {
        FileState::Unusable(why) | FileState::Damaged(InvalidRecord { reason: why, .. }) => why,
        _ => "it cannot be used".into(),
    })
}

fn count_chunks(found: &mut InspectedCheckpoint, said: &CheckpointHeader, logs: &Chunks) {
    let before = said.needed.iter().map(|(log, _)| *log).chain([said.first]);
    let since = logs.range(said.first..).map(|(log, _)| *log);
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
                        .filter(|(serial, _)| said.serials.contains(*serial)),
                );
                continue;
            }
            Some(None) => "cannot be used",
            None => "is missing",
        };
        problems.push(format!("{}, which it needs, {problem}", log_name(log)));
    }
    // A chunk that was moved may be in two logs.
    chunks.sort_unstable();
    chunks.dedup_by_key(|(serial, _)| *serial);
    let all = said.serials.len();
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
