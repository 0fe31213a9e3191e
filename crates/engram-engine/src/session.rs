//! Session numbers of a writer's items, with which a table detects items that are sent again.

use engram_core::text::count;
use engram_core::{Error, Result, SessionNumber};

/// A writer's session, and the session numbers of one call's items: `first`, `first + 1`, ...
///
/// A session numbers the items of each table separately, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Random id of the session.
    pub id: u64,
    /// Session number of the call's first item.
    pub first: u64,
}

impl Session {
    /// Returns the session number of the call's last item if it has `items` items for `table`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a number is 0 or too large.
    pub(crate) fn last(self, items: usize, table: &str) -> Result<SessionNumber> {
        let Self { id, first } = self;
        let end = first.checked_add(items as u64).filter(|_| first > 0);
        end.map_or_else(
            || {
                Err(Error::InvalidArgument(format!(
                    "{} for table `{table}` with session numbers from {first} on; session numbers must be at \
                     least 1 and below 2^64 - 1",
                    count(items, "item")
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
