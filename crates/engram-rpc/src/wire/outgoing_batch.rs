//! Splits a gathered batch into messages.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use engram_core::gather::{Column, ColumnData, Columns, TimeAxis};
use engram_core::pool::PooledBytes;
use engram_core::{Draw, Error, Result};
use prost::Message;

use super::{encode_cell_spec, encode_layout, encode_numbers};
use crate::PART_BYTES;
use crate::pb;
use crate::pb::{sample_response, scan_response};

/// Maximum encoded size of a batch's first message without its payload, so that the message stays
/// below 4 MiB.
const MAX_HEADER_BYTES: usize = (3 << 20) - 1024;

/// Approximate bytes of a batch's header per item: key, probability, priority and sample count, rounded up.
pub const HEADER_BYTES_PER_ITEM: usize = 32;

/// A batch to send. An iterator that creates the batch's messages on demand.
#[derive(Debug)]
pub struct OutgoingBatch {
    header: Option<pb::Batch>,
    /// Encoded size of the header; 0 once it was returned.
    header_bytes: usize,
    /// The bytes of each column that are not sent yet.
    unsent: VecDeque<Bytes>,
}

impl OutgoingBatch {
    /// Returns the batch of these draws, whose data is `gathered`. If `leased`, the reader must acknowledge the batch;
    /// if `durable`, it can wait until the acknowledgement is durable.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the header does not fit one message.
    pub fn new(gathered: Columns, draws: &[Draw], leased: bool, durable: bool) -> Result<Self> {
        let mut unsent = VecDeque::with_capacity(gathered.columns.len());
        let header = pb::Batch {
            layout: Some(encode_layout(&gathered.layout)),
            columns: (gathered.columns.into_iter())
                .map(|column| encode_column(column, &mut unsent))
                .collect(),
            keys_le: encode_numbers(draws.iter().map(|draw| draw.key)),
            probabilities_le: encode_numbers(draws.iter().map(|draw| draw.probability)),
            priorities_le: encode_numbers(draws.iter().map(|draw| draw.priority)),
            times_sampled_le: encode_numbers(draws.iter().map(|draw| draw.times_sampled)),
            draw_runs: group_draws(draws),
            payload: Bytes::new(),
            leased,
            durable,
        };
        let header_bytes = header.encoded_len();
        if header_bytes > MAX_HEADER_BYTES {
            return Err(Error::InvalidArgument(format!(
                "the keys, priorities and lengths of the {} items of a batch have {header_bytes} bytes; \
                 at most {MAX_HEADER_BYTES} are allowed; request fewer items at a time",
                draws.len()
            )));
        }
        Ok(Self {
            header: Some(header),
            header_bytes,
            unsent,
        })
    }

    /// Bytes of the messages that are not returned yet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.header_bytes + self.unsent.iter().map(Bytes::len).sum::<usize>()
    }

    /// True if the iterator has returned all messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.is_none() && self.unsent.is_empty()
    }
}

/// The content of one message of a batch.
#[derive(Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "moved at once into an outcome of the same size"
)]
pub enum BatchMessage {
    /// The first message.
    First(pb::Batch),
    /// More bytes of the columns.
    Part(Bytes),
}

impl From<BatchMessage> for sample_response::Outcome {
    fn from(message: BatchMessage) -> Self {
        match message {
            BatchMessage::First(batch) => Self::Batch(batch),
            BatchMessage::Part(bytes) => Self::BatchPart(bytes),
        }
    }
}

impl From<BatchMessage> for scan_response::Outcome {
    fn from(message: BatchMessage) -> Self {
        match message {
            BatchMessage::First(batch) => Self::Batch(batch),
            BatchMessage::Part(bytes) => Self::BatchPart(bytes),
        }
    }
}

impl Iterator for OutgoingBatch {
    type Item = BatchMessage;

    fn next(&mut self) -> Option<BatchMessage> {
        if let Some(header) = self.header.take() {
            self.header_bytes = 0;
            let payload = take_part(&mut self.unsent);
            return Some(BatchMessage::First(pb::Batch { payload, ..header }));
        }
        (!self.unsent.is_empty()).then(|| BatchMessage::Part(take_part(&mut self.unsent)))
    }
}

/// A column's bytes, which return to their pool when the last message that refers to them is dropped.
struct ColumnBytes(PooledBytes);

