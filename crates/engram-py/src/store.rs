//! The native class of `engram.Store` and `engram.Client`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engram_core::{RateLimits, Result, TableOptions};
use engram_engine::{BatchStream, Engine, Histogram, HistogramOf, SampleOptions, Stream, Table};
use engram_rpc::client::{BatchRequest, Client, ClientOptions, ClientTls};
use engram_rpc::random_u64;
use numpy::{PyArray1, PyReadonlyArray1, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments;
use crate::batch::{Batch, length_policy};
use crate::config::{LimiterConfig, TableConfig};
use crate::durable::{open_options, storage_options, with_progress};
use crate::errors;
use crate::gil::{ForkGuard, Timeout, detached, wait_for};
use crate::insert::Inserter;
use crate::insert_batch::InsertBatchCall;
use crate::inspection::clean_all;
use crate::memory;
use crate::sample::{sample_local, sample_remote};
use crate::scan::{self, PyScan};
use crate::snapshot::TableSnapshot;
use crate::stream::{PyStream, StreamConfig};
use crate::table_info::table_info_dict;
use crate::tables::{Location, RemoteStore, Tables};

/// Certificate authority, the client's certificate and key, and the server's name.
type ClientTlsConfig = (Vec<u8>, Option<(Vec<u8>, Vec<u8>)>, Option<String>);

/// Counts and edges of a histogram, numbers of items below and above all edges, and size of the table.
type HistogramValues = (Vec<u64>, Vec<f64>, u64, u64, u64);

/// Named tables, in this process or on a server.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct Store {
    location: Location,
    seed: u64,
    /// Number of seeds derived from `seed` so far, including those of dropped tables: no two tables get the same one.
    num_seeds: AtomicUsize,
    inserter: Inserter,
}

impl Store {
    /// Returns access to the tables from this process.
    pub(crate) fn tables(&self, py: Python<'_>) -> PyResult<Tables> {
        self.location.tables(py)
    }

    fn local(engine: Engine, seed: u64, num_seeds: usize) -> Self {
        memory::start_collector();
        Self {
            location: Location::Local(ForkGuard::new("store", Arc::new(engine))),
            seed,
            num_seeds: AtomicUsize::new(num_seeds),
            inserter: Inserter::default(),
        }
    }

    /// The seed that the tables' seeds are derived from.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a seed for a new table, different in each call.
    pub(crate) fn next_seed(&self) -> u64 {
        table_seed(self.seed, self.num_seeds.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the engine of a store in this process.
    ///
    /// # Errors
    /// `InvalidArgumentError` for a client.
    pub(crate) fn engine(&self, py: Python<'_>) -> PyResult<Arc<Engine>> {
        match self.tables(py)? {
            Tables::Local(engine) => Ok(engine),
            Tables::Remote(_) => {
                let text = "this needs a store in this process; got a client, whose tables are on its server";
                Err(errors::invalid(py, text.into()))
            }
        }
    }
}

/// Derives different seeds for the tables of one store.
fn table_seed(seed: u64, number: usize) -> u64 {
    seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Options of new tables, with seeds derived from the store's.
fn all_options(
    py: Python<'_>,
    tables: Vec<TableConfig<'_>>,
    seed: u64,
) -> PyResult<Vec<TableOptions>> {
    let tables = tables.into_iter().enumerate();
    let options = tables.map(|(number, config)| config.into_options(py, table_seed(seed, number)));
    options.collect()
}

#[pymethods]
impl Store {
    #[new]
    fn new(py: Python<'_>, tables: Vec<TableConfig<'_>>, seed: u64) -> PyResult<Self> {
        let options = all_options(py, tables, seed)?;
        let num_seeds = options.len();
        // Random bits for keys: even with a fixed seed, the keys of two runs of a program must differ, because the first
        // run may have stored items.
        let engine = detached(py, || Engine::new(options, random_u64()?))?;
        Ok(Self::local(engine, seed, num_seeds))
    }

    /// Opens a directory. Returns the store, and descriptions of what was found damaged or unfinished.
    ///
    /// `storage` is the durability, the sync interval in seconds and the number of checkpoints to keep. `opening` is
    /// the new table names by old name, the tables to drop, and whether to repair.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        tables: Vec<TableConfig<'_>>,
        seed: u64,
        storage: (String, f64, usize),
        opening: (BTreeMap<String, String>, BTreeSet<String>, bool),
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Self, Vec<String>)> {
        let options = all_options(py, tables, seed)?;
        let num_seeds = options.len();
        let storage = storage_options(storage);
        let opening = open_options(opening);
        let (engine, notes) = with_progress(py, progress.as_ref(), |progress| {
            Engine::open(&path, storage, &opening, options, random_u64()?, progress)
        })?;
        Ok((Self::local(engine, seed, num_seeds), clean_all(notes)))
    }

    /// Adds the tables of a directory. Returns their names, and descriptions of what was found damaged or unfinished.
    ///
    /// `opening` is the new table names by old name, the tables to drop, and whether to repair.
    fn restore(
        &self,
        py: Python<'_>,
        path: PathBuf,
        opening: (BTreeMap<String, String>, BTreeSet<String>, bool),
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<String>, Vec<String>)> {
        let engine = self.engine(py)?;
        let opening = open_options(opening);
        let (names, notes) = with_progress(py, progress.as_ref(), |progress| {
            engine.restore(&path, &opening, progress)
        })?;
        Ok((names, clean_all(notes)))
    }

    /// Size of the log since the last checkpoint in bytes; `None` without a directory.
    fn log_bytes(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.engine(py)?.log_bytes())
    }

    /// Writes a checkpoint. Returns its number, its size in bytes and its number of items.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let tables = self.tables(py)?;
        let checkpoint = tables.call(py, Engine::checkpoint, Client::checkpoint)?;
        Ok((checkpoint.number, checkpoint.bytes, checkpoint.items))
    }

