//! The native class that samples the tables of several servers.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use engram_core::Error;
use engram_engine::SampleOptions;
use engram_rpc::client::{BatchRequest, ShardedTables};
use pyo3::prelude::*;

use crate::arguments;
use crate::batch::{Batch, length_policy};
use crate::errors;
use crate::gil::{Timeout, detached, forks};
use crate::sample::sample_sharded;
use crate::store::Store;
use crate::stream::{PyStream, StreamConfig};
use crate::tables::{RemoteTables, Tables};

/// Connections of one process to all shards.
#[derive(Clone, Debug)]
struct Connections {
    /// Result of [`forks`] in the process that made the connections.
    forks: u64,
    shards: Vec<Arc<RemoteTables>>,
    tables: Arc<ShardedTables>,
}

/// The tables of several servers. Each `Store` is a client of one of them.
#[pyclass(frozen, name = "ShardedTables", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyShardedTables {
    stores: Vec<Py<Store>>,
    seed: Option<u64>,
    items_per_request: NonZeroUsize,
    /// Those made last: by this process, or by the parent before it forked.
    connections: Mutex<Option<Connections>>,
}

impl PyShardedTables {
    fn connections(&self, py: Python<'_>) -> PyResult<Connections> {
        let mut cached = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = cached.as_ref().filter(|made| made.forks == forks()) {
            return Ok(connections.clone());
        }
        let shards = self
            .stores
            .iter()
            .map(|store| match store.get().tables(py)? {
                Tables::Remote(remote) => Ok(remote),
                Tables::Local(_) => Err(errors::invalid(py, "a shard must be a client".into())),
            });
        let shards = shards.collect::<PyResult<Vec<_>>>()?;
        let clients = shards
            .iter()
            .map(|shard| Arc::clone(&shard.client))
            .collect();
        let tables = ShardedTables::new(clients, self.seed, self.items_per_request);
        let made = Connections {
            forks: forks(),
            shards,
            tables: Arc::new(tables.map_err(|error| errors::to_py(py, &error))?),
        };
        // Not dropped: clients of the parent would wait for threads that exist in the parent only.
        std::mem::forget(cached.replace(made.clone()));
        Ok(made)
    }
}

#[pymethods]
impl PyShardedTables {
    #[new]
    fn new(stores: Vec<Py<Store>>, seed: Option<u64>, items_per_request: NonZeroUsize) -> Self {
        Self {
            stores,
            seed,
            items_per_request,
            connections: Mutex::default(),
        }
    }

    /// Registers the clients with each other, so that writers can move between their servers.
    fn connect(&self, py: Python<'_>) -> PyResult<()> {
        self.connections(py).map(drop)
    }

    /// The shard ids of the servers; 0 for one that has none, or was not reached yet.
    fn shard_ids(&self, py: Python<'_>) -> PyResult<Vec<u16>> {
        let connections = self.connections(py)?;
        let shards = connections.shards.iter();
        Ok(shards.map(|shard| shard.client.shard().get()).collect())
    }

    /// For each server, false if it could not be reached when that was last tried.
    fn reachable(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        let connections = self.connections(py)?;
        let shards = 0..connections.shards.len();
        Ok(shards
            .map(|shard| connections.tables.is_reachable(shard))
            .collect())
    }

    /// Forgets the sizes of all tables, because they were changed.
    fn forget_totals(&self, py: Python<'_>) -> PyResult<()> {
        self.connections(py)?.tables.forget_totals();
        Ok(())
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
        let connections = self.connections(py)?;
        let request = BatchRequest {
            table: table.into(),
            options: SampleOptions {
                n,
                at_least: at_least.unwrap_or(n),
                lease: false,
                timeout: Some(timeout.seconds()),
            },
            length_policy: length_policy(pad),
        };
        let first = Tables::Remote(Arc::clone(&connections.shards[0]));
        sample_sharded(py, &first, &request, timeout, |request| {
            connections.tables.sample(request)
        })
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 passes arguments by value"
    )]
    fn stream(
        &self,
        py: Python<'_>,
        shard: usize,
        table: &str,
        config: StreamConfig<'_>,
    ) -> PyResult<PyStream> {
        let open_timeout = Timeout::from_seconds(config.open_timeout);
        let timeout = config.timeout()?;
        let connections = self.connections(py)?;
        let options = config.options();
        let Some(remote) = connections.shards.get(shard) else {
            let text = format!("no shard has number {shard}");
            return Err(errors::to_py(py, &Error::InvalidArgument(text)));
        };
        let options_of_table = remote.describe_table(py, table, open_timeout)?;
        let stream = detached(py, || connections.tables.stream(&options_of_table, options))?;
        let tables = Tables::Remote(Arc::clone(remote));
        Ok(PyStream::new(
            Box::new(stream),
            tables,
            table,
            timeout,
            config.is_single(),
        ))
    }
}
