//! Sequence numbers of a writer's items, which let a table detect items that are sent again.

use engram_core::{Error, Result, SessionNumber};

/// A writer's session and the sequence numbers of one call's items for one table: `first`,
/// `first + 1`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Random number of the session.
    pub id: u64,
    /// Sequence number of the call's first item. A session starts at 1 for each table.
    pub first: u64,
}

impl Session {
    /// Returns the sequence number of the last of `items` items.
    pub(crate) fn last(self, items: usize, table: &str) -> Result<SessionNumber> {
        let Self { id, first } = self;
        let end = first.checked_add(items as u64).filter(|_| first > 0);
        end.map_or_else(
            || {
                Err(Error::InvalidArgument(format!(
                    "{items} items for table `{table}` have sequence numbers from {first} on; a \
                     session's sequence numbers must be at least 1 and below 2^64"
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
