//! The numbers of a writer's items in its session, with which a table detects items that are sent again.

use engram_core::text::count;
use engram_core::{Error, Result, SessionNumber};

/// The numbers of one call's items in their writer's session: `first_number`, `first_number + 1`, ...
///
/// A session numbers the items of each table separately, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRun {
    /// Random id of the session.
    pub session: u64,
    /// Number of the call's first item in the session.
    pub first_number: u64,
}

impl SessionRun {
    /// Returns the session and number of the call's last item if it has `items` items for `table`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a number is 0 or too large.
    pub(crate) fn last(self, items: usize, table: &str) -> Result<SessionNumber> {
        let first = self.first_number;
        let end = first.checked_add(items as u64).filter(|_| first > 0);
        end.map_or_else(
            || {
                Err(Error::InvalidArgument(format!(
                    "{} for table `{table}` with numbers from {first} on; the number of an item in its session \
                     must be at least 1 and below 2^64 - 1",
                    count(items, "item")
                )))
            },
            |end| {
                Ok(SessionNumber {
                    session: self.session,
                    number: end - 1,
                })
            },
        )
    }
}
