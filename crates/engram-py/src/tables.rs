//! Access to tables, in this process or on a server.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use engram_core::writer::ShardId;
use engram_core::{Error, Result, TableOptions};
use engram_engine::{Engine, TableInfo};
use engram_rpc::client::{
    Client, ClientOptions, MAX_KEYS_PER_REQUEST, PendingResponse, RemoteOutbox,
};
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{ForkGuard, Timeout, detached, forks, wait_for};
use crate::long_wait::log;

/// Extra time after a deadline for a server's reply.
pub(crate) const REPLY_GRACE: Duration = Duration::from_millis(400);

/// Extra time after a deadline for a call that sends several requests.
pub(crate) const TOTAL_REPLY_GRACE: Duration = Duration::from_millis(800);

/// Maximum number of changes in flight that no caller waits for. A call that exceeds it waits for the oldest of them.
const MAX_UNAWAITED_CHANGES: usize = 8;

/// Where the tables of a store are.
#[derive(Debug)]
pub(crate) enum Location {
    Local(ForkGuard<Arc<Engine>>),
    Remote(RemoteStore),
}

/// The tables of a server. Unlike an engine, they can be used in a forked child, which opens its own connection.
#[derive(Debug)]
pub(crate) struct RemoteStore {
    options: parking_lot::Mutex<ClientOptions>,
    /// The connection that was made last: by this process, or by the parent before it forked.
    connection: ArcSwapOption<RemoteTables>,
}

/// The connection of one process to a server's tables.
#[derive(Debug)]
pub(crate) struct RemoteTables {
    /// Result of [`forks`] in the process that made the connection.
    forks: u64,
    pub(crate) client: Arc<Client>,
    cache: Mutex<InsertCache>,
    /// Changes that no caller waits for, oldest first.
    changes: Mutex<VecDeque<PendingResponse<u64>>>,
}

/// What inserts reuse.
#[derive(Debug, Default)]
struct InsertCache {
    /// Options of tables by name, as of the last [`RemoteTables::request_table_options`].
    options: HashMap<String, Arc<TableOptions>>,
    /// Outboxes whose items are all acknowledged.
    idle_outboxes: Vec<RemoteOutbox>,
}

impl RemoteStore {
    pub(crate) fn new(py: Python<'_>, options: ClientOptions) -> PyResult<Self> {
        let remote = Self {
            options: parking_lot::Mutex::new(options),
            connection: ArcSwapOption::empty(),
        };
        remote.connection(py)?;
        Ok(remote)
    }

    fn connection(&self, py: Python<'_>) -> PyResult<Arc<RemoteTables>> {
        let cached = self.connection.load_full();
        if let Some(connection) = cached.filter(|connection| connection.forks == forks()) {
            return Ok(connection);
        }
        let options = self.options.lock().clone();
        let client = detached(py, || Client::new(options))?;
        let connection = Arc::new(RemoteTables {
            forks: forks(),
            client: Arc::new(client),
            cache: Mutex::default(),
            changes: Mutex::default(),
        });
        // Not dropped: a client of the parent would wait for threads that exist in the parent only.
        std::mem::forget(self.connection.swap(Some(Arc::clone(&connection))));
        Ok(connection)
    }

    /// Sets the address of a server that has moved, also for the connections of forked children.
    pub(crate) fn set_address(&self, py: Python<'_>, address: String) -> PyResult<()> {
        let connection = self.connection(py)?;
        detached(py, || connection.client.set_address(&address))?;
        self.options.lock().address = address;
        Ok(())
    }

    /// Waits for the replies to this process's changes, then for those to its acknowledgements, as long as
    /// [`Client::wait_for_acks`] does. Does nothing in a forked child that has not used the connection.
    pub(crate) fn wait_for_pending_replies(&self, py: Python<'_>) {
        let cached = self.connection.load_full();
        match cached {
            Some(connection) if connection.forks == forks() => {
                // No caller is left to receive the errors of changes, which `close` would have raised; nor an interruption.
                let _ = connection.finish_changes(py, 0, |error| {
                    let what = "a change that no call waited for (`wait=False`) failed";
                    let _ = log(py, &format!("{what}: {}", error.value(py)));
                });
                py.detach(|| connection.client.wait_for_acks());
            }
            inherited => std::mem::forget(inherited),
        }
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        let connection = self.connection.swap(None);
        match connection {
            Some(connection) if connection.forks == forks() => {
                // Dropping an outbox waits for the server.
                Python::try_attach(|py| py.detach(|| drop(connection)));
            }
            // Not dropped: it would wait forever for threads of the parent.
            inherited => std::mem::forget(inherited),
        }
    }
}

