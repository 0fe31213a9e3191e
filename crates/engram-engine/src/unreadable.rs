//! Items whose stored bytes are corrupt.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use engram_core::gather::{LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::text::count;
use engram_core::{Draw, Error};

/// Maximum number of keys in the error about unreadable items.
const MAX_LISTED_KEYS: usize = 10;

/// Which of some items cannot be read.
#[derive(Debug)]
pub(crate) struct UnreadableItems {
    /// Per item, why it cannot be read; `None` if it can.
    causes: Vec<Option<String>>,
}

impl UnreadableItems {
    /// Reads each item by itself. `None` if all can be read.
    pub(crate) fn find(items: &[Draw], pool: &Arc<Pool>) -> Option<Self> {
        let cause = |item: &Draw| {
            let gathered = gather(std::slice::from_ref(item), LengthPolicy::Ragged, pool);
            match gathered {
                Err(Error::Payload(cause)) => Some(cause),
                _ => None,
            }
        };
        let causes: Vec<Option<String>> = items.iter().map(cause).collect();
        causes
            .iter()
            .any(Option::is_some)
            .then_some(Self { causes })
    }

    /// For each item, true if it cannot be read.
    pub(crate) fn flags(&self) -> impl Iterator<Item = bool> + '_ {
        self.causes.iter().map(Option::is_some)
    }

    /// The error text, which names the items by their keys. `one` follows the name of the table if one item cannot be
    /// read, `several` if there are more.
    pub(crate) fn describe(&self, table: &str, items: &[Draw], one: &str, several: &str) -> String {
        let unreadable = items.iter().zip(&self.causes);
        let unreadable = unreadable.filter_map(|(item, cause)| Some((item.key, cause.as_ref()?)));
        let unreadable: Vec<(u64, &String)> = unreadable.collect();
        let Some((first, cause)) = unreadable.first() else {
            return String::new();
        };
        // An item may have been drawn several times.
        let mut distinct = HashSet::new();
        let keys = unreadable.iter().map(|(key, _)| *key);
        let keys: Vec<u64> = keys.filter(|key| distinct.insert(*key)).collect();
        if let [key] = *keys {
            return format!("item {key} of table `{table}`{one}: {cause}");
        }
        let listed = keys.iter().take(MAX_LISTED_KEYS).map(u64::to_string);
        let mut listed = listed.collect::<Vec<_>>().join(", ");
        let others = keys.len().saturating_sub(MAX_LISTED_KEYS);
        if others > 0 {
            let _ = write!(listed, " and {}", count(others, "other"));
        }
        format!("items {listed} of table `{table}`{several}; item {first}: {cause}")
    }
}
