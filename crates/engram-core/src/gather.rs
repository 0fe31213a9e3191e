//! Builds batches: copies the cells of many trajectories into one array per column.

mod alike;
mod columns;
mod estimate;
mod parts;
mod unpacked_columns;

use std::sync::Arc;

use crate::chunk::string_cells;
use crate::codec::Codec;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::pool::{Pool, PooledBytes};
use crate::prefetch::prefetch_line;
use crate::schema::{CellSpec, Layout, format_names};
use crate::structure::nest_text;
use crate::text::{count, describe_column};
use crate::trajectory::Trajectory;
use alike::are_alike;
pub use alike::batchable_prefix;
pub use columns::{AsTrajectory, Column, ColumnData, Columns, LengthPolicy, TimeAxis};
pub use estimate::{Estimate, estimate};
pub(crate) use parts::copy_in_parts;
use unpacked_columns::UnpackedColumns;

/// Number of items whose memory is prefetched ahead of copying.
pub(crate) const PREFETCHED_ITEMS: usize = 16;

/// The end of an error text about two items that cannot be in one batch: their keys, and what to do.
fn one_batch_advice<T: AsTrajectory>(one: &T, other: &T) -> String {
    let keys = match (one.key(), other.key()) {
        (Some(one), Some(other)) => format!(" (keys {one} and {other})"),
        _ => String::new(),
    };
    format!(
        "cannot form one batch{keys}; sample them one by one, or create the table with a `signature` with fixed sizes, so \
         that it rejects items that differ"
    )
}

/// Copies the cells of `items` into columns.
///
/// # Errors
/// * [`Error::InvalidArgument`] if there are no items.
/// * [`Error::Signature`] if their columns differ in name, nesting, dtype or shape of cells, or only some have a time
///   axis. Byte strings and text may be mixed: their column has byte strings.
/// * [`Error::Payload`] if stored bytes are corrupt.
/// * [`Error::OutOfMemory`].
pub fn gather<T: AsTrajectory>(
    items: &[T],
    length_policy: LengthPolicy,
    pool: &Arc<Pool>,
) -> Result<Columns> {
    gather_compared(items, are_alike(items), length_policy, pool)
}

/// [`gather`] for items that were compared already: `alike` is the result of [`are_alike`] for them.
fn gather_compared<T: AsTrajectory>(
    items: &[T],
    alike: bool,
    length_policy: LengthPolicy,
    pool: &Arc<Pool>,
) -> Result<Columns> {
    let Some(first) = items.first().map(AsTrajectory::trajectory) else {
        return Err(Error::InvalidArgument(
            "a batch needs at least one item".into(),
        ));
    };
    // In most batches, the items differ only in chunk and row. Then examining the first one is enough.
    let examined = if alike { &items[..1] } else { items };
    check_layouts(examined)?;
    let plans = (0..first.column_count())
        .map(|column| ColumnPlan::new(examined, column, length_policy))
        .collect::<Result<Vec<_>>>()?;
    let min_bytes = plans.iter().try_fold(0_usize, |sum, plan| {
        sum.checked_add(plan.min_bytes(items.len())?)
    });
    pool.check_batch_size(items.len(), min_bytes)?;
    let mut buffers: Vec<PooledBytes> = plans
        .iter()
        .zip(&first.layout().names)
        .map(|(plan, name)| {
            let bytes = plan.min_bytes(items.len());
            bytes
                .and_then(|bytes| pool.take(if plan.is_string() { 0 } else { bytes }))
                .ok_or_else(|| too_large(name, items.len(), bytes))
        })
        .collect::<Result<_>>()?;
    copy_in_parts(
        items.len(),
        buffers.iter_mut().map(|buffer| &mut **buffer).collect(),
        |column, item| plans[column].start(item) * plans[column].cell_bytes,
        |range, out| copy_part(&items[range.clone()], range.start, &plans, out),
    )?;
    // At first, all strings count as empty. `finish` adds the bytes of each column of strings when it gathers them.
    let mut batch_bytes = min_bytes.unwrap_or(usize::MAX);
    let columns = plans
        .into_iter()
        .zip(buffers)
        .enumerate()
        .map(|(column, (plan, buffer))| plan.finish(items, column, buffer, pool, &mut batch_bytes))
        .collect::<Result<Vec<_>>>()?;
    Ok(Columns {
        layout: Arc::clone(first.layout()),
        columns,
    })
}

fn too_large(name: &str, items: usize, bytes: Option<usize>) -> Error {
    let column = describe_column(name);
    Error::out_of_memory(
        format_args!("{column} of a batch of {}", count(items, "item")),
        bytes,
    )
}

