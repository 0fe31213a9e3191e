//! The outbox of a local or a remote writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::text::count;
use engram_core::writer::ShardId;
use engram_core::{NewItem, TableOptions};
use engram_engine::{Engine, Outbox, Until};
use engram_rpc::client::RemoteOutbox;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{Timeout, detached, wait_for};
use crate::long_wait::LongWait;
use crate::only_thread::{any_item_expires, is_only_thread, writer_check_interval};
use crate::tables::{REPLY_GRACE, RemoteTables, Tables};

/// Minimum wait for a server's reply, even if the caller's timeout is shorter.
const MIN_REPLY_WAIT: Duration = Duration::from_millis(200);

/// Minimum wait for a server's first reply on a connection. Until that reply, it is unknown whether tables block.
const MIN_FIRST_REPLY_WAIT: Duration = Duration::from_secs(5);

/// The outbox of a local or a remote writer.
#[derive(Debug)]
pub(crate) enum AnyOutbox {
    Local(Arc<Engine>, Outbox),
    Remote(Arc<RemoteTables>, RemoteOutbox),
}

/// How a wait for other threads has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// With what it waited for.
    Done,
    /// At the deadline.
    TimedOut,
    /// At the deadline, while the journal's buffer was full. Waits for tables do not end so.
    JournalFull,
    /// No other thread could end it.
    Deadlock,
}

impl AnyOutbox {
    /// Returns a new outbox.
    pub(crate) fn new(tables: &Tables) -> Self {
        match tables {
            Tables::Local(engine) => Self::Local(Arc::clone(engine), Outbox::default()),
            Tables::Remote(remote) => {
                Self::Remote(Arc::clone(remote), RemoteOutbox::new(&remote.client))
            }
        }
    }

    /// Returns the shard that the items are sent to; its id can change.
    pub(crate) fn shard(&self) -> ShardId {
        match self {
            Self::Local(..) => ShardId::default(),
            Self::Remote(_, outbox) => outbox.shard().clone(),
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Local(..))
    }

    /// The engine of a local writer.
    pub(crate) fn engine(&self) -> Option<&Arc<Engine>> {
        match self {
            Self::Local(engine, _) => Some(engine),
            Self::Remote(..) => None,
        }
    }

    /// True for a local writer while the journal's buffer is full.
    pub(crate) fn is_journal_full(&self) -> bool {
        matches!(self, Self::Local(_, outbox) if outbox.journal_space().is_some())
    }

    /// Waits for a local writer while the journal's buffer is full. Returns false at the deadline.
    pub(crate) fn wait_for_journal(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
    ) -> PyResult<bool> {
        if let Self::Local(_, outbox) = self
            && let Some(mut space) = outbox.journal_space()
        {
            let waited = wait_for(py, &mut space, deadline);
            return match waited {
                Ok(space) => Ok(space.is_some()),
                Err(error) if errors::is_storage(py, &error) => Err(errors::append_text(
                    py,
                    error,
                    ", and repeat what this call has not stored",
                )),
                Err(error) => Err(error),
            };
        }
        Ok(true)
    }

    /// Returns the number that stands for a table in [`AnyOutbox::send`]. `until` is a timeout and the time when it
    /// ends.
    pub(crate) fn table_number(
        &mut self,
        py: Python<'_>,
        name: &str,
        until: (Timeout, Option<Instant>),
    ) -> PyResult<u32> {
        match self {
            Self::Local(engine, outbox) => outbox
                .table_number(engine, name)
                .map_err(|error| errors::to_py(py, &error)),
            Self::Remote(remote, outbox) => {
                if let Some(number) = outbox.find_table(name) {
                    return Ok(number);
                }
                Ok(outbox.table_number(&remote.request_table_options(py, name, until)?))
            }
        }
    }

    /// Returns the options of a table, by its [`AnyOutbox::table_number`].
    pub(crate) fn options(&self, number: u32) -> &Arc<TableOptions> {
        match self {
            Self::Local(_, outbox) => outbox.table(number).options(),
            Self::Remote(_, outbox) => outbox.options(number),
        }
    }

    /// True for a local table if practically any number of items could be inserted now.
    pub(crate) fn is_unlimited(&self, number: u32) -> bool {
        match self {
            Self::Local(_, outbox) => outbox.table(number).inserts_allowed() == u64::MAX,
            Self::Remote(..) => false,
        }
    }

    /// Number of items that are not known to be in their tables. A remote writer's rejected items count until their
    /// errors were raised.
    pub(crate) fn items_left(&self, py: Python<'_>) -> usize {
        py.detach(|| self.count_items_left())
    }