impl RemoteTables {
    fn cache(&self) -> MutexGuard<'_, InsertCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a table's options, cached or from the server, whose reply may take [`REPLY_GRACE`] after the deadline.
    pub(crate) fn table_options(
        &self,
        py: Python<'_>,
        table: &str,
        until: (Timeout, Option<Instant>),
    ) -> PyResult<Arc<TableOptions>> {
        if let Some(cached) = self.cache().options.get(table) {
            return Ok(Arc::clone(cached));
        }
        self.request_table_options(py, table, until)
    }

    /// Requests a table's options from the server, and caches them. The reply may take [`REPLY_GRACE`] after the
    /// deadline.
    pub(crate) fn request_table_options(
        &self,
        py: Python<'_>,
        table: &str,
        (timeout, deadline): (Timeout, Option<Instant>),
    ) -> PyResult<Arc<TableOptions>> {
        let deadline = deadline.map(|deadline| deadline + REPLY_GRACE);
        let described = wait_for(py, &mut self.client.describe(table), deadline)?;
        let options = described.ok_or_else(|| self.no_options(py, timeout, table))?;
        let cached = Arc::clone(&options);
        self.cache().options.insert(table.into(), cached);
        Ok(options)
    }

    /// Returns a table's options from the server, to check that the server has the table. Neither reads nor fills the
    /// cache.
    pub(crate) fn describe_table(
        &self,
        py: Python<'_>,
        table: &str,
        timeout: Timeout,
    ) -> PyResult<Arc<TableOptions>> {
        let described = wait_for(py, &mut self.client.describe(table), timeout.deadline())?;
        described.ok_or_else(|| self.no_options(py, timeout, table))
    }

    fn no_options(&self, py: Python<'_>, timeout: Timeout, table: &str) -> PyErr {
        self.no_reply(py, timeout, &format!("the options of table `{table}`"))
    }

    /// Why the server cannot be reached, for an error text; empty unless a call is connecting to it.
    pub(crate) fn connect_failure_note(&self) -> String {
        let why = self.client.connect_failure();
        why.map_or_else(String::new, |why| format!(": it cannot be reached: {why}"))
    }

    /// The error if the server does not reply in time.
    fn no_reply(&self, py: Python<'_>, timeout: Timeout, what: &str) -> PyErr {
        let text = format!(
            "the server at {} did not reply within {} s to a request for {what}{}",
            self.client.address(),
            (timeout.seconds() * 1e3).round() / 1e3,
            self.connect_failure_note()
        );
        errors::to_py(py, &Error::DeadlineExceeded(text))
    }

    /// Removes a table's options from the cache, because the table may have been replaced. Returns true if they were
    /// cached.
    pub(crate) fn forget_options(&self, table: &str) -> bool {
        self.cache().options.remove(table).is_some()
    }

    /// Checks priorities against a table's options, which are those of the server: an error of cached ones may be out of
    /// date.
    pub(crate) fn check_priorities(
        &self,
        py: Python<'_>,
        table: &str,
        priorities: &[f64],
    ) -> PyResult<()> {
        let until = (Timeout::from_seconds(None), None);
        let check = |options: Arc<TableOptions>| {
            let mut priorities = priorities.iter();
            detached(py, || {
                priorities.try_for_each(|priority| options.check_priority(*priority))
            })
        };
        check(self.table_options(py, table, until)?)
            .or_else(|_| check(self.request_table_options(py, table, until)?))
    }

