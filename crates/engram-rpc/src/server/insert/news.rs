//! What a stream's writer has yet to hear: how far each table is with its items.

use std::collections::VecDeque;

use engram_core::Error;
use prost::Message as _;

use crate::pb;
use crate::server::names::{keep_some, shortened};
use crate::wire::encode_error;

/// Bytes of news in one message.
const REPLY: usize = 1 << 20;

/// Bytes of one error's text.
pub(super) const TEXT: usize = 64 << 10;

/// Latest news among which those of a table are looked for, to be replaced by newer ones.
const LATEST: usize = 16;

/// News, oldest first.
#[derive(Debug, Default)]
pub(super) struct News {
    settled: VecDeque<pb::Completed>,
    /// One per table.
    taken: Vec<pb::Inserted>,
}

impl News {
    pub(super) fn len(&self) -> usize {
        self.settled.len() + self.taken.len()
    }

    /// A table has items up to a number, which are not safe yet; why they cannot be now.
    pub(super) fn take(&mut self, table: &str, number: u64, problem: Option<pb::Error>) {
        if let Some(news) = self.taken.iter_mut().find(|news| news.table == table) {
            news.number = news.number.max(number);
            news.durability_error = problem.or_else(|| news.durability_error.take());
        } else {
            self.taken.push(pb::Inserted {
                table: table.into(),
                number,
                durability_error: problem,
            });
        }
    }

    /// A table is done with items up to a number.
    pub(super) fn add(&mut self, table: &str, number: u64, error: Option<pb::Error>) {
        let mut latest = self.settled.iter_mut().rev().take(LATEST);
        match latest.find(|news| news.table == table) {
            Some(last) if last.error.is_none() && error.is_none() => last.number = number,
            _ => self.settled.push_back(pb::Completed {
                table: table.into(),
                number,
                error,
            }),
        }
    }

    /// The next news, as many as go into one message.
    pub(super) fn next_reply(&mut self) -> Option<pb::InsertResponse> {
        let mut bytes = 0;
        let mut settled = Vec::new();
        while bytes < REPLY
            && let Some(news) = self.settled.pop_front()
        {
            bytes += news.encoded_len();
            settled.push(news);
        }
        let taken = std::mem::take(&mut self.taken);
        let is_news = !(settled.is_empty() && taken.is_empty());
        is_news.then_some(pb::InsertResponse {
            completed: settled,
            inserted: taken,
        })
    }
}

/// Why items are refused, in so many bytes of text; the names that exist count as much again.
pub(super) fn refusal(error: &Error, most: usize) -> pb::Error {
    let mut error = encode_error(error);
    error.text = shortened(error.text, most);
    keep_some(&mut error.known_tables, most);
    error
}

/// Bytes that an error takes.
pub(super) fn weight(error: &pb::Error) -> usize {
    let names = error.known_tables.iter();
    let names: usize = names.map(|name| size_of::<String>() + name.len()).sum();
    error.text.len() + error.table.len() + names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_one_table_are_joined_unless_an_error_is_between() {
        let mut news = News::default();
        let refused = || Some(refusal(&Error::Priority("too low".into()), 100));
        for (table, number, error) in [
            ("a", 1, None),
            ("b", 7, None),
            ("a", 2, None),
            ("a", 3, refused()),
            ("a", 4, None),
            ("b", 9, None),
            ("a", 5, None),
        ] {
            news.add(table, number, error);
        }
        let told = news.next_reply().unwrap().completed.into_iter();
        let told: Vec<_> = told
            .map(|news| (news.table, news.number, news.error.is_some()))
            .collect();
        let due = [
            ("a", 2, false),
            ("b", 9, false),
            ("a", 3, true),
            ("a", 5, false),
        ];
        assert!(
            told.into_iter()
                .eq(due.map(|(table, number, bad)| (table.into(), number, bad)))
        );
        assert_eq!(news.next_reply(), None);
    }

    #[test]
    fn what_is_in_is_told_once_per_table() {
        let mut news = News::default();
        let problem = || Some(refusal(&Error::Storage("full".into()), 100));
        for (table, number, problem) in [
            ("a", 3, None),
            ("b", 1, None),
            ("a", 0, problem()),
            ("a", 5, None),
        ] {
            news.take(table, number, problem);
        }
        assert_eq!(news.len(), 2);
        let told = news.next_reply().unwrap().inserted.into_iter();
        let told: Vec<_> = told
            .map(|news| (news.table, news.number, news.durability_error.is_some()))
            .collect();
        assert_eq!(told, [("a".into(), 5, true), ("b".into(), 1, false)]);
        assert_eq!(news.next_reply(), None);
    }

    #[test]
    fn a_refusal_costs_so_much_at_most() {
        let error = Error::UnknownTable {
            name: "x".into(),
            known: vec!["y".repeat(50); 100],
        };
        for most in [0, 100, 1_000] {
            let refusal = refusal(&error, most);
            assert!(
                refusal
                    .text
                    .starts_with(&"no table `x`; known"[..most.min(19)])
            );
            assert!(refusal.text.ends_with("..."));
            assert_eq!(refusal.known_tables.last().unwrap(), "...");
            let names = size_of::<String>() + 3;
            assert!(
                weight(&refusal) <= 2 * most + "x...".len() + names,
                "{most}"
            );
        }
    }
}
