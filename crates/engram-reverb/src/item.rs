//! Decodes dm-reverb's items, and encodes samples for its clients.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::gather::{ColumnData, LengthPolicy, TimeAxis, gather};
use engram_core::pool::Pool;
use engram_core::{
    Chunk, Draw, Error, Layout, NewItem, Result as CoreResult, Signature, Slice, SpanColumn, Spans,
    TableOptions, Trajectory,
};
use prost::Message as _;
use tonic::Status;

use crate::chunk::{ChunkDecoder, MAX_COLUMNS};
use crate::keys::engram_key;
use crate::pb;
use crate::pb::flat_trajectory::{ChunkSlice, Column};
use crate::pb::sample_stream_response::SampleEntry;
use crate::pb::tensorflow::ChunkTensor;
use crate::status::{invalid, shortened, status};
use crate::tensor_encoder::encode_tensor;

/// Maximum number of slices of an item in the deprecated format, which has up to one slice per chunk and column.
const MAX_DEPRECATED_SLICES: usize = 1 << 20;

/// Maximum number of bytes of a sample: somewhat less than protobuf allows for a message.
pub(crate) const MAX_SAMPLE_BYTES: usize = (2 << 30) - (1 << 20);

/// Chunks by dm-reverb's keys.
pub type ChunksByKey = HashMap<u64, Arc<Chunk>>;

/// Decodes an item for a table. The item refers to chunks in `by_key`.
///
/// # Errors
/// `INTERNAL` for an unknown chunk, with dm-reverb's text; `INVALID_ARGUMENT` for an invalid item.
pub fn decode_item(
    decoder: &mut ChunkDecoder,
    by_key: &ChunksByKey,
    table: &TableOptions,
    message: &pb::PrioritizedItem,
) -> Result<NewItem, Status> {
    let deprecated;
    let columns = if let Some(trajectory) = &message.flat_trajectory {
        &trajectory.columns
    } else {
        deprecated = deprecated_columns(message, by_key)?;
        &deprecated
    };
    if columns.is_empty() || columns.len() > MAX_COLUMNS {
        return Err(invalid(format!(
            "item {} must have 1 to {MAX_COLUMNS} columns; got {}",
            message.key,
            columns.len()
        )));
    }
    let layout = decoder.item_layout(table, columns.len());
    let mut spans = decode_spans(layout, by_key, columns)?;
    if let Some(signature) = &table.signature {
        squeeze_step(&mut spans, signature);
    }
    let trajectory = as_rows(&spans).unwrap_or_else(|| Trajectory::Spans(Arc::new(spans)));
    trajectory.check_parts().map_err(|error| status(&error))?;
    Ok(NewItem {
        key: engram_key(message.key),
        trajectory,
        priority: message.priority,
    })
}

fn find_chunk(by_key: &ChunksByKey, key: u64) -> Result<&Arc<Chunk>, Status> {
    let chunk = by_key.get(&key);
    chunk.ok_or_else(|| Status::internal(format!("Could not find sequence chunk {key}.")))
}

fn decode_spans(
    layout: Arc<Layout>,
    by_key: &ChunksByKey,
    columns: &[Column],
) -> Result<Spans, Status> {
    let mut chunks: Vec<Arc<Chunk>> = Vec::new();
    let mut indices: HashMap<u64, u32> = HashMap::new();
    let mut slices = Vec::new();
    let mut out = Vec::with_capacity(columns.len());
    for column in columns {
        let first_slice = to_u32(slices.len())?;
        let mut len = 0_u32;
        for slice in &column.chunk_slices {
            let chunk = if let Some(index) = indices.get(&slice.chunk_key) {
                *index
            } else {
                let index = to_u32(chunks.len())?;
                chunks.push(Arc::clone(find_chunk(by_key, slice.chunk_key)?));
                indices.insert(slice.chunk_key, index);
                index
            };
            let number = |number: i32| u32::try_from(number).ok();
            let numbers = (
                number(slice.offset),
                number(slice.length),
                number(slice.index),
            );
            let (Some(offset), Some(cells), Some(column)) = numbers else {
                return Err(invalid(format!(
                    "a slice of chunk {} has offset {}, length {} and index {}; none may be negative",
                    slice.chunk_key, slice.offset, slice.length, slice.index
                )));
            };
            len = len.checked_add(cells).ok_or_else(too_long)?;
            slices.push(Slice {
                chunk,
                column,
                offset,
                len: cells,
            });
        }
        out.push(SpanColumn {
            first_slice,
            len,
            squeeze: column.squeeze,
        });
    }
    Ok(Spans {
        layout,
        chunks: chunks.into(),
        columns: out.into(),
        slices: slices.into(),
    })
}

