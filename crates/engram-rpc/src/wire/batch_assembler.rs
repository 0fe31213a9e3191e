//! Batches as they arrive: a header, then bytes straight into the final columns.

use std::sync::Arc;

use engram_core::gather::{Column, ColumnData, Columns, TimeAxis};
use engram_core::pool::{Pool, PooledBytes};
use engram_core::{CellSpec, DType, Error, Odds, Result, SampledItemInfo};

use super::{decode_cell, decode_f64s, decode_i64s, decode_layout, decode_u32s, decode_u64s};
use crate::pb;
use crate::pb::column::TimeAxis as TimeOut;

/// A batch of a server.
#[derive(Debug)]
pub struct ReceivedBatch {
    /// The data.
    pub columns: Columns,
    /// What is known about its items.
    pub infos: Vec<SampledItemInfo>,
    /// The server waits for an acknowledgement.
    pub leased: bool,
}

/// A batch whose bytes are still assembler.
#[derive(Debug)]
pub struct BatchAssembler {
    layout: Arc<engram_core::Layout>,
    columns: Vec<(CellSpec, TimeAxis, Buffer)>,
    infos: Vec<SampledItemInfo>,
    leased: bool,
    /// The column that the next byte belongs to, and how many it has already.
    at: usize,
    filled: usize,
}

#[derive(Debug)]
enum Buffer {
    Fixed(PooledBytes),
    Strings { bytes: Vec<u8>, len: usize },
}

impl Buffer {
    fn len(&self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes.len(),
            Self::Strings { len, .. } => *len,
        }
    }
}

impl BatchAssembler {
    /// Makes room for what the header announces, and takes the bytes that came with it.
    ///
    /// # Errors
    /// [`Error::Payload`] where it contradicts itself.
    pub fn new(batch: pb::Batch, pool: &Arc<Pool>) -> Result<Self> {
        let infos = decode_infos(&batch)?;
        let announced = (batch.columns.iter()).try_fold(0_usize, |all, column| {
            all.checked_add(usize::try_from(column.bytes).ok()?)
        });
        pool.check(infos.len(), announced)?;
        let columns = batch
            .columns
            .into_iter()
            .map(|column| prepare_column(column, infos.len(), pool))
            .collect::<Result<Vec<_>>>()?;
        let mut assembler = Self {
            layout: Arc::new(decode_layout(batch.layout)?),
            columns,
            infos,
            leased: batch.leased,
            at: 0,
            filled: 0,
        };
        if assembler.layout.names.len() != assembler.columns.len() {
            return Err(contradiction("names and columns differ in number"));
        }
        assembler.push(&batch.payload)?;
        Ok(assembler)
    }

    /// Takes more bytes.
    ///
    /// # Errors
    /// [`Error::Payload`] when there are more than were announced.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some((_, _, buffer)) = self.columns.get_mut(self.at) else {
                return Err(contradiction("more bytes than its columns have"));
            };
            let some = bytes.len().min(buffer.len() - self.filled);
            match buffer {
                Buffer::Fixed(fixed) => {
                    fixed[self.filled..self.filled + some].copy_from_slice(&bytes[..some]);
                }
                Buffer::Strings { bytes: strings, .. } => strings.extend_from_slice(&bytes[..some]),
            }
            self.filled += some;
            bytes = &bytes[some..];
            self.skip_full();
        }
        self.skip_full();
        Ok(())
    }

    fn skip_full(&mut self) {
        while let Some((_, _, buffer)) = self.columns.get(self.at)
            && self.filled == buffer.len()
        {
            self.at += 1;
            self.filled = 0;
        }
    }

    /// True when nothing is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.at == self.columns.len()
    }

    /// The whole batch.
    #[must_use]
    pub fn finish(self) -> ReceivedBatch {
        let columns = self.columns.into_iter().map(|(cell, time, buffer)| Column {
            cell,
            time,
            data: match buffer {
                Buffer::Fixed(bytes) => ColumnData::Bytes(bytes),
                Buffer::Strings { bytes, .. } => ColumnData::Strings(bytes),
            },
        });
        ReceivedBatch {
            columns: Columns {
                layout: self.layout,
                columns: columns.collect(),
            },
            infos: self.infos,
            leased: self.leased,
        }
    }
}

