//! Where the tables are: in this process, or at a server.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use engram_core::{Error, Result, TableOptions};
use engram_engine::{Engine, TableInfo};
use engram_rpc::client::{
    Client, ClientOptions, MAX_KEYS_PER_REQUEST, PendingResponse, RemoteOutbox,
};
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{ForkGuard, Timeout, detached, forks, wait_for};

/// How long a server may take to answer beyond a deadline.
pub(crate) const ANSWER: Duration = Duration::from_millis(400);

/// How long a call that asks several times may take beyond its deadline.
pub(crate) const ANSWERS: Duration = Duration::from_millis(800);

/// Changes under way at a time that nobody waits for.
const CHANGES_UNDER_WAY: usize = 8;

/// What a store object stands for.
#[derive(Debug)]
pub(crate) enum Location {
    Local(ForkGuard<Arc<Engine>>),
    Remote(RemoteStore),
}

/// A server. Unlike an engine, it may be used in a forked child, which connects anew.
#[derive(Debug)]
pub(crate) struct RemoteStore {
    options: ClientOptions,
    /// The client of the process that asked last.
    link: ArcSwapOption<RemoteTables>,
}

/// A client of one process.
#[derive(Debug)]
pub(crate) struct RemoteTables {
    forks: u64,
    pub(crate) client: Arc<Client>,
    memory: Mutex<Memory>,
    /// Changes that nobody waits for, oldest first.
    changes: Mutex<VecDeque<PendingResponse<u64>>>,
}

/// What single inserts need again and again.
#[derive(Debug, Default)]
struct Memory {
    /// What tables were made with, as the server said last.
    described: HashMap<String, Arc<TableOptions>>,
    /// Outboxes whose items are all settled.
    spare: Vec<RemoteOutbox>,
}

impl RemoteStore {
    pub(crate) fn new(py: Python<'_>, options: ClientOptions) -> PyResult<Self> {
        let remote = Self {
            options,
            link: ArcSwapOption::empty(),
        };
        remote.link(py)?;
        Ok(remote)
    }

    fn link(&self, py: Python<'_>) -> PyResult<Arc<RemoteTables>> {
        let known = self.link.load_full();
        if let Some(link) = known.filter(|link| link.forks == forks()) {
            return Ok(link);
        }
        let client = detached(py, || Client::new(self.options.clone()))?;
        let link = Arc::new(RemoteTables {
            forks: forks(),
            client: Arc::new(client),
            memory: Mutex::default(),
            changes: Mutex::default(),
        });
        // The parent's threads, which its client would wait for, are not here.
        std::mem::forget(self.link.swap(Some(Arc::clone(&link))));
        Ok(link)
    }

    /// Waits a moment until the server knows what this process has sampled. Nothing in a child
    /// that has not used it.
    pub(crate) fn flush_acknowledgements(&self, py: Python<'_>) {
        let known = self.link.load_full();
        match known {
            Some(link) if link.forks == forks() => {
                // Whoever wants to hear what became of the changes closes the client.
                let _ = link.settle_changes(py, 0);
                py.detach(|| link.client.flush_acks());
            }
            foreign => std::mem::forget(foreign),
        }
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        let link = self.link.swap(None);
        match link {
            Some(link) if link.forks == forks() => {
                // Its outboxes take leave of the server.
                Python::try_attach(|py| py.detach(|| drop(link)));
            }
            // Waiting for the parent's threads would take for ever.
            foreign => std::mem::forget(foreign),
        }
    }
}

impl RemoteTables {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a table was made with: remembered, until that is forgotten. A server may take a little
    /// longer than the deadline to tell.
    pub(crate) fn described(
        &self,
        py: Python<'_>,
        table: &str,
        until: (Timeout, Option<Instant>),
    ) -> PyResult<Arc<TableOptions>> {
        if let Some(known) = self.memory().described.get(table) {
            return Ok(Arc::clone(known));
        }
        self.describe(py, table, until)
    }

    /// The same, asked anew.
    pub(crate) fn describe(
        &self,
        py: Python<'_>,
        table: &str,
        (timeout, deadline): (Timeout, Option<Instant>),
    ) -> PyResult<Arc<TableOptions>> {
        let deadline = deadline.map(|deadline| deadline + ANSWER);
        let described = wait_for(py, &mut self.client.describe(table), deadline)?;
        let options = described.ok_or_else(|| {
            let text = format!(
                "the server at {} did not answer within {} s, asked about table `{table}`",
                self.client.address(),
                timeout.seconds()
            );
            errors::to_py(py, &Error::DeadlineExceeded(text))
        })?;
        let known = Arc::clone(&options);
        self.memory().described.insert(table.into(), known);
        Ok(options)
    }

    /// Forgets what a table was made with: it may have been made anew. True if that was known.
    pub(crate) fn forget(&self, table: &str) -> bool {
        self.memory().described.remove(table).is_some()
    }

