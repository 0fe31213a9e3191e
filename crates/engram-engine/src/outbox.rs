//! A writer's items on their way into tables.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use engram_core::{Lsn, NewItem, Result};

use crate::engine::Engine;
use crate::table::Table;
use crate::ticket::{InsertTicket, JournalSpace, UntilDurable};

/// Items sent that their tables do not have yet, oldest first. As a future: ready when at most
/// [`Outbox::until_at_most`] of them are left; if that is none, when they are as safe as the store promises.
#[derive(Debug, Default)]
pub struct Outbox {
    tables: Vec<Arc<Table>>,
    tickets: VecDeque<(usize, InsertTicket)>,
    in_flight: usize,
    allowed: usize,
    /// Of what the tables have, the last change: all tables are of one store.
    applied: Option<UntilDurable>,
}

impl Outbox {
    /// The number that stands for a table in what is sent.
    ///
    /// # Errors
    /// [`engram_core::Error::UnknownTable`], [`engram_core::Error::Closed`].
    pub fn table_number(&mut self, engine: &Engine, name: &str) -> Result<u32> {
        // A table that was dropped may have a successor of the same name.
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

    /// The table behind a number that [`Outbox::table_number`] gave.
    #[must_use]
    pub fn table(&self, number: u32) -> &Arc<Table> {
        &self.tables[number as usize]
    }

    /// Items sent that no table has yet, as far as is known.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Items sent that no table has yet.
    #[must_use]
    pub fn items_left(&self) -> usize {
        let tickets = self.tickets.iter();
        tickets.map(|(_, ticket)| ticket.items_left()).sum()
    }

    /// Sends items to their tables, in order.
    ///
    /// # Errors
    /// What a table says of them; items for other tables are sent all the same.
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
                    Poll::Ready(Ok(lsn)) => note(&mut self.applied, &ticket, lsn),
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

    /// Takes note of what the tables have meanwhile.
    ///
    /// # Errors
    /// What an insert ended with: its items are lost to a table that was dropped or closed.
    pub fn collect_finished(&mut self) -> Result<()> {
        self.allowed = 0;
        match self.poll_tables(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Ok(()),
        }
    }

    /// Where more can be told, should too much wait to be written.
    #[must_use]
    pub fn journal_space(&self) -> Option<JournalSpace> {
        self.tables.first()?.journal_space()
    }

    /// Why the oldest item waits, for the error that ends a wait.
    #[must_use]
    pub fn blocked_reason(&self) -> String {
        let why = self
            .tickets
            .front()
            .and_then(|(_, ticket)| ticket.table().info().inserting_blocked);
        why.map_or_else(String::new, |why| format!("; {why}"))
    }

    /// Takes note of what is in behind a ticket that waits: one blocked table does not hold up
    /// what goes to others.
    fn settle_behind(&mut self, context: &mut Context<'_>) -> Result<()> {
        let mut outcome = Ok(());
        let (in_flight, applied) = (&mut self.in_flight, &mut self.applied);
        self.tickets.retain_mut(
            |(count, ticket)| match ticket.poll_applied(context.waker()) {
                Poll::Pending => true,
                Poll::Ready(ended) => {
                    *in_flight -= *count;
                    let ended = ended.map(|lsn| note(applied, ticket, lsn));
                    if outcome.is_ok() {
                        outcome = ended;
                    }
                    false
                }
            },
        );
        outcome
    }

    /// Makes the future wait until at most `allowed` items are in flight.
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
                    self.settle_behind(context)?;
                    if self.in_flight > self.allowed {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(outcome) => {
                    let outcome = outcome.map(|lsn| note(&mut self.applied, ticket, lsn));
                    self.in_flight -= *count;
                    self.tickets.pop_front();
                    outcome?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Remembers the last change of all.
fn note(applied: &mut Option<UntilDurable>, ticket: &InsertTicket, lsn: Lsn) {
    if applied.as_ref().is_none_or(|applied| applied.lsn() < lsn) {
        *applied = Some(UntilDurable::of(&ticket.table().sink, lsn));
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
            // Where that fails, the next wait looks again.
            ready!(Pin::new(applied).poll(context))?;
            this.applied = None;
        }
        Poll::Ready(Ok(()))
    }
}
