//! What a stream's writer has yet to hear: how far each table is with its items.

use std::collections::VecDeque;

use engram_core::Error;
use prost::Message as _;

use crate::pb;
use crate::server::table_names::{truncate_names, truncate_text};
use crate::wire::encode_error;

/// Bytes of ack in one message.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Bytes of one error's text.
pub(super) const MAX_ERROR_TEXT: usize = 64 << 10;

/// Latest ack among which those of a table are looked for, to be replaced by newer ones.
const MERGE_WINDOW: usize = 16;

/// AckQueue, oldest first.
#[derive(Debug, Default)]
pub(super) struct AckQueue {
    settled: VecDeque<pb::Completed>,
    /// One per table.
    taken: Vec<pb::Inserted>,
}

impl AckQueue {
    pub(super) fn len(&self) -> usize {
        self.settled.len() + self.taken.len()
    }

    /// A table has items up to a number, which are not safe yet; why they cannot be now.
    pub(super) fn push_applied(&mut self, table: &str, number: u64, problem: Option<pb::Error>) {
        if let Some(ack) = self.taken.iter_mut().find(|ack| ack.table == table) {
            ack.number = ack.number.max(number);
            ack.durability_error = problem.or_else(|| ack.durability_error.take());
        } else {
            self.taken.push(pb::Inserted {
                table: table.into(),
                number,
                durability_error: problem,
            });
        }
    }

    /// A table is done with items up to a number.
    pub(super) fn push_settled(&mut self, table: &str, number: u64, error: Option<pb::Error>) {
        let mut latest = self.settled.iter_mut().rev().take(MERGE_WINDOW);
        match latest.find(|ack| ack.table == table) {
            Some(last) if last.error.is_none() && error.is_none() => last.number = number,
            _ => self.settled.push_back(pb::Completed {
                table: table.into(),
                number,
                error,
            }),
        }
    }

    /// The next ack, as many as go into one message.
    pub(super) fn next_reply(&mut self) -> Option<pb::InsertResponse> {
        let mut bytes = 0;
        let mut settled = Vec::new();
        while bytes < MAX_REPLY_BYTES
            && let Some(ack) = self.settled.pop_front()
        {
            bytes += ack.encoded_len();
            settled.push(ack);
        }
        let taken = std::mem::take(&mut self.taken);
        let has_acks = !(settled.is_empty() && taken.is_empty());
        has_acks.then_some(pb::InsertResponse {
            completed: settled,
            inserted: taken,
        })
    }
}

/// Why items are refused, in so many bytes of text; the names that exist count as much again.
pub(super) fn refusal_error(error: &Error, max_bytes: usize) -> pb::Error {
    let mut error = encode_error(error);
    error.text = truncate_text(error.text, max_bytes);
    truncate_names(&mut error.known_tables, max_bytes);
    error
}

/// Bytes that an error takes.
pub(super) fn error_bytes(error: &pb::Error) -> usize {
    let names = error.known_tables.iter();
    let names: usize = names.map(|name| size_of::<String>() + name.len()).sum();
    error.text.len() + error.table.len() + names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_one_table_are_joined_unless_an_error_is_between() {
        let mut acks = AckQueue::default();
        let refused = || Some(refusal_error(&Error::Priority("too low".into()), 100));
        for (table, number, error) in [
            ("a", 1, None),
            ("b", 7, None),
            ("a", 2, None),
            ("a", 3, refused()),
            ("a", 4, None),
            ("b", 9, None),
            ("a", 5, None),
        ] {
            acks.push_settled(table, number, error);
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
                .eq(expected.map(|(table, number, bad)| (table.into(), number, bad)))
        );
        assert_eq!(acks.next_reply(), None);
    }

    #[test]
    fn what_is_in_is_told_once_per_table() {
        let mut acks = AckQueue::default();
        let problem = || Some(refusal_error(&Error::Storage("full".into()), 100));
        for (table, number, problem) in [
            ("a", 3, None),
            ("b", 1, None),
            ("a", 0, problem()),
            ("a", 5, None),
        ] {
            acks.push_applied(table, number, problem);
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
    fn a_refusal_costs_so_much_at_most() {
        let error = Error::UnknownTable {
            name: "x".into(),
            known: vec!["y".repeat(50); 100],
        };
        for max_bytes in [0, 100, 1_000] {
            let refusal = refusal_error(&error, max_bytes);
            assert!(
                refusal
                    .text
                    .starts_with(&"no table `x`; known"[..max_bytes.min(19)])
            );
            assert!(refusal.text.ends_with("..."));
            assert_eq!(refusal.known_tables.last().unwrap(), "...");
            let names = size_of::<String>() + 3;
            assert!(
                error_bytes(&refusal) <= 2 * max_bytes + "x...".len() + names,
                "{max_bytes}"
            );
        }
    }
}
