//! Engines whose tables live in a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::{DeferredDrops, Error, Result, TableOptions, TableState, Volatile};

use super::{Backend, Engine, closed as closed_error, taken};
use crate::clock::SystemClock;
use crate::disk::{
    Checkpoint, CheckpointView, ReadProgress, Storage, StorageOptions, read_directory,
};
use crate::table::Table;

/// What becomes of the tables of a directory that is opened.
#[derive(Debug, Default)]
pub struct OpenOptions {
    /// Tables that get another name.
    pub rename: BTreeMap<String, String>,
    /// Tables that are dropped.
    pub drop: BTreeSet<String>,
    /// Opens what is left of a directory that has lost something.
    pub repair: bool,
}

impl OpenOptions {
    /// # Errors
    /// [`Error::InvalidArgument`] for names that are not there, and for two tables of one name.
    fn check(&self, there: &[&str]) -> Result<()> {
        let named = self.rename.keys().chain(&self.drop);
        for name in named {
            if !there.contains(&name.as_str()) {
                return Err(unknown(name, there));
            }
        }
        if let Some(both) = self.rename.keys().find(|name| self.drop.contains(*name)) {
            return Err(Error::InvalidArgument(format!(
                "table `{both}` can be renamed or dropped, not both"
            )));
        }
        let kept = there.iter().filter(|name| !self.drop.contains(**name));
        let mut given = BTreeSet::new();
        for name in kept.map(|name| self.name(name)) {
            if !given.insert(name) {
                return Err(taken(name));
            }
        }
        Ok(())
    }

    fn name<'a>(&'a self, name: &'a str) -> &'a str {
        self.rename.get(name).map_or(name, String::as_str)
    }
}

fn unknown(name: &str, there: &[&str]) -> Error {
    let there: Vec<String> = there.iter().map(|name| format!("`{name}`")).collect();
    let there = if there.is_empty() {
        "no table".into()
    } else {
        there.join(", ")
    };
    Error::InvalidArgument(format!(
        "the directory has no table `{name}`; it has {there}"
    ))
}

impl Engine {
    /// An engine that lives in a directory, with the tables that are there and those of `tables` that are not.
    /// A table that is there takes the options given here, be they other than before; it goes on with its own
    /// seed. Returns what was found damaged or unfinished, too. `entropy` is another each time: keys that were
    /// given are not given again. `progress` is told bytes read, and bytes in all.
    ///
    /// # Errors
    /// [`Error::Storage`] where the directory cannot be used: another process has it, it cannot be read or written,
    /// or something that was acknowledged is missing; as [`Engine::new`]; [`Error::InvalidArgument`] for names of
    /// `opening` that are not there; what [`TableOptions::check_item`] finds of an item that is there.
    pub fn open(
        path: &Path,
        options: StorageOptions,
        opening: &OpenOptions,
        tables: Vec<TableOptions>,
        entropy: u64,
        progress: ReadProgress<'_>,
    ) -> Result<(Self, Vec<String>)> {
        let mut given = BTreeMap::new();
        for options in tables {
            let name = options.name.clone();
            if given.insert(name.clone(), options).is_some() {
                return Err(taken(&name));
            }
        }
        let mut opened = Storage::open(path, options, entropy, opening.repair, progress)?;
        let there = opened.tables.values();
        let there: Vec<&str> = there.map(|table| table.options().name.as_str()).collect();
        opening.check(&there)?;
        let mut changed = opening.repair && !opened.notes.is_empty();
        let states = std::mem::take(&mut opened.tables);
        let mut kept = Vec::with_capacity(states.len());
        for (number, state) in states {
            let known = TableOptions::clone(state.options());
            if opening.drop.contains(&known.name) {
                changed = true;
                continue;
            }
            let name = opening.name(&known.name).to_owned();
            let seed = known.seed;
            let options = match given.remove(&name) {
                Some(options) => TableOptions { seed, ..options },
                None => TableOptions {
                    name,
                    ..known.clone()
                },
            };
            kept.push((
                number,
                if options == known {
                    state
                } else {
                    changed = true;
                    // Should another table not fit, nothing has happened to this one.
                    let mut state = state;
                    state.set_sink(Arc::new(Volatile));
                    let deferred = &mut DeferredDrops::default();
                    state.with_options(options, &|at| at, opened.clock, deferred)?
                },
            ));
        }
        let clock = Arc::new(SystemClock::from(opened.clock));
        let backend = Backend::Disk {
            storage: Box::new(opened.storage),
            next_table: AtomicU64::new(opened.next_table),
        };
        let engine = Self::at(backend, clock, entropy);
        for (number, mut state) in kept {
            let sink = engine.sink(number);
            if state.last_lsn() < sink.last() {
                state.set_last_lsn(sink.last());
            }
            state.set_sink(Arc::clone(&sink));
            let table = Table::with(state, number, Arc::clone(&engine.clock), sink);
            let name = table.options().name.clone();
            engine.tables.write().insert(name, Arc::new(table));
        }
        if changed {
            if let Backend::Disk { storage, .. } = &engine.backend {
                storage.skip_change_number();
            }
            engine.checkpoint()?;
        }
        for options in given.into_values() {
            engine.create_table(options)?;
        }
        Ok((engine, opened.notes))
    }

