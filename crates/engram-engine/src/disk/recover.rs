//! Reading a directory back: the newest good checkpoint, then the changes since.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Weak};

use engram_core::chunk::Chunk;
use engram_core::table::{Counters, Restore, SavedItem};
use engram_core::{
    Error, Lsn, RateLimiter, Result, TableOptions, TableState, Trash, Volatile,
};

use super::bytes::{Damage, Take};
use super::changes::{Change, rng_in};
use super::checkpoint::Logs;
use super::file::{FileHead, Kind, record_bytes};
use super::files::Files;
use super::journal::Log;
use super::names::{Name, checkpoint_name, log_name};
use super::ranges::Ranges;
use super::scan::{End, Scan};
use super::things::{Known, kind, limits_in, options_in, session_in};

/// What a directory held.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Random number of the store; `None` where the directory is empty.
    pub(crate) store: Option<u64>,
    /// By their number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    pub(crate) next_table: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
    /// The newest of each that there is a file of.
    pub(crate) checkpoint: u64,
    pub(crate) log: u64,
    /// Logs that hold chunks.
    pub(crate) logs: Vec<Arc<Log>>,
    /// Nanoseconds since the store was created, and the system's seconds then.
    pub(crate) clock: u64,
    pub(crate) made: u64,
    /// What was found damaged or unfinished, and what became of it.
    pub(crate) notes: Vec<String>,
}

/// A directory being read.
struct Reader<'a> {
    files: &'a dyn Files,
    out: Recovered,
    /// Chunks that the checkpoint's items refer to.
    chunks: HashMap<u64, Arc<Chunk>>,
    /// The others: where they are, and whether they are in use.
    others: HashMap<u64, Other>,
    logs: BTreeMap<u64, Loaded>,
}

/// A chunk that no item of the checkpoint refers to: read when a change does.
struct Other {
    log: u64,
    place: u64,
    bytes: usize,
    used: Weak<Chunk>,
}

/// A log whose chunks were looked at.
struct Loaded {
    log: Arc<Log>,
    /// All forms that it tells.
    known: Known,
    scan: Scan,
}

/// A checkpoint that is whole.
struct Opened {
    scan: Scan,
    logs: Logs,
}

fn failed(files: &dyn Files, what: &str, error: &io::Error) -> Error {
    Error::Storage(format!("{}: {what}: {error}", files.path().display()))
}

/// Reads a directory.
///
/// # Errors
/// [`Error::Storage`] where it cannot be read, or where something that was acknowledged is missing.
pub(crate) fn recover(files: &dyn Files) -> Result<Recovered> {
    let names = files.list().map_err(|error| failed(files, "cannot be listed", &error))?;
    let mut known: Vec<Name> = names.iter().filter_map(|name| Name::of(name)).collect();
    known.sort_unstable();
    let checkpoints = known.iter().filter_map(|name| match name {
        Name::Checkpoint(number) => Some(*number),
        _ => None,
    });
    let checkpoints: Vec<u64> = checkpoints.collect();
    let logs = known.iter().filter_map(|name| match name {
        Name::Log(number) => Some(*number),
        _ => None,
    });
    let logs: Vec<u64> = logs.collect();
    let mut notes = Vec::new();
    for number in checkpoints.iter().rev() {
        let reader = Reader::new(files, &checkpoints, &logs);
        match reader.read_from(*number, &logs) {
            Ok(mut recovered) => {
                notes.append(&mut recovered.notes);
                recovered.notes = notes;
                return Ok(recovered);
            }
            Err(Trouble::Damaged(Damage(why))) => {
                notes.push(format!("{} is not used: {why}", checkpoint_name(*number)));
            }
            Err(Trouble::Lost(error)) => return Err(error),
        }
    }
    if !checkpoints.is_empty() {
        return Err(Error::Storage(format!(
            "{}: none of {} checkpoints can be used: {}",
            files.path().display(),
            checkpoints.len(),
            notes.join("; ")
        )));
    }
    let mut reader = Reader::new(files, &checkpoints, &logs);
    match reader.replay(&logs, 1) {
        Ok(()) => Ok(reader.finish()),
        Err(Trouble::Damaged(Damage(why))) => Err(Error::Storage(format!(
            "{}: {why}",
            files.path().display()
        ))),
        Err(Trouble::Lost(error)) => Err(error),
    }
}

/// Why a directory cannot be read from some checkpoint on.
enum Trouble {
    /// Another may do.
    Damaged(Damage),
    /// No other would.
    Lost(Error),
}

impl From<Damage> for Trouble {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Damaged(error.into())
    }
}

