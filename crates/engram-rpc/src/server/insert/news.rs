//! What a stream's writer has yet to hear: how far each table is with its items.

use std::collections::VecDeque;

use engram_core::Result;
use prost::Message as _;

use crate::pb;
use crate::wire::error_out;

/// Bytes of news in one message.
const REPLY: usize = 1 << 20;

/// Bytes of one error's text.
const TEXT: usize = 64 << 10;

/// Latest news among which those of a table are looked for, to be replaced by newer ones.
const LATEST: usize = 16;

/// News, oldest first.
#[derive(Debug, Default)]
pub(super) struct News(VecDeque<pb::Settled>);

impl News {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A table is done with items up to a number.
    pub(super) fn add(&mut self, table: &str, number: u64, outcome: Result<()>) {
        let error = outcome.err().map(|error| {
            let mut error = error_out(&error);
            error.text = shortened(error.text, TEXT);
            error
        });
        let mut latest = self.0.iter_mut().rev().take(LATEST);
        match latest.find(|news| news.table == table) {
            Some(last) if last.error.is_none() && error.is_none() => last.number = number,
            _ => self.0.push_back(pb::Settled {
                table: table.into(),
                number,
                error,
            }),
        }
    }

    /// The next news, as many as go into one message.
    pub(super) fn next_reply(&mut self) -> Option<pb::InsertReply> {
        let mut bytes = 0;
        let mut settled = Vec::new();
        while bytes < REPLY
            && let Some(news) = self.0.pop_front()
        {
            bytes += news.encoded_len();
            settled.push(news);
        }
        (!settled.is_empty()).then_some(pb::InsertReply { settled })
    }
}

/// Texts name what their sender has named, at any length.
pub(super) fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text += "...";
    }
    text
}

#[cfg(test)]
mod tests {
    use engram_core::Error;

    use super::*;

    #[test]
    fn news_of_one_table_are_joined_unless_an_error_is_between() {
        let mut news = News::default();
        let refused = || Err(Error::Priority("too low".into()));
        for (table, number, outcome) in [
            ("a", 1, Ok(())),
            ("b", 7, Ok(())),
            ("a", 2, Ok(())),
            ("a", 3, refused()),
            ("a", 4, Ok(())),
            ("b", 9, Ok(())),
            ("a", 5, Ok(())),
        ] {
            news.add(table, number, outcome);
        }
        let told = news.next_reply().unwrap().settled.into_iter();
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
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("abcd".into(), 4), "abcd");
        assert_eq!(shortened("abcdé!".into(), 5), "abcd...");
    }
}