    /// Sets priorities. Returns the same as [`Self::finish_change`].
    pub(crate) fn update_priorities(
        &self,
        py: Python<'_>,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
        wait: bool,
    ) -> PyResult<Option<usize>> {
        if keys.len().max(priorities.len()) > MAX_KEYS_PER_REQUEST {
            // One invalid priority must reject the whole call, but the server checks each request by itself.
            let options = wait_for_reply(py, self.client.describe(table))?;
            detached(py, || options.check_updates(keys, priorities))?;
        }
        let reply = self.client.update_priorities(table, keys, priorities);
        self.finish_change(py, reply, wait)
    }

    /// Completes a change. With `wait`, waits for the reply and returns the number of keys found. Otherwise returns
    /// `None`, and waits only if too many earlier changes are in flight.
    ///
    /// # Errors
    /// Those of this change if `wait`, and those of earlier changes that no caller waited for.
    pub(crate) fn finish_change(
        &self,
        py: Python<'_>,
        reply: PendingResponse<u64>,
        wait: bool,
    ) -> PyResult<Option<usize>> {
        if !wait {
            self.changes().push_back(reply);
            return self
                .wait_for_changes(py, MAX_UNAWAITED_CHANGES)
                .map(|()| None);
        }
        let matched = wait_for_reply(py, reply)?;
        // Replies to earlier changes have arrived already, because the server replies in order.
        self.wait_for_changes(py, 0)?;
        Ok(Some(usize::try_from(matched).unwrap_or(usize::MAX)))
    }

    /// Waits until at most `max_pending` changes are in flight that no caller waits for.
    ///
    /// # Errors
    /// The error of the first change that failed, after waiting for the others; an interruption at once.
    pub(crate) fn wait_for_changes(&self, py: Python<'_>, max_pending: usize) -> PyResult<()> {
        let mut first = None;
        self.finish_changes(py, max_pending, |error| {
            first.get_or_insert(error);
        })?;
        first.map_or(Ok(()), Err)
    }

    /// Waits as [`Self::wait_for_changes`] does, and passes each error to `on_error`.
    ///
    /// # Errors
    /// An interruption, at once.
    fn finish_changes(
        &self,
        py: Python<'_>,
        max_pending: usize,
        mut on_error: impl FnMut(PyErr),
    ) -> PyResult<()> {
        loop {
            let oldest = {
                let mut changes = self.changes();
                if changes.len() <= max_pending {
                    return Ok(());
                }
                changes.pop_front()
            };
            match oldest.map(|reply| wait_for_reply(py, reply)) {
                Some(Err(error)) if errors::is_ordinary_error(py, &error) => on_error(error),
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => {}
            }
        }
    }

    fn changes(&self) -> MutexGuard<'_, VecDeque<PendingResponse<u64>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an outbox for one insert.
    pub(crate) fn outbox(&self) -> RemoteOutbox {
        let idle = self.cache().idle_outboxes.pop();
        idle.unwrap_or_else(|| RemoteOutbox::new(&self.client))
    }

    /// Keeps an outbox whose items are all acknowledged for the next insert.
    pub(crate) fn recycle_outbox(&self, outbox: RemoteOutbox) {
        if outbox.is_at_home() {
            self.cache().idle_outboxes.push(outbox);
        }
    }
}

/// Access to the tables for one call or one writer.
#[derive(Clone, Debug)]
pub(crate) enum Tables {
    Local(Arc<Engine>),
    Remote(Arc<RemoteTables>),
}

impl Location {
    /// Returns access to the tables from this process.
    ///
    /// # Errors
    /// `ForkedError` if they are in the memory of the parent process.
    pub(crate) fn tables(&self, py: Python<'_>) -> PyResult<Tables> {
        match self {
            Self::Local(engine) => engine.get(py).cloned().map(Tables::Local),
            Self::Remote(remote) => remote.connection(py).map(Tables::Remote),
        }
    }
}

