//! A writer's items for a server's tables: the remote counterpart of [`engram_engine::Outbox`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engram_core::writer::ShardId;
use engram_core::{NewItem, Result, TableOptions};
use engram_engine::{Until, send_by_table, wait_by};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Client;
use super::pending_inserts::{InsertCommand, InsertProgress, PendingInserts};
use super::reconnecting_stream::{closed_error, run};
use crate::wire::check_sendable;

/// How long dropping an outbox waits until the server has read its items and ended the stream.
const DROP_TIMEOUT: Duration = Duration::from_millis(900);

/// Sends a writer's items and tracks those that are in flight: sent, and not known to be in their tables or rejected.
///
/// As a future, it waits as set by [`RemoteOutbox::until`].
#[derive(Debug)]
pub struct RemoteOutbox {
    client: Arc<Client>,
    /// `None` after [`RemoteOutbox::finish`].
    commands: Option<mpsc::UnboundedSender<InsertCommand>>,
    /// Runs the insert stream; returns true if the server has read and answered everything.
    task: Option<JoinHandle<bool>>,
    progress: Arc<InsertProgress>,
    /// The options of each table, by its number.
    tables: Vec<Arc<TableOptions>>,
    /// The shard that the items are sent to.
    shard: ShardId,
    until: Until,
}

impl RemoteOutbox {
    /// Creates an outbox for the tables of a client's server.
    #[must_use]
    pub fn new(client: &Arc<Client>) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let progress = Arc::<InsertProgress>::default();
        let connector = Arc::clone(client.connector());
        let shard = ShardId::default();
        shard.set(connector.shard().get());
        let session = client.unique_number();
        let stream = PendingInserts::new(session, shard.clone(), Arc::clone(&progress));
        let task = client.runtime().spawn(run(connector, stream, receiver));
        Self {
            client: Arc::clone(client),
            commands: Some(commands),
            task: Some(task),
            progress,
            tables: Vec::new(),
            shard,
            until: Until::Complete,
        }
    }

    fn send_command(&self, command: InsertCommand) {
        if let Some(commands) = &self.commands {
            // Fails only if the client is closed: otherwise the stream outlives this sender.
            let _ = commands.send(command);
        }
    }

    /// Returns the number that stands for a table in [`RemoteOutbox::send`], and stores the table's current options.
    pub fn table_number(&mut self, options: &Arc<TableOptions>) -> u32 {
        if self.tables.is_empty() {
            // The client has connected, to request the options.
            self.shard.set(self.client.connector().shard().get());
        }
        let Some(number) = self.find_table(&options.name) else {
            return self.add_table(&options.name, Arc::clone(options));
        };
        self.tables[number as usize] = Arc::clone(options);
        number
    }

    /// Returns the number of the table with this name; `None` if it has no number, or was dropped or closed.
    #[must_use]
    pub fn find_table(&self, name: &str) -> Option<u32> {
        let mut numbers = (0_u32..).zip(&self.tables);
        let entry = numbers
            .find(|(number, table)| table.name == name && !self.progress.is_dropped(*number));
        entry.map(|(number, _)| number)
    }

    /// The shard that the items are sent to: another one than at first if that cannot be reached. The keys of items must
    /// have its id.
    #[must_use]
    pub fn shard(&self) -> &ShardId {
        &self.shard
    }

    /// The progress of the items.
    #[must_use]
    pub fn progress(&self) -> &InsertProgress {
        &self.progress
    }

    /// Returns the key that an item has, which differs from the given one if the item was moved to another shard.
    /// `number` is that of the item among those of its table, counted from 1.
    #[must_use]
    pub fn final_key(&self, table: u32, number: u64, key: u64) -> u64 {
        let changed = self.progress.changed_shard(table, number);
        changed.map_or(key, |id| ShardId::new(id).key(key))
    }

    /// True if this outbox sends to the shard of its client, and not to another one that replaces it.
    #[must_use]
    pub fn is_at_home(&self) -> bool {
        self.shard.get() == self.client.connector().shard().get()
    }

    fn add_table(&mut self, name: &str, options: Arc<TableOptions>) -> u32 {
        if let Some(dropped) = self.tables.iter().position(|table| table.name == name) {
            // The table was dropped and exists again. Its items continue the old numbering, because the session is the
            // same.
            self.tables[dropped] = options;
            self.progress
                .restore_table(dropped, &self.tables[dropped].limits);
            return u32::try_from(dropped).unwrap_or(u32::MAX);
        }
        self.progress.add_table(&options.limits);
        self.tables.push(options);
        self.send_command(InsertCommand::AddTable(name.into()));
        u32::try_from(self.tables.len() - 1).unwrap_or(u32::MAX)
    }

    /// The options of the table with this number.
    #[must_use]
    pub fn options(&self, number: u32) -> &Arc<TableOptions> {
        &self.tables[number as usize]
    }

    /// Sends items to their tables, in order. Consecutive items for one table are sent together. Items that their table
    /// does not accept, or that are too large to send, are dropped.
    ///
    /// # Errors
    /// As [`send_by_table`].
    pub fn send(&mut self, items: impl Iterator<Item = (u32, NewItem)>) -> Result<()> {
        let check = |number, item: &NewItem| {
            self.tables[number as usize].check_item(item)?;
            check_sendable(item)
        };
        send_by_table(items, usize::MAX, check, |number, batch| {
            self.progress.count_sent(number, batch.len() as u64);
            self.send_command(InsertCommand::Items(number, batch));
            Ok(())
        })
    }

    /// Checks whether items were rejected, or the server could not be reached.
    ///
    /// # Errors
    /// The oldest error that was not returned yet; [`engram_core::Error::Closed`] if the client is closed.
    pub fn check_errors(&mut self) -> Result<()> {
        if let Some(error) = self.progress.take_error() {
            return Err(error);
        }
        if self.client.connector().is_closed() {
            return Err(closed_error());
        }
        Ok(())
    }

    /// Returns a suffix for the error text of a wait: `; ` and why a table blocks inserts, or why the server cannot be
    /// reached. The table is the first one with waiting items; if none wait, the first one with items in flight. Empty
    /// if there is no reason: nothing is in flight, the table does not block or does not exist, or the server does not
    /// respond in time.
    #[must_use]
    pub fn blocked_reason(&self) -> String {
        let Some(table) = self.progress.first_pending_table() else {
            return String::new();
        };
        let name = &self.tables[table as usize].name;
        let reason = self
            .client
            .blocked_reason(name, |info| info.inserting_blocked);
        reason.map_or_else(String::new, |reason| format!("; {reason}"))
    }

    /// Sets what the future waits for. Reconnects if the server could not be reached before.
    pub fn until(&mut self, until: Until) -> &mut Self {
        self.until = until;
        self.send_command(InsertCommand::Retry);
        self
    }
}