    /// Adds the tables of a directory that nobody has open, which stays as it is: those that `opening` does not
    /// drop. Returns their names, and what was found damaged or unfinished. They are there once this returns; where
    /// this engine lives in a directory, too, so does what they hold.
    ///
    /// # Errors
    /// As [`Engine::open`]; [`Error::InvalidArgument`] where a table of that name is here.
    pub fn restore(
        &self,
        path: &Path,
        opening: &OpenOptions,
        progress: ReadProgress<'_>,
    ) -> Result<(Vec<String>, Vec<String>)> {
        self.check_open()?;
        let found = read_directory(path, opening.repair, progress)?;
        let there = found.tables.values();
        let there: Vec<&str> = there.map(|table| table.options().name.as_str()).collect();
        opening.check(&there)?;
        let (now, then) = (self.clock.now(), found.resumed());
        // What was so old there is so old here.
        let clock = |at: u64| now.saturating_sub(then.saturating_sub(at));
        let mut tables = Vec::new();
        for mut state in found.tables.into_values() {
            let name = opening.name(&state.options().name).to_owned();
            if opening.drop.contains(&state.options().name) {
                continue;
            }
            if self.tables.read().contains_key(&name) {
                return Err(taken(&name));
            }
            let deferred = &mut DeferredDrops::default();
            state.end_leases(deferred);
            for item in state.snapshot().items() {
                for chunk in item.trajectory.chunks() {
                    drop(chunk.set_location(None));
                }
            }
            let options = TableOptions {
                name,
                ..TableOptions::clone(state.options())
            };
            tables.push(state.with_options(options, &clock, now, deferred)?);
        }
        Ok((self.add_tables(tables)?, found.notes))
    }

    /// Adds tables that another engine, or nobody, has. They are there once this returns; where this engine lives
    /// in a directory, so does what they hold. Returns their names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a table of that name is here, or two of them have one name;
    /// [`Error::Storage`], [`Error::Closed`].
    pub fn add_tables(&self, states: Vec<TableState>) -> Result<Vec<String>> {
        self.check_open()?;
        let mut known: BTreeSet<String> = self.tables.read().keys().cloned().collect();
        for state in &states {
            let name = &state.options().name;
            if !known.insert(name.clone()) {
                return Err(taken(name));
            }
        }
        let tables: Vec<_> = states.into_iter().map(|state| self.adopt(state)).collect();
        // Another checkpoint in between would not have them.
        let one_at_a_time = self.checkpoints.lock();
        if let Backend::Disk { storage, .. } = &self.backend {
            storage.skip_change_number();
            self.checkpoint_with(&tables)?;
        }
        let closed = self.closed.read();
        if *closed {
            return Err(closed_error());
        }
        let mut here = self.tables.write();
        let names: Vec<String> = tables
            .iter()
            .map(|table| table.options().name.clone())
            .collect();
        if let Some(name) = names.iter().find(|name| here.contains_key(*name)) {
            if let Backend::Disk { storage, .. } = &self.backend {
                for table in &tables {
                    storage.dropped(table.number());
                }
            }
            let error = taken(name);
            drop((here, closed));
            if matches!(self.backend, Backend::Disk { .. }) {
                self.checkpoint_with(&[])?;
            }
            return Err(error);
        }
        here.extend(names.iter().cloned().zip(tables));
        drop((here, closed, one_at_a_time));
        Ok(names)
    }

    /// A table of another engine as one of this one.
    fn adopt(&self, mut state: TableState) -> Arc<Table> {
        let number = match &self.backend {
            Backend::Memory(_) => 0,
            Backend::Disk { next_table, .. } => next_table.fetch_add(1, Ordering::Relaxed),
        };
        let sink = self.sink(number);
        state.set_last_lsn(sink.last());
        state.set_sink(Arc::clone(&sink));
        Arc::new(Table::with(state, number, Arc::clone(&self.clock), sink))
    }

    /// Where the file of a checkpoint is; `None` for an engine without a directory.
    #[must_use]
    pub fn checkpoint_path(&self, number: u64) -> Option<PathBuf> {
        match &self.backend {
            Backend::Disk { storage, .. } => Some(storage.checkpoint_path(number)),
            Backend::Memory(_) => None,
        }
    }

    /// Writes all tables to the engine's directory, while calls go on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an engine without a directory; [`Error::Storage`] where it cannot be written;
    /// [`Error::Closed`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let _one_at_a_time = self.checkpoints.lock();
        self.checkpoint_with(&[])
    }

    /// The same, with tables that nobody sees yet.
    fn checkpoint_with(&self, more: &[Arc<Table>]) -> Result<Checkpoint> {
        let Backend::Disk {
            storage,
            next_table,
        } = &self.backend
        else {
            return Err(Error::InvalidArgument(
                "this store lives in memory; a checkpoint needs a store that was opened with a path".into(),
            ));
        };
        storage.checkpoint(|mark| {
            self.check_open()?;
            let clock = self.clock.now();
            let (mark, tables) = {
                // Nobody comes or goes in between.
                let tables = self.tables.read();
                (
                    mark(clock),
                    tables.values().chain(more).cloned().collect::<Vec<_>>(),
                )
            };
            let mut saved = Vec::with_capacity(tables.len());
            for table in tables {
                match table.snapshot() {
                    Ok(snapshot) => {
                        saved.push((table.number(), Arc::clone(table.options()), snapshot));
                    }
                    // Dropped since: the log says so.
                    Err(Error::Closed(_)) => self.check_open()?,
                    Err(error) => return Err(error),
                }
            }
            let look = CheckpointView {
                tables: saved,
                next_table: next_table.load(Ordering::Relaxed),
            };
            Ok((mark, look))
        })
    }

    /// Bytes of the log since the last checkpoint; `None` for an engine without a directory.
    #[must_use]
    pub fn log_bytes(&self) -> Option<u64> {
        match &self.backend {
            Backend::Memory(_) => None,
            Backend::Disk { storage, .. } => Some(storage.log_bytes()),
        }
    }
}
