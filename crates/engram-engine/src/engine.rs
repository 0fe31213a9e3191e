//! The engine: a set of named tables, in memory or in a directory.

mod durable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::pool::Pool;
use engram_core::{Error, OpSink, Result, TableOptions, TableState, Volatile};
use parking_lot::{Mutex, RwLock};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::clock::{Clock, MonotonicClock};
use crate::disk::Storage;
use crate::table::Table;
use crate::table_context::{TableContext, unsent_items_note};
use crate::ticket::{JournalSpace, UntilDurable};
use crate::timer::Timer;
pub use durable::OpenOptions;

/// A store's tables. In-process stores and servers use tables only through an engine.
#[derive(Debug)]
pub struct Engine {
    /// Tables by name.
    tables: RwLock<BTreeMap<String, Arc<Table>>>,
    /// Names of the tables that are being added. Locked after `tables`.
    reserved_names: Mutex<BTreeSet<String>>,
    /// Locked for reading while a table is created or added, so that closing waits for that.
    is_closed: RwLock<bool>,
    context: Arc<TableContext>,
    backend: Backend,
    /// Locked while a checkpoint is written: one at a time.
    checkpoint_lock: Mutex<()>,
    pool: Arc<Pool>,
    /// How many unique numbers this engine has returned.
    number_count: AtomicU64,
    /// Seed of the unique numbers.
    entropy: u64,
}

/// Where changes of the tables are recorded.
#[derive(Debug)]
enum Backend {
    /// The sink of all tables.
    Memory(Arc<dyn OpSink>),
    Disk {
        storage: Box<Storage>,
        /// Number of the next table.
        next_table: AtomicU64,
    },
}

impl Engine {
    /// Creates an engine in memory with these tables. Unique numbers are derived from `entropy`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options or two tables of the same name.
    pub fn new(tables: Vec<TableOptions>, entropy: u64) -> Result<Self> {
        Self::with_clock_and_sink(
            tables,
            entropy,
            Arc::new(MonotonicClock::default()),
            Arc::new(Volatile),
        )
    }

    /// Like [`Engine::new`], with this clock, and recording changes in `sink`.
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn with_clock_and_sink(
        tables: Vec<TableOptions>,
        entropy: u64,
        clock: Arc<dyn Clock>,
        sink: Arc<dyn OpSink>,
    ) -> Result<Self> {
        let engine = Self::without_tables(Backend::Memory(sink), clock, entropy);
        for options in tables {
            if engine.tables.read().contains_key(&options.name) {
                return Err(repeated_name(&options.name));
            }
            engine.create_table(options)?;
        }
        Ok(engine)
    }

    fn without_tables(backend: Backend, clock: Arc<dyn Clock>, entropy: u64) -> Self {
        Self {
            tables: RwLock::default(),
            reserved_names: Mutex::default(),
            is_closed: RwLock::new(false),
            context: Arc::new(TableContext {
                clock,
                timer: Timer::default(),
                unsent_items: AtomicU64::new(0),
            }),
            backend,
            checkpoint_lock: Mutex::default(),
            pool: Arc::default(),
            number_count: AtomicU64::new(0),
            entropy,
        }
    }

    /// The open directory; `None` for an engine in memory.
    fn storage(&self) -> Option<&Storage> {
        match &self.backend {
            Backend::Disk { storage, .. } => Some(storage),
            Backend::Memory(_) => None,
        }
    }

    /// The sink for the changes of the table with this number.
    fn sink(&self, number: u64) -> Arc<dyn OpSink> {
        match &self.backend {
            Backend::Memory(sink) => Arc::clone(sink),
            Backend::Disk { storage, .. } => storage.sink(number),
        }
    }

