//! The writer's end of a conversation about items: as [`engram_engine::Outbox`], for a server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engram_core::{NewItem, Result, TableOptions};
use engram_engine::{WaitOptions, WaitOutcome, wait};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Client;
use super::pending_inserts::{InsertCommand, InsertProgress, PendingInserts};
use super::reconnecting_stream::{closed_error, run};
use crate::wire::check_sendable;

/// How long an explanation is worth waiting for.
const EXPLAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a writer that goes waits for what it has said to arrive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Items sent that their tables do not have yet, as far as is known. As a future: ready when at most
/// [`RemoteOutbox::until_at_most`] of them are left; if that is none, when they are as safe as the server's store promises.
#[derive(Debug)]
pub struct RemoteOutbox {
    client: Arc<Client>,
    commands: Option<mpsc::UnboundedSender<InsertCommand>>,
    task: Option<JoinHandle<bool>>,
    progress: Arc<InsertProgress>,
    tables: Vec<Arc<TableOptions>>,
    max_in_flight: usize,
}

impl RemoteOutbox {
    pub(crate) fn new(client: &Arc<Client>) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let progress = Arc::<InsertProgress>::default();
        let stream = PendingInserts::new(client.unique_number(), Arc::clone(&progress));
        let connector = Arc::clone(client.connector());
        let task = client.runtime().spawn(run(connector, stream, receiver));
        Self {
            client: Arc::clone(client),
            commands: Some(commands),
            task: Some(task),
            progress,
            tables: Vec::new(),
            max_in_flight: 0,
        }
    }

    fn send_command(&self, command: InsertCommand) {
        if let Some(commands) = &self.commands {
            // The conversation ends after us.
            let _ = commands.send(command);
        }
    }

    /// The number that stands for a table in what is sent; its options are what the server says of
    /// it now.
    pub fn table_number(&mut self, options: &Arc<TableOptions>) -> u32 {
        let Some(known) = self.find_table(&options.name) else {
            return self.add_table(&options.name, Arc::clone(options));
        };
        self.tables[known as usize] = Arc::clone(options);
        known
    }

    /// The number of a table that has one already, and is still there.
    #[must_use]
    pub fn find_table(&self, name: &str) -> Option<u32> {
        let mut numbers = (0_u32..).zip(&self.tables);
        let known = numbers
            .find(|(number, table)| table.name == name && !self.progress.is_dropped(*number));
        known.map(|(number, _)| number)
    }

    fn add_table(&mut self, name: &str, options: Arc<TableOptions>) -> u32 {
        if let Some(dropped) = self.tables.iter().position(|table| table.name == name) {
            // Numbers go on where they were: the session is the same.
            self.tables[dropped] = options;
            self.progress.restore_table(dropped);
            return u32::try_from(dropped).unwrap_or(u32::MAX);
        }
        self.tables.push(options);
        self.progress.add_table();
        self.send_command(InsertCommand::AddTable(name.into()));
        u32::try_from(self.tables.len() - 1).unwrap_or(u32::MAX)
    }

    /// The options of the table behind a number that [`RemoteOutbox::table_number`] gave.
    #[must_use]
    pub fn options(&self, number: u32) -> &Arc<TableOptions> {
        &self.tables[number as usize]
    }

    /// Items sent that no table has yet, as far as the writer has been told.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.progress.in_flight()
    }

    /// As [`RemoteOutbox::in_flight`], with those that were refused.
    #[must_use]
    pub fn items_left(&self) -> usize {
        self.progress.items_left()
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
            let options = &self.tables[number as usize];
            let mut checked = batch.iter();
            let checked = checked
                .try_for_each(|item| options.check_item(item).and_then(|()| check_sendable(item)));
            match checked {
                Ok(()) => {
                    self.progress.count_sent(number, batch.len() as u64);
                    self.send_command(InsertCommand::Items(number, batch));
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Takes note of what was refused meanwhile.
    ///
    /// # Errors
    /// Why it was.
    pub fn collect_finished(&mut self) -> Result<()> {
        if let Some(error) = self.progress.take_error() {
            return Err(error);
        }
        if self.client.connector().is_closed() {
            return Err(closed_error());
        }
        Ok(())
    }

    /// Why the oldest item waits, for the error that ends a wait.
    #[must_use]
    pub fn blocked_reason(&self) -> String {
        let Some(table) = self.progress.waiting_table() else {
            return String::new();
        };
        let name = &self.tables[table as usize].name;
        let mut infos = self.client.infos();
        let mut patience = WaitOptions {
            deadline: Some(Instant::now() + EXPLAIN_TIMEOUT),
            interrupted: &mut || false,
        };
        let why = match wait(&mut infos, &mut patience) {
            WaitOutcome::Ready(Ok(infos)) => infos
                .into_iter()
                .find(|info| info.options.name == *name)
                .and_then(|info| info.inserting_blocked),
            WaitOutcome::Ready(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        why.map_or_else(String::new, |why| format!("; {why}"))
    }

    /// Makes the future wait until at most `max_in_flight` items are in flight.
    pub fn until_at_most(&mut self, max_in_flight: usize) -> &mut Self {
        self.max_in_flight = max_in_flight;
        self.send_command(InsertCommand::Retry);
        self
    }
}

impl Future for RemoteOutbox {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        this.progress.waker.register(context.waker());
        this.collect_finished()?;
        let done = match this.max_in_flight {
            0 => this.progress.unsettled() == 0,
            max_in_flight => this.progress.in_flight() <= max_in_flight,
        };
        if done {
            return Poll::Ready(Ok(()));
        }
        // They go on being written; who waits hears that they are not.
        match this.progress.take_problem() {
            Some(problem) => Poll::Ready(Err(problem)),
            None => Poll::Pending,
        }
    }
}

impl RemoteOutbox {
    /// Withdraws what is not settled. If true, [`RemoteOutbox::unsettled_of`] is final; otherwise the
    /// server has not answered `within` that time, and may have taken what is in flight.
    pub fn finish(&mut self, within: Duration) -> bool {
        self.commands = None;
        let Some(mut task) = self.task.take() else {
            return false;
        };
        let mut patience = WaitOptions {
            deadline: Some(Instant::now() + within),
            interrupted: &mut || false,
        };
        if let WaitOutcome::Ready(acknowledged) = wait(&mut task, &mut patience) {
            return acknowledged.unwrap_or(false);
        }
        task.abort();
        false
    }

    /// Items for one table that are sent and not settled: not as safe there as the server's store promises.
    #[must_use]
    pub fn unsettled_of(&self, table: u32) -> u64 {
        self.progress.unsettled_of(table)
    }
}

impl Drop for RemoteOutbox {
    fn drop(&mut self) {
        self.finish(CLOSE_TIMEOUT);
    }
}
