//! A writer's pending inserts.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use engram_core::{Lsn, NewItem, Result};

use crate::engine::Engine;
use crate::table::Table;
use crate::ticket::{InsertTicket, JournalSpace, UntilDurable};

/// A writer's items that their tables do not have yet, oldest first.
///
/// As a future, it is ready when at most [`Outbox::until_at_most`] items are in flight. For a limit
/// of 0, it also waits until the inserts are as durable as the store promises.
#[derive(Debug, Default)]
pub struct Outbox {
    tables: Vec<Arc<Table>>,
    /// Number of items and ticket of each pending insert.
    tickets: VecDeque<(usize, InsertTicket)>,
    in_flight: usize,
    allowed: usize,
    /// Durability of the last applied insert. All tables belong to one store, so one is enough.
    applied: Option<UntilDurable>,
}

impl Outbox {
    /// Returns the number by which items of [`Outbox::send`] name a table.
    ///
    /// # Errors
    /// [`engram_core::Error::UnknownTable`], [`engram_core::Error::Closed`].
    pub fn table_number(&mut self, engine: &Engine, name: &str) -> Result<u32> {
        // A dropped table may have been replaced by another one of the same name.
        let known = self
            .tables
            .iter()
            .position(|table| table.options().name == name && !table.is_closed());
        let number = if let Some(number) = known {
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

    /// Number of items that their tables did not have at the last poll.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Number of items that their tables do not have now.
    #[must_use]
    pub fn items_left(&self) -> usize {
        let tickets = self.tickets.iter();
        tickets.map(|(_, ticket)| ticket.items_left()).sum()
    }

    /// Inserts items into their tables, in order. Each item has its table's number.
    ///
    /// # Errors
    /// The first error of a table; items for other tables are inserted anyway.
    pub fn send(&mut self, items: impl Iterator<Item = (u32, NewItem)>) -> Result<()> {
        let mut outcome = Ok(());
        let mut items = items.peekable();
        while let Some((number, first)) = items.next() {
            let mut batch = vec![first];
            while let Some((_, item)) = items.next_if(|(next, _)| *next == number) {
                batch.push(item);
            }
            let count = batch.len();
            let table = &self.tables[number as usize];
            match table.insert(batch) {
                Ok(mut ticket) => match ticket.poll_applied(Waker::noop()) {
                    Poll::Ready(Ok(lsn)) => advance_applied(&mut self.applied, &ticket, lsn),
                    Poll::Ready(Err(error)) => outcome = outcome.and(Err(error)),
                    Poll::Pending => {
                        self.in_flight += count;
                        self.tickets.push_back((count, ticket));
                    }
                },
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Removes finished inserts, without waiting.
    ///
    /// # Errors
    /// The error of a failed insert: its table was dropped or closed, and its items are lost.
    pub fn collect_finished(&mut self) -> Result<()> {
        self.allowed = 0;
        match self.poll_tables(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Ok(()),
        }
    }

    /// Returns a ticket to wait for if the journal's buffer is full; otherwise `None`.
    #[must_use]
    pub fn journal_space(&self) -> Option<JournalSpace> {
        self.tables.first()?.journal_space()
    }

    /// Why the oldest item waits, as a suffix for a timeout's error text.
    #[must_use]
    pub fn blocked_reason(&self) -> String {
        let why = self
            .tickets
            .front()
            .and_then(|(_, ticket)| ticket.table().info().inserting_blocked);
        why.map_or_else(String::new, |why| format!("; {why}"))
    }

    /// Removes finished inserts anywhere in the queue: a blocked table at the front must not delay
    /// inserts into other tables.
    fn collect_any(&mut self, context: &mut Context<'_>) -> Result<()> {
        let mut outcome = Ok(());
        let (in_flight, applied) = (&mut self.in_flight, &mut self.applied);
        self.tickets.retain_mut(
            |(count, ticket)| match ticket.poll_applied(context.waker()) {
                Poll::Pending => true,
                Poll::Ready(ended) => {
                    *in_flight -= *count;
                    let ended = ended.map(|lsn| advance_applied(applied, ticket, lsn));
                    if outcome.is_ok() {
                        outcome = ended;
                    }
                    false
                }
            },
        );
        outcome
    }

    /// Sets how many items may be in flight when the future is ready.
    pub fn until_at_most(&mut self, allowed: usize) -> &mut Self {
        self.allowed = allowed;
        self
    }

    fn poll_tables(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.in_flight > self.allowed {
            let Some((count, ticket)) = self.tickets.front_mut() else {
                break;
            };
            match ticket.poll_applied(context.waker()) {
                Poll::Pending => {
                    self.collect_any(context)?;
                    if self.in_flight > self.allowed {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(outcome) => {
                    let outcome =
                        outcome.map(|lsn| advance_applied(&mut self.applied, ticket, lsn));
                    self.in_flight -= *count;
                    self.tickets.pop_front();
                    outcome?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Sets `applied` to the later of itself and this change.
fn advance_applied(applied: &mut Option<UntilDurable>, ticket: &InsertTicket, lsn: Lsn) {
    if applied.as_ref().is_none_or(|applied| applied.lsn() < lsn) {
        *applied = Some(UntilDurable::up_to(&ticket.table().sink, lsn));
    }
}

impl Future for Outbox {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_tables(context))?;
        if this.allowed == 0
            && let Some(applied) = &mut this.applied
        {
            // On an error, `applied` stays, so that the next poll retries.
            ready!(Pin::new(applied).poll(context))?;
            this.applied = None;
        }
        Poll::Ready(Ok(()))
    }
}
