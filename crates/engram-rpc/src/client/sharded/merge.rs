//! Puts the batches of several shards into one: one allocation per column.

use std::sync::Arc;

use engram_core::gather::{Column, ColumnData, Columns, LengthPolicy, TimeAxis};
use engram_core::pool::Pool;
use engram_core::text::describe_column;
use engram_core::{CellSpec, Error, Result};

/// Merges batches, each with its number of items.
///
/// # Errors
/// [`Error::Signature`] if their columns differ, [`Error::OutOfMemory`] if the batch is too large.
pub(super) fn merge(
    mut parts: Vec<(Columns, usize)>,
    length_policy: LengthPolicy,
    pool: &Arc<Pool>,
) -> Result<Columns> {
    if parts.len() == 1 {
        return Ok(parts.swap_remove(0).0);
    }
    let items: usize = parts.iter().map(|(_, items)| items).sum();
    let layout = Arc::clone(&parts[0].0.layout);
    if parts.iter().any(|(part, _)| *part.layout != *layout) {
        return Err(Error::Signature(
            "the items of different shards cannot be in one batch: their columns differ in names or nesting".into(),
        ));
    }
    let bytes = parts
        .iter()
        .flat_map(|(part, _)| &part.columns)
        .map(bytes)
        .sum();
    pool.check_batch_size(items, Some(bytes))?;
    let columns = (0..layout.names.len()).map(|index| {
        let column = parts.iter().map(|(part, items)| (&part.columns[index], *items));
        let column: Vec<_> = column.collect();
        merge_column(&column, length_policy, pool).ok_or_else(|| {
            Error::Signature(format!(
                "the items of different shards cannot be in one batch: {} differs in dtype, in shape or in whether it has a \
                 time axis",
                describe_column(&layout.names[index])
            ))
        })?
    });
    Ok(Columns {
        columns: columns.collect::<Result<_>>()?,
        layout: Arc::clone(&layout),
    })
}

fn bytes(column: &Column) -> usize {
    match &column.data {
        ColumnData::Bytes(bytes) => bytes.len(),
        ColumnData::Strings(encoded) => encoded.len(),
    }
}

/// Merges the parts of one column, each with its number of items; `None` if they differ.
fn merge_column(
    parts: &[(&Column, usize)],
    length_policy: LengthPolicy,
    pool: &Arc<Pool>,
) -> Option<Result<Column>> {
    let (first, _) = parts[0];
    let is_squeezed = |column: &Column| matches!(column.time, TimeAxis::Squeezed);
    if (parts.iter())
        .any(|(part, _)| part.cell != first.cell || is_squeezed(part) != is_squeezed(first))
    {
        return None;
    }
    let lengths = || {
        parts
            .iter()
            .flat_map(|(part, items)| item_lengths(part, *items))
    };
    let time = if is_squeezed(first) {
        TimeAxis::Squeezed
    } else {
        let longest = lengths().max().unwrap_or(0);
        if lengths().all(|len| len == longest) {
            TimeAxis::Even(longest)
        } else if length_policy == LengthPolicy::Pad {
            let lengths = lengths().collect();
            TimeAxis::Padded { longest, lengths }
        } else {
            let mut end = 0;
            let ends = lengths().map(|len| {
                end += i64::try_from(len).unwrap_or(i64::MAX);
                end
            });
            TimeAxis::Ragged(std::iter::once(0).chain(ends).collect())
        }
    };
    let padded = match &time {
        TimeAxis::Padded { longest, .. } => Some(*longest),
        _ => None,
    };
    let data = merge_data(parts, &first.cell, padded, pool);
    Some(data.map(|data| Column {
        cell: first.cell.clone(),
        time,
        data,
    }))
}

/// The length of each item of a column: 1 without a time axis.
fn item_lengths(column: &Column, items: usize) -> Vec<usize> {
    match &column.time {
        TimeAxis::Squeezed => vec![1; items],
        TimeAxis::Even(len) => vec![*len; items],
        TimeAxis::Ragged(splits) => {
            let lengths = splits.windows(2).map(|pair| pair[1] - pair[0]);
            lengths
                .map(|len| usize::try_from(len).unwrap_or(0))
                .collect()
        }
        TimeAxis::Padded { lengths, .. } => lengths.clone(),
    }
}

/// Concatenates the cells of the parts. If the items are `padded`, each gets this many cells.
fn merge_data(
    parts: &[(&Column, usize)],
    cell: &CellSpec,
    padded: Option<usize>,
    pool: &Arc<Pool>,
) -> Result<ColumnData> {
    if cell.dtype.is_string() {
        let mut merged = Vec::with_capacity(parts.iter().map(|(part, _)| bytes(part)).sum());
        for (part, items) in parts {
            let ColumnData::Strings(encoded) = &part.data else {
                continue;
            };
            match padded {
                None => merged.extend_from_slice(encoded),
                Some(longest) => pad_strings(
                    part,
                    *items,
                    encoded,
                    longest * cell.elements(),
                    &mut merged,
                ),
            }
        }
        return Ok(ColumnData::Strings(merged));
    }
    let cell_bytes = cell.bytes();
    let len = match padded {
        Some(longest) => parts
            .iter()
            .map(|(_, items)| items * longest * cell_bytes)
            .sum(),
        None => parts.iter().map(|(part, _)| bytes(part)).sum(),
    };
    let buffer = pool.take(len);
    let mut merged =
        buffer.ok_or_else(|| Error::out_of_memory("a batch from several servers", Some(len)))?;
    let mut end = 0;
    for (part, items) in parts {
        let ColumnData::Bytes(cells) = &part.data else {
            continue;
        };
        let Some(longest) = padded else {
            merged[end..end + cells.len()].copy_from_slice(cells);
            end += cells.len();
            continue;
        };
        let mut begin = 0;
        for item_len in stored_lengths(part, *items) {
            let (used, all) = (item_len * cell_bytes, longest * cell_bytes);
            merged[end..end + used].copy_from_slice(&cells[begin..begin + used]);
            merged[end + used..end + all].fill(0);
            begin += used;
            end += all;
        }
    }
    Ok(ColumnData::Bytes(merged))
}

/// Number of cells that each item of a column has, padding included.
fn stored_lengths(column: &Column, items: usize) -> Vec<usize> {
    match &column.time {
        TimeAxis::Padded { longest, .. } => vec![*longest; items],
        _ => item_lengths(column, items),
    }
}

/// Appends the strings of each item, and empty ones until it has `all` of them.
fn pad_strings(column: &Column, items: usize, encoded: &[u8], all: usize, merged: &mut Vec<u8>) {
    let elements = column.cell.elements();
    let mut begin = 0;
    for len in stored_lengths(column, items) {
        let mut end = begin;
        for _ in 0..len * elements {
            let size = encoded
                .get(end..end + 4)
                .and_then(|size| size.try_into().ok());
            end += 4 + size.map_or(0, |size| u32::from_le_bytes(size) as usize);
        }
        let end_in_bounds = end.min(encoded.len());
        merged.extend_from_slice(&encoded[begin.min(end_in_bounds)..end_in_bounds]);
        merged.resize(merged.len() + 4 * (all - len * elements), 0);
        begin = end;
    }
}
