//! Making the changes of logs again.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use engram_core::chunk::{Chunk, Origin};
use engram_core::{
    AlignedBytes, DeferredDrops, Error, Layout, Lsn, Payload, Schema, TableOp, TableState, Volatile,
};

use super::byte_codec::{CorruptRecord, TakeBytes};
use super::change_codec::Change;
use super::file_format::{Kind, record_bytes};
use super::file_names::log_name;
use super::record_codec::{ReadDictionary, kind, options_in};
use super::record_reader::EndOfRecords;
use super::recover::{ClockReading, DirectoryReader, RecoveryError, unreadable};

impl DirectoryReader<'_> {
    /// Makes the changes of these logs again: of the log `first`, which begins with that change, and of those after it.
    pub(super) fn replay(
        &mut self,
        logs: &[u64],
        first: u64,
        first_change: u64,
    ) -> Result<(), RecoveryError> {
        if logs.first() != Some(&first) {
            let why = format!("{} is missing", log_name(first));
            if !self.repair {
                return Err(RecoveryError::DataLost(CorruptRecord(why)));
            }
            self.out
                .notes
                .push(format!("changes from {first_change} on are lost: {why}"));
            self.out.next_change = first_change;
            return Ok(());
        }
        let mut next = first_change;
        let mut replayed = Vec::new();
        for number in logs {
            if let Some(loaded) = self.logs.get(number).filter(|loaded| loaded.is_chunks) {
                let bytes = loaded.log.usage().bytes;
                self.advance(bytes);
                replayed.push(*number);
                continue;
            }
            let noted = self.out.notes.len();
            match self.replay_log(*number, &mut next) {
                Ok((begun, torn)) => {
                    // One of chunks alone may follow.
                    if begun || torn.is_some() {
                        self.out.torn = torn.map(|place| (*number, place));
                    }
                    replayed.push(*number);
                }
                Err(
                    RecoveryError::Corrupt(CorruptRecord(why))
                    | RecoveryError::DataLost(CorruptRecord(why)),
                ) if self.repair => {
                    self.out.notes.truncate(noted);
                    self.out
                        .notes
                        .push(format!("changes from {next} on are lost: {why}"));
                    break;
                }
                Err(trouble) => return Err(trouble),
            }
        }
        self.out.replayed = replayed;
        self.out.next_change = next;
        Ok(())
    }

    /// Makes the changes of a log; returns whether it has any, and where it is torn.
    fn replay_log(
        &mut self,
        number: u64,
        next: &mut u64,
    ) -> Result<(bool, Option<u64>), RecoveryError> {
        let name = log_name(number);
        let mut scan = self.open(&name, Kind::Log, number)?;
        let mut known = ReadDictionary::default();
        let mut begun = false;
        loop {
            let record = match scan.next() {
                Err(error) => return Err(unreadable(&name, &error)),
                Ok(Err(EndOfRecords::EndOfFile)) => return Ok((begun, None)),
                Ok(Err(EndOfRecords::Invalid { place, why })) => {
                    let left = scan.len() - place;
                    let whole = scan.count_rest();
                    let rest = if whole == 0 {
                        "which nobody was told of".into()
                    } else {
                        self.out.torn_whole = whole;
                        format!(
                            "{whole} whole records among them: if the machine did not lose power, they were acknowledged, \
                             and the file was damaged since"
                        )
                    };
                    self.out.notes.push(format!(
                        "{name} ends at byte {place}: {why}; {left} bytes follow, {rest}"
                    ));
                    return Ok((begun, Some(place)));
                }
                Ok(Ok(record)) => record,
            };
            let bytes = record_bytes(record.body.len()) as u64;
            if record.kind == kind::CHUNK || known.take(record.kind, record.body)? {
                self.advance(bytes);
                continue;
            }
            let (kind, body) = (record.kind, record.body.to_vec());
            self.advance(bytes);
            if kind == kind::BEGIN {
                self.begin(&name, &body, *next)?;
                begun = true;
            } else if begun {
                if let Err(damage) = self.change(kind, &body, &known, next) {
                    let refused = self.refused.take();
                    return Err(
                        refused.map_or(RecoveryError::Corrupt(damage), RecoveryError::Refused)
                    );
                }
            } else {
                return Err(CorruptRecord(format!("{name} does not say where it begins")).into());
            }
        }
    }

    /// Looks whether a log begins with the change that is next.
    fn begin(&mut self, name: &str, body: &[u8], next: u64) -> Result<(), RecoveryError> {
        let mut take = TakeBytes(body);
        let found = take.u64()?;
        let moment = ClockReading {
            clock: take.u64()?,
            system: take.u64()?,
        };
        take.end()?;
        if found != next {
            return Err(self.gap(name, next, found));
        }
        self.out.clock = self.out.clock.max(moment.clock);
        self.out.moment = moment;
        Ok(())
    }

    fn gap(&self, name: &str, next: u64, found: u64) -> RecoveryError {
        let torn = self.out.notes.last();
        let torn = torn.map_or_else(String::new, |torn| format!(" ({torn})"));
        if found < next {
            let what = format!("{name} begins with change {found}; {next} should follow{torn}");
            return RecoveryError::Corrupt(CorruptRecord(what));
        }
        let last = found.saturating_sub(1);
        RecoveryError::DataLost(CorruptRecord(format!(
            "changes {next} to {last} are missing before {name}{torn}"
        )))
    }

    /// Makes the changes of one record.
    fn change(
        &mut self,
        kind: u32,
        body: &[u8],
        known: &ReadDictionary,
        next: &mut u64,
    ) -> Result<(), CorruptRecord> {
        let mut take = TakeBytes(body);
        match kind {
            kind::TABLE_CREATED => {
                let (number, id) = (take.u64()?, take.u64()?);
                expect(number, next, 1)?;
                let options = options_in(&mut take)?;
                self.out.next_table = self.out.next_table.max(id.saturating_add(1));
                // A checkpoint may have been begun before, and have the table.
                if let Entry::Vacant(place) = self.out.tables.entry(id) {
                    let mut state = TableState::new(Arc::new(options), Arc::new(Volatile))?;
                    state.set_last_lsn(Lsn(number));
                    place.insert(state);
                }
            }
            kind::TABLE_DROPPED => {
                let (number, id) = (take.u64()?, take.u64()?);
                expect(number, next, 1)?;
                self.out.tables.remove(&id);
            }
            kind::CHANGES => {
                let (id, first, count) = (take.u64()?, take.u64()?, take.u32()?);
                expect(first, next, u64::from(count))?;
                for number in first..first.saturating_add(u64::from(count)) {
                    let last = self.out.tables.get(&id).map(|table| table.last_lsn().0);
                    let applies = last.is_some_and(|last| last < number);
                    // Chunks of changes that a checkpoint covers may be gone.
                    let mut chunk = |serial| {
                        if applies {
                            self.chunk(serial)
                        } else {
                            placeholder_chunk()
                        }
                    };
                    let change = Change::take(&mut take, known, applies, &mut chunk)?;
                    if let Some(now) = change.now() {
                        self.out.clock = self.out.clock.max(now);
                    }
                    if let Some(table) = self.out.tables.get_mut(&id).filter(|_| applies) {
                        change.check(table.options())?;
                        let chosen = self.out.choosing.remove(&id);
                        // One that says where the generator is anyway changes nothing.
                        if let Change::Choose(rng) = &change
                            && rng != table.generator()
                        {
                            self.out.choosing.insert(id, rng.clone());
                            continue;
                        }
                        let deferred = &mut DeferredDrops::default();
                        if let Some(rng) = &chosen {
                            table.replay(&TableOp::SetRng { rng }, deferred);
                        }
                        table.replay_at(&change.op(), Lsn(number), deferred);
                    }
                }
            }
            other => {
                return CorruptRecord::err(format!(
                    "a log has a record of kind {other}, which is not known"
                ));
            }
        }
        take.end()
    }
}

fn expect(number: u64, next: &mut u64, count: u64) -> Result<(), CorruptRecord> {
    if number != *next {
        return CorruptRecord::err(format!(
            "change {number} follows {}",
            next.saturating_sub(1)
        ));
    }
    *next = next.saturating_add(count);
    Ok(())
}

/// Stands for a chunk that nobody will look at.
pub(super) fn placeholder_chunk() -> Result<Arc<Chunk>, CorruptRecord> {
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::default(),
            structure: "".into(),
        }),
        cells: Box::default(),
    };
    let origin = Origin {
        key: 0,
        episodes: std::iter::once(0).collect(),
        first_step: 0,
        steps: 0,
    };
    let payload = AlignedBytes::zeroed(0).ok_or_else(|| Error::out_of_memory("no bytes", None))?;
    let payload = Payload::Heap(payload);
    Ok(Arc::new(Chunk::from_parts(
        origin,
        schema.into(),
        Vec::new().into(),
        payload,
    )?))
}
