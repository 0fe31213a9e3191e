//! The engine: named tables that come and go.

mod durable;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::pool::Pool;
use engram_core::{Error, OpSink, Result, TableOptions, TableState, Volatile};
use parking_lot::{Mutex, RwLock};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::clock::{Clock, SystemClock};
use crate::disk::Storage;
use crate::lease::Sample;
use crate::table::Table;
use crate::ticket::{JournalSpace, SampleTicket, UntilDurable};
pub use durable::OpenOptions;

/// Named tables. Everything a door offers goes through here.
#[derive(Debug)]
pub struct Engine {
    tables: RwLock<BTreeMap<String, Arc<Table>>>,
    closed: RwLock<bool>,
    clock: Arc<dyn Clock>,
    backend: Backend,
    /// One checkpoint at a time.
    checkpoints: Mutex<()>,
    pool: Arc<Pool>,
    next_number: AtomicU64,
    entropy: u64,
    /// Items that writers have made and not sent, because their chunks are not full yet.
    unsent: AtomicU64,
}

/// Where tables live.
#[derive(Debug)]
enum Backend {
    Memory(Arc<dyn OpSink>),
    Disk {
        storage: Box<Storage>,
        next_table: AtomicU64,
    },
}

impl Engine {
    /// An engine with these tables, without a journal. Its keys derive from `entropy`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for impossible options or two tables of one name.
    pub fn new(tables: Vec<TableOptions>, entropy: u64) -> Result<Self> {
        Self::with(
            tables,
            entropy,
            Arc::new(SystemClock::default()),
            Arc::new(Volatile),
        )
    }

