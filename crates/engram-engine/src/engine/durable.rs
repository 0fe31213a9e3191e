//! Engines whose tables are stored in a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::text::count;
use engram_core::{DeferredDrops, Error, Result, TableOptions, TableState, Volatile};

use super::{Backend, Engine, closed_error, name_exists, repeated_name};
use crate::clock::MonotonicClock;
use crate::disk::{
    Checkpoint, CheckpointView, ClosedDirectory, ReadProgress, Storage, StorageOptions,
};
use crate::table::Table;

/// What to do with the tables stored in a directory when it is opened or restored.
#[derive(Debug, Default)]
pub struct OpenOptions {
    /// New names of stored tables, by their stored names.
    pub rename: BTreeMap<String, String>,
    /// Stored names of tables to drop.
    pub drop: BTreeSet<String>,
    /// If acknowledged data is missing or corrupt, open the store with the remaining data instead of failing.
    pub repair: bool,
}

impl OpenOptions {
    /// Checks the options for a directory with these tables.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for names that do not exist, for a name that is both renamed and dropped, and for
    /// two tables of the same name.
    fn check(&self, existing: &[&str]) -> Result<()> {
        let renamed = self.rename.keys().map(|name| ("rename", name));
        let dropped = self.drop.iter().map(|name| ("drop", name));
        for (argument, name) in renamed.chain(dropped) {
            if !existing.contains(&name.as_str()) {
                return Err(unknown_stored_table(argument, name, existing));
            }
        }
        if let Some(name) = self.rename.keys().find(|name| self.drop.contains(*name)) {
            return Err(Error::InvalidArgument(format!(
                "table `{name}` is in both `rename` and `drop`; give it in one of them"
            )));
        }
        let kept = existing.iter().filter(|name| !self.drop.contains(**name));
        let mut new_names = BTreeSet::new();
        for name in kept.map(|name| self.new_name(name)) {
            if !new_names.insert(name) {
                return Err(Error::InvalidArgument(format!(
                    "`rename`: two tables would have the name `{name}`; give each table its own name"
                )));
            }
        }
        Ok(())
    }

    fn new_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.rename.get(name).map_or(name, String::as_str)
    }

    /// The error for a table to restore if this store already has a table with its new name. `name` is the name
    /// after renaming.
    fn name_exists(&self, name: &str) -> Error {
        let mut renamed = self.rename.iter();
        let stored = renamed.find(|(stored, new)| *new == name && *stored != name);
        Error::InvalidArgument(match stored {
            Some((stored, _)) => format!(
                "`rename`: this store already has a table `{name}`; choose another new name for `{stored}`"
            ),
            None => format!(
                "this store already has a table `{name}`; give the one in the directory another name with \
                 `rename={{{name:?}: \"<new name>\"}}`, or leave it out with `drop=[{name:?}]`"
            ),
        })
    }
}

fn unknown_stored_table(argument: &str, name: &str, existing: &[&str]) -> Error {
    let existing: Vec<String> = existing.iter().map(|name| format!("`{name}`")).collect();
    let existing = if existing.is_empty() {
        "none".into()
    } else {
        existing.join(", ")
    };
    Error::InvalidArgument(format!(
        "`{argument}`: the directory has no table `{name}`; its tables: {existing}"
    ))
}

/// Reserves names in [`Engine::reserved_names`]; dropping it frees them.
struct ReservedNames<'a> {
    engine: &'a Engine,
    names: Vec<String>,
}

impl Drop for ReservedNames<'_> {
    fn drop(&mut self) {
        let mut reserved = self.engine.reserved_names.lock();
        for name in &self.names {
            reserved.remove(name);
        }
    }
}

