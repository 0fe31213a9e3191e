//! Tickets: futures for calls that may wait. A thread parks on them; a server awaits them. `table.rs` states why it and this
//! file import each other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use engram_core::text::count;
use engram_core::{Draw, Error, Lsn, OpSink, Result};

use crate::lease::{Lease, Sample};
use crate::table::{QueueState, Table};
use crate::table_context::unsent_items_note;
use crate::timer::Alarm;

/// The reason for a sample that waited because all items were drawn, once its own are back in the table.
const NO_OTHER_ITEM: &str =
    "the table has no other item to sample: insert more, or sample fewer at once";

/// A pending insert. Dropping it withdraws the items that are not in the table yet.
#[derive(Debug)]
pub struct InsertTicket {
    table: Arc<Table>,
    /// Id in the table's queue; not used once all items are in the table.
    id: u64,
    state: InsertState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum InsertState {
    /// Some items are not in the table yet.
    Queued,
    /// All items are in the table. The last change made for them may not be durable yet.
    Applied(Lsn),
    /// The changes are durable, or the items were withdrawn.
    Done,
}

impl InsertTicket {
    /// A ticket of a queued insert, or of one whose items are all in the table: `applied` is then the position of the
    /// last change made for them.
    pub(crate) fn new(table: &Arc<Table>, id: u64, applied: Option<Lsn>) -> Self {
        let state = applied.map_or(InsertState::Queued, InsertState::Applied);
        Self {
            table: Arc::clone(table),
            id,
            state,
        }
    }

    /// The table that the items are inserted into.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Number of items that are not in the table yet.
    #[must_use]
    pub fn items_left(&self) -> usize {
        match self.state {
            InsertState::Queued => self.table.items_left(self.id),
            InsertState::Applied(_) | InsertState::Done => 0,
        }
    }

    /// True if all items were in the table when the ticket was created or last polled, and are not known to be durable.
    /// If the ticket then returns an error, the log could not be written; the ticket can be polled again.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        matches!(self.state, InsertState::Applied(_))
    }

    /// Withdraws the items that are not in the table yet; returns their number.
    #[must_use]
    pub fn withdraw(mut self) -> usize {
        self.withdraw_queued()
    }

    fn withdraw_queued(&mut self) -> usize {
        if self.state != InsertState::Queued {
            return 0;
        }
        self.state = InsertState::Done;
        self.table.withdraw_insert(self.id)
    }

