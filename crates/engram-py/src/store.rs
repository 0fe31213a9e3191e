//! The in-process store, as `engram.Store` sees it.

#![expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 hands arguments over by value"
)]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_core::RateLimits;
use engram_core::gather::{Uneven, gather};
use engram_engine::{Engine, Stream, StreamOptions, TableInfo};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::config::{LimiterConfig, TableConfig};
use crate::door::{Home, Timeout, enter, wait_for};
use crate::errors;
use crate::insert::Inserter;
use crate::stream::PyStream;

/// Named tables in this process.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct Store {
    engine: Home<Arc<Engine>>,
    seed: u64,
    /// Tables made so far, dropped ones included: no two get the same seed.
    made: AtomicUsize,
    insert: Inserter,
}

impl Store {
    pub(crate) fn engine(&self, py: Python<'_>) -> PyResult<&Arc<Engine>> {
        self.engine.get(py)
    }
}

/// A table's items at one moment.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct Snapshot(Home<engram_core::Snapshot>);

#[pymethods]
impl Snapshot {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let snapshot = self.0.get(py)?;
        enter(py, || Ok(snapshot.items().count()))
    }
}

/// Tables of one store draw from different streams.
fn table_seed(seed: u64, number: usize) -> u64 {
    seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[pymethods]
impl Store {
    #[new]
    fn new(py: Python<'_>, tables: Vec<TableConfig<'_>>, seed: u64) -> PyResult<Self> {
        let made = tables.len();
        let options = tables
            .into_iter()
            .enumerate()
            .map(|(number, config)| config.into_options(py, table_seed(seed, number)))
            .collect::<PyResult<Vec<_>>>()?;
        // Keys must not repeat when a seeded program runs again beside what an earlier run stored.
        let entropy = RandomState::new().build_hasher().finish();
        let engine = enter(py, || Engine::new(options, entropy))?;
        Ok(Self {
            engine: Home::new("store", Arc::new(engine)),
            seed,
            made: AtomicUsize::new(made),
            insert: Inserter::default(),
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine(py)?;
        enter(py, || {
            engine.close();
            Ok(())
        })
    }

    fn create_table(&self, py: Python<'_>, config: TableConfig<'_>) -> PyResult<()> {
        let engine = self.engine(py)?;
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let options = config.into_options(py, table_seed(self.seed, number))?;
        enter(py, || engine.create_table(options).map(drop))
    }

    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let engine = self.engine(py)?;
        enter(py, || engine.drop_table(name))
    }

    fn set_rate_limiter(
        &self,
        py: Python<'_>,
        table: &str,
        limiter: LimiterConfig,
    ) -> PyResult<()> {
        let engine = self.engine(py)?;
        let limits = RateLimits::from(limiter);
        enter(py, || engine.table(table)?.set_limits(limits))
    }

    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let tables = self
            .engine(py)?
            .tables()
            .map_err(|error| errors::to_py(py, &error))?;
        Ok(tables
            .iter()
            .map(|table| table.options().name.clone())
            .collect())
    }

    #[pyo3(signature = (table, n, timeout, partial, pad))]
    fn sample(
        &self,
        py: Python<'_>,
        table: &str,
        n: usize,
        timeout: Option<f64>,
        partial: bool,
        pad: bool,
    ) -> PyResult<Batch> {
        let engine = self.engine(py)?;
        let timeout = Timeout::new(py, timeout)?;
        let deadline = timeout.deadline();
        // Where sampling uses items up, they go back should the batch not come about.
        let mut ticket = enter(py, || {
            let table = engine.table(table)?;
            let leased = table.options().max_times_sampled > 0;
            table.sample(n, leased)
        })?;
        let sample = match wait_for(py, &mut ticket, deadline)? {
            Some(sample) => sample,
            None => enter(py, || engine.end_early(ticket, timeout.seconds(), partial))?,
        };
        let uneven = if pad { Uneven::Pad } else { Uneven::Ragged };
        let columns = enter(py, || gather(&sample.draws, uneven, engine.pool()))?;
        let batch = Batch::new(py, columns, &sample.draws, false)?;
        if let Some(lease) = sample.lease {
            py.detach(|| lease.acknowledge());
        }
        Ok(batch)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one per keyword of engram.Dataset"
    )]
    #[pyo3(signature = (table, batch_size, prefetch, max_batches, timeout, pad))]
    fn stream(
        &self,
        py: Python<'_>,
        table: &str,
        batch_size: Option<usize>,
        prefetch: usize,
        max_batches: Option<u64>,
        timeout: Option<f64>,
        pad: bool,
    ) -> PyResult<PyStream> {
        let engine = self.engine(py)?;
        let timeout = Timeout::new(py, timeout)?;
        let uneven = if pad { Uneven::Pad } else { Uneven::Ragged };
        let options = StreamOptions {
            batch_size: batch_size.unwrap_or(1),
            prefetch,
            max_batches,
            uneven,
        };
        let stream = enter(py, || {
            Stream::open(engine.table(table)?, Arc::clone(engine.pool()), options)
        })?;
        Ok(PyStream::new(stream, timeout, batch_size.is_none()))
    }

    fn update_priorities(
        &self,
        py: Python<'_>,
        table: &str,
        keys: PyReadonlyArray1<'_, u64>,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<usize> {
        let engine = self.engine(py)?;
        // Copies: other threads may write to the arrays once the GIL is gone.
        let (keys, priorities) = (keys.as_slice()?.to_vec(), priorities.as_slice()?.to_vec());
        enter(py, || {
            engine.table(table)?.update_priorities(&keys, &priorities)
        })
    }

    #[pyo3(signature = (data, priorities, timeout, time_axis))]
    fn insert(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        priorities: Vec<(String, f64)>,
        timeout: Option<f64>,
        time_axis: bool,
    ) -> PyResult<u64> {
        let timeout = Timeout::new(py, timeout)?;
        self.insert
            .insert(self.engine(py)?, data, &priorities, timeout, time_axis)
    }

    fn delete(
        &self,
        py: Python<'_>,
        table: &str,
        keys: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<usize> {
        let engine = self.engine(py)?;
        let keys = keys.as_slice()?.to_vec();
        enter(py, || engine.table(table)?.delete(&keys))
    }

    fn reset(&self, py: Python<'_>, table: &str) -> PyResult<()> {
        let engine = self.engine(py)?;
        enter(py, || engine.table(table)?.reset())
    }

    fn can_sample(&self, py: Python<'_>, table: &str, n: u64) -> PyResult<bool> {
        let engine = self.engine(py)?;
        enter(py, || Ok(engine.table(table)?.can_sample(n)))
    }

    fn can_insert(&self, py: Python<'_>, table: &str, n: u64) -> PyResult<bool> {
        let engine = self.engine(py)?;
        enter(py, || Ok(engine.table(table)?.can_insert(n)))
    }

    /// One mapping per table, for `engram.TableInfo`.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let engine = self.engine(py)?;
        let infos = enter(py, || {
            Ok(engine
                .tables()?
                .iter()
                .map(|table| table.info())
                .collect::<Vec<_>>())
        })?;
        let unsent = engine.unsent();
        infos
            .iter()
            .map(|info| describe(py, info, unsent.as_deref()))
            .collect()
    }

    /// The items of this moment, kept for as long as the result lives.
    fn snapshot(&self, py: Python<'_>, table: &str) -> PyResult<Snapshot> {
        let engine = self.engine(py)?;
        let snapshot = enter(py, || Ok(engine.table(table)?.snapshot()))?;
        Ok(Snapshot(Home::new("snapshot", snapshot)))
    }
}