impl AsRef<[u8]> for ColumnBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Encodes a column's header, and appends its bytes to `unsent`.
fn encode_column(column: Column, unsent: &mut VecDeque<Bytes>) -> pb::Column {
    use pb::column::TimeAxis as PbTimeAxis;

    let bytes = match column.data {
        ColumnData::Bytes(bytes) => Bytes::from_owner(ColumnBytes(bytes)),
        ColumnData::Strings(encoded) => Bytes::from(encoded),
    };
    let message = pb::Column {
        cell: Some(encode_cell_spec(&column.cell)),
        time_axis: Some(match column.time {
            TimeAxis::Squeezed => PbTimeAxis::Squeezed(pb::Empty {}),
            TimeAxis::Even(len) => PbTimeAxis::EqualLength(len as u64),
            TimeAxis::Ragged(splits) => PbTimeAxis::RowSplitsLe(encode_numbers(splits.into_iter())),
            TimeAxis::Padded { lengths, .. } => {
                let lengths = lengths.into_iter();
                PbTimeAxis::PaddedLengthsLe(encode_numbers(
                    lengths.map(|len| i64::try_from(len).unwrap_or(i64::MAX)),
                ))
            }
        }),
        bytes: bytes.len() as u64,
    };
    if !bytes.is_empty() {
        unsent.push_back(bytes);
    }
    message
}

/// Removes and returns the bytes of the next message. Copies them only if they span several columns.
fn take_part(unsent: &mut VecDeque<Bytes>) -> Bytes {
    let total: usize = unsent.iter().map(Bytes::len).sum();
    let size = total.min(PART_BYTES);
    let mut out = BytesMut::new();
    while out.len() < size {
        let Some(front) = unsent.front_mut() else {
            break;
        };
        let missing = size - out.len();
        let piece = front.split_to(front.len().min(missing));
        if front.is_empty() {
            unsent.pop_front();
        }
        if piece.len() == size {
            return piece;
        }
        out.reserve(missing);
        out.extend_from_slice(&piece);
    }
    out.freeze()
}

/// Groups consecutive draws that were made in the same state of the table.
fn group_draws(draws: &[Draw]) -> Vec<pb::DrawRun> {
    let same = |one: &Draw, next: &Draw| {
        one.table_size == next.table_size
            && one.distribution.candidates == next.distribution.candidates
            && one.distribution.min_probability.to_bits()
                == next.distribution.min_probability.to_bits()
            && one.distribution.total_weight.to_bits() == next.distribution.total_weight.to_bits()
    };
    draws
        .chunk_by(same)
        .map(|run| pb::DrawRun {
            items: u32::try_from(run.len()).unwrap_or(u32::MAX),
            table_size: run[0].table_size,
            candidates: run[0].distribution.candidates,
            min_probability: run[0].distribution.min_probability,
            total_weight: run[0].distribution.total_weight,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_contain_the_columns_end_to_end() {
        let sizes = [10, PART_BYTES - 5, 2 * PART_BYTES, 0, 7];
        let mut all = Vec::new();
        let mut unsent = VecDeque::new();
        for (index, size) in sizes.into_iter().enumerate() {
            let first = u8::try_from(index * 50).unwrap();
            let bytes: Vec<u8> = (0..50)
                .map(|byte| first + byte)
                .cycle()
                .take(size)
                .collect();
            all.extend_from_slice(&bytes);
            if size > 0 {
                unsent.push_back(Bytes::from(bytes));
            }
        }
        let mut batch = OutgoingBatch {
            header: Some(pb::Batch::default()),
            header_bytes: 0,
            unsent,
        };
        let (mut received, mut messages) = (Vec::new(), Vec::new());
        while !batch.is_empty() {
            let bytes = match batch.next().unwrap() {
                BatchMessage::First(batch) => batch.payload,
                BatchMessage::Part(part) => part,
            };
            messages.push(bytes.len());
            received.extend_from_slice(&bytes);
        }
        assert_eq!(messages, [PART_BYTES, PART_BYTES, PART_BYTES, 12]);
        assert!(received == all);
        assert_eq!(batch.next(), None);
    }

    #[test]
    fn the_bytes_of_a_batch_include_its_header() {
        let header = pb::Batch {
            keys_le: Bytes::from(vec![0; 8_000]),
            ..pb::Batch::default()
        };
        let mut batch = OutgoingBatch {
            header_bytes: header.encoded_len(),
            header: Some(header),
            unsent: VecDeque::from([Bytes::from(vec![0; PART_BYTES + 1])]),
        };
        assert!(batch.bytes() > 8_000 + PART_BYTES, "{}", batch.bytes());
        batch.next();
        assert_eq!(batch.bytes(), 1);
    }

    #[test]
    fn a_part_of_one_column_is_not_copied() {
        let column = Bytes::from(vec![1; 3 * PART_BYTES]);
        let address = column.as_ptr();
        let mut unsent = VecDeque::from([column]);
        take_part(&mut unsent);
        assert_eq!(
            take_part(&mut unsent).as_ptr(),
            address.wrapping_add(PART_BYTES)
        );
    }
}
