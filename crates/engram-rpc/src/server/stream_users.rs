//! What one stream does with its tables, as their infos list it.

use std::sync::{Arc, Weak};

use engram_engine::{Table, TableUser, TableUserKind};

/// The tables that a stream uses, and its entry in the list of each table's users. Dropping it removes the entries.
#[derive(Debug)]
pub(super) struct StreamUsers {
    kind: TableUserKind,
    address: Arc<str>,
    users: Vec<(Weak<Table>, Arc<TableUser>)>,
}

impl StreamUsers {
    pub(super) fn new(kind: TableUserKind, address: Arc<str>) -> Self {
        Self {
            kind,
            address,
            users: Vec::new(),
        }
    }

    /// Counts a message with this many items for a table.
    pub(super) fn record(&mut self, table: &Arc<Table>, session: Option<u64>, items: u64) {
        let known = self
            .users
            .iter()
            .find(|(used, _)| std::ptr::eq(used.as_ptr(), Arc::as_ptr(table)));
        if let Some((_, user)) = known {
            table.record_use(user, items);
            return;
        }
        self.users.retain(|(used, _)| used.strong_count() > 0);
        let user = table.add_user(self.kind, session, &self.address);
        table.record_use(&user, items);
        self.users.push((Arc::downgrade(table), user));
    }

    /// Sets the number of items in flight of each table.
    pub(super) fn set_in_flight(&self, in_flight: impl Fn(&Arc<Table>) -> u64) {
        for (table, user) in &self.users {
            if let Some(table) = table.upgrade() {
                user.set_in_flight(in_flight(&table));
            }
        }
    }
}