impl Tables {
    /// Calls the engine without the GIL, or sends the server a request and waits for the reply.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        local: impl FnOnce(&Engine) -> Result<T> + Send,
        remote: impl FnOnce(&Client) -> PendingResponse<T>,
    ) -> PyResult<T> {
        match self {
            Self::Local(engine) => detached(py, || local(engine)),
            Self::Remote(tables) => wait_for_reply(py, remote(&tables.client)),
        }
    }

    /// Like [`Self::call`], for changes: also waits until the change is durable.
    pub(crate) fn change<T: Send>(
        &self,
        py: Python<'_>,
        local: impl FnOnce(&Engine) -> Result<T> + Send,
        remote: impl FnOnce(&Client) -> PendingResponse<T>,
    ) -> PyResult<T> {
        let changed = self.call(py, local, remote)?;
        if let Self::Local(engine) = self {
            wait_for(py, &mut engine.until_durable(), None)?;
        }
        Ok(changed)
    }

    /// Returns a table's options.
    pub(crate) fn options(&self, py: Python<'_>, table: &str) -> PyResult<Arc<TableOptions>> {
        match self {
            // Does not block, so it keeps the GIL.
            Self::Local(engine) => match engine.table(table) {
                Ok(table) => Ok(Arc::clone(table.options())),
                Err(error) => Err(errors::to_py(py, &error)),
            },
            Self::Remote(remote) => wait_for_reply(py, remote.client.describe(table)),
        }
    }

    /// Returns the statistics of all tables.
    pub(crate) fn infos(&self, py: Python<'_>) -> PyResult<Vec<TableInfo>> {
        self.call(
            py,
            |engine| {
                engine.check_storage();
                Ok(engine.tables()?.iter().map(|table| table.info()).collect())
            },
            Client::infos,
        )
    }

    /// Returns the statistics of all tables. The timeout applies to a server only.
    pub(crate) fn infos_within(
        &self,
        py: Python<'_>,
        timeout: Timeout,
    ) -> PyResult<Vec<TableInfo>> {
        let Self::Remote(remote) = self else {
            return self.infos(py);
        };
        let infos = wait_for(py, &mut remote.client.infos(), timeout.deadline())?;
        infos.ok_or_else(|| remote.no_reply(py, timeout, "the state of its tables"))
    }

    /// Returns the statistics for an error text, or nothing if they are not available by the deadline.
    ///
    /// # Errors
    /// Ctrl-C.
    pub(crate) fn infos_until(&self, py: Python<'_>, by: Instant) -> PyResult<Vec<TableInfo>> {
        let Self::Remote(remote) = self else {
            return Ok(self.infos(py).unwrap_or_default());
        };
        let infos = remote.client.infos();
        let mut infos = Box::pin(async move { Ok(infos.await.unwrap_or_default()) });
        Ok(wait_for(py, &mut infos, Some(by))?.unwrap_or_default())
    }

    /// Returns a number for keys, which no other call of this engine or client returns.
    pub(crate) fn unique_number(&self) -> u64 {
        match self {
            Self::Local(engine) => engine.unique_number(),
            Self::Remote(remote) => remote.client.unique_number(),
        }
    }

    /// The shard id of the server's keys: none in process.
    pub(crate) fn shard(&self) -> ShardId {
        match self {
            Self::Local(_) => ShardId::default(),
            Self::Remote(remote) => remote.client.shard(),
        }
    }

    /// Reports the number of a writer's items in unfinished chunks; `before` is the number it reported last.
    pub(crate) fn update_unsent(&self, before: u64, now: u64) {
        match self {
            Self::Local(engine) => engine.update_unsent(before, now),
            Self::Remote(remote) => remote.client.update_unsent(before, now),
        }
    }

    /// Describes the items in unfinished chunks, if there are any: a table may be empty because of them.
    pub(crate) fn unsent_items_note(&self) -> Option<String> {
        match self {
            Self::Local(engine) => engine.unsent_items_note(),
            Self::Remote(remote) => remote.client.unsent_items_note(),
        }
    }
}

/// Waits for a server's reply.
pub(crate) fn wait_for_reply<T: Send>(
    py: Python<'_>,
    mut reply: PendingResponse<T>,
) -> PyResult<T> {
    let replied = wait_for(py, &mut reply, None)?;
    let closed = || errors::to_py(py, &Error::Closed("this client is closed".into()));
    replied.ok_or_else(closed)
}