impl<'a> Reader<'a> {
    fn new(files: &'a dyn Files, checkpoints: &[u64], logs: &[u64]) -> Self {
        let out = Recovered {
            store: None,
            tables: BTreeMap::new(),
            next_table: 1,
            next_change: 1,
            next_serial: 1,
            checkpoint: checkpoints.last().copied().unwrap_or_default(),
            log: logs.last().copied().unwrap_or_default(),
            logs: Vec::new(),
            clock: 0,
            made: 0,
            notes: Vec::new(),
        };
        Self {
            files,
            out,
            chunks: HashMap::new(),
            others: HashMap::new(),
            logs: BTreeMap::new(),
        }
    }

    fn open(&mut self, name: &str, kind: Kind, number: u64) -> Result<Scan, Damage> {
        let opened = self.files.open(name).and_then(Scan::new);
        let scan = opened
            .map_err(|error| Damage(format!("{name} cannot be read: {error}")))?
            .map_err(|Damage(why)| Damage(format!("{name}: {why}")))?;
        let FileHead { kind: found, .. } = scan.head;
        if found != kind || scan.head.number != number {
            return Damage::new(format!("{name} is another file under its name"));
        }
        let store = *self.out.store.get_or_insert(scan.head.store);
        if scan.head.store != store {
            return Damage::new(format!("{name} is of another store"));
        }
        Ok(scan)
    }

    /// Reads a checkpoint and what came after it.
    fn read_from(mut self, number: u64, logs: &[u64]) -> Result<Recovered, Trouble> {
        let opened = self.check(number)?;
        let since: Vec<u64> = logs.iter().copied().filter(|log| *log >= opened.logs.first).collect();
        for (log, _) in &opened.logs.needed {
            self.load_chunks(*log, &opened.logs.serials)?;
        }
        for log in &since {
            self.load_chunks(*log, &opened.logs.serials)?;
        }
        let missing = opened.logs.serials.len().saturating_sub(self.chunks.len() as u64);
        if missing > 0 {
            return Err(Damage(format!(
                "{missing} of {} chunks that its items refer to are missing",
                opened.logs.serials.len()
            ))
            .into());
        }
        self.out.clock = opened.logs.clock;
        self.out.made = opened.logs.made;
        self.out.next_serial = opened.logs.next_serial;
        self.out.next_table = opened.logs.next_table;
        self.tables(opened.scan)?;
        self.replay(&since, 0)?;
        Ok(self.finish())
    }

    /// Looks whether a checkpoint is whole, from its first record to its last.
    fn check(&mut self, number: u64) -> Result<Opened, Damage> {
        let name = checkpoint_name(number);
        let mut scan = self.open(&name, Kind::Checkpoint, number)?;
        let mut logs = None;
        let mut serials = Vec::new();
        let mut records = 0;
        let mut ended = false;
        while let Some((kind, body)) = step(&mut scan)? {
            if ended {
                return Damage::new("it goes on after its end");
            }
            let mut take = Take(body);
            match kind {
                kind::LOGS if logs.is_none() => logs = Some(logs_in(&mut take)?),
                kind::SERIALS => serials.extend(take.list(16, |take| Ok((take.u64()?, take.u64()?)))?),
                kind::END => {
                    take.u32()?;
                    if take.u64()? != records {
                        return Damage::new("records of it are missing");
                    }
                    ended = true;
                }
                _ => {}
            }
            records += 1;
        }
        let Some(mut logs) = logs.filter(|_| ended) else {
            return Damage::new("it was not finished");
        };
        logs.serials = Ranges(serials);
        let scan = self.open(&name, Kind::Checkpoint, number)?;
        Ok(Opened { scan, logs })
    }

    /// Loads the chunks of a log that are wanted, and notes where the others are.
    fn load_chunks(&mut self, number: u64, wanted: &Ranges) -> Result<(), Damage> {
        let name = log_name(number);
        let mut scan = self.open(&name, Kind::Log, number)?;
        let log = Log::new(number);
        let mut known = Known::default();
        loop {
            let place = scan.place();
            let record = match scan.next() {
                Err(error) => return Damage::new(format!("{name} cannot be read: {error}")),
                // What is torn here is told when it is replayed, or missed if it was needed.
                Ok(Err(_)) => break,
                Ok(Ok(record)) => record,
            };
            log.add(record_bytes(record.body.len()) as u64);
            if record.kind != kind::CHUNK {
                known.take(record.kind, record.body)?;
                continue;
            }
            let bytes = record_bytes(record.body.len()) as u64;
            let (serial, chunk) = known.chunk(record.body, |serial| wanted.contains(serial))?;
            self.out.next_serial = self.out.next_serial.max(serial.saturating_add(1));
            if let Some(chunk) = chunk {
                log.hold(&chunk, serial, bytes);
                self.chunks.insert(serial, Arc::new(chunk));
            } else {
                let other = Other {
                    log: number,
                    place,
                    bytes: record_bytes(record.body.len()),
                    used: Weak::new(),
                };
                self.others.insert(serial, other);
            }
        }
        self.logs.insert(number, Loaded { log, known, scan });
        Ok(())
    }

