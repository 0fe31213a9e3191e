//! Whose items those of a call are, and which of them: so that they may come again.

use engram_core::{Error, Result, SessionNumber};

/// A writer's session, and the numbers of a call's items for one table: `first`, `first + 1`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Random number of the session.
    pub id: u64,
    /// Number of the call's first item; a session's first to a table is 1.
    pub first: u64,
}

impl Session {
    /// The number of the last of so many items.
    pub(crate) fn last(self, items: usize, table: &str) -> Result<SessionNumber> {
        let Self { id, first } = self;
        let end = first.checked_add(items as u64).filter(|_| first > 0);
        end.map_or_else(
            || {
                Err(Error::InvalidArgument(format!(
                    "{items} items for table `{table}` are numbered from {first} on; a session's \
                     numbers are from 1 on and below 2^64"
                )))
            },
            |end| {
                Ok(SessionNumber {
                    session: id,
                    number: end - 1,
                })
            },
        )
    }
}