impl Engine {
    /// Opens the engine stored in a directory: its stored tables, and those of `tables` that are not
    /// stored yet. Also returns notes about what was damaged or unfinished, about items that new options removed, and about
    /// new tables if stored ones are not among `tables`, in case that a name is misspelt. Writes a checkpoint if stored tables
    /// were dropped or renamed, or their options have changed, or if something was repaired.
    ///
    /// If `tables` contains a table with the name of a stored one (after renaming), the stored table takes these
    /// options, except for the seed. Limits that [`Table::set_limits`] has changed stay, unless the limits in the new
    /// options differ from those in the stored options.
    ///
    /// `entropy` must differ each time a directory is opened, so that no key is generated twice.
    ///
    /// # Errors
    /// [`Error::Storage`] if a process (also this one) has the directory open, it cannot be read or written, or
    /// acknowledged data is missing. [`Error::InvalidArgument`] for an empty path, for names in `options` that do not
    /// exist, and for a name that is both renamed and dropped. Those of [`Engine::new`]. Those of
    /// [`TableOptions::check_item`], for a stored item that does not match its table's new options.
    pub fn open(
        path: &Path,
        storage_options: StorageOptions,
        options: &OpenOptions,
        tables: Vec<TableOptions>,
        entropy: u64,
        progress: ReadProgress<'_>,
    ) -> Result<(Self, Vec<String>)> {
        let mut given_tables = BTreeMap::new();
        for table in tables {
            let name = table.name.clone();
            if given_tables.insert(name.clone(), table).is_some() {
                return Err(repeated_name(&name));
            }
        }
        let mut opened = Storage::open(path, storage_options, entropy, options.repair, progress)?;
        let stored_names = opened.tables.values();
        let stored_names = stored_names.map(|table| table.options().name.as_str());
        options.check(&stored_names.collect::<Vec<&str>>())?;
        let mut changed = options.repair && !opened.notes.is_empty();
        let states = std::mem::take(&mut opened.tables);
        let mut opened_states = Vec::with_capacity(states.len());
        let mut not_given = Vec::new();
        for (number, state) in states {
            let stored_options = TableOptions::clone(state.options());
            if options.drop.contains(&stored_options.name) {
                changed = true;
                continue;
            }
            let name = options.new_name(&stored_options.name).to_owned();
            let seed = stored_options.seed;
            let new_options = if let Some(given) = given_tables.remove(&name) {
                TableOptions { seed, ..given }
            } else {
                not_given.push(name.clone());
                TableOptions {
                    name,
                    ..stored_options.clone()
                }
            };
            let state = if new_options == stored_options {
                state
            } else {
                changed = true;
                // Not logged: if a later table does not match its new options, nothing must be changed.
                let mut state = state;
                state.set_sink(Arc::new(Volatile));
                let stored = state.stats().size;
                let deferred = &mut DeferredDrops::default();
                let state =
                    state.with_options(new_options, &|time| time, opened.clock, deferred)?;
                let removed = stored - state.stats().size;
                if removed > 0 {
                    opened.notes.push(format!(
                        "table `{}`: {removed} of {} removed, which the options given for it do not allow",
                        state.options().name,
                        count(stored, "item")
                    ));
                }
                state
            };
            opened_states.push((number, state));
        }
        let clock = Arc::new(MonotonicClock::starting_at(opened.clock));
        let backend = Backend::Disk {
            storage: Box::new(opened.storage),
            next_table: AtomicU64::new(opened.next_table),
        };
        let engine = Self::without_tables(backend, clock, entropy);
        for (number, mut state) in opened_states {
            let sink = engine.sink(number);
            if state.last_lsn() < sink.last() {
                state.set_last_lsn(sink.last());
            }
            state.set_sink(Arc::clone(&sink));
            let table = Table::from_state(state, number, &engine.context, sink);
            let name = table.options().name.clone();
            engine.tables.write().insert(name, table);
        }
        if changed {
            let _checkpoint_lock = engine.checkpoint_lock.lock();
            engine.checkpoint_with(&[], true)?;
        }
        if !given_tables.is_empty() && !not_given.is_empty() {
            let new: Vec<_> = given_tables.keys().map(String::as_str).collect();
            opened.notes.push(format!(
                "new tables: `{}`; tables of the directory that were not given: `{}`",
                new.join("`, `"),
                not_given.join("`, `")
            ));
        }
        for table in given_tables.into_values() {
            engine.create_table(table)?;
        }
        Ok((engine, opened.notes))
    }

