//! Replay: applying the changes in logs to the tables of a checkpoint.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use engram_core::chunk::{Chunk, Origin};
use engram_core::text::count;
use engram_core::{
    AlignedBytes, DeferredDrops, Error, Layout, Lsn, Schema, TableOp, TableState, Volatile,
};

use super::byte_codec::{BodyReader, UnusableData};
use super::change_codec::Change;
use super::clock_reading::ClockReading;
use super::directory_reader::DirectoryReader;
use super::file_format::{FileKind, record_bytes};
use super::file_names::{checkpoint_name, log_name};
use super::kind;
use super::options_codec::read_options;
use super::record_codec::ReadDictionary;
use super::record_reader::EndOfRecords;
use super::recovery_error::{RecoveryError, read_error, unusable_record};

impl DirectoryReader<'_> {
    /// Replays the logs with these numbers. The first must be `first_log`, and begin with change `first_change`. With
    /// `repair`, the replay ends with a note where data is corrupt or missing; a log that cannot be read now is an
    /// error even then.
    pub(super) fn replay(
        &mut self,
        logs: &[u64],
        first_log: u64,
        first_change: u64,
    ) -> Result<(), RecoveryError> {
        if logs.first() != Some(&first_log) {
            let reason = format!("{} is missing", log_name(first_log));
            if !self.repair {
                return Err(RecoveryError::DataLost(UnusableData(reason)));
            }
            self.out.notes.push(format!(
                "all changes from change {first_change} onward are lost: {reason}"
            ));
            self.out.next_change = first_change;
            return Ok(());
        }
        let mut next_change = first_change;
        let mut replayed_logs = Vec::new();
        for number in logs {
            if let Some(loaded) = self
                .logs
                .get(number)
                .filter(|loaded| loaded.has_only_chunks)
            {
                let bytes = loaded.log.usage().bytes;
                self.advance(bytes);
                replayed_logs.push(*number);
                continue;
            }
            let note_count = self.out.notes.len();
            match self.replay_log(*number, &mut next_change) {
                Ok((has_begin, tear_offset)) => {
                    // A log of only chunks, without a `begin` record, may follow the torn one.
                    if has_begin || tear_offset.is_some() {
                        self.out.torn = tear_offset.map(|offset| (*number, offset));
                    }
                    replayed_logs.push(*number);
                }
                Err(
                    RecoveryError::Corrupt(UnusableData(reason))
                    | RecoveryError::DataLost(UnusableData(reason)),
                ) if self.repair => {
                    self.out.notes.truncate(note_count);
                    self.out.notes.push(format!(
                        "all changes from change {next_change} onward are lost: {reason}"
                    ));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.out.replayed_logs = replayed_logs;
        self.out.next_change = next_change;
        Ok(())
    }

    /// Replays a log and advances `next_change`; returns whether the log has a `begin` record, and the
    /// offset of its first invalid record, if it has one.
    fn replay_log(
        &mut self,
        number: u64,
        next_change: &mut u64,
    ) -> Result<(bool, Option<u64>), RecoveryError> {
        let name = log_name(number);
        let mut file_reader = self.open(&name, FileKind::Log, number)?;
        let mut dictionary = ReadDictionary::default();
        let mut has_begin = false;
        loop {
            let offset = file_reader.offset();
            let at_record = |reason| unusable_record(&name, offset, &reason);
            let record = match file_reader.next() {
                Err(error) => return Err(read_error(&name, &error)),
                Ok(Err(EndOfRecords::EndOfFile)) => return Ok((has_begin, None)),
                Ok(Err(EndOfRecords::Invalid { offset, reason })) => {
                    let left = file_reader.len() - offset;
                    let intact = file_reader.count_remaining_valid();
                    let intact = intact.map_err(|error| read_error(&name, &error))?;
                    self.out.intact_after_tear = intact;
                    let tear = format!("{name} is intact only up to byte {offset}: {reason}");
                    let rest = self.describe_rest((number, offset), left, intact);
                    self.out.notes.push(format!("{tear}; {rest}"));
                    self.last_tear = Some(tear);
                    return Ok((has_begin, Some(offset)));
                }
                Ok(Ok(record)) => record,
            };
            let bytes = record_bytes(record.body.len()) as u64;
            let is_chunk_or_definition = record.kind == kind::CHUNK
                || (dictionary.add_record(record.kind, record.body)).map_err(at_record)?;
            if is_chunk_or_definition {
                self.advance(bytes);
                continue;
            }
            let (kind, body) = (record.kind, record.body.to_vec());
            self.advance(bytes);
            if kind == kind::BEGIN {
                let (first_change, reading) = read_begin(&body).map_err(at_record)?;
                if first_change != *next_change {
                    return Err(self.gap_error(&name, *next_change, first_change));
                }
                self.last_tear = None;
                self.out.clock = self.out.clock.max(reading.store);
                self.out.clock_reading = reading;
                has_begin = true;
            } else if kind == kind::UNLOGGED && has_begin {
                let checkpoint = read_unlogged(&body, next_change).map_err(at_record)?;
                if self
                    .out
                    .checkpoint_read
                    .is_none_or(|read| read < checkpoint)
                {
                    let reason = format!(
                        "{} is missing or cannot be used, and only it contains the changes before those of {name}",
                        checkpoint_name(checkpoint)
                    );
                    return Err(RecoveryError::DataLost(UnusableData(reason)));
                }
                // This record already states it.
                self.out.has_unlogged &= self.out.checkpoint_read != Some(checkpoint);
            } else if has_begin {
                if let Err(error) = self.replay_record(kind, &body, &dictionary, next_change) {
                    let unreadable = self.unreadable_log.take();
                    let damage = || RecoveryError::Corrupt(at_record(error));
                    return Err(unreadable.map_or_else(damage, RecoveryError::Unreadable));
                }
            } else {
                let reason = format!(
                    "{name} has a record of changes at byte {offset}, before its `begin` record"
                );
                return Err(UnusableData(reason).into());
            }
        }
    }

    /// Describes the rest of a log from its first invalid record on, which is at `offset`. The rest has `left` bytes,
    /// with `intact` intact records in them.
    fn describe_rest(&self, (log, offset): (u64, u64), left: u64, intact: u64) -> String {
        let closed = self.close_mark;
        let closed = closed.filter(|mark| self.out.store == Some(mark.store));
        let status = match closed.filter(|mark| mark.covers(log, offset)) {
            Some(mark) => format!(", {}", mark.describe_damage()),
            None if intact == 0 => {
                ": if the process was stopped while it wrote this, nothing acknowledged is lost; after a power \
                 failure with durability=\"process\", or if the file was damaged later, acknowledged changes may be \
                 lost"
                    .into()
            }
            None => format!(
                ", although it has {}: after a power failure with durability=\"disk\", nothing acknowledged is lost; \
                 after one with durability=\"process\", or if the file was damaged later, acknowledged changes may be \
                 lost",
                count(intact, "intact record")
            ),
        };
        format!("the rest ({}) is not used{status}", count(left, "byte"))
    }

    /// Returns the error for a log that begins with `first_change` instead of `next_change`. If a log before it is
    /// torn, the text states where.
    fn gap_error(&self, name: &str, next_change: u64, first_change: u64) -> RecoveryError {
        let tear = self.last_tear.as_ref();
        let tear = tear.map_or_else(String::new, |tear| format!(" ({tear})"));
        if first_change < next_change {
            let reason =
                format!("{name} begins with change {first_change}, expected {next_change}{tear}");
            return RecoveryError::Corrupt(UnusableData(reason));
        }
        let last_missing = first_change.saturating_sub(1);
        RecoveryError::DataLost(UnusableData(format!(
            "changes {next_change} to {last_missing} are missing before {name}{tear}"
        )))
    }

    /// Replays the changes of one record.
    fn replay_record(
        &mut self,
        kind: u32,
        body: &[u8],
        dictionary: &ReadDictionary,
        next_change: &mut u64,
    ) -> Result<(), UnusableData> {
        let mut reader = BodyReader(body);
        match kind {
            kind::TABLE_CREATED => {
                let (number, id) = (reader.u64()?, reader.u64()?);
                check_change(number, *next_change)?;
                let options = read_options(&mut reader)?;
                self.out.next_table = self.out.next_table.max(id.saturating_add(1));
                // A checkpoint's snapshots are taken after the switch to this log, so the checkpoint may already
                // contain the table.
                if let Entry::Vacant(entry) = self.out.tables.entry(id) {
                    let mut state = TableState::new(Arc::new(options), Arc::new(Volatile))?;
                    state.set_last_lsn(Lsn(number));
                    entry.insert(state);
                }
                *next_change = number.saturating_add(1);
            }
            kind::TABLE_DROPPED => {
                let (number, id) = (reader.u64()?, reader.u64()?);
                check_change(number, *next_change)?;
                self.out.tables.remove(&id);
                *next_change = number.saturating_add(1);
            }
            kind::CHANGES => {
                let (id, first, count) = (reader.u64()?, reader.u64()?, reader.u32()?);
                check_change(first, *next_change)?;
                for number in first..first.saturating_add(u64::from(count)) {
                    let last = self.out.tables.get(&id).map(|table| table.last_lsn().0);
                    let applies = last.is_some_and(|last| last < number);
                    // A change that the checkpoint already contains may refer to removed chunks.
                    let mut chunk = |serial| {
                        if applies {
                            self.chunk(serial)
                        } else {
                            placeholder_chunk()
                        }
                    };
                    let change = Change::read(&mut reader, dictionary, applies, &mut chunk)?;
                    if let Some(now) = change.clock() {
                        self.out.clock = self.out.clock.max(now);
                    }
                    let table = self.out.tables.get_mut(&id).filter(|_| applies);
                    if let Some(table) = &table {
                        change.check(table.options())?;
                    }
                    *next_change = number.saturating_add(1);
                    if let Some(table) = table {
                        let generator_after_choices = self.out.unfinished_choices.remove(&id);
                        // Random choices are applied together with the next change, which they were
                        // made for. A `SetRng` that does not change the generator is applied at once.
                        if let Change::SetRng(rng) = &change
                            && rng != table.generator()
                        {
                            self.out.unfinished_choices.insert(id, rng.clone());
                            continue;
                        }
                        let deferred = &mut DeferredDrops::default();
                        if let Some(rng) = &generator_after_choices {
                            table.replay(&TableOp::SetRng { rng }, deferred);
                        }
                        table.replay_at(&change.op(), Lsn(number), deferred);
                    }
                }
            }
            other => {
                return UnusableData::err(format!("its kind {other} is unknown in a log"));
            }
        }
        reader.check_end()
    }
}

/// Maximum value of a counter in a checkpoint's header or in an `unlogged` record. No store reaches it; larger values
/// could overflow later.
pub(super) const MAX_COUNTER: u64 = 1 << 62;

/// Reads a log's `begin` record: its first change, and the clocks.
fn read_begin(body: &[u8]) -> Result<(u64, ClockReading), UnusableData> {
    let mut reader = BodyReader(body);
    let first_change = reader.u64()?;
    let reading = ClockReading {
        store: reader.u64()?,
        system: reader.u64()?,
    };
    reader.check_end()?;
    Ok((first_change, reading))
}

/// Reads a log's `unlogged` record, and advances `next_change` past the numbers that it skips. Returns the number of
/// the checkpoint with contents that the logs lack.
fn read_unlogged(body: &[u8], next_change: &mut u64) -> Result<u64, UnusableData> {
    let mut reader = BodyReader(body);
    let (previous, next, checkpoint) = (reader.u64()?, reader.u64()?, reader.u64()?);
    reader.check_end()?;
    if next < previous || next > MAX_COUNTER {
        return UnusableData::err(format!("change {next} cannot follow change {previous}"));
    }
    check_change(previous, *next_change)?;
    *next_change = next;
    Ok(checkpoint)
}

/// Checks that the change with this number is the next one.
fn check_change(number: u64, next_change: u64) -> Result<(), UnusableData> {
    if number != next_change {
        return UnusableData::err(format!(
            "change {number} follows change {}; expected change {next_change}: the log is corrupt",
            next_change.saturating_sub(1)
        ));
    }
    Ok(())
}

/// Returns an empty chunk, which replaces one that is missing or not needed.
pub(super) fn placeholder_chunk() -> Result<Arc<Chunk>, UnusableData> {
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::default(),
            structure: r#"{"t":[]}"#.into(),
        }),
        cells: Box::default(),
    };
    let origin = Origin {
        key: 0,
        episodes: std::iter::once(0).collect(),
        first_step: 0,
        steps: 0,
    };
    let payload =
        AlignedBytes::zeroed(0).ok_or_else(|| Error::out_of_memory("an empty chunk", Some(0)))?;
    Ok(Arc::new(Chunk::from_parts(
        origin,
        schema.into(),
        Vec::new().into(),
        payload,
    )?))
}