/// Removes the time axes of an item of one step if the signature has none: dm-reverb's `insert` always
/// adds them.
fn squeeze_step(spans: &mut Spans, signature: &Signature) {
    let axes = |column: &SpanColumn| {
        let slice = spans.slices.get(column.first_slice as usize)?;
        let schema = spans.chunks.get(slice.chunk as usize)?.schema();
        Some(schema.cells.get(slice.column as usize)?.shape.len())
    };
    let is_step = spans.columns.len() == signature.columns.len()
        && spans
            .columns
            .iter()
            .zip(&signature.columns)
            .all(|(column, spec)| column.len == 1 && axes(column) == Some(spec.shape.len()));
    if is_step {
        let columns = spans.columns.iter().map(|column| SpanColumn {
            squeeze: true,
            ..*column
        });
        spans.columns = columns.collect();
    }
}

fn to_u32(number: usize) -> Result<u32, Status> {
    u32::try_from(number).map_err(|_| too_long())
}

fn too_long() -> Status {
    invalid("an item must have fewer than 2^32 cells and slices")
}

/// Returns the item as [`Trajectory::Rows`], which takes less memory than spans, if it consists of the same rows of all
/// columns of one chunk.
fn as_rows(spans: &Spans) -> Option<Trajectory> {
    let [chunk] = &*spans.chunks else {
        return None;
    };
    let (first, column) = (spans.slices.first()?, spans.columns.first()?);
    let is_whole = *chunk.schema().layout == *spans.layout
        && chunk.schema().cells.len() == spans.columns.len()
        && spans.slices.len() == spans.columns.len();
    let is_same_rows = |(index, (slice, other)): (usize, (&Slice, &SpanColumn))| {
        slice.column as usize == index
            && other.first_slice as usize == index
            && (slice.offset, slice.len) == (first.offset, first.len)
            && other.squeeze == column.squeeze
    };
    let mut both = spans.slices.iter().zip(&*spans.columns).enumerate();
    (is_whole && both.all(is_same_rows)).then(|| Trajectory::Rows {
        chunk: Arc::clone(chunk),
        offset: first.offset,
        len: first.len,
        squeeze: column.squeeze,
    })
}

/// The columns of an item in the deprecated format: a range of rows of all columns of its chunks.
fn deprecated_columns(
    message: &pb::PrioritizedItem,
    by_key: &ChunksByKey,
) -> Result<Vec<Column>, Status> {
    let range = message.deprecated_sequence_range.unwrap_or_default();
    let numbers = (u64::try_from(range.offset), u64::try_from(range.length));
    let (Ok(mut skip), Ok(mut remaining)) = numbers else {
        return Err(invalid(format!(
            "item {} has offset {} and length {}; neither may be negative",
            message.key, range.offset, range.length
        )));
    };
    let mut columns: Vec<Column> = Vec::new();
    let keys = &message.deprecated_chunk_keys;
    for key in keys {
        let chunk = find_chunk(by_key, *key)?;
        let width = chunk.schema().cells.len();
        if width.saturating_mul(keys.len()) > MAX_DEPRECATED_SLICES {
            return Err(invalid(format!(
                "item {} has {} chunks of {width} columns each; at most {MAX_DEPRECATED_SLICES} columns are allowed in all chunks \
                 together",
                message.key,
                keys.len()
            )));
        }
        if columns.is_empty() {
            columns.resize(width, Column::default());
        }
        if columns.len() != width {
            return Err(invalid(format!(
                "item {} has chunks of {} and of {width} columns; all must have the same number",
                message.key,
                columns.len()
            )));
        }
        let rows = chunk.extents().first().map_or(0, |extent| extent.rows);
        let offset = skip.min(rows.into());
        let len = remaining.min(u64::from(rows) - offset);
        (skip, remaining) = (skip - offset, remaining - len);
        if len == 0 {
            continue;
        }
        for (column, index) in columns.iter_mut().zip(0..) {
            column.chunk_slices.push(ChunkSlice {
                chunk_key: *key,
                offset: i32::try_from(offset).unwrap_or(i32::MAX),
                length: i32::try_from(len).unwrap_or(i32::MAX),
                index,
            });
        }
    }
    if remaining > 0 {
        return Err(invalid(format!(
            "item {} has {} rows, {remaining} more than its chunks have",
            message.key, range.length
        )));
    }
    Ok(columns)
}

/// Assigns unique keys to the chunks of samples.
#[derive(Debug, Default)]
pub struct ChunkKeyCounter(u64);

