//! Sends the items of writers, and waits until the tables have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::pool::Pool;
use engram_core::text::count;
use engram_core::writer::{ItemRecorder, Pattern, ShardId};
use engram_core::{Error, NewItem, Result, TableOptions};
use engram_engine::Until;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{Timeout, wait_for};
use crate::outbox::{AnyOutbox, WaitEnd};
use crate::tables::Tables;

/// Maximum bytes in flight to a server. More is not faster, and needs fresh memory, which is slow.
const MAX_BYTES_IN_FLIGHT: u64 = 4 << 20;

/// Maximum wait for bytes in flight. If nothing is acknowledged in this time, a table probably blocks, and only the
/// limit on items applies.
const MAX_PROGRESS_WAIT: Duration = Duration::from_millis(20);

/// Number of items after which the sums over earlier items are halved, so that recent items count more.
const AVERAGING_WINDOW: u64 = 1024;

/// Sends a writer's items, and limits the number in flight.
#[derive(Debug)]
pub(crate) struct Sender {
    tables: Tables,
    outbox: AnyOutbox,
    /// Maximum number of items in flight: sent, and not known to be in their tables. At least 1.
    max_in_flight: usize,
    /// Maximum number of items that wait for the rate limiters of their tables, at least 1. `None` means that only
    /// `max_in_flight` limits them.
    max_waiting: Option<usize>,
    /// Limit of the wait before each write.
    timeout: Timeout,
    /// When the first wait of the current write began; `None` before it.
    wait_began: Option<Instant>,
    pub(crate) closed: bool,
    /// While false, writes do not wait for the items of earlier writes: an adder must not be interrupted between a row
    /// and the row's items, or at the end of an episode.
    pub(crate) waits_for_tables: bool,
    /// Number of items that wait for an unfinished chunk, as last reported to `tables`.
    unsent: u64,
    /// Error of an earlier item, which was noticed when a call had already stored its step. The next call raises it.
    unreported: Option<PyErr>,
    stats: SendStats,
}

/// Size of a remote writer's recent items, and whether the server acknowledges them. A local writer does not update it.
#[derive(Debug, Default)]
struct SendStats {
    /// Number of items sent.
    total: usize,
    /// Number of items and their bytes, for the average size. Both are halved now and then: see [`AVERAGING_WINDOW`].
    items: u64,
    bytes: u64,
    /// Keys of the last item's chunks (at most 64), which the next item may share: their bytes count once.
    chunks: Vec<u64>,
    /// Number of acknowledged items when a wait for bytes in flight last timed out; `None` before that.
    stalled_at: Option<usize>,
}

impl SendStats {
    fn count(&mut self, item: &NewItem) {
        self.total += 1;
        if self.items >= AVERAGING_WINDOW {
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
        // An item may have very many chunks; the next item shares the last of them.
        let last = chunks.iter().rev().take(64);
        self.chunks.extend(last.map(|chunk| chunk.origin().key));
    }

    /// Maximum number of items in flight, so that they have about [`MAX_BYTES_IN_FLIGHT`]: at least one, and unlimited
    /// before their size is known.
    fn max_in_flight(&self) -> usize {
        if self.items == 0 {
            return usize::MAX;
        }
        let items = MAX_BYTES_IN_FLIGHT.saturating_mul(self.items) / self.bytes.max(1);
        usize::try_from(items).unwrap_or(usize::MAX).max(1)
    }
}

/// The tables of a writer's patterns: their numbers and options.
#[derive(Debug, Default)]
pub(crate) struct PatternTables(Vec<(u32, Arc<TableOptions>)>);

impl PatternTables {
    pub(crate) fn new<'a>(sender: &Sender, patterns: impl Iterator<Item = &'a Pattern>) -> Self {
        let tables = patterns.map(Pattern::table);
        let tables = tables.map(|number| (number, Arc::clone(sender.options(number))));
        Self(tables.collect())
    }

    /// Checks a priority for the table with this number.
    pub(crate) fn check_priority(&self, table: u32, priority: f64) -> Result<()> {
        let options = self.0.iter().find(|(number, _)| *number == table);
        options.map_or(Ok(()), |(_, options)| options.check_priority(priority))
    }
}

