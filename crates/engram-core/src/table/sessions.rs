//! Sessions: which numbered items of each writer were applied, so that a retry does not insert an item
//! twice. An item is *applied* once it was inserted, or skipped because its key existed.
//!
//! A reader has a session, too: it numbers its acknowledgements, so that the reader can find out after a lost connection
//! which of them were applied.

use crate::key_map::KeyMap;
use crate::op::SessionNumber;
use crate::pages::CopyablePages;

/// Idle time after which a session is forgotten, in nanoseconds: 10 minutes.
pub const SESSION_IDLE: u64 = 600_000_000_000;

/// Maximum number of sessions that one call forgets.
const MAX_FORGOTTEN_PER_CALL: usize = 16;

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// A session, or a vacant entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionEntry {
    session: u64,
    /// Number of the last applied item; 0 before the first.
    last_applied: u64,
    /// Clock reading of the last use, in nanoseconds.
    last_used: u64,
    /// Number of calls that wait to insert its items. If not 0, the session is not idle and not in
    /// the list.
    waiting: u32,
    /// Neighbours in the list ordered by last use, or [`NONE`]. The `next` of a vacant entry is the next vacant one.
    previous: u32,
    next: u32,
}

const VACANT: SessionEntry = SessionEntry {
    session: 0,
    last_applied: 0,
    last_used: 0,
    waiting: 0,
    previous: NONE,
    next: NONE,
};

/// The sessions of a table: a map to their entries, and a linked list ordered by last use.
///
/// The cost of every call is independent of the number of sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    indices: KeyMap,
    entries: CopyablePages<SessionEntry>,
    /// Number of entries ever used, including vacant ones.
    used_entries: u32,
    /// First vacant entry, or [`NONE`].
    vacant: u32,
    /// First and last entry of the list, or [`NONE`].
    oldest: u32,
    newest: u32,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            indices: KeyMap::default(),
            entries: CopyablePages::new(VACANT),
            used_entries: 0,
            vacant: NONE,
            oldest: NONE,
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

    /// Number of the session's last applied item; 0 if the session is unknown or has been idle for
    /// [`SESSION_IDLE`].
    pub(super) fn last_applied(&self, session: u64, now: u64) -> u64 {
        let index = self.indices.get(session);
        let entry = index.map(|index| &self.entries[index as usize]);
        entry
            .filter(|entry| !entry.is_idle(now))
            .map_or(0, |entry| entry.last_applied)
    }

    /// Clock reading of the last use of any session without waiting calls; `None` if there is none.
    pub(super) fn last_used(&self) -> Option<u64> {
        (self.newest != NONE).then(|| self.entries[self.newest as usize].last_used)
    }

    /// Marks the number, and all smaller ones of its session, as applied. Forgets some idle sessions.
    pub(super) fn mark_applied(&mut self, number: SessionNumber, now: u64) {
        let index = self.touch(number.session, now);
        self.entries[index as usize].last_applied = number.number;
        if self.entries[index as usize].waiting == 0 {
            self.append(index);
        }
        self.forget_idle(now);
    }

    /// Counts a call that waits to insert items of this session.
    pub(super) fn begin_wait(&mut self, session: u64, now: u64) {
        let index = self.touch(session, now);
        self.entries[index as usize].waiting += 1;
    }

    /// Ends the wait of a call. Forgets the session if no call waits and none of its items was applied.
    pub(super) fn end_wait(&mut self, session: u64, now: u64) {
        let Some(index) = self.indices.get(session) else {
            return;
        };
        let entry = &mut self.entries[index as usize];
        entry.waiting = entry.waiting.saturating_sub(1);
        entry.last_used = now;
        if entry.waiting > 0 {
            return;
        }
        if entry.last_applied == 0 {
            self.forget(index);
        } else {
            self.append(index);
        }
    }

    /// Sets the last use of a session to `now`, and takes the session out of the list. Creates it if it is unknown;
    /// forgets its applied items if it was idle for [`SESSION_IDLE`]. Returns its index.
    fn touch(&mut self, session: u64, now: u64) -> u32 {
        let index = if let Some(index) = self.indices.get(session) {
            if self.entries[index as usize].waiting == 0 {
                self.unlink(index);
            }
            index
        } else {
            self.create(session)
        };
        let entry = &mut self.entries[index as usize];
        if entry.is_idle(now) {
            entry.last_applied = 0;
        }
        entry.last_used = now;
        index
    }

    /// Adds a session that is not in the list. Returns its index.
    fn create(&mut self, session: u64) -> u32 {
        let index = if self.vacant == NONE {
            self.used_entries += 1;
            self.used_entries - 1
        } else {
            let index = self.vacant;
            self.vacant = self.entries[index as usize].next;
            index
        };
        let entry = SessionEntry { session, ..VACANT };
        self.entries.set(index as usize, entry);
        self.indices.insert(session, index);
        index
    }

    /// Forgets a bounded number of sessions that have been idle for too long.
    pub(super) fn forget_idle(&mut self, now: u64) {
        for _ in 0..MAX_FORGOTTEN_PER_CALL {
            let index = self.oldest;
            if index == NONE || !self.entries[index as usize].is_idle(now) {
                return;
            }
            self.unlink(index);
            self.forget(index);
        }
    }

    /// Removes a session that is not in the list.
    fn forget(&mut self, index: u32) {
        self.indices.remove(self.entries[index as usize].session);
        self.entries[index as usize] = SessionEntry {
            next: self.vacant,
            ..VACANT
        };
        self.vacant = index;
    }

    /// Adds a session to the end of the list, as the one used last.
    fn append(&mut self, index: u32) {
        let previous = self.newest;
        self.entries[index as usize].previous = previous;
        self.entries[index as usize].next = NONE;
        *self.next_link(previous) = index;
        self.newest = index;
    }

    /// Takes a session out of the list.
    fn unlink(&mut self, index: u32) {
        let SessionEntry { previous, next, .. } = self.entries[index as usize];
        *self.next_link(previous) = next;
        if next == NONE {
            self.newest = previous;
        } else {
            self.entries[next as usize].previous = previous;
        }
    }

    /// The link to the entry after `index`; to the first entry if `index` is [`NONE`].
    fn next_link(&mut self, index: u32) -> &mut u32 {
        if index == NONE {
            &mut self.oldest
        } else {
            &mut self.entries[index as usize].next
        }
    }
}

