//! What all writers share: sending items, and waiting for the tables to take them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::pool::Pool;
use engram_core::{Error, NewItem, TableOptions};
use engram_engine::{Engine, Outbox};
use engram_rpc::client::RemoteOutbox;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{Timeout, detached, wait_for};
use crate::tables::{RemoteTables, Tables};

/// The least that a server is given to answer.
const ROUND_TRIP: Duration = Duration::from_millis(200);

/// Bytes that should be on their way to a server at most: more makes nothing faster, and takes fresh
/// memory, which is slow.
const UNDER_WAY: u64 = 4 << 20;

/// How long to wait for that. Where nothing moves, a table blocks, and only items are counted.
const MOVING: Duration = Duration::from_millis(20);

/// Items after which those before them count half.
const LATELY: u64 = 1024;

/// Items on their way, and how many of them there may be.
#[derive(Debug)]
pub(crate) struct Sender {
    tables: Tables,
    way: ItemSender,
    max_in_flight: usize,
    timeout: Timeout,
    pub(crate) closed: bool,
    /// Items in unfinished chunks, as was told last.
    unsent: u64,
    sent: SentStats,
}

/// What a writer has sent to a server: how large its items are, and whether they move.
#[derive(Debug, Default)]
struct SentStats {
    all: usize,
    /// Lately.
    items: u64,
    bytes: u64,
    /// The chunks of the last item: items that follow each other share theirs.
    chunks: Vec<u64>,
    /// How many were settled when it was last waited for that more are, in vain.
    stuck_at: Option<usize>,
}

impl SentStats {
    fn count(&mut self, item: &NewItem) {
        self.all += 1;
        if self.items >= LATELY {
            self.items /= 2;
            self.bytes /= 2;
        }
        self.items += 1;
        let chunks = item.trajectory.chunks();
        let new = chunks
            .iter()
            .filter(|chunk| !self.chunks.contains(&chunk.origin().key));
        self.bytes += new.map(|chunk| chunk.footprint() as u64).sum::<u64>();
        self.chunks.clear();
        // Of an item of very many, those that the next shares are the last.
        let last = chunks.iter().rev().take(64);
        self.chunks.extend(last.map(|chunk| chunk.origin().key));
    }

    /// Items that should be under way: one in any case, and any number before their size is known.
    fn allowed(&self) -> usize {
        if self.items == 0 {
            return usize::MAX;
        }
        let items = UNDER_WAY.saturating_mul(self.items) / self.bytes.max(1);
        usize::try_from(items).unwrap_or(usize::MAX).max(1)
    }
}

/// How items get to their tables.
#[derive(Debug)]
enum ItemSender {
    Local(Arc<Engine>, Outbox),
    Remote(Arc<RemoteTables>, RemoteOutbox),
}

impl Sender {
    pub(crate) fn new(tables: &Tables, max_in_flight: usize, timeout: Timeout) -> Self {
        let way = match tables {
            Tables::Local(engine) => ItemSender::Local(Arc::clone(engine), Outbox::default()),
            Tables::Remote(link) => ItemSender::Remote(Arc::clone(link), link.client.outbox()),
        };
        Self {
            tables: tables.clone(),
            way,
            max_in_flight,
            timeout,
            closed: false,
            unsent: 0,
            sent: SentStats::default(),
        }
    }

    /// A number to make keys from, given out once.
    pub(crate) fn unique_number(&self) -> u64 {
        self.tables.unique_number()
    }

