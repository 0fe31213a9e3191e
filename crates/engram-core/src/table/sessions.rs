//! Which of the items that writers number have been applied: a retry never doubles one.

use crate::key_map::KeyMap;
use crate::op::SessionNumber;
use crate::pages::CopyablePages;
use crate::table::TableState;

/// A session that sent nothing for so long is forgotten, nanoseconds: 10 minutes.
pub const SESSION_IDLE: u64 = 600_000_000_000;

/// Sessions that one call forgets at most.
const FORGOTTEN_PER_CALL: usize = 16;

/// No place.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct SessionEntry {
    session: u64,
    /// Number of the last item applied; 0 before the first.
    last: u64,
    /// Clock reading when it was last used, nanoseconds.
    used: u64,
    /// Calls that wait with its items. It is in no order meanwhile: it is not idle.
    waiting: u32,
    /// Neighbours in the order of last use; vacant entries are chained through `after`.
    before: u32,
    after: u32,
}

const VACANT: SessionEntry = SessionEntry {
    session: 0,
    last: 0,
    used: 0,
    waiting: 0,
    before: NONE,
    after: NONE,
};

/// The sessions of one table, and the order in which they were used last. Nothing here takes
/// longer the more there are: entries lie in pages, and are found by key.
#[derive(Debug)]
pub(super) struct Sessions {
    places: KeyMap<u32>,
    entries: CopyablePages<SessionEntry>,
    /// Places handed out so far, vacant ones included.
    reached: u32,
    vacant: u32,
    idlest: u32,
    newest: u32,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            places: KeyMap::default(),
            entries: CopyablePages::new(VACANT),
            reached: 0,
            vacant: NONE,
            idlest: NONE,
            newest: NONE,
        }
    }
}

impl Sessions {
    pub(super) fn entries(&self) -> &CopyablePages<SessionEntry> {
        &self.entries
    }

    pub(super) fn entries_mut(&mut self) -> &mut CopyablePages<SessionEntry> {
        &mut self.entries
    }

    /// Number of the session's last item; 0 where it is unknown or was idle for too long, whether
    /// or not that has been noticed.
    fn last(&self, session: u64, now: u64) -> u64 {
        let place = self.places.get(session);
        let entry = place.map(|at| &self.entries[at as usize]);
        entry
            .filter(|entry| !entry.is_idle(now))
            .map_or(0, |entry| entry.last)
    }

    /// The number counts as applied, and so do all before it.
    pub(super) fn count(&mut self, number: SessionNumber, now: u64) {
        let at = self.using(number.session, now);
        self.entries[at as usize].last = number.number;
        if self.entries[at as usize].waiting == 0 {
            self.append(at);
        }
        self.forget_idle(now);
    }

    /// A call waits with items of this session.
    fn begin_wait(&mut self, session: u64, now: u64) {
        let at = self.using(session, now);
        self.entries[at as usize].waiting += 1;
    }

    /// It waits no longer.
    fn end_wait(&mut self, session: u64, now: u64) {
        let Some(at) = self.places.get(session) else {
            return;
        };
        let entry = &mut self.entries[at as usize];
        entry.waiting = entry.waiting.saturating_sub(1);
        entry.used = now;
        if entry.waiting > 0 {
            return;
        }
        if entry.last == 0 {
            self.forget(at);
        } else {
            self.append(at);
        }
    }

    /// The session's place, out of the order; it is used now.
    fn using(&mut self, session: u64, now: u64) -> u32 {
        let at = if let Some(at) = self.places.get(session) {
            if self.entries[at as usize].waiting == 0 {
                self.unlink(at);
            }
            at
        } else {
            self.make(session)
        };
        let entry = &mut self.entries[at as usize];
        if entry.is_idle(now) {
            entry.last = 0;
        }
        entry.used = now;
        at
    }

    fn make(&mut self, session: u64) -> u32 {
        let at = if self.vacant == NONE {
            self.reached += 1;
            self.reached - 1
        } else {
            let at = self.vacant;
            self.vacant = self.entries[at as usize].after;
            at
        };
        let entry = SessionEntry { session, ..VACANT };
        self.entries.set(at as usize, entry);
        self.places.insert(session, at);
        at
    }

    /// Forgets a bounded number of sessions that have been idle for too long.
    pub(super) fn forget_idle(&mut self, now: u64) {
        for _ in 0..FORGOTTEN_PER_CALL {
            let at = self.idlest;
            if at == NONE || !self.entries[at as usize].is_idle(now) {
                return;
            }
            self.unlink(at);
            self.forget(at);
        }
    }

    /// Frees a place that is in no order.
    fn forget(&mut self, at: u32) {
        self.places.remove(self.entries[at as usize].session);
        self.entries[at as usize] = SessionEntry {
            after: self.vacant,
            ..VACANT
        };
        self.vacant = at;
    }

