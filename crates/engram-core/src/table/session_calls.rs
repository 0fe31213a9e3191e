//! The calls of a table that concern sessions.

use crate::op::SessionNumber;
use crate::table::TableState;

impl TableState {
    /// True if the item with this number was applied: the caller acknowledges it without inserting it again. Or if the
    /// acknowledgement with this number was. False if the session was idle for [`SESSION_IDLE`].
    #[must_use]
    pub fn is_applied(&self, number: SessionNumber, now: u64) -> bool {
        let sessions = self.sessions.as_ref();
        sessions.is_some_and(|sessions| number.number <= sessions.last_applied(number.session, now))
    }

    /// True if readers of an earlier store of the table may continue: samples were on lease when it ended, or a session was
    /// used after this reading of the clock, except by waiting calls.
    #[must_use]
    pub fn may_have_readers(&self, since: u64) -> bool {
        let last_used = self
            .sessions
            .as_ref()
            .and_then(|sessions| sessions.last_used());
        self.had_leases || last_used.is_some_and(|used| used >= since)
    }

    /// Keeps the session from becoming idle while a call waits to insert its items, until
    /// [`TableState::end_wait`]. Not recorded in the journal: no waiting call survives a restart.
    pub fn begin_wait(&mut self, session: u64, now: u64) {
        let sessions = self.sessions.get_or_insert_default();
        sessions.begin_wait(session, now);
    }

    /// Ends the wait of a call; see [`TableState::begin_wait`].
    pub fn end_wait(&mut self, session: u64, now: u64) {
        if let Some(sessions) = &mut self.sessions {
            sessions.end_wait(session, now);
        }
    }
}