    /// Buffers that a writer's own history is gathered into.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        match &self.tables {
            Tables::Local(engine) => engine.pool(),
            Tables::Remote(link) => link.client.pool(),
        }
    }

    /// The number that stands for a table in what is sent.
    pub(crate) fn table_number(&mut self, py: Python<'_>, name: &str) -> PyResult<u32> {
        match &mut self.way {
            ItemSender::Local(engine, outbox) => outbox
                .table_number(engine, name)
                .map_err(|error| errors::to_py(py, &error)),
            ItemSender::Remote(link, outbox) => {
                if let Some(number) = outbox.find_table(name) {
                    return Ok(number);
                }
                let until = (self.timeout, self.timeout.deadline());
                Ok(outbox.table_number(&link.describe(py, name, until)?))
            }
        }
    }

    /// The options of the table behind a number that [`Sender::table_number`] gave.
    pub(crate) fn options(&self, number: u32) -> &Arc<TableOptions> {
        match &self.way {
            ItemSender::Local(_, outbox) => outbox.table(number).options(),
            ItemSender::Remote(_, outbox) => outbox.options(number),
        }
    }

    /// Items sent that no table has yet.
    pub(crate) fn items_left(&self, py: Python<'_>) -> usize {
        py.detach(|| match &self.way {
            ItemSender::Local(_, outbox) => outbox.items_left(),
            ItemSender::Remote(_, outbox) => outbox.items_left(),
        })
    }

    fn in_flight(&self) -> usize {
        match &self.way {
            ItemSender::Local(_, outbox) => outbox.in_flight(),
            ItemSender::Remote(_, outbox) => outbox.in_flight(),
        }
    }

    fn blocked_reason(&self, py: Python<'_>) -> String {
        py.detach(|| match &self.way {
            ItemSender::Local(_, outbox) => outbox.blocked_reason(),
            ItemSender::Remote(_, outbox) => outbox.blocked_reason(),
        })
    }

    /// Waits until at most `allowed` items are in flight; false at the deadline.
    fn wait_until(
        &mut self,
        py: Python<'_>,
        allowed: usize,
        deadline: Option<Instant>,
    ) -> PyResult<bool> {
        let done = match &mut self.way {
            ItemSender::Local(_, outbox) => wait_for(py, outbox.until_at_most(allowed), deadline)?,
            ItemSender::Remote(_, outbox) => {
                // What is merely on its way does not wait for a table.
                let soonest = Instant::now() + ROUND_TRIP;
                let deadline = deadline.map(|deadline| deadline.max(soonest));
                wait_for(py, outbox.until_at_most(allowed), deadline)?
            }
        };
        Ok(done.is_some())
    }

    /// Called before anything is written: at the bound it waits, or refuses.
    pub(crate) fn make_room(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.closed {
            return Err(errors::to_py(
                py,
                &Error::Closed("this writer is closed".into()),
            ));
        }
        if let ItemSender::Local(_, outbox) = &self.way
            && let Some(mut room) = outbox.journal_space()
            && wait_for(py, &mut room, self.timeout.deadline())?.is_none()
        {
            let text = format!(
                "changes come faster than they can be written: there was no room for more within {} s",
                self.timeout.seconds()
            );
            return Err(errors::to_py(py, &Error::Backpressure(text)));
        }
        // What became of earlier items is said before anything is written, not after.
        self.collect_finished(py)?;
        let in_flight = self.in_flight();
        if in_flight <= self.max_in_flight.min(self.sent.allowed()) {
            return Ok(());
        }
        if in_flight <= self.max_in_flight {
            return self.let_move(py, in_flight);
        }
        if self.wait_until(py, self.max_in_flight, self.timeout.deadline())? {
            return Ok(());
        }
        let text = format!(
            "{} items of this writer wait for their tables, {} are allowed, and none was taken within {} s{}",
            self.in_flight(),
            self.max_in_flight,
            self.timeout.seconds(),
            self.blocked_reason(py)
        );
        Err(errors::to_py(py, &Error::Backpressure(text)))
    }

    /// Takes note of what the tables have meanwhile, and of what they have refused.
    fn collect_finished(&mut self, py: Python<'_>) -> PyResult<()> {
        match &mut self.way {
            ItemSender::Local(_, outbox) if outbox.in_flight() == 0 => Ok(()),
            ItemSender::Local(_, outbox) => detached(py, || outbox.collect_finished()),
            ItemSender::Remote(_, outbox) => outbox
                .collect_finished()
                .map_err(|error| errors::to_py(py, &error)),
        }
    }

    /// Waits a little while many bytes are on their way to a server, as long as some arrive.
    fn let_move(&mut self, py: Python<'_>, in_flight: usize) -> PyResult<()> {
        let ItemSender::Remote(_, outbox) = &mut self.way else {
            return Ok(());
        };
        let sent = &mut self.sent;
        if sent.stuck_at == Some(sent.all.saturating_sub(in_flight)) {
            return Ok(());
        }
        let until = Some(Instant::now() + MOVING);
        if wait_for(py, outbox.until_at_most(sent.allowed()), until)?.is_none() {
            sent.stuck_at = Some(sent.all.saturating_sub(outbox.in_flight()));
        }
        Ok(())
    }

    /// Sends items whose chunks are complete; `unsent` more are not.
    pub(crate) fn send(
        &mut self,
        py: Python<'_>,
        ready: impl ExactSizeIterator<Item = (u32, NewItem)> + Send,
        unsent: usize,
    ) -> PyResult<()> {
        let unsent = unsent as u64;
        if unsent != self.unsent {
            self.tables.update_unsent(self.unsent, unsent);
            self.unsent = unsent;
        }
        if ready.len() == 0 {
            return Ok(());
        }
        let (way, sent) = (&mut self.way, &mut self.sent);
        detached(py, || match way {
            ItemSender::Local(_, outbox) => outbox.send(ready),
            ItemSender::Remote(_, outbox) => {
                outbox.send(ready.inspect(|(_, item)| sent.count(item)))
            }
        })
    }

    /// Waits until the tables have all that was sent but for `allowed` items.
    pub(crate) fn wait(
        &mut self,
        py: Python<'_>,
        timeout: Timeout,
        allowed: usize,
    ) -> PyResult<()> {
        if self.wait_until(py, allowed, timeout.deadline())? {
            return Ok(());
        }
        let (left, seconds) = (self.items_left(py), timeout.seconds());
        let text = if left == 0 {
            format!("the tables have all items, but they were not safe within {seconds} s")
        } else {
            let why = self.blocked_reason(py);
            format!("{left} items wait for their tables after {seconds} s; they stay queued{why}")
        };
        Err(errors::to_py(py, &Error::DeadlineExceeded(text)))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.tables.update_unsent(self.unsent, 0);
    }
}