impl ChunkKeyCounter {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Lower bound of the bytes of a sample: counts one byte per string.
fn min_bytes(draw: &Draw) -> usize {
    let columns = (0..draw.trajectory.column_count()).map(|index| draw.trajectory.column(index));
    columns.fold(0_usize, |sum, column| {
        let cell = column.cell.bytes().max(column.cell.elements());
        sum.saturating_add(column.len.saturating_mul(cell))
    })
}

/// Encodes a sample as one entry with a new chunk per column; the chunks have only the rows of the item. `rate_limited`
/// is passed to the client: true if the sample had to wait.
///
/// # Errors
/// [`Error::InvalidArgument`] for data that dm-reverb's clients do not support, or that is too large for them;
/// [`Error::Payload`] if the data cannot be read; [`Error::OutOfMemory`] if memory cannot be allocated.
pub fn encode_sample(
    draw: &Draw,
    table: &str,
    rate_limited: bool,
    chunk_keys: &mut ChunkKeyCounter,
    pool: &Arc<Pool>,
) -> CoreResult<SampleEntry> {
    let min = min_bytes(draw);
    if min > MAX_SAMPLE_BYTES {
        return Err(too_large(min));
    }
    let gathered = gather(std::slice::from_ref(draw), LengthPolicy::Ragged, pool)?;
    let mut columns = Vec::with_capacity(gathered.columns.len());
    let mut data = Vec::with_capacity(gathered.columns.len());
    for (column, name) in gathered.columns.iter().zip(&gathered.layout.names) {
        let (rows, squeeze) = match &column.time {
            TimeAxis::Squeezed => (1, true),
            TimeAxis::Even(rows) => (*rows, false),
            TimeAxis::Ragged(splits) => (last(splits), false),
            TimeAxis::Padded { longest, .. } => (*longest, false),
        };
        let raw: &[u8] = match &column.data {
            ColumnData::Bytes(bytes) => bytes,
            ColumnData::Strings(strings) => strings,
        };
        let tensor =
            encode_tensor(&column.cell, rows, raw).map_err(|error| in_column(error, name))?;
        let chunk_key = chunk_keys.next();
        let length = i32::try_from(rows).map_err(|_| too_large(min))?;
        columns.push(Column {
            chunk_slices: vec![ChunkSlice {
                chunk_key,
                offset: 0,
                length,
                index: 0,
            }],
            squeeze,
        });
        data.push(chunk_data(chunk_key, length, raw.len(), tensor));
    }
    let entry = SampleEntry {
        info: Some(pb::SampleInfo {
            item: Some(pb::PrioritizedItem {
                key: draw.key,
                table: table.to_owned(),
                priority: draw.priority,
                times_sampled: i32::try_from(draw.times_sampled).unwrap_or(i32::MAX),
                flat_trajectory: Some(pb::FlatTrajectory { columns }),
                ..pb::PrioritizedItem::default()
            }),
            probability: draw.probability,
            table_size: i64::try_from(draw.table_size).unwrap_or(i64::MAX),
            rate_limited,
        }),
        data,
        end_of_sequence: true,
    };
    let bytes = entry.encoded_len();
    if bytes > MAX_SAMPLE_BYTES {
        return Err(too_large(bytes));
    }
    Ok(entry)
}

/// Returns the last row split: the number of rows of a single ragged item.
fn last(splits: &[i64]) -> usize {
    splits
        .last()
        .map_or(0, |end| usize::try_from(*end).unwrap_or(0))
}

fn chunk_data(chunk_key: u64, rows: i32, raw: usize, tensor: ChunkTensor) -> pb::ChunkData {
    pb::ChunkData {
        chunk_key,
        sequence_range: Some(pb::SequenceRange {
            episode_id: chunk_key,
            start: 0,
            end: rows.saturating_sub(1),
            sparse: false,
        }),
        data: Some(pb::chunk_data::Data {
            tensors: vec![tensor],
        }),
        data_tensors_len: 1,
        data_uncompressed_size: i64::try_from(raw).unwrap_or(i64::MAX),
        ..pb::ChunkData::default()
    }
}

fn in_column(error: Error, name: &str) -> Error {
    match error {
        Error::InvalidArgument(text) => {
            Error::InvalidArgument(format!("column `{}`: {text}", shortened(name, 100)))
        }
        other => other,
    }
}

fn too_large(bytes: usize) -> Error {
    Error::InvalidArgument(format!(
        "an item has {bytes} bytes, but dm-reverb's clients read at most {MAX_SAMPLE_BYTES} per sample; \
         read it with Engram's client"
    ))
}