/// Checks that the columns of all items have the names and nesting of the first item's columns.
fn check_layouts<T: AsTrajectory>(items: &[T]) -> Result<()> {
    let first = items[0].trajectory().layout();
    let mut last_equal = first;
    for item in items {
        let layout = item.trajectory().layout();
        // Items of one writer share their layout: names are rarely compared.
        if Arc::ptr_eq(layout, last_equal) || layout == first {
            last_equal = layout;
            continue;
        }
        let mut text = if layout.names == first.names {
            let (one, other) = (nest_text(&first.structure), nest_text(&layout.structure));
            format!("items with the nests `{one}` and `{other}`, where `*` is a column,")
        } else {
            format!("{} and {}", describe_items(first), describe_items(layout))
        };
        text = format!("{text} {}", one_batch_advice(&items[0], item));
        if layout.names != first.names
            && has_numbered_columns(layout)
            && has_numbered_columns(first)
        {
            text += "; arrays are one column, but each element of a list is a column";
        }
        return Err(Error::Signature(text));
    }
    Ok(())
}

/// True if a column is an element of a list, as in `obs/0`, or of another container with integer keys.
fn has_numbered_columns(layout: &Layout) -> bool {
    let mut last_keys = layout.names.iter().map(|name| name.rsplit('/').next());
    last_keys.any(|key| key.is_some_and(|key| key.parse::<u32>().is_ok()))
}

/// Describes the items of a layout by their columns.
fn describe_items(layout: &Layout) -> String {
    let names: Vec<&str> = layout.names.iter().map(|name| &**name).collect();
    match &*names {
        [""] => "items that are one array".into(),
        names => format!("items with {}", format_names(names)),
    }
}

/// The end of an error text about columns that differ in the size of their first axis.
const TIME_AXIS_ADVICE: &str = "; if the first axis has the steps of an item, insert the items with `time_axis=True`: then their lengths may differ";

/// True if two shapes differ only in the size of the first axis.
fn differ_in_first_axis(one: &[usize], two: &[usize]) -> bool {
    match (one, two) {
        ([first, rest @ ..], [other, others @ ..]) => first != other && rest == others,
        _ => false,
    }
}

/// Cells and time axis of one column of the batch, determined before anything is copied.
struct ColumnPlan {
    cell: CellSpec,
    /// Bytes of a cell; 0 for strings.
    cell_bytes: usize,
    time: TimeAxis,
}

impl ColumnPlan {
    fn new<T: AsTrajectory>(
        items: &[T],
        index: usize,
        length_policy: LengthPolicy,
    ) -> Result<Self> {
        let first = items[0].trajectory();
        let expected = first.column(index);
        let mut even = true;
        let mut cell = expected.cell.clone();
        for item in items {
            let column = item.trajectory().column(index);
            let same_cell = column.cell.dtype.fits(cell.dtype) && column.cell.shape == cell.shape;
            if !same_cell || column.squeeze != expected.squeeze {
                let describe = |cell: &CellSpec, squeeze: bool| {
                    let time = if squeeze { "without" } else { "with" };
                    format!("{cell} {time} time axis")
                };
                let may_be_steps = (expected.squeeze && column.squeeze)
                    && column.cell.dtype.fits(cell.dtype)
                    && differ_in_first_axis(&column.cell.shape, &expected.cell.shape);
                return Err(Error::Signature(format!(
                    "{} is {} in one item and {} in another: such items {}{}",
                    describe_column(&first.layout().names[index]),
                    describe(expected.cell, expected.squeeze),
                    describe(column.cell, column.squeeze),
                    one_batch_advice(&items[0], item),
                    if may_be_steps { TIME_AXIS_ADVICE } else { "" }
                )));
            }
            if column.cell.dtype != cell.dtype {
                cell.dtype = DType::Bytes; // text and bytes in one batch column are bytes
            }
            even &= column.len == expected.len;
        }
        let lengths = || items.iter().map(|item| item.trajectory().column(index).len);
        let time = match length_policy {
            _ if expected.squeeze => TimeAxis::Squeezed,
            _ if even => TimeAxis::Even(expected.len),
            LengthPolicy::Ragged => {
                let mut end = 0_i64;
                let ends = lengths().map(|len| {
                    end += i64::try_from(len).unwrap_or(i64::MAX);
                    end
                });
                TimeAxis::Ragged(std::iter::once(0).chain(ends).collect())
            }
            LengthPolicy::Pad => {
                let lengths: Vec<usize> = lengths().collect();
                let longest = lengths.iter().copied().max().unwrap_or(0);
                TimeAxis::Padded { longest, lengths }
            }
        };
        Ok(Self {
            cell_bytes: expected.cell.bytes(),
            cell,
            time,
        })
    }