    /// A chunk that a change refers to.
    fn chunk(&mut self, serial: u64) -> Result<Arc<Chunk>, Damage> {
        if let Some(chunk) = self.chunks.get(&serial) {
            return Ok(Arc::clone(chunk));
        }
        let missing = || Damage(format!("chunk {serial} is missing"));
        let other = self.others.get_mut(&serial).ok_or_else(missing)?;
        if let Some(chunk) = other.used.upgrade() {
            return Ok(chunk);
        }
        let Loaded { log, known, scan } = self.logs.get(&other.log).ok_or_else(missing)?;
        let body = scan.body_at(other.place, other.bytes)?;
        let (_, chunk) = known.chunk(&body, |_| true)?;
        let chunk = Arc::new(chunk.ok_or_else(missing)?);
        log.hold(&chunk, serial, other.bytes as u64);
        other.used = Arc::downgrade(&chunk);
        Ok(chunk)
    }

    /// The tables of a checkpoint that was found whole.
    fn tables(&mut self, mut scan: Scan) -> Result<(), Damage> {
        let mut known = Known::default();
        let mut table: Option<(u64, Restore)> = None;
        let mut orders: [Vec<u32>; 2] = Default::default();
        while let Some((kind, body)) = step(&mut scan)? {
            if known.take(kind, body)? {
                continue;
            }
            let mut take = Take(body);
            match (kind, &mut table) {
                (kind::LOGS | kind::SERIALS, _) => continue,
                (kind::TABLE | kind::END, table) => {
                    self.end_table(table.take(), std::mem::take(&mut orders))?;
                    if kind == kind::END {
                        return Ok(());
                    }
                    *table = Some(table_in(&mut take)?);
                }
                (kind::ITEMS, Some((_, restore))) => {
                    let chunks = &self.chunks;
                    let mut chunk = |serial| {
                        let chunk = chunks.get(&serial).cloned();
                        chunk.ok_or_else(|| Damage(format!("chunk {serial} is missing")))
                    };
                    let items = take.list(53, |take| saved_item(take, &known, &mut chunk))?;
                    items.into_iter().try_for_each(|item| restore.item(item))?;
                }
                (kind::ORDER, Some(_)) => {
                    let which = usize::from(take.bool()?);
                    let first = take.u64()?;
                    if first != orders[which].len() as u64 {
                        return Damage::new("parts of an order are missing");
                    }
                    orders[which].extend(take.list(4, Take::u32)?);
                }
                (kind::SESSIONS, Some((_, restore))) => {
                    let sessions = take.list(24, |take| Ok((session_in(take)?, take.u64()?)))?;
                    for (number, used) in sessions {
                        restore.session(number, used);
                    }
                }
                (other, _) => return Damage::new(format!("it has a record of kind {other} where none may be")),
            }
            take.end()?;
        }
        Damage::new("it was not finished")
    }

    fn end_table(&mut self, table: Option<(u64, Restore)>, orders: [Vec<u32>; 2]) -> Result<(), Damage> {
        let Some((id, mut restore)) = table else {
            return Ok(());
        };
        for (order, of_sampler) in orders.into_iter().zip([true, false]) {
            if !order.is_empty() {
                restore.order(of_sampler, order);
            }
        }
        self.out.tables.insert(id, restore.finish()?);
        Ok(())
    }