impl Future for RemoteOutbox {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        this.progress.waker.register(context.waker());
        this.check_errors()?;
        let done = match this.until {
            Until::Complete => this.progress.incomplete() == 0,
            Until::InFlightAtMost(max_in_flight) => this.progress.in_flight() <= max_in_flight,
            Until::WaitingAtMost(max_waiting) => this.progress.waiting() <= max_waiting,
        };
        if done {
            return Poll::Ready(Ok(()));
        }
        // The server keeps trying to make the inserted items durable; only this wait fails.
        match this.progress.take_durability_error() {
            Some(durability_error) => Poll::Ready(Err(durability_error)),
            None => Poll::Pending,
        }
    }
}

impl RemoteOutbox {
    /// Ends the stream; the server withdraws the items that are not in their tables. Returns true if the server has
    /// confirmed this: [`InsertProgress::incomplete_items`] is final. Returns false if it did not do so within `timeout`:
    /// it may still insert items in flight. Also returns false if the stream has failed, or was ended before.
    pub fn finish(&mut self, timeout: Duration) -> bool {
        self.commands = None;
        let Some(mut task) = self.task.take() else {
            return false;
        };
        if let Some(complete) = wait_by(&mut task, Some(Instant::now() + timeout)) {
            return complete.unwrap_or(false) && !self.progress.has_failed();
        }
        task.abort();
        false
    }
}

impl Drop for RemoteOutbox {
    fn drop(&mut self) {
        self.finish(DROP_TIMEOUT);
    }
}
