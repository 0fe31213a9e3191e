//! Reading a directory back: the newest good checkpoint, then the changes since.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Weak};

use engram_core::chunk::{Chunk, Origin};
use engram_core::selector::TableRng;
use engram_core::{
    AlignedBytes, Error, Layout, Lsn, Payload, Result, Schema, TableOp, TableState, Trash, Volatile,
};

use super::bytes::{Damage, Take};
use super::changes::Change;
use super::checkpoint::Logs;
use super::file::{FileHead, Kind, NoHead, VERSION, record_bytes};
use super::files::Files;
use super::log::Log;
use super::names::{Name, checkpoint_name, log_name};
use super::ranges::Ranges;
use super::saved::{check, first_logs, tables};
use super::scan::{End, Scan};
use super::things::{Known, kind, options_in};

/// What a directory held.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Random number of the store; `None` where the directory is empty.
    pub(crate) store: Option<u64>,
    /// The checkpoint that it came from, and what every checkpoint there says that it needs, as far as it can be read.
    pub(crate) from: Option<u64>,
    pub(crate) needs: Vec<(u64, Logs)>,
    /// Logs that were replayed, and where the last ends.
    pub(crate) replayed: Vec<u64>,
    pub(crate) torn: Option<u64>,
    /// By their number.
    pub(crate) tables: BTreeMap<u64, TableState>,
    /// Generators that have made choices whose change is missing: it was not made then.
    pub(crate) choosing: HashMap<u64, TableRng>,
    pub(crate) next_table: u64,
    pub(crate) next_change: u64,
    pub(crate) next_serial: u64,
    /// The newest of each that there is a file of.
    pub(crate) checkpoint: u64,
    pub(crate) log: u64,
    /// Logs that hold chunks.
    pub(crate) logs: Vec<Arc<Log>>,
    /// Nanoseconds since the store was created, and the system's seconds at the checkpoint.
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
    let mut reader = Reader::new(files, &checkpoints, &logs);
    let needs = checkpoints.iter().filter_map(|number| {
        let scan = reader.open(&checkpoint_name(*number), Kind::Checkpoint, *number).ok()?;
        Some((*number, first_logs(scan).ok()?))
    });
    let needs: Vec<(u64, Logs)> = needs.collect();
    for number in checkpoints.iter().rev() {
        let reader = Reader::new(files, &checkpoints, &logs);
        match reader.read_from(*number, &logs) {
            Ok(mut recovered) => {
                notes.append(&mut recovered.notes);
                return Ok(Recovered { notes, needs, ..recovered });
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
    if logs.is_empty() {
        return Ok(reader.finish());
    }
    reader.read_all(&logs).map_err(|trouble| match trouble {
        Trouble::Damaged(Damage(why)) => {
            Error::Storage(format!("{}: {why}", files.path().display()))
        }
        Trouble::Lost(error) => error,
    })
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
            from: None,
            needs: Vec::new(),
            replayed: Vec::new(),
            torn: None,
            tables: BTreeMap::new(),
            choosing: HashMap::new(),
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

    fn open(&mut self, name: &str, kind: Kind, number: u64) -> Result<Scan, Trouble> {
        let opened = self.files.open(name).and_then(Scan::new);
        let opened = opened.map_err(|error| Damage(format!("{name} cannot be read: {error}")))?;
        let scan = opened.map_err(|why| match why {
            NoHead::Damaged(Damage(why)) => Damage(format!("{name}: {why}")).into(),
            NoHead::OtherVersion(version) => Trouble::Lost(Error::Storage(format!(
                "{}: {name} is of format version {version}; this release reads version {VERSION}",
                self.files.path().display()
            ))),
        })?;
        let FileHead { kind: found, .. } = scan.head;
        if found != kind || scan.head.number != number {
            return Err(Damage(format!("{name} is another file under its name")).into());
        }
        let store = *self.out.store.get_or_insert(scan.head.store);
        if scan.head.store != store {
            return Err(Damage(format!("{name} is of another store")).into());
        }
        Ok(scan)
    }

    /// Reads a checkpoint and what came after it.
    fn read_from(mut self, number: u64, logs: &[u64]) -> Result<Recovered, Trouble> {
        let (scan, said) = self.check(number)?;
        let since: Vec<u64> = logs.iter().copied().filter(|log| *log >= said.first).collect();
        for (log, _) in &said.needed {
            self.load_chunks(*log, &said.serials)?;
        }
        for log in &since {
            self.load_chunks(*log, &said.serials)?;
        }
        let missing = said.serials.len().saturating_sub(self.chunks.len() as u64);
        if missing > 0 {
            return Err(Damage(format!(
                "{missing} of {} chunks that its items refer to are missing",
                said.serials.len()
            ))
            .into());
        }
        self.out.from = Some(number);
        self.out.clock = said.clock;
        self.out.made = said.made;
        self.out.next_serial = self.out.next_serial.max(said.next_serial);
        self.out.next_table = said.next_table;
        let chunks = &self.chunks;
        let mut chunk = |serial| {
            let chunk = chunks.get(&serial).cloned();
            chunk.ok_or_else(|| Damage(format!("chunk {serial} is missing")))
        };
        self.out.tables = tables(scan, &mut chunk)?;
        self.replay(&since, said.first, said.first_change)?;
        Ok(self.finish())
    }

    /// Reads logs that nobody has made a checkpoint of.
    fn read_all(mut self, logs: &[u64]) -> Result<Recovered, Trouble> {
        for log in logs {
            self.load_chunks(*log, &Ranges::default())?;
        }
        self.replay(logs, 1, 1)?;
        Ok(self.finish())
    }

    /// Looks whether a checkpoint is whole, from its first record to its last.
    fn check(&mut self, number: u64) -> Result<(Scan, Logs), Trouble> {
        let name = checkpoint_name(number);
        let scan = self.open(&name, Kind::Checkpoint, number)?;
        let said = check(scan)?;
        Ok((self.open(&name, Kind::Checkpoint, number)?, said))
    }

    /// Loads the chunks of a log that are wanted, and notes where the others are.
    fn load_chunks(&mut self, number: u64, wanted: &Ranges) -> Result<(), Trouble> {
        let name = log_name(number);
        let mut scan = self.open(&name, Kind::Log, number)?;
        let log = Log::new(scan.head.store, number);
        let mut known = Known::default();
        loop {
            let place = scan.place();
            let record = match scan.next() {
                Err(error) => return Err(Damage(format!("{name} cannot be read: {error}")).into()),
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
                drop(log.hold(&chunk, serial, bytes));
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
        drop(log.hold(&chunk, serial, other.bytes as u64));
        other.used = Arc::downgrade(&chunk);
        Ok(chunk)
    }

    /// Makes the changes of these logs again: of the log `first`, which begins with that change, and of those after it.
    fn replay(&mut self, logs: &[u64], first: u64, first_change: u64) -> Result<(), Trouble> {
        if logs.first() != Some(&first) {
            return Err(self.lost(&format!("{} is missing", log_name(first))));
        }
        let mut next = first_change;
        for (place, number) in logs.iter().enumerate() {
            let name = log_name(*number);
            let mut scan = self.open(&name, Kind::Log, *number)?;
            let mut known = Known::default();
            let mut begun = false;
            let end = loop {
                let record = match scan.next() {
                    Err(error) => return Err(Damage(format!("{name} cannot be read: {error}")).into()),
                    Ok(Err(end)) => break end,
                    Ok(Ok(record)) => record,
                };
                if record.kind == kind::CHUNK || known.take(record.kind, record.body)? {
                    continue;
                }
                if record.kind == kind::BEGIN {
                    let found = Take(record.body).u64()?;
                    if found != next {
                        return Err(self.gap(&name, next, found));
                    }
                    begun = true;
                    continue;
                }
                if !begun {
                    return Err(Damage(format!("{name} does not say where it begins")).into());
                }
                let (kind, body) = (record.kind, record.body.to_vec());
                self.change(kind, &body, &known, &mut next)?;
            };
            if let End::Torn { place: torn, why } = end {
                let left = scan.len() - torn;
                self.out.notes.push(format!(
                    "{name} ends at byte {torn}: {why}; {left} bytes follow, which nobody was told of"
                ));
                if place + 1 == logs.len() {
                    self.out.torn = Some(torn);
                }
            }
        }
        self.out.replayed = logs.to_vec();
        self.out.next_change = next;
        Ok(())
    }

    fn gap(&self, name: &str, next: u64, found: u64) -> Trouble {
        let torn = self.out.notes.last();
        let torn = torn.map_or_else(String::new, |torn| format!(" ({torn})"));
        if found < next {
            let what = format!("{name} begins with change {found}; {next} should follow{torn}");
            return Trouble::Damaged(Damage(what));
        }
        let last = found.saturating_sub(1);
        self.lost(&format!("changes {next} to {last} are missing before {name}{torn}"))
    }

    fn lost(&self, what: &str) -> Trouble {
        Trouble::Lost(Error::Storage(format!("{}: {what}", self.files.path().display())))
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
                    let mut state = TableState::new(Arc::new(options), Arc::new(Volatile))?;
                    state.reach(Lsn(number));
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
                    let last = self.out.tables.get(&id).map(|table| table.last_lsn().0);
                    let applies = last.is_some_and(|last| last < number);
                    // Chunks of changes that a checkpoint covers may be gone.
                    let mut chunk = |serial| {
                        if applies { self.chunk(serial) } else { nobodys() }
                    };
                    let change = Change::take(&mut take, known, &mut chunk)?;
                    if let Some(now) = change.now() {
                        self.out.clock = self.out.clock.max(now);
                    }
                    if let Some(table) = self.out.tables.get_mut(&id).filter(|_| applies) {
                        change.check(table.options())?;
                        let chosen = self.out.choosing.remove(&id);
                        if let Change::Choose(rng) = change {
                            self.out.choosing.insert(id, rng);
                            continue;
                        }
                        let trash = &mut Trash::default();
                        if let Some(rng) = &chosen {
                            table.replay(&TableOp::Choose { rng }, trash);
                        }
                        table.replay_at(&change.op(), Lsn(number), trash);
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

fn expect(number: u64, next: &mut u64, count: u64) -> Result<(), Damage> {
    if number != *next {
        return Damage::new(format!("change {number} follows {}", next.saturating_sub(1)));
    }
    *next = next.saturating_add(count);
    Ok(())
}

/// Stands for a chunk that nobody will look at.
fn nobodys() -> Result<Arc<Chunk>, Damage> {
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::default(),
            structure: "".into(),
        }),
        cells: Box::default(),
    };
    let origin = Origin {
        key: 0,
        episodes: Default::default(),
        first_step: 0,
        steps: 0,
    };
    let payload = AlignedBytes::zeroed(0).ok_or_else(|| Error::out_of_memory("no bytes", None))?;
    let payload = Payload::Heap(payload);
    Ok(Arc::new(Chunk::from_parts(origin, schema.into(), Vec::new().into(), payload)?))
}