impl Sender {
    pub(crate) fn new(
        tables: &Tables,
        max_in_flight: usize,
        max_waiting: Option<usize>,
        timeout: Timeout,
    ) -> Self {
        Self {
            tables: tables.clone(),
            outbox: AnyOutbox::new(tables),
            max_in_flight: max_in_flight.max(1),
            max_waiting,
            timeout,
            wait_began: None,
            closed: false,
            waits_for_tables: true,
            unsent: 0,
            unreported: None,
            stats: SendStats::default(),
        }
    }

    /// Returns a unique number for keys.
    pub(crate) fn unique_number(&self) -> u64 {
        self.tables.unique_number()
    }

    /// Returns the shard that the items are sent to; its id can change.
    pub(crate) fn shard(&self) -> ShardId {
        self.outbox.shard()
    }

    /// Returns the pool of buffers for slices of the writer's history.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        match &self.tables {
            Tables::Local(engine) => engine.pool(),
            Tables::Remote(remote) => remote.client.pool(),
        }
    }

    /// Returns the number that stands for a table in [`Sender::send`].
    pub(crate) fn table_number(&mut self, py: Python<'_>, name: &str) -> PyResult<u32> {
        let until = (self.timeout, self.deadline());
        self.outbox.table_number(py, name, until)
    }

    /// Returns the options of a table, by its [`Sender::table_number`].
    pub(crate) fn options(&self, number: u32) -> &Arc<TableOptions> {
        self.outbox.options(number)
    }

    /// The deadline of all waits of the current write. Its first call in a write starts the timeout.
    fn deadline(&mut self) -> Option<Instant> {
        let began = *self.wait_began.get_or_insert_with(Instant::now);
        began.checked_add(self.timeout.duration()?)
    }

    /// Number of sent items that are not known to be in their tables: see [`AnyOutbox::items_left`].
    pub(crate) fn items_left(&self, py: Python<'_>) -> usize {
        self.outbox.items_left(py)
    }

    /// Prepares for a write: waits while too many items wait for their tables or are in flight or, for a local writer,
    /// while the journal's buffer is full. If only too many bytes are in flight, waits briefly.
    ///
    /// # Errors
    /// `BackpressureError` after the writer's timeout, or if no other thread could end the wait; the error of an
    /// earlier item, or that of a closed writer.
    pub(crate) fn wait_for_capacity(&mut self, py: Python<'_>) -> PyResult<()> {
        if let Some(error) = self.unreported.take() {
            return Err(error);
        }
        if self.closed {
            return Err(errors::to_py(
                py,
                &Error::Closed("this writer is closed".into()),
            ));
        }
        self.wait_began = None;
        if self.outbox.is_journal_full() {
            let deadline = self.deadline();
            if !self.outbox.wait_for_journal(py, deadline)? {
                let text = format!(
                    "the disk cannot keep up: the buffer of unwritten changes stayed full for {} s (`timeout`); write more \
                     slowly, or use durability=\"none\"",
                    self.timeout.seconds()
                );
                return Err(errors::to_py(py, &Error::Backpressure(text)));
            }
        }
        // Reports the errors of earlier items before anything is written.
        let collected = self.outbox.collect_finished(py);
        collected.map_err(|error| items_stay_queued(py, error))?;
        let in_flight = self.outbox.in_flight();
        if !self.waits_for_tables || in_flight == 0 {
            return Ok(());
        }
        let in_flight = self.wait_for_limiters(py, in_flight)?;
        if in_flight < self.max_in_flight {
            return if in_flight <= self.stats.max_in_flight() {
                Ok(())
            } else {
                self.wait_for_progress(py, in_flight)
            };
        }
        let until = Until::InFlightAtMost(self.max_in_flight - 1);
        let deadline = self.deadline();
        if self.wait_for_others(py, until, deadline)? == WaitEnd::Done {
            return Ok(());
        }
        let text = format!(
            "the writer has {} in flight (`max_in_flight_items` = {}){}{}",
            count(self.outbox.in_flight(), "item"),
            self.max_in_flight,
            self.describe_timeout(),
            self.describe_block(py, ": sample before you write more")?
        );
        Err(errors::to_py(py, &Error::Backpressure(text)))
    }

    fn wait_for_others(
        &mut self,
        py: Python<'_>,
        until: Until,
        deadline: Option<Instant>,
    ) -> PyResult<WaitEnd> {
        let waited = self.outbox.wait_for_others(py, until, deadline);
        waited.map_err(|error| items_stay_queued(py, error))
    }

    /// Of the steps `next..total`, returns the end of those that may be written before [`Sender::wait_for_capacity`]
    /// must be called again: all of them, or only one if items wait for their tables or too many are in flight. The
    /// caller must stop earlier if a chunk is sealed.
    pub(crate) fn run_end(&self, py: Python<'_>, next: usize, total: usize) -> usize {
        let in_flight = self.outbox.in_flight();
        let must_wait = self.waits_for_tables
            && in_flight > 0
            && (in_flight >= self.max_in_flight
                || self.max_waiting.is_some() && self.outbox.waiting(py) > 0);
        if must_wait { next + 1 } else { total }
    }

    /// True if no item waits for a table, and those of these tables will not.
    pub(crate) fn never_waits(&self, py: Python<'_>, tables: &PatternTables) -> bool {
        self.outbox.in_flight() == 0
            && py.detach(|| {
                let mut tables = tables.0.iter();
                tables.all(|(number, _)| self.outbox.is_unlimited(*number))
            })
    }

    /// Waits while rate limiters block too many of the writer's items. Items of unfinished chunks count too, but if
    /// there are no others, this returns at once, because they do not wait for a table. Receives and returns the number
    /// of items in flight.
    fn wait_for_limiters(&mut self, py: Python<'_>, in_flight: usize) -> PyResult<usize> {
        let Some(max_waiting) = self.max_waiting else {
            return Ok(in_flight);
        };
        let unsent = usize::try_from(self.unsent).unwrap_or(usize::MAX);
        let allowed = (max_waiting - 1).saturating_sub(unsent);
        if in_flight <= allowed || self.outbox.waiting(py) <= allowed {
            return Ok(in_flight);
        }
        let deadline = self.deadline();
        let until = Until::WaitingAtMost(allowed);
        if self.wait_for_others(py, until, deadline)? == WaitEnd::Done {
            return Ok(self.outbox.in_flight());
        }
        let unsent = match unsent {
            0 => String::new(),
            unsent => format!(" and {unsent} not sent yet"),
        };
        let text = format!(
            "the writer has {} waiting for tables{unsent} (`max_waiting_items` = {max_waiting}){}{}",
            count(self.outbox.waiting(py), "item"),
            self.describe_timeout(),
            self.describe_block(
                py,
                ": sample before you write more, or increase `max_waiting_items`"
            )?
        );
        Err(errors::to_py(py, &Error::Backpressure(text)))
    }

    /// For the text of an error: that the writer's timeout has passed; empty if it has not.
    fn describe_timeout(&self) -> String {
        let waited = self
            .wait_began
            .map_or(Duration::ZERO, |began| began.elapsed());
        if self
            .timeout
            .duration()
            .is_none_or(|timeout| waited < timeout)
        {
            return String::new();
        }
        let seconds = self.timeout.seconds();
        format!(", and the tables did not accept enough of them within {seconds} s (`timeout`)")
    }

    /// For the text of an error: why items are not in their tables and, if no other thread could change that, this fact
    /// and `advice`.
    fn describe_block(&self, py: Python<'_>, advice: &str) -> PyResult<String> {
        let reason = self.outbox.blocked_reason(py);
        Ok(if self.outbox.is_deadlock(py)? {
            format!(
                "{reason}; this is the only thread of the process, so nothing is sampled while it waits{advice}"
            )
        } else {
            reason
        })
    }

    /// Waits briefly while many bytes are in flight to a server, unless nothing was acknowledged since such a wait
    /// timed out.
    fn wait_for_progress(&mut self, py: Python<'_>, in_flight: usize) -> PyResult<()> {
        let AnyOutbox::Remote(_, outbox) = &mut self.outbox else {
            return Ok(());
        };
        let stats = &mut self.stats;
        if stats.stalled_at == Some(stats.total.saturating_sub(in_flight)) {
            return Ok(());
        }
        let deadline = Some(Instant::now() + MAX_PROGRESS_WAIT);
        let until = outbox.until(Until::InFlightAtMost(stats.max_in_flight()));
        if wait_for(py, until, deadline)?.is_none() {
            stats.stalled_at = Some(stats.total.saturating_sub(outbox.progress().in_flight()));
        }
        Ok(())
    }

    /// Sends the items of a recorder whose chunks are sealed.
    pub(crate) fn send<R: ItemRecorder + ?Sized>(
        &mut self,
        py: Python<'_>,
        recorder: &mut R,
    ) -> PyResult<()> {
        let unsent = recorder.unsent_items() as u64;
        if unsent != self.unsent {
            self.tables.update_unsent(self.unsent, unsent);
            self.unsent = unsent;
        }
        let ready = recorder.take_ready();
        if ready.len() == 0 {
            return Ok(());
        }
        let (outbox, stats) = (&mut self.outbox, &mut self.stats);
        if outbox.is_local() {
            return outbox.send(py, ready);
        }
        outbox.send(py, ready.inspect(|(_, item)| stats.count(item)))
    }

    /// Sends items as [`Sender::send`] does. If this fails, the next call raises the error: an error of this call would
    /// mean that its step is not stored.
    pub(crate) fn send_or_report_later(
        &mut self,
        py: Python<'_>,
        recorder: &mut impl ItemRecorder,
    ) {
        if let Err(error) = self.send(py, recorder) {
            self.unreported.get_or_insert(error);
        }
    }

    /// Sends all items of a recorder, if there is one, and waits as [`Sender::wait`] does.
    ///
    /// # Errors
    /// Those of [`Sender::wait`], or the error of an earlier item.
    pub(crate) fn flush(
        &mut self,
        py: Python<'_>,
        recorder: Option<&mut dyn ItemRecorder>,
        timeout: Timeout,
        allowed: usize,
    ) -> PyResult<()> {
        if let Some(error) = self.unreported.take() {
            return Err(error);
        }
        if let Some(recorder) = recorder {
            recorder
                .flush()
                .map_err(|error| errors::to_py(py, &error))?;
            self.send(py, recorder)?;
        }
        self.wait(py, timeout, allowed)
    }

    /// Waits until at most `allowed` items are in flight; for 0, also until all items are durable.
    ///
    /// # Errors
    /// `DeadlineExceededError` after `timeout`, or if no other thread could end the wait; or the error of a rejected
    /// item.
    pub(crate) fn wait(
        &mut self,
        py: Python<'_>,
        timeout: Timeout,
        allowed: usize,
    ) -> PyResult<()> {
        let until = match allowed {
            0 => Until::Complete,
            allowed => Until::InFlightAtMost(allowed),
        };
        let deadline = timeout.deadline();
        if self.wait_for_others(py, until, deadline)? == WaitEnd::Done {
            return Ok(());
        }
        let left = self.items_left(py);
        let after = match deadline {
            Some(deadline) if deadline <= Instant::now() => {
                format!(" after {} s", timeout.seconds())
            }
            _ => String::new(),
        };
        let text = if left == 0 {
            format!("all items are in their tables, but not yet on disk{after}")
        } else {
            let why = self.describe_block(py, ": sample first")?;
            let (items, queued) = if left == 1 {
                ("item is not in its table", "it stays queued")
            } else {
                ("items are not in their tables", "they stay queued")
            };
            format!("{left} {items}{after}; {queued}{why}")
        };
        Err(errors::to_py(py, &Error::DeadlineExceeded(text)))
    }
}

/// Adds to the error of a lost server that the writer keeps its items.
fn items_stay_queued(py: Python<'_>, error: PyErr) -> PyErr {
    let text = error.value(py).to_string();
    if text.ends_with("1 item not acknowledged") {
        errors::append_text(py, error, "; it stays queued, and `flush` sends it again")
    } else if text.ends_with("items not acknowledged") {
        errors::append_text(
            py,
            error,
            "; they stay queued, and `flush` sends them again",
        )
    } else {
        error
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.tables.update_unsent(self.unsent, 0);
    }
}