    /// Makes the changes of these logs again. Without a checkpoint, `expected` is the first of all.
    fn replay(&mut self, logs: &[u64], expected: u64) -> Result<(), Trouble> {
        let mut expected = Some(expected).filter(|expected| *expected > 0);
        let mut torn: Option<String> = None;
        for number in logs {
            if expected == Some(1) && self.logs.is_empty() {
                // Without a checkpoint, nobody has noted yet where chunks are.
                for log in logs {
                    self.load_chunks(*log, &Ranges::default())?;
                }
            }
            let name = log_name(*number);
            let mut scan = self.open(&name, Kind::Log, *number)?;
            let first = scan.head.first_change;
            if let Some(next) = expected
                && next != first
            {
                let why = torn.map_or_else(String::new, |torn| format!(" ({torn})"));
                return Err(Trouble::Lost(Error::Storage(format!(
                    "{}: changes {next} to {} are missing before {name}{why}",
                    self.files.path().display(),
                    first.saturating_sub(1)
                ))));
            }
            let mut next = first;
            let mut known = Known::default();
            let end = loop {
                let record = match scan.next() {
                    Err(error) => return Err(Damage(format!("{name} cannot be read: {error}")).into()),
                    Ok(Err(end)) => break end,
                    Ok(Ok(record)) => record,
                };
                if record.kind != kind::CHUNK && !known.take(record.kind, record.body)? {
                    let (kind, body) = (record.kind, record.body.to_vec());
                    self.change(kind, &body, &known, &mut next)?;
                }
            };
            if let End::Torn { place, why } = end {
                let lost = scan.len() - place;
                torn = Some(format!("{name} ends at byte {place}: {why}; {lost} bytes follow, which nobody was told of"));
                self.out.notes.extend(torn.clone());
            }
            expected = Some(next);
            self.out.next_change = next;
        }
        Ok(())
    }

    /// Makes the changes of one record.
    fn change(&mut self, kind: u32, body: &[u8], known: &Known, next: &mut u64) -> Result<(), Damage> {
        let mut take = Take(body);
        match kind {
            kind::TABLE_CREATED => {
                let (number, id) = (take.u64()?, take.u64()?);
                expect(number, next, 1)?;
                let options = options_in(&mut take)?;
                self.out.next_table = self.out.next_table.max(id.saturating_add(1));
                // A checkpoint may have been begun before, and have the table.
                if !self.out.tables.contains_key(&id) {
                    let state = TableState::new(Arc::new(options), Arc::new(Volatile))?;
                    self.out.tables.insert(id, state);
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
                    let change = Change::take(&mut take, known, &mut |serial| self.chunk(serial))?;
                    if let Some(table) = self.out.tables.get_mut(&id)
                        && table.last_lsn().0 < number
                    {
                        table.replay_at(&change.op(), Lsn(number), &mut Trash::default());
                    }
                }
            }
            other => return Damage::new(format!("a log has a record of kind {other}, which is not known")),
        }
        take.end()
    }

    fn finish(mut self) -> Recovered {
        self.out.logs = self.logs.into_values().map(|loaded| loaded.log).collect();
        self.out
    }
}

/// The next record of a file that must be whole.
fn step(scan: &mut Scan) -> Result<Option<(u32, &[u8])>, Damage> {
    match scan.next() {
        Err(error) => Damage::new(format!("it cannot be read: {error}")),
        Ok(Err(End::Whole)) => Ok(None),
        Ok(Err(End::Torn { place, why })) => Damage::new(format!("it is damaged at byte {place}: {why}")),
        Ok(Ok(record)) => Ok(Some((record.kind, record.body))),
    }
}

fn expect(number: u64, next: &mut u64, count: u64) -> Result<(), Damage> {
    if number != *next {
        return Damage::new(format!("change {number} follows {}", next.saturating_sub(1)));
    }
    *next = next.saturating_add(count);
    Ok(())
}

fn logs_in(take: &mut Take<'_>) -> Result<Logs, Damage> {
    Ok(Logs {
        first: take.u64()?,
        clock: take.u64()?,
        made: take.u64()?,
        next_serial: take.u64()?,
        next_table: take.u64()?,
        needed: take.list(16, |take| Ok((take.u64()?, take.u64()?)))?,
        serials: Ranges::default(),
    })
}

fn table_in(take: &mut Take<'_>) -> Result<(u64, Restore), Damage> {
    let id = take.u64()?;
    let options: TableOptions = options_in(take)?;
    let limits = limits_in(take)?;
    let counters = Counters {
        limiter: RateLimiter {
            limits,
            inserts: take.u64()?,
            samples: take.u64()?,
            deletes: take.u64()?,
        },
        next_seq: take.u64()?,
        first_seq: take.u64()?,
        next_touch: take.u64()?,
        num_deleted_episodes: take.u64()?,
        num_unique_samples: take.u64()?,
        leased: take.u64()?,
        last_lsn: Lsn(take.u64()?),
        rng: rng_in(take)?,
    };
    let restore = Restore::new(Arc::new(options), Arc::new(Volatile), counters)?;
    Ok((id, restore))
}

fn saved_item(
    take: &mut Take<'_>,
    known: &Known,
    chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, Damage>,
) -> Result<SavedItem, Damage> {
    Ok(SavedItem {
        item: known.item(take, chunk)?,
        seq: take.u64()?,
        touched: take.u64()?,
        times_sampled: take.u32()?,
        leases: take.u32()?,
        inserted_at: take.u64()?,
    })
}