    /// Index of the first cell of item `i` in the batch column; for the number of items, the end of the last one.
    fn start(&self, i: usize) -> usize {
        match &self.time {
            TimeAxis::Squeezed => i,
            TimeAxis::Even(len) => i * len,
            TimeAxis::Ragged(splits) => usize::try_from(splits[i]).unwrap_or(0),
            TimeAxis::Padded { longest, .. } => i * longest,
        }
    }

    /// Bytes of item `i`, including padding.
    fn bytes(&self, i: usize) -> usize {
        match &self.time {
            TimeAxis::Squeezed => self.cell_bytes,
            TimeAxis::Even(len) => len * self.cell_bytes,
            TimeAxis::Padded { longest, .. } => longest * self.cell_bytes,
            TimeAxis::Ragged(_) => (self.start(i + 1) - self.start(i)) * self.cell_bytes,
        }
    }

    /// Bytes of item `i` without padding.
    fn unpadded_bytes(&self, i: usize) -> usize {
        match &self.time {
            TimeAxis::Padded { lengths, .. } => lengths[i] * self.cell_bytes,
            _ => self.bytes(i),
        }
    }

    /// Bytes of this many items; for strings, the bytes that they would have if all were empty. `None` on overflow.
    fn min_bytes(&self, items: usize) -> Option<usize> {
        let cells = match &self.time {
            TimeAxis::Even(each) | TimeAxis::Padded { longest: each, .. } => {
                items.checked_mul(*each)?
            }
            TimeAxis::Squeezed | TimeAxis::Ragged(_) => self.start(items),
        };
        let cell = if self.is_string() {
            self.cell.elements().checked_mul(size_of::<u32>())?
        } else {
            self.cell_bytes
        };
        cells.checked_mul(cell)
    }

    fn is_string(&self) -> bool {
        self.cell.dtype.is_string()
    }

    /// Returns the batch column: its gathered bytes, or its strings, which are gathered here.
    fn finish<T: AsTrajectory>(
        self,
        items: &[T],
        item_column: usize,
        bytes: PooledBytes,
        pool: &Pool,
        batch_bytes: &mut usize,
    ) -> Result<Column> {
        let data = if self.is_string() {
            ColumnData::Strings(self.gather_strings(items, item_column, pool, batch_bytes)?)
        } else {
            ColumnData::Bytes(bytes)
        };
        Ok(Column {
            cell: self.cell,
            time: self.time,
            data,
        })
    }

    /// Gathers the strings of `item_column`. `batch_bytes` is the size of the whole batch, where strings that are not
    /// gathered yet count as empty. The bytes of this column's strings are added to it.
    fn gather_strings<T: AsTrajectory>(
        &self,
        items: &[T],
        item_column: usize,
        pool: &Pool,
        batch_bytes: &mut usize,
    ) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let min_bytes = self.min_bytes(items.len());
        let other_columns_bytes = *batch_bytes - min_bytes.unwrap_or(0);
        let reserve = |out: &mut Vec<u8>, more: Option<usize>| {
            let sum = more.and_then(|more| {
                other_columns_bytes
                    .checked_add(out.len())?
                    .checked_add(more)
            });
            pool.check_batch_size(items.len(), sum)?;
            let reserved = more.and_then(|more| out.try_reserve(more).ok());
            reserved.ok_or_else(|| {
                let name = &items[0].trajectory().layout().names[item_column];
                let bytes = more.and_then(|more| out.len().checked_add(more));
                too_large(name, items.len(), bytes)
            })
        };
        reserve(&mut out, min_bytes)?;
        for (i, item) in items.iter().enumerate() {
            item.trajectory()
                .for_each_slice(item_column, |chunk, column, first, len| {
                    let rows = chunk.extents()[column].rows as usize;
                    let cells = string_cells(chunk.stored(column), rows, first, len)?;
                    reserve(&mut out, Some(cells.len()))?;
                    out.extend_from_slice(cells);
                    Ok(())
                })?;
            if let TimeAxis::Padded { longest, lengths } = &self.time {
                let padding = (longest - lengths[i]) * self.cell.elements() * size_of::<u32>();
                reserve(&mut out, Some(padding))?;
                out.resize(out.len() + padding, 0);
            }
        }
        *batch_bytes = other_columns_bytes.saturating_add(out.len());
        Ok(out)
    }
}

