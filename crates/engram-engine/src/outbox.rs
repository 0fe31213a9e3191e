//! A writer's pending inserts.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use engram_core::text::count;
use engram_core::{Error, Lsn, NewItem, Result};

use crate::engine::Engine;
use crate::outbox_id::OutboxId;
use crate::table::Table;
use crate::ticket::{InsertTicket, JournalSpace, UntilDurable};

/// Maximum number of items that are inserted together. They stay in the processor's cache while they are moved to their
/// table.
const MAX_ITEMS_PER_INSERT: usize = 256;

/// Number of items for which memory is allocated at least, if there are as many, before it is known how many are for the same
/// table.
const MIN_RESERVED: usize = 64;

/// What a writer's outbox waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// All items are in their tables and as durable as the store promises, or rejected.
    #[default]
    Complete,
    /// At most this many items are in flight. Items that are in their tables need not be durable.
    InFlightAtMost(usize),
    /// At most this many items wait for the rate limiters of their tables.
    WaitingAtMost(usize),
}

/// A writer's items that are not in their tables, or not durable yet.
///
/// As a future, it waits as set by [`Outbox::until`].
#[derive(Debug, Default)]
pub struct Outbox {
    id: OutboxId,
    /// Tables by the number that `table_number` returned.
    tables: Vec<Arc<Table>>,
    /// Number of items and ticket of each pending insert, oldest first.
    tickets: VecDeque<(usize, InsertTicket)>,
    /// Number of items of pending inserts.
    in_flight: usize,
    until: Until,
    /// Ready when the last applied insert is durable; `None` if all applied inserts are. All tables
    /// belong to one store, so one future is enough.
    durable: Option<UntilDurable>,
}