    /// Adds the tables stored in another directory, which no process may have open and which is not
    /// changed. Returns the names of the tables, and notes about what was damaged or unfinished. If
    /// this engine has a directory, the tables are stored in it when this returns.
    ///
    /// # Errors
    /// Those of [`Engine::open`]; [`Error::InvalidArgument`] if this engine has a table of the same name;
    /// [`Error::Closed`].
    pub fn restore(
        &self,
        path: &Path,
        options: &OpenOptions,
        progress: ReadProgress<'_>,
    ) -> Result<(Vec<String>, Vec<String>)> {
        self.check_open()?;
        let recovered = ClosedDirectory::open(path)?.read(options.repair, false, progress)?;
        let stored_names = recovered.tables.values();
        let stored_names = stored_names.map(|table| table.options().name.as_str());
        options.check(&stored_names.collect::<Vec<&str>>())?;
        let (now, stored_now) = (self.context.clock.now(), recovered.resumed_clock());
        // Converts a reading of the stored clock to this engine's clock: items keep their ages.
        let convert_clock = |stored: u64| now.saturating_sub(stored_now.saturating_sub(stored));
        let mut tables = Vec::new();
        for mut state in recovered.tables.into_values() {
            let name = options.new_name(&state.options().name).to_owned();
            if options.drop.contains(&state.options().name) {
                continue;
            }
            if self.tables.read().contains_key(&name) {
                return Err(options.name_exists(&name));
            }
            let deferred = &mut DeferredDrops::default();
            state.end_leases(deferred);
            // The chunks are in the other directory's logs only: the next checkpoint must write them.
            for item in state.snapshot().items() {
                for chunk in item.trajectory.chunks() {
                    drop(chunk.set_location(None));
                }
            }
            let renamed = TableOptions {
                name,
                ..TableOptions::clone(state.options())
            };
            tables.push(state.with_options(renamed, &convert_clock, now, deferred)?);
        }
        let names = self.add_tables_with(tables, &|name| options.name_exists(name))?;
        Ok((names, recovered.notes))
    }

    /// Adds tables from outside this engine; returns their names. If this engine has a
    /// directory, the tables are stored in it when this returns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a name exists or is given twice; [`Error::Storage`],
    /// [`Error::Closed`].
    pub fn add_tables(&self, states: Vec<TableState>) -> Result<Vec<String>> {
        self.add_tables_with(states, &name_exists)
    }

    /// Adds tables as [`Engine::add_tables`] does. `conflict` returns the error for a name that exists.
    fn add_tables_with(
        &self,
        states: Vec<TableState>,
        conflict: &dyn Fn(&str) -> Error,
    ) -> Result<Vec<String>> {
        self.check_open()?;
        let names: Vec<String> = states
            .iter()
            .map(|state| state.options().name.clone())
            .collect();
        // No table with one of these names may be created until the tables are added.
        let reserved = self.reserve_names(&names).map_err(conflict)?;
        let tables: Vec<_> = states
            .into_iter()
            .map(|state| self.table_from_state(state))
            .collect();
        // No other checkpoint, which would lack these tables, may be written until they are added.
        let checkpoint_lock = self.checkpoint_lock.lock();
        if let Some(storage) = self.storage() {
            // If this fails, the checkpoint's file may still exist after a power loss. The tables are recorded as
            // dropped, so that the store does not have them when it is opened again.
            self.checkpoint_with(&tables, true).inspect_err(|_| {
                for table in &tables {
                    storage.record_table_dropped(table.number());
                }
            })?;
        }
        let is_closed = self.is_closed.read();
        if *is_closed {
            // The engine was closed after the checkpoint was written, so a directory has the tables.
            return self.storage().map(|_| names).ok_or_else(closed_error);
        }
        let mut existing = self.tables.write();
        existing.extend(names.iter().cloned().zip(tables));
        drop(reserved);
        drop((existing, is_closed, checkpoint_lock));
        Ok(names)
    }