    /// An engine with its own clock and log.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with(
        tables: Vec<TableOptions>,
        entropy: u64,
        clock: Arc<dyn Clock>,
        sink: Arc<dyn OpSink>,
    ) -> Result<Self> {
        let engine = Self::at(Backend::Memory(sink), clock, entropy);
        for options in tables {
            engine.create_table(options)?;
        }
        Ok(engine)
    }

    fn at(backend: Backend, clock: Arc<dyn Clock>, entropy: u64) -> Self {
        Self {
            tables: RwLock::default(),
            closed: RwLock::new(false),
            clock,
            backend,
            checkpoints: Mutex::default(),
            pool: Arc::default(),
            next_number: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            entropy,
        }
    }

    fn sink(&self, number: u64) -> Arc<dyn OpSink> {
        match &self.backend {
            Backend::Memory(sink) => Arc::clone(sink),
            Backend::Disk { storage, .. } => storage.sink(number),
        }
    }

    /// Waits until every change so far is as safe as the store promises.
    #[must_use]
    pub fn until_durable(&self) -> UntilDurable {
        UntilDurable::new(&self.sink(0))
    }

    /// Waits while too many changes wait to be written.
    #[must_use]
    pub fn journal_space(&self) -> JournalSpace {
        JournalSpace::new(&self.sink(0))
    }

    /// Buffers that batches are gathered into.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// A number to make keys from, given out once. Numbers of one engine lie far apart.
    #[must_use]
    pub fn unique_number(&self) -> u64 {
        derive_number(
            self.entropy,
            self.next_number.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Tells how many items a writer holds in unfinished chunks, and how many it told of last.
    pub fn update_unsent(&self, before: u64, now: u64) {
        self.unsent
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Why a table may look emptier than its writers think, in words.
    #[must_use]
    pub fn unsent(&self) -> Option<String> {
        unsent_items_note(self.unsent.load(Ordering::Relaxed))
    }

    /// Ends a sample at its deadline, `seconds` after it began: with what there is if `partial`,
    /// otherwise with everything going back, unless the last draw has come meanwhile.
    ///
    /// # Errors
    /// [`Error::DeadlineExceeded`] saying how far it got, and why no further.
    pub fn finish_at_deadline(
        &self,
        ticket: SampleTicket,
        seconds: f64,
        partial: bool,
    ) -> Result<Sample> {
        let outcome = if partial {
            ticket.take_some(seconds)
        } else {
            ticket.give_up(seconds)
        };
        outcome.map_err(|error| match (error, self.unsent()) {
            (Error::DeadlineExceeded(text), Some(unsent)) => {
                Error::DeadlineExceeded(format!("{text}; {unsent}"))
            }
            (error, _) => error,
        })
    }

    /// Adds a table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for impossible options or a name that is taken; [`Error::Closed`].
    pub fn create_table(&self, options: TableOptions) -> Result<Arc<Table>> {
        // Held until the table is in: `close` must not miss it.
        let closed_now = self.closed.read();
        if *closed_now {
            return Err(closed());
        }
        let mut tables = self.tables.write();
        if tables.contains_key(&options.name) {
            return Err(taken(&options.name));
        }
        let name = options.name.clone();
        let clock = Arc::clone(&self.clock);
        let table = match &self.backend {
            Backend::Memory(sink) => Table::new(options, clock, Arc::clone(sink))?,
            Backend::Disk {
                storage,
                next_table,
            } => {
                let number = next_table.fetch_add(1, Ordering::Relaxed);
                let sink = storage.sink(number);
                let state = TableState::new(Arc::new(options), Arc::clone(&sink))?;
                storage.created(number, state.options());
                Table::with(state, number, clock, sink)
            }
        };
        let table = Arc::new(table);
        tables.insert(name, Arc::clone(&table));
        Ok(table)
    }

    /// Removes a table; calls that wait for it end with an error.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::Closed`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        self.check_open()?;
        let table = {
            let mut tables = self.tables.write();
            let table = tables.remove(name);
            if let (Some(table), Backend::Disk { storage, .. }) = (&table, &self.backend) {
                storage.dropped(table.number());
            }
            table
        };
        let table = table.ok_or_else(|| self.unknown(name))?;
        table.close(Error::Closed(format!("table `{name}` was dropped")));
        Ok(())
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::Closed`].
    pub fn table(&self, name: &str) -> Result<Arc<Table>> {
        let found = self.tables.read().get(name).cloned();
        if let Some(table) = found {
            return Ok(table);
        }
        self.check_open()?;
        Err(self.unknown(name))
    }

    /// All tables, by name.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn tables(&self) -> Result<Vec<Arc<Table>>> {
        self.check_open()?;
        Ok(self.tables.read().values().cloned().collect())
    }

    /// Ends every waiting call, and lets nobody in any more. Calling it again does nothing.
    ///
    /// # Errors
    /// [`Error::Storage`] where changes could not be written.
    pub fn close(&self) -> Result<()> {
        *self.closed.write() = true;
        let tables = std::mem::take(&mut *self.tables.write());
        for table in tables.values() {
            table.close(closed());
        }
        match &self.backend {
            Backend::Disk { storage, .. } => storage.close(),
            Backend::Memory(_) => Ok(()),
        }
    }

    fn check_open(&self) -> Result<()> {
        if *self.closed.read() {
            Err(closed())
        } else {
            Ok(())
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let known = self.tables.read().keys().cloned().collect();
        Error::UnknownTable {
            name: name.into(),
            known,
        }
    }
}

/// The `number`-th of the numbers that derive from `entropy`.
#[must_use]
pub fn derive_number(entropy: u64, number: u64) -> u64 {
    SplitMix64::seed_from_u64(entropy.wrapping_add(number)).next_u64()
}

/// What to say of items in unfinished chunks.
#[must_use]
pub fn unsent_items_note(items: u64) -> Option<String> {
    (items > 0).then(|| {
        format!("writers hold {items} more in unfinished chunks, which `flush` would finish")
    })
}

fn taken(name: &str) -> Error {
    Error::InvalidArgument(format!(
        "table `{name}` exists already; each name is taken once"
    ))
}

fn closed() -> Error {
    Error::Closed("the store is closed".into())
}