    fn append(&mut self, at: u32) {
        let before = self.newest;
        self.entries[at as usize].before = before;
        self.entries[at as usize].after = NONE;
        *self.after(before) = at;
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let SessionEntry { before, after, .. } = self.entries[at as usize];
        *self.after(before) = after;
        if after == NONE {
            self.newest = before;
        } else {
            self.entries[after as usize].before = before;
        }
    }

    /// Where it is written what comes after a place, or comes first.
    fn after(&mut self, at: u32) -> &mut u32 {
        if at == NONE {
            &mut self.idlest
        } else {
            &mut self.entries[at as usize].after
        }
    }
}

impl SessionEntry {
    /// The last number applied, and when the session was used last; vacant entries have none.
    pub(super) fn number(self) -> Option<(SessionNumber, u64)> {
        let Self { session, last, .. } = self;
        let number = SessionNumber {
            session,
            number: last,
        };
        (last > 0).then_some((number, self.used))
    }

    fn is_idle(&self, now: u64) -> bool {
        self.waiting == 0 && now.saturating_sub(self.used) >= SESSION_IDLE
    }
}

impl TableState {
    /// Whether an item of that number has been applied: it is acknowledged, and not applied again,
    /// whatever became of it meanwhile.
    #[must_use]
    pub fn is_applied(&self, number: SessionNumber, now: u64) -> bool {
        let sessions = self.sessions.as_ref();
        sessions.is_some_and(|sessions| number.number <= sessions.last(number.session, now))
    }

    /// Says that a call waits with items of this session: until [`TableState::end_wait`] it is not
    /// idle, however long that takes. Not recorded: after a restart nobody waits.
    pub fn begin_wait(&mut self, session: u64, now: u64) {
        let sessions = self.sessions.get_or_insert_default();
        sessions.begin_wait(session, now);
    }

    /// Says that such a call has ended.
    pub fn end_wait(&mut self, session: u64, now: u64) {
        if let Some(sessions) = &mut self.sessions {
            sessions.end_wait(session, now);
        }
    }

    /// The last number applied of each session that is not forgotten, and when it was used last,
    /// in no particular order: what a checkpoint keeps, and [`crate::TableOp::SkipInsert`] restores.
    pub fn session_numbers(&self) -> impl Iterator<Item = (SessionNumber, u64)> + '_ {
        let sessions = self.sessions.as_deref();
        let entries = sessions.into_iter().flat_map(|sessions| {
            let entries = 0..sessions.reached as usize;
            entries.map(|at| sessions.entries[at])
        });
        entries.filter_map(SessionEntry::number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(sessions: &mut Sessions, session: u64, number: u64, now: u64) {
        sessions.count(SessionNumber { session, number }, now);
    }

    #[test]
    fn sessions_are_forgotten_in_the_order_of_their_last_use() {
        let mut sessions = Sessions::default();
        for session in 0..100 {
            count(&mut sessions, session, 1, session);
        }
        // Used again: behind all others now.
        count(&mut sessions, 3, 2, 100);
        sessions.begin_wait(5, 101);
        let now = SESSION_IDLE + 40;
        assert_eq!(
            [3, 5, 40, 41].map(|id| sessions.last(id, now)),
            [2, 1, 0, 1]
        );
        let mut left = Vec::new();
        for _ in 0..4 {
            sessions.forget_idle(now);
            left.push(sessions.places.len());
        }
        assert_eq!(left, [84, 68, 61, 61]);
        let later = 3 * SESSION_IDLE;
        (0..4).for_each(|_| sessions.forget_idle(later));
        assert_eq!((sessions.places.len(), sessions.last(5, later)), (1, 1));
        sessions.end_wait(5, later);
        assert_eq!(sessions.last(5, later + SESSION_IDLE - 1), 1);
        sessions.forget_idle(later + SESSION_IDLE);
        assert!(sessions.places.is_empty());
        // Places are used again.
        (0..100).for_each(|id| count(&mut sessions, 1_000 + id, 7, later));
        assert_eq!((sessions.reached, sessions.places.len()), (100, 100));
        assert_eq!(
            (sessions.last(1_050, later), sessions.last(50, later)),
            (7, 0)
        );
    }

    #[test]
    fn a_wait_that_applied_nothing_leaves_nothing() {
        let mut sessions = Sessions::default();
        sessions.begin_wait(1, 0);
        sessions.begin_wait(1, 1);
        sessions.end_wait(1, 2);
        assert_eq!(sessions.places.len(), 1);
        sessions.end_wait(1, 3);
        sessions.end_wait(1, 4);
        assert!(sessions.places.is_empty());
        // A number from before it was forgotten is not above what a session begun anew has.
        count(&mut sessions, 1, 9, 5);
        sessions.begin_wait(1, 5 + SESSION_IDLE);
        assert_eq!(sessions.last(1, 5 + SESSION_IDLE), 0);
    }
}