    /// Sets priorities; says how many keys matched, as [`Self::changed`].
    pub(crate) fn update_priorities(
        &self,
        py: Python<'_>,
        table: &str,
        keys: &[u64],
        priorities: &[f64],
        wait: bool,
    ) -> PyResult<Option<usize>> {
        if keys.len().max(priorities.len()) > MAX_KEYS_PER_REQUEST {
            // The server sees a part at a time, and one bad priority refuses all of them.
            let options = wait_for_reply(py, self.client.describe(table))?;
            detached(py, || options.check_updates(keys, priorities))?;
        }
        let reply = self.client.update_priorities(table, keys, priorities);
        self.changed(py, reply, wait)
    }

    /// How many keys a change matched; or, without waiting, what became of changes before it.
    pub(crate) fn changed(
        &self,
        py: Python<'_>,
        reply: PendingResponse<u64>,
        wait: bool,
    ) -> PyResult<Option<usize>> {
        if !wait {
            self.changes().push_back(reply);
            return self.settle_changes(py, CHANGES_UNDER_WAY).map(|()| None);
        }
        let matched = wait_for_reply(py, reply)?;
        // Those before it have been heard of: the server answers in order.
        self.settle_changes(py, 0)?;
        Ok(Some(usize::try_from(matched).unwrap_or(usize::MAX)))
    }

    /// Waits until at most so many changes are under way that nobody waited for.
    ///
    /// # Errors
    /// That of the first that failed.
    pub(crate) fn settle_changes(&self, py: Python<'_>, most: usize) -> PyResult<()> {
        loop {
            let oldest = {
                let mut changes = self.changes();
                if changes.len() <= most {
                    return Ok(());
                }
                changes.pop_front()
            };
            if let Some(reply) = oldest {
                wait_for_reply(py, reply)?;
            }
        }
    }

    fn changes(&self) -> MutexGuard<'_, VecDeque<PendingResponse<u64>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An outbox for one insert.
    pub(crate) fn outbox(&self) -> RemoteOutbox {
        let spare = self.memory().spare.pop();
        spare.unwrap_or_else(|| self.client.outbox())
    }

    /// Takes back an outbox whose items are all settled.
    pub(crate) fn put_back(&self, outbox: RemoteOutbox) {
        self.memory().spare.push(outbox);
    }
}

/// A way to the tables, good for one call or one writer.
#[derive(Clone, Debug)]
pub(crate) enum Tables {
    Local(Arc<Engine>),
    Remote(Arc<RemoteTables>),
}

impl Location {
    /// The way to the tables from this process.
    ///
    /// # Errors
    /// `ForkedError` where they are in another process's memory.
    pub(crate) fn tables(&self, py: Python<'_>) -> PyResult<Tables> {
        match self {
            Self::Local(engine) => engine.get(py).cloned().map(Tables::Local),
            Self::Remote(remote) => remote.link(py).map(Tables::Remote),
        }
    }
}

impl Tables {
    /// Asks the engine, or the server.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        local: impl FnOnce(&Engine) -> Result<T> + Send,
        remote: impl FnOnce(&Client) -> PendingResponse<T>,
    ) -> PyResult<T> {
        match self {
            Self::Local(engine) => detached(py, || local(engine)),
            Self::Remote(link) => wait_for_reply(py, remote(&link.client)),
        }
    }

    /// As [`Self::ask`], for what changes something: waits until that is as safe as the store promises.
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

    /// What a table was made with.
    pub(crate) fn options(&self, py: Python<'_>, table: &str) -> PyResult<Arc<TableOptions>> {
        match self {
            // At once, so with the GIL.
            Self::Local(engine) => match engine.table(table) {
                Ok(table) => Ok(Arc::clone(table.options())),
                Err(error) => Err(errors::to_py(py, &error)),
            },
            Self::Remote(link) => wait_for_reply(py, link.client.describe(table)),
        }
    }

    /// Numbers of all tables.
    pub(crate) fn infos(&self, py: Python<'_>) -> PyResult<Vec<TableInfo>> {
        self.call(
            py,
            |engine| Ok(engine.tables()?.iter().map(|table| table.info()).collect()),
            Client::infos,
        )
    }

    /// The same, to explain an error with: nothing where it cannot be had by then.
    ///
    /// # Errors
    /// Ctrl-C.
    pub(crate) fn infos_soon(&self, py: Python<'_>, by: Instant) -> PyResult<Vec<TableInfo>> {
        let Self::Remote(link) = self else {
            return Ok(self.infos(py).unwrap_or_default());
        };
        let infos = link.client.infos();
        let mut infos = Box::pin(async move { Ok(infos.await.unwrap_or_default()) });
        Ok(wait_for(py, &mut infos, Some(by))?.unwrap_or_default())
    }

    /// A number to make keys from, given out once.
    pub(crate) fn unique_number(&self) -> u64 {
        match self {
            Self::Local(engine) => engine.unique_number(),
            Self::Remote(link) => link.client.unique_number(),
        }
    }

    /// Tells how many items a writer holds in unfinished chunks, and how many it told of last.
    pub(crate) fn update_unsent(&self, before: u64, now: u64) {
        match self {
            Self::Local(engine) => engine.update_unsent(before, now),
            Self::Remote(link) => link.client.update_unsent(before, now),
        }
    }

    /// Why a table may look emptier than its writers think, in words.
    pub(crate) fn unsent(&self) -> Option<String> {
        match self {
            Self::Local(engine) => engine.unsent_note(),
            Self::Remote(link) => link.client.unsent(),
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