    /// The number of a new table in the store's files; 0 in memory.
    fn next_table_number(&self) -> u64 {
        match &self.backend {
            Backend::Memory(_) => 0,
            Backend::Disk { next_table, .. } => next_table.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns a future that is ready when every change so far is as durable as the store promises.
    #[must_use]
    pub fn until_durable(&self) -> UntilDurable {
        // All tables share one journal, so the sink of any number can be used.
        UntilDurable::new(&self.sink(0))
    }

    /// Returns a future that is ready when the journal's buffer of unwritten changes has space.
    #[must_use]
    pub fn journal_space(&self) -> JournalSpace {
        JournalSpace::new(&self.sink(0))
    }

    /// The pool of buffers that batches are gathered into.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns a number that this engine returns only once, to derive keys from. These numbers look
    /// random.
    #[must_use]
    pub fn unique_number(&self) -> u64 {
        derive_number(
            self.entropy,
            self.number_count.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Records that a writer now has `current` items in unfinished chunks; it last reported `previous`.
    pub fn update_unsent(&self, previous: u64, current: u64) {
        self.context
            .unsent_items
            .fetch_add(current.wrapping_sub(previous), Ordering::Relaxed);
    }

    /// As [`unsent_items_note`], for the writers of this engine.
    #[must_use]
    pub fn unsent_items_note(&self) -> Option<String> {
        unsent_items_note(self.context.unsent_items.load(Ordering::Relaxed))
    }

    /// Creates an empty table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options or a name that exists; [`Error::Closed`].
    pub fn create_table(&self, options: TableOptions) -> Result<Arc<Table>> {
        options.check_sizes()?;
        // Locked until the table is added, so that `close` does not miss it.
        let is_closed = self.is_closed.read();
        if *is_closed {
            return Err(closed_error());
        }
        let mut tables = self.tables.write();
        if tables.contains_key(&options.name) || self.reserved_names.lock().contains(&options.name)
        {
            return Err(name_exists(&options.name));
        }
        let name = options.name.clone();
        let number = self.next_table_number();
        let sink = self.sink(number);
        let state = TableState::new(Arc::new(options), Arc::clone(&sink))?;
        if let Some(storage) = self.storage() {
            storage.record_table_created(number, state.options());
        }
        let table = Table::from_state(state, number, &self.context, sink);
        tables.insert(name, Arc::clone(&table));
        Ok(table)
    }

    /// Removes a table. Calls waiting for it end with [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::Closed`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        self.check_open()?;
        let table = {
            let mut tables = self.tables.write();
            let table = tables.remove(name);
            if let (Some(table), Some(storage)) = (&table, self.storage()) {
                storage.record_table_dropped(table.number());
            }
            table
        };
        let table = table.ok_or_else(|| self.unknown_table(name))?;
        table.close(Error::Closed(format!("table `{name}` was dropped")));
        Ok(())
    }

    /// Returns the table of this name.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::Closed`].
    pub fn table(&self, name: &str) -> Result<Arc<Table>> {
        let table = self.tables.read().get(name).cloned();
        if let Some(table) = table {
            return Ok(table);
        }
        self.check_open()?;
        Err(self.unknown_table(name))
    }

    /// Returns all tables, sorted by name.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn tables(&self) -> Result<Vec<Arc<Table>>> {
        self.check_open()?;
        Ok(self.tables.read().values().cloned().collect())
    }

    /// Ends every waiting call, closes the storage and removes all tables; later calls fail with
    /// [`Error::Closed`]. Calling it again does nothing.
    ///
    /// # Errors
    /// [`Error::Storage`] if changes could not be written.
    pub fn close(&self) -> Result<()> {
        *self.is_closed.write() = true;
        let tables = std::mem::take(&mut *self.tables.write());
        for table in tables.values() {
            table.close(closed_error());
        }
        self.storage().map_or(Ok(()), Storage::close)
    }

    fn check_open(&self) -> Result<()> {
        if *self.is_closed.read() {
            Err(closed_error())
        } else {
            Ok(())
        }
    }

    fn unknown_table(&self, name: &str) -> Error {
        let known = self.tables.read().keys().cloned().collect();
        Error::UnknownTable {
            name: name.into(),
            known,
        }
    }
}

/// Returns the `number`-th of the numbers derived from `entropy`. They look random.
#[must_use]
pub fn derive_number(entropy: u64, number: u64) -> u64 {
    SplitMix64::seed_from_u64(entropy.wrapping_add(number)).next_u64()
}

fn name_exists(name: &str) -> Error {
    Error::InvalidArgument(format!(
        "table `{name}` already exists; choose another name, or drop that table first"
    ))
}

fn repeated_name(name: &str) -> Error {
    Error::InvalidArgument(format!(
        "`tables`: two tables have the name `{name}`; give each table its own name"
    ))
}

fn closed_error() -> Error {
    Error::Closed("the store is closed".into())
}
