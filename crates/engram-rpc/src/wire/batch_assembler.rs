//! Assembles a received batch: a header, then bytes that are copied directly into the columns.

use std::sync::Arc;

use engram_core::gather::{Column, ColumnData, Columns, TimeAxis};
use engram_core::pool::{Pool, PooledBytes};
use engram_core::{CellSpec, DrawDistribution, Error, Result, SampledItemInfo};

use super::{decode_cell_spec, decode_f64s, decode_i64s, decode_layout, decode_u32s, decode_u64s};
use crate::pb;
use crate::pb::column::TimeAxis as PbTimeAxis;

/// A batch received from a server.
#[derive(Debug)]
pub struct ReceivedBatch {
    /// Data of the items.
    pub columns: Columns,
    /// Key, priority and sampling information of each item.
    pub infos: Vec<SampledItemInfo>,
    /// True if the server expects an acknowledgement.
    pub leased: bool,
    /// True if acknowledging the batch removes items from a durable store: the reader can wait until that is durable.
    pub durable: bool,
}

/// Assembles the batches of a stream, one after the other.
#[derive(Debug, Default)]
pub struct BatchAssembler(Option<IncompleteBatch>);

impl BatchAssembler {
    /// Begins a batch. Returns it if the message has all its bytes.
    ///
    /// # Errors
    /// [`Error::Payload`] or [`Error::InvalidArgument`] if the header is invalid, [`Error::OutOfMemory`] if the batch
    /// is too large.
    pub fn begin(&mut self, batch: pb::Batch, pool: &Arc<Pool>) -> Result<Option<ReceivedBatch>> {
        self.0 = None;
        let batch = IncompleteBatch::new(batch, pool)?;
        Ok(self.finish_if_complete(batch))
    }

    /// Adds bytes to the batch. Returns it once it is complete.
    ///
    /// # Errors
    /// [`Error::Payload`] if no batch is incomplete, or there are more bytes than its header announced.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<ReceivedBatch>> {
        let Some(mut batch) = self.0.take() else {
            return Err(Error::Payload(
                "invalid response: part of a batch that never began".into(),
            ));
        };
        batch.push(bytes)?;
        Ok(self.finish_if_complete(batch))
    }

    fn finish_if_complete(&mut self, batch: IncompleteBatch) -> Option<ReceivedBatch> {
        if batch.is_complete() {
            return Some(batch.finish());
        }
        self.0 = Some(batch);
        None
    }
}

/// A batch of which not all bytes have been received.
#[derive(Debug)]
struct IncompleteBatch {
    layout: Arc<engram_core::Layout>,
    columns: Vec<(CellSpec, TimeAxis, Buffer)>,
    infos: Vec<SampledItemInfo>,
    leased: bool,
    durable: bool,
    /// The column that the next byte belongs to.
    current_column: usize,
    /// Number of bytes that the current column already has.
    filled: usize,
}

#[derive(Debug)]
enum Buffer {
    /// Cells of fixed size.
    Fixed(PooledBytes),
    /// The encoded strings received so far, and the announced number of bytes.
    Strings { bytes: Vec<u8>, len: usize },
}

impl Buffer {
    /// Announced number of bytes.
    fn len(&self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes.len(),
            Self::Strings { len, .. } => *len,
        }
    }
}

impl IncompleteBatch {
    /// Allocates the columns that the header describes, and adds the bytes in the same message.
    fn new(batch: pb::Batch, pool: &Arc<Pool>) -> Result<Self> {
        let infos = decode_infos(&batch)?;
        let total_bytes = (batch.columns.iter()).try_fold(0_usize, |all, column| {
            all.checked_add(usize::try_from(column.bytes).ok()?)
        });
        pool.check_batch_size(infos.len(), total_bytes)?;
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
            durable: batch.durable,
            current_column: 0,
            filled: 0,
        };
        if assembler.layout.names.len() != assembler.columns.len() {
            return Err(inconsistent("the numbers of names and columns differ"));
        }
        assembler.push(&batch.payload)?;
        Ok(assembler)
    }

    /// Adds more bytes.
    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some((_, _, buffer)) = self.columns.get_mut(self.current_column) else {
                return Err(inconsistent("it has more bytes than its columns"));
            };
            let len = bytes.len().min(buffer.len() - self.filled);
            match buffer {
                Buffer::Fixed(fixed) => {
                    fixed[self.filled..self.filled + len].copy_from_slice(&bytes[..len]);
                }
                Buffer::Strings { bytes: strings, .. } => strings.extend_from_slice(&bytes[..len]),
            }
            self.filled += len;
            bytes = &bytes[len..];
            self.skip_full_columns();
        }
        self.skip_full_columns();
        Ok(())
    }

    /// Moves on to the first column that lacks bytes.
    fn skip_full_columns(&mut self) {
        while let Some((_, _, buffer)) = self.columns.get(self.current_column)
            && self.filled == buffer.len()
        {
            self.current_column += 1;
            self.filled = 0;
        }
    }

    /// True if all bytes have been received.
    fn is_complete(&self) -> bool {
        self.current_column == self.columns.len()
    }

    /// Returns the batch, which must be complete: see [`Self::is_complete`].
    fn finish(self) -> ReceivedBatch {
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
            durable: self.durable,
        }
    }
}