impl Outbox {
    /// Returns the number by which items passed to [`Outbox::send`] refer to a table.
    ///
    /// # Errors
    /// [`engram_core::Error::UnknownTable`], [`engram_core::Error::Closed`].
    pub fn table_number(&mut self, engine: &Engine, name: &str) -> Result<u32> {
        // A dropped table may have been replaced by another one of the same name.
        let existing = self
            .tables
            .iter()
            .position(|table| table.options().name == name && !table.is_closed());
        let number = if let Some(number) = existing {
            number
        } else {
            self.tables.push(engine.table(name)?);
            self.tables.len() - 1
        };
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// The table with a number that [`Outbox::table_number`] returned.
    #[must_use]
    pub fn table(&self, number: u32) -> &Arc<Table> {
        &self.tables[number as usize]
    }

    /// Number of items of the inserts that were pending when they were sent or last polled. An insert counts with all
    /// its items until the last one is in the table.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Number of items that are not in their tables now.
    #[must_use]
    pub fn items_left(&self) -> usize {
        let tickets = self.tickets.iter();
        tickets.map(|(_, ticket)| ticket.items_left()).sum()
    }

    /// Starts to insert items into their tables, in order. Each item is given with its table's number.
    ///
    /// # Errors
    /// As [`send_by_table`].
    pub fn send(&mut self, items: impl Iterator<Item = (u32, NewItem)>) -> Result<()> {
        let tables = &self.tables;
        let check = |number, item: &NewItem| tables[number as usize].check_item(item);
        send_by_table(items, MAX_ITEMS_PER_INSERT, check, |number, batch| {
            let count = batch.len();
            let table = &tables[number as usize];
            let mut ticket = table.insert_from_outbox(batch, self.id)?;
            match ticket.poll_applied(Waker::noop()) {
                Poll::Ready(lsn) => record_applied(&mut self.durable, &ticket, lsn?),
                Poll::Pending => {
                    self.in_flight += count;
                    self.tickets.push_back((count, ticket));
                }
            }
            Ok(())
        })
    }

    /// Removes finished inserts, without waiting.
    ///
    /// # Errors
    /// The error of a failed insert: its table was dropped or closed, and its items are lost.
    pub fn collect_finished(&mut self) -> Result<()> {
        match self.poll_in_flight(0, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Ok(()),
        }
    }

    /// Withdraws the items that are not in their tables; returns their number.
    #[must_use]
    pub fn withdraw(self) -> usize {
        let tickets = self.tickets.into_iter();
        tickets.map(|(_, ticket)| ticket.withdraw()).sum()
    }

    /// Returns a ticket to wait for if the journal's buffer is full. `None` if it has space, or if this outbox has
    /// not used a table yet.
    #[must_use]
    pub fn journal_space(&self) -> Option<JournalSpace> {
        self.tables.first()?.journal_space()
    }

    /// Why the oldest pending insert is blocked, as a suffix for a timeout's error text; empty if there is
    /// no reason.
    #[must_use]
    pub fn blocked_reason(&self) -> String {
        let reason = self
            .tickets
            .front()
            .and_then(|(_, ticket)| ticket.table().info().inserting_blocked);
        reason.map_or_else(String::new, |reason| format!("; {reason}"))
    }

    /// Removes finished inserts anywhere in the queue, because a blocked table at the front must not delay
    /// inserts into other tables.
    fn remove_finished(&mut self, context: &mut Context<'_>) -> Result<()> {
        let mut outcome = Ok(());
        let (in_flight, durable) = (&mut self.in_flight, &mut self.durable);
        self.tickets.retain_mut(
            |(count, ticket)| match ticket.poll_applied(context.waker()) {
                Poll::Pending => true,
                Poll::Ready(applied) => {
                    *in_flight -= *count;
                    let applied = applied.map(|lsn| record_applied(durable, ticket, lsn));
                    if outcome.is_ok() {
                        outcome = applied;
                    }
                    false
                }
            },
        );
        outcome
    }

    /// Sets what the future waits for.
    pub fn until(&mut self, until: Until) -> &mut Self {
        self.until = until;
        self
    }

    /// Ready when at most `limit` items are not in their tables.
    fn poll_waiting(&mut self, limit: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.remove_finished(context)?;
        if self.items_left() <= limit {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Ready when at most `limit` items are in flight.
    fn poll_in_flight(&mut self, limit: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.in_flight > limit {
            let Some((count, ticket)) = self.tickets.front_mut() else {
                break;
            };
            match ticket.poll_applied(context.waker()) {
                Poll::Pending => {
                    self.remove_finished(context)?;
                    if self.in_flight > limit {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(outcome) => {
                    let outcome = outcome.map(|lsn| record_applied(&mut self.durable, ticket, lsn));
                    self.in_flight -= *count;
                    self.tickets.pop_front();
                    outcome?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Makes `durable` also wait for change `lsn`: once this is durable, all changes of the ticket's insert are.
fn record_applied(durable: &mut Option<UntilDurable>, ticket: &InsertTicket, lsn: Lsn) {
    if durable.as_ref().is_none_or(|durable| durable.lsn() < lsn) {
        *durable = Some(UntilDurable::up_to(&ticket.table().sink, lsn));
    }
}

impl Future for Outbox {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        match this.until {
            Until::WaitingAtMost(limit) => return this.poll_waiting(limit, context),
            Until::InFlightAtMost(limit) => return this.poll_in_flight(limit, context),
            Until::Complete => ready!(this.poll_in_flight(0, context))?,
        }
        if let Some(durable) = &mut this.durable {
            // After an error, `durable` stays, so that the next poll retries.
            ready!(Pin::new(durable).poll(context))?;
            this.durable = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// Sends each run of consecutive items for one table at once, at most `max_items`. Each item is given with its table's
/// number. Items that `check` rejects are dropped, the others are sent.
///
/// # Errors
/// The first error of `check`, with the number of rejected items if there are several, and with the text of the first error
/// of `send`; or else that error. The items after it are sent anyway.
pub fn send_by_table(
    items: impl Iterator<Item = (u32, NewItem)>,
    max_items: usize,
    check: impl Fn(u32, &NewItem) -> Result<()>,
    mut send: impl FnMut(u32, Vec<NewItem>) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    let mut rejected: Option<(Error, usize)> = None;
    let mut items = items
        .filter(|(number, item)| match check(*number, item) {
            Ok(()) => true,
            Err(error) => {
                rejected.get_or_insert((error, 0)).1 += 1;
                false
            }
        })
        .peekable();
    let mut expected = MIN_RESERVED;
    while let Some((number, first)) = items.next() {
        // The upper bound is exact unless items are rejected.
        let left = items.size_hint().1.unwrap_or(0);
        let mut batch = Vec::with_capacity(expected.min(left + 1));
        batch.push(first);
        while batch.len() < max_items
            && let Some((_, item)) = items.next_if(|(next, _)| *next == number)
        {
            batch.push(item);
        }
        expected = batch.len().max(MIN_RESERVED);
        outcome = outcome.and(send(number, batch));
    }
    let Some((mut error, items)) = rejected else {
        return outcome;
    };
    if items > 1 {
        let items = count(items, "item");
        error = error.with_text(&format!("; {items} were rejected, this is the first"));
    }
    if let Err(other) = outcome {
        error = error.with_text(&format!("; also: {other}"));
    }
    Err(error)
}