    /// Ready once all items are in the table, with the position of the last change made for them. Position 0 means
    /// that there is nothing to wait for: that change is known to be durable, or the items were withdrawn.
    pub(crate) fn poll_applied(&mut self, waker: &Waker) -> Poll<Result<Lsn>> {
        if self.state == InsertState::Queued {
            match self.table.poll_insert(self.id, waker)? {
                QueueState::Waiting => return Poll::Pending,
                QueueState::Done(lsn) => self.state = InsertState::Applied(lsn),
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
            this.state = InsertState::Done;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for InsertTicket {
    fn drop(&mut self) {
        self.withdraw_queued();
    }
}

/// A pending sample. Dropping it returns the items drawn so far to the table, except for an unleased
/// sample that was complete when the ticket was created, which is final.
#[derive(Debug)]
pub struct SampleTicket {
    pub(crate) table: Arc<Table>,
    /// Maximum number of draws.
    pub(crate) n: usize,
    /// Minimum number of draws.
    pub(crate) at_least: usize,
    pub(crate) leased: bool,
    /// Id in the table's queue; `None` once the draws are in `draws` or were returned to the caller.
    pub(crate) id: Option<u64>,
    pub(crate) draws: Vec<Draw>,
    pub(crate) deadline: Option<Deadline>,
}

/// When a call stops waiting.
#[derive(Debug)]
pub(crate) struct Deadline {
    time: Instant,
    /// The timeout that ends then, for the error text.
    seconds: f64,
    /// Wakes the task that waits, and that task's waker.
    alarm: Option<(Alarm, Waker)>,
}

impl SampleTicket {
    /// Limits the wait to this many seconds from now; `None` means no limit, also for a timeout too long for an
    /// `Instant`. At the deadline, the ticket is ready with the items drawn so far if they are at least the minimum;
    /// otherwise they return to the table, and it fails with [`Error::DeadlineExceeded`].
    #[must_use]
    pub fn with_timeout(mut self, seconds: Option<f64>) -> Self {
        self.deadline = seconds.and_then(|seconds| {
            let timeout = Duration::try_from_secs_f64(seconds).ok()?;
            Some(Deadline {
                time: Instant::now().checked_add(timeout)?,
                seconds,
                alarm: None,
            })
        });
        self
    }

    /// The table that the items are drawn from.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    fn take_sample(&mut self) -> Sample {
        let draws = std::mem::take(&mut self.draws);
        let lease = self.leased.then(|| Lease::new(&self.table, &draws));
        let table = Arc::clone(&self.table);
        Sample {
            table,
            draws,
            lease,
        }
    }

    fn poll_sample(&mut self, waker: &Waker) -> Poll<Result<Sample>> {
        // Draws are logged: wait while the journal's buffer is full.
        ready!(self.table.sink.poll_space(waker))?;
        if let Some(id) = self.id {
            match self.table.poll_sample(id, self.leased, waker)? {
                QueueState::Waiting => return Poll::Pending,
                QueueState::Done(draws) => {
                    self.id = None;
                    self.draws = draws;
                }
            }
        }
        Poll::Ready(Ok(self.take_sample()))
    }

    /// Ends the wait if its deadline has passed; otherwise, the task will be woken then.
    fn poll_deadline(&mut self, waker: &Waker) -> Poll<Result<Sample>> {
        let Some(deadline) = &mut self.deadline else {
            return Poll::Pending;
        };
        if deadline.time <= Instant::now() {
            let seconds = deadline.seconds;
            return Poll::Ready(self.finish_at_deadline(seconds));
        }
        let alarm = deadline.alarm.as_ref();
        if !alarm.is_some_and(|(_, woken)| woken.will_wake(waker)) {
            let alarm = (self.table.context.timer).wake_at(deadline.time, waker.clone());
            deadline.alarm = Some((alarm, waker.clone()));
        }
        Poll::Pending
    }

    /// Returns the sample if it was completed in the meantime, with fewer than `n` draws if they are enough. Otherwise
    /// returns the items drawn so far to the table. `seconds` is the time waited, for the error text.
    ///
    /// # Errors
    /// [`Error::DeadlineExceeded`] with the number of items drawn, and why no more were.
    fn finish_at_deadline(&mut self, seconds: f64) -> Result<Sample> {
        let before = self.table.info();
        if let Some(id) = self.id.take() {
            match self.table.withdraw_sample(id, self.leased) {
                Ok(draws) => self.draws = draws,
                Err(drawn) => {
                    let minimum = match self.at_least {
                        minimum if minimum < self.n => format!(" (at least {minimum} needed)"),
                        _ => String::new(),
                    };
                    let returned = if drawn > 0 {
                        "; they were returned to it"
                    } else {
                        ""
                    };
                    // If the limiter did not block it, it waited because all items were drawn: by it, or by others too.
                    let was_limited = before.stats.limiter.why_sampling_waits().is_some();
                    let blocked = if drawn > 0 && !was_limited {
                        Some(NO_OTHER_ITEM.into())
                    } else {
                        before.sampling_blocked
                    };
                    let unsent = self.table.context.unsent_items.load(Ordering::Relaxed);
                    let reasons = [blocked, unsent_items_note(unsent)];
                    let reasons = reasons.into_iter().flatten();
                    let reasons =
                        reasons.fold(String::new(), |text, reason| format!("{text}; {reason}"));
                    let error = Error::DeadlineExceeded(format!(
                        "table `{}` had {drawn} of {} available within {seconds} s{minimum}{returned}{reasons}",
                        self.table.options().name,
                        count(self.n, "sample"),
                    ));
                    return Err(self.table.count_rejected(error));
                }
            }
        }
        Ok(self.take_sample())
    }
}

impl Future for SampleTicket {
    type Output = Result<Sample>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Sample>> {
        let this = self.get_mut();
        match this.poll_sample(context.waker()) {
            Poll::Pending => this.poll_deadline(context.waker()),
            ready @ Poll::Ready(_) => ready,
        }
    }
}

impl Drop for SampleTicket {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.table.drop_sample(id);
        } else if self.leased && !self.draws.is_empty() {
            // The sample was complete from the start, but never polled: return the items.
            drop(self.take_sample());
        }
    }
}

/// Ready when all changes up to `lsn` are as durable as the store promises.
#[derive(Debug)]
pub struct UntilDurable {
    sink: Arc<dyn OpSink>,
    lsn: Lsn,
}

impl UntilDurable {
    pub(crate) fn new(sink: &Arc<dyn OpSink>) -> Self {
        Self::up_to(sink, sink.last())
    }

    pub(crate) fn up_to(sink: &Arc<dyn OpSink>, lsn: Lsn) -> Self {
        Self {
            sink: Arc::clone(sink),
            lsn,
        }
    }

    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// True if the log has ended: what is not durable yet will not become durable.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.sink.has_ended()
    }
}

impl Future for UntilDurable {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.sink.poll_durable(self.lsn, context.waker())
    }
}

/// Ready when the journal's buffer of unwritten changes has space.
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
        self.0.poll_space(context.waker())
    }
}