fn describe<'py>(
    py: Python<'py>,
    info: &TableInfo,
    unsent: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = &info.stats;
    let limiter = &stats.limiter;
    let dict = PyDict::new(py);
    dict.set_item("name", &info.name)?;
    dict.set_item("size", stats.size)?;
    dict.set_item("max_size", info.max_size)?;
    dict.set_item("bytes", stats.bytes)?;
    dict.set_item("max_bytes", info.max_bytes)?;
    dict.set_item("leased_out", stats.hidden)?;
    dict.set_item("num_episodes", stats.num_episodes)?;
    dict.set_item("num_deleted_episodes", stats.num_deleted_episodes)?;
    dict.set_item("num_unique_samples", stats.num_unique_samples)?;
    dict.set_item("inserts", limiter.inserts)?;
    dict.set_item("samples", limiter.samples)?;
    dict.set_item("deletes", limiter.deletes)?;
    dict.set_item("inserts_per_s", info.inserts_per_s)?;
    dict.set_item("samples_per_s", info.samples_per_s)?;
    dict.set_item("waiting_inserts", info.waiting_inserts)?;
    dict.set_item("waiting_samples", info.waiting_samples)?;
    dict.set_item("inserting_blocked", &info.inserting_blocked)?;
    let sampling = info.sampling_blocked.as_ref().map(|why| match unsent {
        Some(unsent) => format!("{why}; {unsent}"),
        None => why.clone(),
    });
    dict.set_item("sampling_blocked", sampling)?;
    let limits = &limiter.limits;
    dict.set_item(
        "rate_limiter",
        (
            &limits.kind,
            limits.samples_per_insert,
            limits.min_size,
            limits.min_diff,
            limits.max_diff,
        ),
    )?;
    Ok(dict)
}