    fn count_items_left(&self) -> usize {
        match self {
            Self::Local(_, outbox) => outbox.items_left(),
            Self::Remote(_, outbox) => outbox.progress().items_left(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        match self {
            Self::Local(_, outbox) => outbox.in_flight(),
            Self::Remote(_, outbox) => outbox.progress().in_flight(),
        }
    }

    pub(crate) fn blocked_reason(&self, py: Python<'_>) -> String {
        py.detach(|| self.find_blocked_reason())
    }

    fn find_blocked_reason(&self) -> String {
        match self {
            Self::Local(_, outbox) => outbox.blocked_reason(),
            Self::Remote(_, outbox) => outbox.blocked_reason(),
        }
    }

    /// The message of a wait for tables that has become long, for [`LongWait::report`].
    fn describe_wait(&self, waited: &str) -> String {
        let left = self.count_items_left();
        if left == 0 {
            return format!("a writer has waited {waited} for its items to be on disk");
        }
        format!(
            "a writer has waited {waited} for tables to accept {}{}",
            count(left, "item"),
            self.find_blocked_reason()
        )
    }

    /// Number of items that the rate limiters of their tables block, as far as known. For a local writer, all items
    /// that are left.
    pub(crate) fn waiting(&self, py: Python<'_>) -> usize {
        match self {
            Self::Local(_, outbox) => py.detach(|| outbox.items_left()),
            Self::Remote(_, outbox) => outbox.progress().waiting(),
        }
    }

    /// Sends items, each with its table's number.
    pub(crate) fn send(
        &mut self,
        py: Python<'_>,
        items: impl Iterator<Item = (u32, NewItem)> + Send,
    ) -> PyResult<()> {
        detached(py, || match self {
            Self::Local(_, outbox) => outbox.send(items),
            Self::Remote(_, outbox) => outbox.send(items),
        })
    }

    /// Updates the number of items in flight. Returns the error of a rejected item, or that of a closed client.
    pub(crate) fn collect_finished(&mut self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Local(_, outbox) if outbox.in_flight() == 0 => Ok(()),
            Self::Local(_, outbox) => detached(py, || outbox.collect_finished()),
            // A remote outbox's stream updates the number.
            Self::Remote(_, outbox) => outbox
                .check_errors()
                .map_err(|error| errors::to_py(py, &error)),
        }
    }

    /// Waits for the items that were sent. Returns false at the deadline.
    pub(crate) fn wait_until(
        &mut self,
        py: Python<'_>,
        until: Until,
        deadline: Option<Instant>,
    ) -> PyResult<bool> {
        let done = match self {
            Self::Local(_, outbox) => wait_for(py, outbox.until(until), deadline)?,
            Self::Remote(_, outbox) => {
                // Items need at least the time of a reply, even if no table blocks.
                let started = Instant::now();
                let mut deadline =
                    deadline.map(|deadline| deadline.max(started.min(deadline) + MIN_REPLY_WAIT));
                loop {
                    let done = wait_for(py, outbox.until(until), deadline)?;
                    let is_unknown = matches!(until, Until::WaitingAtMost(_))
                        && outbox.progress().awaits_first_reply();
                    if done.is_some() || !is_unknown || started.elapsed() > MIN_FIRST_REPLY_WAIT {
                        break done;
                    }
                    deadline = Some(Instant::now() + MIN_REPLY_WAIT);
                }
            }
        };
        Ok(done.is_some())
    }

    /// Waits as [`AnyOutbox::wait_until`] does. A local writer's wait also ends if no other thread could end it.
    pub(crate) fn wait_for_others(
        &mut self,
        py: Python<'_>,
        until: Until,
        deadline: Option<Instant>,
    ) -> PyResult<WaitEnd> {
        let mut long_wait = LongWait::begin();
        let mut deadlock_check = Instant::now() + writer_check_interval();
        loop {
            let check = self.is_local().then_some(deadlock_check);
            let next = [check, long_wait.next(), deadline]
                .into_iter()
                .flatten()
                .min();
            if self.wait_until(py, until, next)? {
                return Ok(WaitEnd::Done);
            }
            if next == deadline {
                return Ok(WaitEnd::TimedOut);
            }
            if next == check {
                if self.is_deadlock(py)? {
                    return Ok(WaitEnd::Deadlock);
                }
                deadlock_check += writer_check_interval();
            }
            let mut raised = None;
            py.detach(|| long_wait.report(&mut raised, |waited| self.describe_wait(waited)));
            if let Some(error) = raised {
                return Err(error);
            }
        }
    }

    /// Withdraws the items that are not in their tables. Returns their number, and true; or, if the server did not confirm
    /// it, the number of items that may not be in their tables, and false.
    pub(crate) fn withdraw(self, py: Python<'_>) -> (usize, bool) {
        py.detach(|| match self {
            Self::Local(_, outbox) => (outbox.withdraw(), true),
            Self::Remote(_, mut outbox) => {
                let is_final = outbox.finish(REPLY_GRACE);
                let left = outbox.progress().items_left();
                (left, is_final || left == 0)
            }
        })
    }

    /// True if items wait for a local table, and no other thread could sample from it (see [`is_only_thread`]), and no item
    /// expires.
    pub(crate) fn is_deadlock(&self, py: Python<'_>) -> PyResult<bool> {
        let Self::Local(engine, _) = self else {
            return Ok(false);
        };
        if self.items_left(py) == 0 || any_item_expires(engine) {
            return Ok(false);
        }
        is_only_thread(py, 0)
    }
}