    /// Returns a client of a server. The first call that needs the server connects.
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        address: String,
        token: Option<String>,
        tls: Option<ClientTlsConfig>,
        reconnect_timeout: f64,
    ) -> PyResult<Self> {
        let options = ClientOptions {
            address,
            token,
            tls: tls.map(|(ca, identity, server_name)| ClientTls {
                ca,
                identity,
                server_name,
            }),
            reconnect_timeout: Duration::try_from_secs_f64(reconnect_timeout)
                .unwrap_or(Duration::MAX / 4),
        };
        memory::start_collector();
        Ok(Self {
            location: Location::Remote(RemoteStore::new(py, options)?),
            seed: 0,
            num_seeds: AtomicUsize::new(0),
            inserter: Inserter::default(),
        })
    }

    /// Sets the address of a client's server. Does nothing for tables in this process.
    fn set_address(&self, py: Python<'_>, address: String) -> PyResult<()> {
        match &self.location {
            Location::Local(_) => Ok(()),
            Location::Remote(remote) => remote.set_address(py, address),
        }
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.tables(py)? {
            Tables::Local(engine) => detached(py, || engine.close()),
            Tables::Remote(remote) => {
                let changed = remote.wait_for_changes(py, 0);
                py.detach(|| remote.client.close());
                changed
            }
        }
    }

    /// Waits for a server's replies to changes and then, for a limited time, for its replies to acknowledgements of
    /// samples. Does nothing for tables in this process.
    fn wait_for_pending_replies(&self, py: Python<'_>) {
        if let Location::Remote(remote) = &self.location {
            remote.wait_for_pending_replies(py);
        }
    }

    fn create_table(&self, py: Python<'_>, config: TableConfig<'_>) -> PyResult<()> {
        let seed = config.seed();
        let options = config.into_options(py, self.next_seed())?;
        let tables = self.tables(py)?;
        let remote_options = options.clone();
        tables.change(
            py,
            |engine| engine.create_table(options).map(drop),
            |client| client.create_table(&remote_options, seed),
        )
    }

    fn drop_table(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = arguments::table_name("`table`", name)?;
        let tables = self.tables(py)?;
        tables.change(
            py,
            |engine| engine.drop_table(name),
            |client| client.drop_table(name),
        )
    }

    fn set_rate_limiter(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        limiter: LimiterConfig,
    ) -> PyResult<()> {
        let table = arguments::table_name("`table`", table)?;
        let limits = RateLimits::from(limiter);
        let remote_limits = limits.clone();
        self.tables(py)?.change(
            py,
            |engine| engine.table(table)?.set_limits(limits),
            |client| client.set_limits(table, &remote_limits),
        )
    }

    #[pyo3(name = "tables")]
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let names = |engine: &Engine| {
            let tables = engine.tables()?;
            Ok(tables
                .iter()
                .map(|table| table.options().name.clone())
                .collect())
        };
        self.tables(py)?.call(py, names, Client::tables)
    }

    #[pyo3(signature = (table, n, at_least, timeout, pad))]
    fn sample(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        n: usize,
        at_least: Option<usize>,
        timeout: &Bound<'_, PyAny>,
        pad: &Bound<'_, PyAny>,
    ) -> PyResult<Batch> {
        let table = arguments::table_name("`table`", table)?;
        let timeout = Timeout::from_python(timeout)?;
        let pad = arguments::boolean("`pad`", pad)?;
        let length_policy = length_policy(pad);
        let options = SampleOptions {
            n,
            at_least: at_least.unwrap_or(n),
            lease: false,
            timeout: Some(timeout.seconds()),
        };
        match self.tables(py)? {
            Tables::Local(engine) => sample_local(py, &engine, table, options, length_policy),
            Tables::Remote(remote) => {
                let request = BatchRequest {
                    table: table.into(),
                    options,
                    length_policy,
                };
                sample_remote(py, &remote, &request, timeout)
            }
        }
    }

    fn stream(&self, py: Python<'_>, table: &str, config: StreamConfig<'_>) -> PyResult<PyStream> {
        let open_timeout = Timeout::from_seconds(config.open_timeout);
        let timeout = config.timeout()?;
        let tables = self.tables(py)?;
        let options = config.options();
        let stream: Box<dyn BatchStream> = match &tables {
            Tables::Local(engine) => Box::new(detached(py, || {
                let table = engine.table(table)?;
                Stream::open(table, Arc::clone(engine.pool()), options)
            })?),
            Tables::Remote(remote) => {
                // An unknown table must raise an error here, like in process, and not at the first batch.
                let table = remote.describe_table(py, table, open_timeout)?;
                Box::new(detached(py, || remote.client.stream(&table, options))?)
            }
        };
        let is_single = config.is_single();
        Ok(PyStream::new(stream, tables, table, timeout, is_single))
    }

    /// Begins a scan. Python has checked the arguments.
    #[pyo3(signature = (table, batch_size, newest_first, keys, pad))]
    fn scan(
        &self,
        py: Python<'_>,
        table: &str,
        batch_size: Option<usize>,
        newest_first: bool,
        keys: Option<PyReadonlyArray1<'_, u64>>,
        pad: bool,
    ) -> PyResult<PyScan> {
        let request = scan::request(table, newest_first, keys, batch_size, pad)?;
        scan::begin(py, &self.tables(py)?, request, batch_size.is_none())
    }

    /// Begins a peek, a scan of the first `n` items in an order. Python has checked the arguments.
    #[pyo3(signature = (table, n, order, keys, max_bytes))]
    fn peek(
        &self,
        py: Python<'_>,
        table: &str,
        n: usize,
        order: &str,
        keys: Option<PyReadonlyArray1<'_, u64>>,
        max_bytes: Option<u64>,
    ) -> PyResult<PyScan> {
        let request = scan::peek_request(table, n, order, keys, max_bytes)?;
        scan::begin(py, &self.tables(py)?, request, true)
    }

    /// Returns the counts and edges of a histogram, how many items are below and above all edges, and the table's size.
    /// Python has checked the arguments.
    fn histogram(
        &self,
        py: Python<'_>,
        table: &str,
        of: &str,
        bins: u32,
    ) -> PyResult<HistogramValues> {
        let of = match of {
            "priority" => HistogramOf::Priority,
            "age" => HistogramOf::Age,
            "times_sampled" => HistogramOf::TimesSampled,
            _ => return Err(PyValueError::new_err("unknown values")),
        };
        let histogram = self.tables(py)?.call(
            py,
            |engine| Histogram::of_table(&engine.table(table)?, of, bins),
            |client| client.histogram(table, of, bins),
        )?;
        let Histogram {
            counts,
            edges,
            below,
            above,
            table_size,
        } = histogram;
        Ok((counts, edges, below, above, table_size))
    }

    fn update_priorities(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        keys: PyReadonlyArray1<'_, u64>,
        priorities: PyReadonlyArray1<'_, f64>,
        wait: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let table = arguments::table_name("`table`", table)?;
        let wait = arguments::boolean("`wait`", wait)?;
        // Copied, because other threads can write to the arrays while the GIL is released.
        let (keys, priorities) = (keys.as_slice()?.to_vec(), priorities.as_slice()?.to_vec());
        match self.tables(py)? {
            Tables::Local(engine) => {
                let update = |table: &Table| table.update_priorities(&keys, &priorities);
                change_local(py, &engine, table, wait, update)
            }
            Tables::Remote(remote) => remote.update_priorities(py, table, &keys, &priorities, wait),
        }
    }

    /// Checks that a table accepts all these priorities.
    fn check_priorities(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let table = arguments::table_name("`table`", table)?;
        let priorities = priorities.as_slice()?.to_vec();
        match self.tables(py)? {
            Tables::Local(_) => Ok(()), // `update_priorities` checks all of them
            Tables::Remote(remote) => remote.check_priorities(py, table, &priorities),
        }
    }

    #[pyo3(signature = (data, priorities, timeout, time_axis))]
    fn insert(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        priorities: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        timeout: &Bound<'_, PyAny>,
        time_axis: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let timeout = Timeout::from_python(timeout)?;
        let time_axis = arguments::boolean("`time_axis`", time_axis)?;
        let priorities = priorities
            .iter()
            .map(|(table, priority)| {
                let table = arguments::table_name("each key of `priorities`", table)?;
                let priority =
                    arguments::number(format_args!("the priority for `{table}`"), priority)?;
                Ok((table.to_string(), priority))
            })
            .collect::<PyResult<Vec<_>>>()?;
        self.inserter
            .insert(&self.tables(py)?, data, &priorities, timeout, time_axis)
    }

    /// Inserts the items of a nest of arrays, in order. `priorities` has a number for all items, or `[N]` numbers.
    #[pyo3(signature = (table, items, priorities, timeout, time_axis))]
    fn insert_batch<'py>(
        &self,
        py: Python<'py>,
        table: &Bound<'_, PyAny>,
        items: &Bound<'_, PyAny>,
        priorities: PyReadonlyArrayDyn<'_, f64>,
        timeout: &Bound<'_, PyAny>,
        time_axis: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        // Copied, because other threads can write to the array while the GIL is released.
        let values = priorities.as_slice()?.to_vec();
        let request = InsertBatchCall {
            table: arguments::table_name("`table`", table)?,
            priorities: &values,
            has_priority_per_item: priorities.ndim() > 0,
            time_axis: arguments::boolean("`time_axis`", time_axis)?,
            timeout: Timeout::from_python(timeout)?,
        };
        let keys = request.insert(&self.tables(py)?, items)?;
        Ok(PyArray1::from_vec(py, keys))
    }

    fn delete(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        keys: PyReadonlyArray1<'_, u64>,
        wait: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let table = arguments::table_name("`table`", table)?;
        let wait = arguments::boolean("`wait`", wait)?;
        let keys = keys.as_slice()?.to_vec();
        match self.tables(py)? {
            Tables::Local(engine) => {
                change_local(py, &engine, table, wait, |table| table.delete(&keys))
            }
            Tables::Remote(remote) => {
                remote.finish_change(py, remote.client.delete(table, &keys), wait)
            }
        }
    }

    fn reset(&self, py: Python<'_>, table: &Bound<'_, PyAny>) -> PyResult<()> {
        let table = arguments::table_name("`table`", table)?;
        self.tables(py)?.change(
            py,
            |engine| engine.table(table)?.reset(),
            |client| client.reset(table),
        )
    }

    fn can_sample(&self, py: Python<'_>, table: &str, n: u64) -> PyResult<bool> {
        self.tables(py)?.call(
            py,
            |engine| Ok(engine.table(table)?.can_sample(n)),
            |client| client.can_sample(table, n),
        )
    }

    fn can_insert(&self, py: Python<'_>, table: &str, n: u64) -> PyResult<bool> {
        self.tables(py)?.call(
            py,
            |engine| Ok(engine.table(table)?.can_insert(n)),
            |client| client.can_insert(table, n),
        )
    }

    /// Why the server cannot be reached, while a call is still connecting to it; otherwise None.
    fn connect_failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(match self.tables(py)? {
            Tables::Local(_) => None,
            Tables::Remote(remote) => remote.client.connect_failure().map(|why| {
                format!(
                    "the server at {} cannot be reached: {why}",
                    remote.client.address()
                )
            }),
        })
    }

    /// Returns a dict per table, for `engram.TableInfo`. `timeout` limits the wait for a server, in seconds.
    #[pyo3(signature = (timeout = None))]
    fn info<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let tables = self.tables(py)?;
        let infos = match timeout {
            None => tables.infos(py)?,
            Some(_) => tables.infos_within(py, Timeout::from_seconds(timeout))?,
        };
        let unsent = tables.unsent_items_note();
        infos
            .iter()
            .map(|info| table_info_dict(py, info, unsent.as_deref()))
            .collect()
    }

    /// Returns a snapshot of a table's items.
    fn snapshot(&self, py: Python<'_>, table: &str) -> PyResult<TableSnapshot> {
        let engine = self.engine(py)?;
        let snapshot = detached(py, || engine.table(table)?.snapshot())?;
        Ok(TableSnapshot::new(snapshot))
    }
}

/// Changes a table. With `wait`, waits until the change is durable and returns the number of keys found. Otherwise waits
/// until the journal has space and returns `None`.
fn change_local(
    py: Python<'_>,
    engine: &Engine,
    table: &str,
    wait: bool,
    change: impl FnOnce(&Table) -> Result<usize> + Send,
) -> PyResult<Option<usize>> {
    let mut changed = pin!(async {
        let matched = change(&*engine.table(table)?)?;
        if wait {
            engine.until_durable().await?;
        } else {
            engine.journal_space().await?;
        }
        Ok(matched)
    });
    let matched = wait_for(py, &mut changed, None)?;
    Ok(matched.filter(|_| wait))
}