/// Checks a column's header and allocates its memory.
fn prepare_column(
    column: pb::Column,
    items: usize,
    pool: &Arc<Pool>,
) -> Result<(CellSpec, TimeAxis, Buffer)> {
    let cell = column.cell.as_ref().map(decode_cell_spec);
    let cell = cell.unwrap_or_else(|| Err(inconsistent("a column has no `cell`")))?;
    let to_lengths = |numbers: Vec<i64>| {
        let lengths = numbers.into_iter().map(|len| usize::try_from(len).ok());
        let lengths: Option<Vec<usize>> = lengths.collect();
        lengths.ok_or_else(|| inconsistent("a length is negative"))
    };
    let (time, cells) = match column.time_axis {
        Some(PbTimeAxis::Squeezed(_)) => (TimeAxis::Squeezed, Some(items)),
        Some(PbTimeAxis::EqualLength(len)) => {
            let len = usize::try_from(len).map_err(|_| inconsistent("a length is too large"))?;
            (TimeAxis::Even(len), items.checked_mul(len))
        }
        Some(PbTimeAxis::RowSplitsLe(splits)) => {
            let splits = decode_i64s("row_splits_le", &splits)?;
            if splits.len() != items + 1 || splits[0] != 0 || !splits.is_sorted() {
                return Err(inconsistent(
                    "row splits do not ascend from 0, or are not one more than the items",
                ));
            }
            let cells = usize::try_from(splits[items]).ok();
            (TimeAxis::Ragged(splits), cells)
        }
        Some(PbTimeAxis::PaddedLengthsLe(lengths_le)) => {
            let lengths = to_lengths(decode_i64s("padded_lengths_le", &lengths_le)?)?;
            if lengths.len() != items {
                return Err(inconsistent("the numbers of lengths and items differ"));
            }
            let longest = lengths.iter().copied().max().unwrap_or(0);
            (
                TimeAxis::Padded { longest, lengths },
                items.checked_mul(longest),
            )
        }
        None => return Err(inconsistent("a column has no `time_axis`")),
    };
    let len = usize::try_from(column.bytes).map_err(|_| inconsistent("a column is too large"))?;
    if cell.dtype.is_string() {
        let bytes = Vec::new();
        return Ok((cell, time, Buffer::Strings { bytes, len }));
    }
    if cells.and_then(|cells| cells.checked_mul(cell.bytes())) != Some(len) {
        return Err(inconsistent("a column's bytes do not match its cells"));
    }
    let buffer = pool.take(len);
    let buffer =
        buffer.ok_or_else(|| Error::out_of_memory("a batch from the server", Some(len)))?;
    Ok((cell, time, Buffer::Fixed(buffer)))
}

/// Decodes the keys, priorities and sampling information of the items.
fn decode_infos(batch: &pb::Batch) -> Result<Vec<SampledItemInfo>> {
    let keys = decode_u64s("keys_le", &batch.keys_le)?;
    let probabilities = decode_f64s("probabilities_le", &batch.probabilities_le)?;
    let priorities = decode_f64s("priorities_le", &batch.priorities_le)?;
    let times = decode_u32s("times_sampled_le", &batch.times_sampled_le)?;
    let total: u64 = batch.draw_runs.iter().map(|run| u64::from(run.items)).sum();
    let numbers = [probabilities.len(), priorities.len(), times.len()];
    if numbers.iter().any(|len| *len != keys.len()) || total != keys.len() as u64 {
        return Err(inconsistent("its arrays have different numbers of items"));
    }
    let distribution = batch.draw_runs.iter().flat_map(|run| {
        let distribution = DrawDistribution {
            candidates: run.candidates,
            min_probability: run.min_probability,
            total_weight: run.total_weight,
        };
        std::iter::repeat_n((run.table_size, distribution), run.items as usize)
    });
    let infos = (keys.into_iter().zip(probabilities)).zip(priorities.into_iter().zip(times));
    Ok(infos
        .zip(distribution)
        .map(
            |(((key, probability), (priority, times_sampled)), (table_size, distribution))| {
                SampledItemInfo {
                    key,
                    probability,
                    priority,
                    times_sampled,
                    table_size,
                    distribution,
                }
            },
        )
        .collect())
}

fn inconsistent(what: &str) -> Error {
    Error::Payload(format!("the server sent an inconsistent batch: {what}"))
}