    /// Reserves names for tables until the result is dropped.
    ///
    /// # Errors
    /// A name that exists, is reserved, or is given twice.
    fn reserve_names<'a>(&self, names: &'a [String]) -> Result<ReservedNames<'_>, &'a str> {
        let tables = self.tables.read();
        let mut reserved = self.reserved_names.lock();
        for (index, name) in names.iter().enumerate() {
            let is_used = tables.contains_key(name) || reserved.contains(name);
            if is_used || names[..index].contains(name) {
                return Err(name);
            }
        }
        reserved.extend(names.iter().cloned());
        Ok(ReservedNames {
            engine: self,
            names: names.to_vec(),
        })
    }

    /// Creates a table of this engine, with a new number, from a table's state.
    fn table_from_state(&self, mut state: TableState) -> Arc<Table> {
        let number = self.next_table_number();
        let sink = self.sink(number);
        state.set_last_lsn(sink.last());
        state.set_sink(Arc::clone(&sink));
        Table::from_state(state, number, &self.context, sink)
    }

    /// Path of a checkpoint's file; `None` for an engine in memory.
    #[must_use]
    pub fn checkpoint_path(&self, number: u64) -> Option<PathBuf> {
        self.storage()
            .map(|storage| storage.checkpoint_path(number))
    }

    /// Writes a checkpoint of all tables. Other calls continue meanwhile.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an engine in memory; [`Error::Storage`] if the checkpoint cannot
    /// be written; [`Error::Closed`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let _checkpoint_lock = self.checkpoint_lock.lock();
        self.checkpoint_with(&[], false)
    }

    /// Writes a checkpoint that also contains `extra_tables`, which are not in `self.tables` yet;
    /// `has_unlogged_content` is true if the logs lack some of its content. The caller has locked `checkpoint_lock`.
    fn checkpoint_with(
        &self,
        extra_tables: &[Arc<Table>],
        has_unlogged_content: bool,
    ) -> Result<Checkpoint> {
        let Backend::Disk {
            storage,
            next_table,
        } = &self.backend
        else {
            return Err(Error::InvalidArgument(
                "this store is in memory only, so it has no checkpoints; create a store on disk with \
                 `engram.Store.open(path)`"
                    .into(),
            ));
        };
        storage.checkpoint(has_unlogged_content, |start_log| {
            self.check_open()?;
            let clock = self.context.clock.now();
            let (position, tables) = {
                // Locked so that no table is created or dropped between the switch to the new log and the listing.
                let tables = self.tables.read();
                (
                    start_log(clock),
                    tables
                        .values()
                        .chain(extra_tables)
                        .cloned()
                        .collect::<Vec<_>>(),
                )
            };
            let mut views = Vec::with_capacity(tables.len());
            for table in tables {
                match table.snapshot() {
                    Ok(snapshot) => {
                        views.push((table.number(), Arc::clone(table.options()), snapshot));
                    }
                    // The table was dropped in the meantime: the new log has a record of that.
                    Err(Error::Closed(_)) => self.check_open()?,
                    Err(error) => return Err(error),
                }
            }
            let view = CheckpointView {
                tables: views,
                next_table: next_table.load(Ordering::Relaxed),
            };
            Ok((position, view))
        })
    }

    /// Checks whether the directory was moved or its log was removed, for [`Self::storage_problem`] and the
    /// infos of tables. May block: it accesses the file system.
    pub fn check_storage(&self) {
        if let Some(storage) = self.storage() {
            storage.check_files();
        }
    }

    /// Why changes are not stored durably now, as far as is known (see [`Self::check_storage`]); `None` if they
    /// are, or for an engine in memory.
    #[must_use]
    pub fn storage_problem(&self) -> Option<String> {
        self.storage().and_then(Storage::problem)
    }

    /// Bytes logged since the last checkpoint; `None` for an engine in memory.
    #[must_use]
    pub fn log_bytes(&self) -> Option<u64> {
        self.storage().map(Storage::log_bytes)
    }
}
