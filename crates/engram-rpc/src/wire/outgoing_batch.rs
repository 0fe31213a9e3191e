//! From a gathered batch to messages.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use engram_core::gather::{Column, ColumnData, Columns, TimeAxis};
use engram_core::pool::PooledBytes;
use engram_core::{Draw, Error, Result};
use prost::Message;

use super::{encode_cell, encode_layout, encode_numbers};
use crate::PART_BYTES;
use crate::pb;
use crate::pb::sample_response::Outcome;

/// Bytes that everything else in a batch's first message may take: it must stay below 4 MiB.
const FACTS: usize = (3 << 20) - 1024;

/// A batch on its way: the messages that make it up, made as they are asked for.
#[derive(Debug)]
pub struct OutgoingBatch {
    first: Option<pb::Batch>,
    /// What is left of the columns.
    columns: VecDeque<Bytes>,
}

impl OutgoingBatch {
    /// A batch of these draws, to be acknowledged by its reader where it is `leased`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when what is told of its items does not fit one message.
    pub fn new(batch: Columns, draws: &[Draw], leased: bool) -> Result<Self> {
        let mut columns = VecDeque::with_capacity(batch.columns.len());
        let facts = pb::Batch {
            layout: Some(encode_layout(&batch.layout)),
            columns: (batch.columns.into_iter())
                .map(|column| encode_column(column, &mut columns))
                .collect(),
            keys_le: encode_numbers(draws.iter().map(|draw| draw.key)),
            probabilities_le: encode_numbers(draws.iter().map(|draw| draw.probability)),
            priorities_le: encode_numbers(draws.iter().map(|draw| draw.priority)),
            times_sampled_le: encode_numbers(draws.iter().map(|draw| draw.times_sampled)),
            draw_runs: grants(draws),
            payload: Bytes::new(),
            leased,
        };
        let bytes = facts.encoded_len();
        if bytes > FACTS {
            return Err(Error::InvalidArgument(format!(
                "what is told of the {} items of a batch takes {bytes} bytes beside their data; at \
                 most {FACTS} travel with one: ask for fewer at a time",
                draws.len()
            )));
        }
        Ok(Self {
            first: Some(facts),
            columns,
        })
    }

    /// True once all messages were made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.columns.is_empty()
    }
}

impl Iterator for OutgoingBatch {
    type Item = Outcome;

    fn next(&mut self) -> Option<Outcome> {
        if let Some(facts) = self.first.take() {
            let payload = cut(&mut self.columns);
            return Some(Outcome::Batch(pb::Batch { payload, ..facts }));
        }
        (!self.columns.is_empty()).then(|| Outcome::BatchPart(cut(&mut self.columns)))
    }
}

/// Bytes of a column, on loan from their pool until the last message with some of them is gone.
struct Owned(PooledBytes);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn encode_column(column: Column, columns: &mut VecDeque<Bytes>) -> pb::Column {
    use pb::column::TimeAxis as Out;

    let bytes = match column.data {
        ColumnData::Bytes(bytes) => Bytes::from_owner(Owned(bytes)),
        ColumnData::Strings(encoded) => Bytes::from(encoded),
    };
    let out = pb::Column {
        cell: Some(encode_cell(&column.cell)),
        time_axis: Some(match column.time {
            TimeAxis::Squeezed => Out::Squeezed(pb::Empty {}),
            TimeAxis::Even(len) => Out::EqualLength(len as u64),
            TimeAxis::Ragged(splits) => Out::RowSplitsLe(encode_numbers(splits.into_iter())),
            TimeAxis::Padded { lengths, .. } => {
                let lengths = lengths.into_iter();
                Out::PaddedLengthsLe(encode_numbers(
                    lengths.map(|len| i64::try_from(len).unwrap_or(i64::MAX)),
                ))
            }
        }),
        bytes: bytes.len() as u64,
    };
    if !bytes.is_empty() {
        columns.push_back(bytes);
    }
    out
}

/// The next bytes of the columns: copied where several columns share a message, lent otherwise.
fn cut(columns: &mut VecDeque<Bytes>) -> Bytes {
    let left: usize = columns.iter().map(Bytes::len).sum();
    let size = left.min(PART_BYTES);
    let mut out = BytesMut::new();
    while out.len() < size {
        let Some(front) = columns.front_mut() else {
            break;
        };
        let wanted = size - out.len();
        let piece = front.split_to(front.len().min(wanted));
        if front.is_empty() {
            columns.pop_front();
        }
        if piece.len() == size {
            return piece;
        }
        out.reserve(wanted);
        out.extend_from_slice(&piece);
    }
    out.freeze()
}

/// Runs of draws that were made of the same table.
fn grants(draws: &[Draw]) -> Vec<pb::DrawRun> {
    let same = |one: &Draw, next: &Draw| {
        one.table_size == next.table_size
            && one.odds.candidates == next.odds.candidates
            && one.odds.min_probability.to_bits() == next.odds.min_probability.to_bits()
    };
    draws
        .chunk_by(same)
        .map(|run| pb::DrawRun {
            items: u32::try_from(run.len()).unwrap_or(u32::MAX),
            table_size: run[0].table_size,
            candidates: run[0].odds.candidates,
            min_probability: run[0].odds.min_probability,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_cut_end_to_end() {
        let sizes = [10, PART_BYTES - 5, 2 * PART_BYTES, 0, 7];
        let mut all = Vec::new();
        let mut columns = VecDeque::new();
        for (at, size) in sizes.into_iter().enumerate() {
            let first = u8::try_from(at * 50).unwrap();
            let bytes: Vec<u8> = (0..50)
                .map(|byte| first + byte)
                .cycle()
                .take(size)
                .collect();
            all.extend_from_slice(&bytes);
            if size > 0 {
                columns.push_back(Bytes::from(bytes));
            }
        }
        let mut batch = OutgoingBatch {
            first: Some(pb::Batch::default()),
            columns,
        };
        let (mut found, mut messages) = (Vec::new(), Vec::new());
        while !batch.is_empty() {
            let bytes = match batch.next().unwrap() {
                Outcome::Batch(batch) => batch.payload,
                Outcome::BatchPart(part) => part,
                other => panic!("{other:?}"),
            };
            messages.push(bytes.len());
            found.extend_from_slice(&bytes);
        }
        assert_eq!(messages, [PART_BYTES, PART_BYTES, PART_BYTES, 12]);
        assert!(found == all);
        assert_eq!(batch.next(), None);
    }

    #[test]
    fn a_whole_part_of_one_column_is_lent() {
        let column = Bytes::from(vec![1; 3 * PART_BYTES]);
        let address = column.as_ptr();
        let mut columns = VecDeque::from([column]);
        cut(&mut columns);
        assert_eq!(cut(&mut columns).as_ptr(), address.wrapping_add(PART_BYTES));
    }
}