impl SessionEntry {
    /// The last applied number and the clock reading of the last use; `None` if the entry is vacant
    /// or no number was applied.
    pub(super) fn last_number(self) -> Option<(SessionNumber, u64)> {
        let Self {
            session,
            last_applied,
            ..
        } = self;
        let number = SessionNumber {
            session,
            number: last_applied,
        };
        (last_applied > 0).then_some((number, self.last_used))
    }

    fn is_idle(&self, now: u64) -> bool {
        self.waiting == 0 && now.saturating_sub(self.last_used) >= SESSION_IDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark_applied(sessions: &mut Sessions, session: u64, number: u64, now: u64) {
        sessions.mark_applied(SessionNumber { session, number }, now);
    }

    #[test]
    fn sessions_are_forgotten_in_the_order_of_their_last_use() {
        let mut sessions = Sessions::default();
        for session in 0..100 {
            mark_applied(&mut sessions, session, 1, session);
        }
        // Used again: now the last one of the list.
        mark_applied(&mut sessions, 3, 2, 100);
        sessions.begin_wait(5, 101);
        let now = SESSION_IDLE + 40;
        assert_eq!(
            [3, 5, 40, 41].map(|id| sessions.last_applied(id, now)),
            [2, 1, 0, 1]
        );
        // Sessions 0 to 40 are idle, except 3, which was used again, and 5, for which a call waits.
        let mut remaining_counts = Vec::new();
        for _ in 0..4 {
            sessions.forget_idle(now);
            remaining_counts.push(sessions.indices.len());
        }
        assert_eq!(remaining_counts, [84, 68, 61, 61]);
        let later = 3 * SESSION_IDLE;
        (0..4).for_each(|_| sessions.forget_idle(later));
        assert_eq!(
            (sessions.indices.len(), sessions.last_applied(5, later)),
            (1, 1)
        );
        sessions.end_wait(5, later);
        assert_eq!(sessions.last_applied(5, later + SESSION_IDLE - 1), 1);
        sessions.forget_idle(later + SESSION_IDLE);
        assert!(sessions.indices.is_empty());
        // Entries are reused.
        (0..100).for_each(|id| mark_applied(&mut sessions, 1_000 + id, 7, later));
        assert_eq!((sessions.used_entries, sessions.indices.len()), (100, 100));
        assert_eq!(
            (
                sessions.last_applied(1_050, later),
                sessions.last_applied(50, later)
            ),
            (7, 0)
        );
    }

    #[test]
    fn a_session_without_applied_items_is_forgotten_when_its_waits_end() {
        let mut sessions = Sessions::default();
        sessions.begin_wait(1, 0);
        sessions.begin_wait(1, 1);
        sessions.end_wait(1, 2);
        assert_eq!(sessions.indices.len(), 1);
        sessions.end_wait(1, 3);
        sessions.end_wait(1, 4);
        assert!(sessions.indices.is_empty());
        // When a session was idle for too long, its old numbers do not count, even if it was not forgotten yet.
        mark_applied(&mut sessions, 1, 9, 5);
        sessions.begin_wait(1, 5 + SESSION_IDLE);
        assert_eq!(sessions.last_applied(1, 5 + SESSION_IDLE), 0);
    }
}