/// Copies the fixed-size columns of `items`, consecutive items of a batch. `first` is the index of the first of them in
/// the batch, and `out` has, per column, the bytes of these items.
fn copy_part<T: AsTrajectory>(
    items: &[T],
    first: usize,
    plans: &[ColumnPlan],
    mut out: Vec<&mut [u8]>,
) -> Result<()> {
    let mut unpacked = UnpackedColumns::default();
    for item in items.iter().take(PREFETCHED_ITEMS) {
        prefetch_cells(item.trajectory(), plans);
    }
    for (i, item) in items.iter().enumerate() {
        if let Some(later) = items.get(i + PREFETCHED_ITEMS) {
            prefetch_cells(later.trajectory(), plans);
        }
        let i = first + i;
        let trajectory = item.trajectory();
        // Most items are rows of one chunk: find its bytes once for all columns.
        let rows = match trajectory {
            Trajectory::Rows { chunk, offset, .. } => {
                Some((chunk.extents(), chunk.payload(), *offset as usize))
            }
            Trajectory::Window { .. } | Trajectory::Spans(_) => None,
        };
        for (index, (plan, remaining)) in plans.iter().zip(&mut out).enumerate() {
            // Split this item's cells off the front of the column's remaining bytes.
            let (item_bytes, later) = std::mem::take(remaining).split_at_mut(plan.bytes(i));
            *remaining = later;
            let (cells, padding) = item_bytes.split_at_mut(plan.unpadded_bytes(i));
            match rows {
                Some((extents, bytes, offset)) if extents[index].codec == Codec::Raw => {
                    let from = extents[index].offset as usize + offset * plan.cell_bytes;
                    copy(cells, &bytes[from..from + cells.len()]);
                }
                _ if cells.is_empty() => {}
                _ => copy_slices(trajectory, index, plan.cell_bytes, cells, &mut unpacked)?,
            }
            // Pooled buffers contain old bytes.
            padding.fill(0);
        }
    }
    Ok(())
}

/// Number of slices of an item's column that are copied in order; further ones are sorted by chunk first.
const MAX_SLICES_IN_ORDER: usize = 8;

/// Copies the slices of `item_column` into `target`, end to end.
fn copy_slices(
    trajectory: &Trajectory,
    item_column: usize,
    cell_bytes: usize,
    mut target: &mut [u8],
    unpacked: &mut UnpackedColumns,
) -> Result<()> {
    let mut deferred = Vec::new();
    let mut count = 0;
    trajectory.for_each_slice(item_column, |chunk, column, offset, len| {
        let (part, later) = std::mem::take(&mut target).split_at_mut(len * cell_bytes);
        target = later;
        count += 1;
        if count > MAX_SLICES_IN_ORDER {
            deferred.push((chunk, column, offset * cell_bytes, part));
            return Ok(());
        }
        unpacked.read(chunk, column, offset * cell_bytes, part)
    })?;
    // Sorted by chunk: if slices alternated between chunks whose compressed columns do not fit into the cache together,
    // each slice would unpack a column again.
    deferred.sort_unstable_by_key(|(chunk, column, ..)| (Arc::as_ptr(chunk), *column));
    deferred
        .into_iter()
        .try_for_each(|(chunk, column, from, part)| unpacked.read(chunk, column, from, part))
}

/// Copies between slices of equal length; without a function call if they have 4, 8, 16 or
/// 32 bytes, as many scalars and small vectors have.
pub(crate) fn copy(target: &mut [u8], source: &[u8]) {
    macro_rules! fixed {
        ($size:literal) => {
            if let (Some(target), Some(source)) = (
                target.first_chunk_mut::<$size>(),
                source.first_chunk::<$size>(),
            ) {
                *target = *source;
            }
        };
    }
    match target.len() {
        4 => fixed!(4),
        8 => fixed!(8),
        16 => fixed!(16),
        32 => fixed!(32),
        _ => target.copy_from_slice(source),
    }
}

/// Prefetches the first cell of each column.
fn prefetch_cells(trajectory: &Trajectory, plans: &[ColumnPlan]) {
    // A window usually has the columns of its chunk; if not, the prefetch is useless but harmless.
    if let Trajectory::Rows { chunk, offset, .. } | Trajectory::Window { chunk, offset, .. } =
        trajectory
    {
        for (extent, plan) in chunk.extents().iter().zip(plans) {
            let byte_offset = extent.offset as usize + *offset as usize * plan.cell_bytes;
            prefetch_line(chunk.payload().as_ptr().wrapping_add(byte_offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn sizes_that_overflow_are_none() {
        let plan = |time| ColumnPlan {
            cell: CellSpec {
                dtype: DType::Uint8,
                shape: smallvec![1 << 30],
            },
            cell_bytes: 1 << 30,
            time,
        };
        let padded = plan(TimeAxis::Padded {
            longest: 1 << 30,
            lengths: Vec::new(),
        });
        assert_eq!(padded.min_bytes(1), Some(1 << 60));
        assert_eq!(padded.min_bytes(16), None);
        assert_eq!(plan(TimeAxis::Even(usize::MAX)).min_bytes(2), None);
        assert_eq!(
            too_large("x", 16, None).to_string(),
            "column `x` of a batch of 16 items needs 2^64 or more bytes, more than can be allocated"
        );
    }
}
