//! Acknowledgements of one stream that were not sent yet. Each covers a table's items up to a number.

use std::collections::VecDeque;

use engram_core::Error;
use prost::Message as _;

use crate::pb;
use crate::server::table_names::{truncate_names, truncate_text};
use crate::wire::encode_error;

/// Approximate maximum size of the acknowledgements in one message, in bytes.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Maximum bytes of one error's text.
pub(super) const MAX_ERROR_BYTES: usize = 64 << 10;

/// How many of the last entries are searched for one of the same table, to update it instead of adding another.
const MERGE_WINDOW: usize = 16;

/// Acknowledgements; each field contains those of the response's field with the same name.
#[derive(Debug, Default)]
pub(super) struct AckQueue {
    /// Oldest first: an error belongs to the items since the previous entry of its table.
    completed: VecDeque<pb::Completed>,
    /// One per table: the largest number reported, and the last error.
    inserted: Vec<pb::Inserted>,
    /// One per table: the last number reported.
    allowed: Vec<pb::Allowed>,
}

impl AckQueue {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.completed.len() + self.inserted.len() + self.allowed.len()
    }

    /// Reports that a table has inserted items up to a number, and, with an error, why they cannot be made durable now.
    /// The number 0 reports only the error.
    pub(super) fn push_inserted(
        &mut self,
        table: &str,
        number: u64,
        durability_error: Option<pb::Error>,
    ) {
        if let Some(ack) = self.inserted.iter_mut().find(|ack| ack.table == table) {
            ack.number = ack.number.max(number);
            ack.durability_error = durability_error.or_else(|| ack.durability_error.take());
        } else {
            self.inserted.push(pb::Inserted {
                table: table.into(),
                number,
                durability_error,
            });
        }
    }

    /// Reports that a table's rate limiter allows items up to a number.
    pub(super) fn push_allowed(&mut self, table: &str, number: u64) {
        if let Some(last) = self.allowed.iter_mut().find(|last| last.table == table) {
            last.number = number;
        } else {
            self.allowed.push(pb::Allowed {
                table: table.into(),
                number,
            });
        }
    }

    /// Reports that items up to a number are completed (durable or rejected). With an error, those since the table's
    /// previous entry were rejected.
    pub(super) fn push_completed(&mut self, table: &str, number: u64, error: Option<pb::Error>) {
        let mut latest = self.completed.iter_mut().rev().take(MERGE_WINDOW);
        match latest.find(|ack| ack.table == table) {
            Some(ack) if ack.error.is_none() && error.is_none() => ack.number = number,
            _ => self.completed.push_back(pb::Completed {
                table: table.into(),
                number,
                error,
            }),
        }
    }

    /// Removes acknowledgements from the queue and returns them as the next message; `None` if there are none.
    pub(super) fn next_reply(&mut self) -> Option<pb::InsertResponse> {
        let mut bytes = 0;
        let mut completed = Vec::new();
        while bytes < MAX_REPLY_BYTES
            && let Some(ack) = self.completed.pop_front()
        {
            bytes += ack.encoded_len();
            completed.push(ack);
        }
        let inserted = std::mem::take(&mut self.inserted);
        let allowed = std::mem::take(&mut self.allowed);
        let has_acks = !(completed.is_empty() && inserted.is_empty() && allowed.is_empty());
        has_acks.then_some(pb::InsertResponse {
            completed,
            inserted,
            allowed,
        })
    }
}

/// Encodes an error with at most `max_bytes` of text and at most `max_bytes` of known table names.
pub(super) fn bounded_error(error: &Error, max_bytes: usize) -> pb::Error {
    let mut error = encode_error(error);
    error.text = truncate_text(error.text, max_bytes);
    truncate_names(&mut error.known_tables, max_bytes);
    error
}

/// Returns the size of an error's texts in memory, in bytes.
pub(super) fn error_bytes(error: &pb::Error) -> usize {
    let names = error.known_tables.iter();
    let names: usize = names.map(|name| size_of::<String>() + name.len()).sum();
    error.text.len() + error.table.len() + names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_of_a_table_are_merged_unless_an_error_is_between() {
        let mut acks = AckQueue::default();
        let error = || Some(bounded_error(&Error::Priority("too low".into()), 100));
        for (table, number, error) in [
            ("a", 1, None),
            ("b", 7, None),
            ("a", 2, None),
            ("a", 3, error()),
            ("a", 4, None),
            ("b", 9, None),
            ("a", 5, None),
        ] {
            acks.push_completed(table, number, error);
        }
        let received = acks.next_reply().unwrap().completed.into_iter();
        let received: Vec<_> = received
            .map(|ack| (ack.table, ack.number, ack.error.is_some()))
            .collect();
        let expected = [
            ("a", 2, false),
            ("b", 9, false),
            ("a", 3, true),
            ("a", 5, false),
        ];
        assert!(
            received
                .into_iter()
                .eq(expected.map(|(table, number, error)| (table.into(), number, error)))
        );
        assert_eq!(acks.next_reply(), None);
    }

    #[test]
    fn inserted_items_are_reported_once_per_table() {
        let mut acks = AckQueue::default();
        let storage_error = || Some(bounded_error(&Error::Storage("full".into()), 100));
        for (table, number, error) in [
            ("a", 3, None),
            ("b", 1, None),
            ("a", 0, storage_error()),
            ("a", 5, None),
        ] {
            acks.push_inserted(table, number, error);
        }
        assert_eq!(acks.len(), 2);
        let received = acks.next_reply().unwrap().inserted.into_iter();
        let received: Vec<_> = received
            .map(|ack| (ack.table, ack.number, ack.durability_error.is_some()))
            .collect();
        assert_eq!(received, [("a".into(), 5, true), ("b".into(), 1, false)]);
        assert_eq!(acks.next_reply(), None);
    }

    #[test]
    fn an_error_has_a_bounded_size() {
        let unknown_table = Error::UnknownTable {
            name: "x".into(),
            known: vec!["y".repeat(50); 100],
        };
        for max_bytes in [0, 100, 1_000] {
            let error = bounded_error(&unknown_table, max_bytes);
            assert!(
                error
                    .text
                    .starts_with(&"no table `x`; known"[..max_bytes.min(19)])
            );
            assert!(error.text.ends_with("..."));
            assert_eq!(error.known_tables.last().unwrap(), "...");
            let names = size_of::<String>() + 3;
            assert!(
                error_bytes(&error) <= 2 * max_bytes + "x...".len() + names,
                "{max_bytes}"
            );
        }
    }
}
