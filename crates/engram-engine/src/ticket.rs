//! Calls that are being served: futures that a thread may park on and a server may await.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use engram_core::{Draw, Error, Lsn, OpSink, Result};

use crate::lease::{Lease, Sample};
use crate::table::{Table, TicketState};

/// Items on their way into a table. Dropping it withdraws those that are not in yet.
#[derive(Debug)]
pub struct InsertTicket {
    table: Arc<Table>,
    id: u64,
    state: InsertState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum InsertState {
    Queued,
    /// All are in; the log may still have to catch up.
    Applied(Lsn),
    Acknowledged,
}

impl InsertTicket {
    pub(crate) fn new(table: &Arc<Table>, id: u64, applied: Option<Lsn>) -> Self {
        let state = applied.map_or(InsertState::Queued, InsertState::Applied);
        Self {
            table: Arc::clone(table),
            id,
            state,
        }
    }

    /// Where the items go.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// How many of the items are not in yet.
    #[must_use]
    pub fn items_left(&self) -> usize {
        match self.state {
            InsertState::Queued => self.table.items_left(self.id),
            InsertState::Applied(_) | InsertState::Acknowledged => 0,
        }
    }

    /// Whether the table has them all, as far as this ticket knows: what it fails with from then on says why that is
    /// not safe now, and may be asked again.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        matches!(self.state, InsertState::Applied(_))
    }

    /// Withdraws the items that are not in yet; returns how many those were.
    #[must_use]
    pub fn withdraw(mut self) -> usize {
        self.take_out()
    }

    fn take_out(&mut self) -> usize {
        if self.state != InsertState::Queued {
            return 0;
        }
        self.state = InsertState::Acknowledged;
        self.table.withdraw_insert(self.id)
    }
}

impl InsertTicket {
    /// Whether the table has them all: with the last change that this took.
    pub(crate) fn poll_applied(&mut self, waker: &Waker) -> Poll<Result<Lsn>> {
        if self.state == InsertState::Queued {
            match self.table.poll_insert(self.id, waker)? {
                TicketState::Waiting => return Poll::Pending,
                TicketState::Done(lsn) => self.state = InsertState::Applied(lsn),
            }
        }
        Poll::Ready(Ok(match self.state {
            InsertState::Applied(lsn) => lsn,
            _ => Lsn(0),
        }))
    }
}

impl Future for InsertTicket {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_applied(context.waker()))?;
        if let InsertState::Applied(lsn) = this.state {
            ready!(this.table.sink.poll_durable(lsn, context.waker()))?;
            this.state = InsertState::Acknowledged;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for InsertTicket {
    fn drop(&mut self) {
        self.take_out();
    }
}

/// A sample being collected. Dropping it puts everything back, but for unleased draws that were
/// there at once: those are final.
#[derive(Debug)]
pub struct SampleTicket {
    table: Arc<Table>,
    n: usize,
    at_least: usize,
    leased: bool,
    /// `None` once the draws are in `draws`, or were taken.
    id: Option<u64>,
    draws: Vec<Draw>,
}

impl SampleTicket {
    pub(crate) fn new(
        table: &Arc<Table>,
        (n, at_least): (usize, usize),
        leased: bool,
        id: Option<u64>,
        draws: Vec<Draw>,
    ) -> Self {
        Self {
            table: Arc::clone(table),
            n,
            at_least,
            leased,
            id,
            draws,
        }
    }

    /// Where the items come from.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    fn sample(&mut self) -> Sample {
        let draws = std::mem::take(&mut self.draws);
        let lease = self.leased.then(|| Lease::new(&self.table, &draws));
        Sample { draws, lease }
    }

    /// Gives up waiting; what was drawn so far is returned, fewer than asked for.
    #[must_use]
    pub fn take_partial(mut self) -> Sample {
        if let Some(id) = self.id.take() {
            self.draws = self.table.cut_sample(id, self.leased);
        }
        self.sample()
    }

    /// As [`Self::take_partial`], where nothing at all will not do.
    ///
    /// # Errors
    /// [`Error::DeadlineExceeded`] when nothing was drawn.
    pub(crate) fn take_some(self, seconds: f64) -> Result<Sample> {
        let (table, n) = (Arc::clone(&self.table), self.n);
        let sample = self.take_partial();
        if !sample.draws.is_empty() {
            return Ok(sample);
        }
        Err(Error::DeadlineExceeded(format!(
            "table `{}` yielded 0 of {n} samples within {seconds} s{}",
            table.options().name,
            table.why_sampling_waits()
        )))
    }

    /// Gives up waiting; everything goes back, unless the last draw has come meanwhile.
    ///
    /// # Errors
    /// [`Error::DeadlineExceeded`] saying how far it got.
    pub fn give_up(mut self, seconds: f64) -> Result<Sample> {
        let why = self.table.why_sampling_waits();
        if let Some(id) = self.id.take() {
            match self.table.withdraw_sample(id, self.leased) {
                Ok(draws) => self.draws = draws,
                Err(drawn) => {
                    let least = match self.at_least {
                        least if least < self.n => format!(" ({least} would have done)"),
                        _ => String::new(),
                    };
                    return Err(Error::DeadlineExceeded(format!(
                        "table `{}` yielded {drawn} of {} samples{least} within {seconds} s{why}",
                        self.table.options().name,
                        self.n
                    )));
                }
            }
        }
        Ok(self.sample())
    }
}

impl Future for SampleTicket {
    type Output = Result<Sample>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Sample>> {
        let this = self.get_mut();
        // What it has drawn is to be written, too.
        ready!(this.table.sink.poll_room(context.waker()))?;
        if let Some(id) = this.id {
            match this.table.poll_sample(id, this.leased, context.waker())? {
                TicketState::Waiting => return Poll::Pending,
                TicketState::Done(draws) => {
                    this.id = None;
                    this.draws = draws;
                }
            }
        }
        Poll::Ready(Ok(this.sample()))
    }
}

impl Drop for SampleTicket {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.table.drop_sample(id);
        } else if self.leased && !self.draws.is_empty() {
            // Served at once, and never asked for.
            drop(self.sample());
        }
    }
}

/// Changes that are made, on their way to where they are safe.
#[derive(Debug)]
pub struct UntilDurable {
    sink: Arc<dyn OpSink>,
    lsn: Lsn,
}

impl UntilDurable {
    pub(crate) fn new(sink: &Arc<dyn OpSink>) -> Self {
        Self::of(sink, sink.last())
    }

    /// Up to a change.
    pub(crate) fn of(sink: &Arc<dyn OpSink>, lsn: Lsn) -> Self {
        Self {
            sink: Arc::clone(sink),
            lsn,
        }
    }

    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }
}

impl Future for UntilDurable {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.sink.poll_durable(self.lsn, context.waker())
    }
}

/// JournalSpace for changes that are not written yet.
#[derive(Debug)]
pub struct JournalSpace(Arc<dyn OpSink>);

impl JournalSpace {
    pub(crate) fn new(sink: &Arc<dyn OpSink>) -> Self {
        Self(Arc::clone(sink))
    }
}

impl Future for JournalSpace {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_room(context.waker())
    }
}