fn prepare_column(
    column: pb::Column,
    items: usize,
    pool: &Arc<Pool>,
) -> Result<(CellSpec, TimeAxis, Buffer)> {
    let cell = column.cell.as_ref().map(decode_cell);
    let cell = cell.unwrap_or_else(|| Err(contradiction("a column without cells")))?;
    let lengths = |numbers: Vec<i64>| {
        let lengths = numbers.into_iter().map(|len| usize::try_from(len).ok());
        let lengths: Option<Vec<usize>> = lengths.collect();
        lengths.ok_or_else(|| contradiction("a negative length"))
    };
    let (time, cells) = match column.time_axis {
        Some(TimeOut::Squeezed(_)) => (TimeAxis::Squeezed, Some(items)),
        Some(TimeOut::EqualLength(len)) => {
            let len = usize::try_from(len).map_err(|_| contradiction("a huge length"))?;
            (TimeAxis::Even(len), items.checked_mul(len))
        }
        Some(TimeOut::RowSplitsLe(splits)) => {
            let splits = decode_i64s("row_splits_le", &splits)?;
            if splits.len() != items + 1 || splits[0] != 0 || !splits.is_sorted() {
                return Err(contradiction("row splits that do not ascend from 0"));
            }
            let cells = usize::try_from(splits[items]).ok();
            (TimeAxis::Ragged(splits), cells)
        }
        Some(TimeOut::PaddedLengthsLe(each)) => {
            let lengths = lengths(decode_i64s("padded_lengths_le", &each)?)?;
            if lengths.len() != items {
                return Err(contradiction("lengths and items differ in number"));
            }
            let longest = lengths.iter().copied().max().unwrap_or(0);
            (
                TimeAxis::Padded { longest, lengths },
                items.checked_mul(longest),
            )
        }
        None => return Err(contradiction("a column without a time axis or none")),
    };
    let len = usize::try_from(column.bytes).map_err(|_| contradiction("a huge column"))?;
    if cell.dtype == DType::String {
        let bytes = Vec::new();
        return Ok((cell, time, Buffer::Strings { bytes, len }));
    }
    if cells.and_then(|cells| cells.checked_mul(cell.bytes())) != Some(len) {
        return Err(contradiction("cells and bytes of a column differ"));
    }
    let buffer = pool.take(len);
    let buffer =
        buffer.ok_or_else(|| Error::out_of_memory("a batch from the server", Some(len)))?;
    Ok((cell, time, Buffer::Fixed(buffer)))
}

fn decode_infos(batch: &pb::Batch) -> Result<Vec<SampledItemInfo>> {
    let keys = decode_u64s("keys_le", &batch.keys_le)?;
    let probabilities = decode_f64s("probabilities_le", &batch.probabilities_le)?;
    let priorities = decode_f64s("priorities_le", &batch.priorities_le)?;
    let times = decode_u32s("times_sampled_le", &batch.times_sampled_le)?;
    let granted: u64 = batch
        .draw_runs
        .iter()
        .map(|grant| u64::from(grant.items))
        .sum();
    let numbers = [probabilities.len(), priorities.len(), times.len()];
    if numbers.iter().any(|len| *len != keys.len()) || granted != keys.len() as u64 {
        return Err(contradiction("infos of differing numbers of items"));
    }
    let odds = batch.draw_runs.iter().flat_map(|grant| {
        let odds = Odds {
            candidates: grant.candidates,
            min_probability: grant.min_probability,
        };
        std::iter::repeat_n((grant.table_size, odds), grant.items as usize)
    });
    let infos = (keys.into_iter().zip(probabilities)).zip(priorities.into_iter().zip(times));
    Ok(infos
        .zip(odds)
        .map(
            |(((key, probability), (priority, times_sampled)), (table_size, odds))| {
                SampledItemInfo {
                    key,
                    probability,
                    priority,
                    times_sampled,
                    table_size,
                    odds,
                }
            },
        )
        .collect())
}

fn contradiction(what: &str) -> Error {
    Error::Payload(format!(
        "the server sent a batch that contradicts itself: {what}"
    ))
}
