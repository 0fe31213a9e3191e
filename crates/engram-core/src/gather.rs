//! From items to batches: the cells of many trajectories, copied side by side.

mod unpacked_columns;

use std::sync::{Arc, OnceLock};

use crate::chunk::string_cells;
use crate::codec::Codec;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::pool::{Pool, PooledBytes};
use crate::prefetch::prefetch;
use crate::schema::{CellSpec, Layout};
use crate::table::Draw;
use crate::trajectory::Trajectory;
use unpacked_columns::UnpackedColumns;

/// Batches from this size on are copied by several threads.
const MIN_PARALLEL_BYTES: usize = 4 << 20;

/// How many items ahead of the copying memory is asked for.
const PREFETCHED_ITEMS: usize = 16;

/// What to do where items differ in length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthPolicy {
    /// Put them end to end and say where each begins.
    #[default]
    Ragged,
    /// Fill the shorter ones up with zeros.
    Pad,
}

/// The columns of a batch.
#[derive(Debug)]
pub struct Columns {
    /// Names and nesting.
    pub layout: Arc<Layout>,
    /// One per name.
    pub columns: Vec<Column>,
}

/// One column of a batch.
#[derive(Debug)]
pub struct Column {
    /// What its cells are.
    pub cell: CellSpec,
    /// How the items lie in it.
    pub time: TimeAxis,
    /// Their cells, item after item.
    pub data: ColumnData,
}

/// How the items of a column lie side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeAxis {
    /// One cell each: `[B, ...]`.
    Squeezed,
    /// So many cells each: `[B, T, ...]`.
    Even(usize),
    /// Item `i` is cells `splits[i]..splits[i + 1]` of `[sum of lengths, ...]`.
    Ragged(Vec<i64>),
    /// `[B, T, ...]` with zeros after each item's own length.
    Padded {
        /// The longest length, T.
        longest: usize,
        /// Each item's own.
        lengths: Vec<usize>,
    },
}

/// The bytes of a column.
#[derive(Debug)]
pub enum ColumnData {
    /// Cells of fixed size.
    Bytes(PooledBytes),
    /// Encoded strings, `u32 length, bytes` each, end to end; padding is empty strings.
    Strings(Vec<u8>),
}

/// Anything with a trajectory.
pub trait AsTrajectory: Sync {
    /// Its trajectory.
    fn trajectory(&self) -> &Trajectory;
}

impl AsTrajectory for Trajectory {
    fn trajectory(&self) -> &Trajectory {
        self
    }
}

impl AsTrajectory for Draw {
    fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }
}

/// Copies the items' cells into columns.
///
/// # Errors
/// [`Error::Signature`] when the items' columns do not go side by side, [`Error::Payload`] when
/// stored bytes cannot be read, [`Error::OutOfMemory`].
pub fn gather<T: AsTrajectory>(
    items: &[T],
    length_policy: LengthPolicy,
    pool: &Arc<Pool>,
) -> Result<Columns> {
    let Some(first) = items.first().map(AsTrajectory::trajectory) else {
        return Err(Error::InvalidArgument(
            "a batch of no items has no columns".into(),
        ));
    };
    // Alike in everything but chunk and row, as most batches are: the first stands for all.
    let alike = items.iter().all(|item| is_like(first, item.trajectory()));
    let models = if alike { &items[..1] } else { items };
    check_layouts(models)?;
    let plans = (0..first.columns())
        .map(|column| ColumnPlan::new(models, column, length_policy))
        .collect::<Result<Vec<_>>>()?;
    let least = plans.iter().try_fold(0_usize, |all, plan| {
        all.checked_add(plan.min_bytes(items.len())?)
    });
    pool.check(items.len(), least)?;
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
    let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let parts = if total >= MIN_PARALLEL_BYTES && may_go_parallel() {
        rayon::current_num_threads().min(items.len())
    } else {
        1
    };
    if parts <= 1 {
        let whole = buffers.iter_mut().map(|buffer| &mut **buffer).collect();
        copy_part(items, 0, &plans, whole)?;
    } else {
        copy_in_parallel(items, &plans, &mut buffers, parts)?;
    }
    // Strings add what they have beyond the least.
    let mut taken = least.unwrap_or(usize::MAX);
    let columns = plans
        .into_iter()
        .zip(buffers)
        .enumerate()
        .map(|(at, (plan, buffer))| plan.finish(items, at, buffer, pool, &mut taken))
        .collect::<Result<Vec<_>>>()?;
    Ok(Columns {
        layout: Arc::clone(first.layout()),
        columns,
    })
}

fn too_large(name: &str, items: usize, bytes: Option<usize>) -> Error {
    Error::out_of_memory(
        format_args!("column `{name}` of a batch of {items} items"),
        bytes,
    )
}

/// False in a forked child: the threads of the pool that its parent used did not come along.
fn may_go_parallel() -> bool {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    let here = std::process::id();
    *PROCESS.get_or_init(|| here) == here
}

/// Columns of other names or another nesting would be taken for the first item's.
fn check_layouts<T: AsTrajectory>(items: &[T]) -> Result<()> {
    let first = items[0].trajectory().layout();
    let mut same = first;
    for item in items {
        let layout = item.trajectory().layout();
        // Writers share their layouts: comparing the names is rare.
        if Arc::ptr_eq(layout, same) || layout == first {
            same = layout;
            continue;
        }
        let mut text = format!("items of columns {}", listed(&first.names));
        if layout.names == first.names {
            text += " nested in different ways do";
        } else {
            text = format!("{text} and of columns {} do", listed(&layout.names));
        }
        text += " not go into one batch: sample them one by one";
        return Err(Error::Signature(text));
    }
    Ok(())
}

fn listed(names: &[Box<str>]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// True when it is plain that two items differ in chunk and row only.
fn is_like(one: &Trajectory, other: &Trajectory) -> bool {
    match (one, other) {
        (
            Trajectory::Rows {
                chunk,
                len,
                squeeze,
                ..
            },
            Trajectory::Rows {
                chunk: other,
                len: other_len,
                squeeze: other_squeeze,
                ..
            },
        ) => {
            Arc::ptr_eq(chunk.schema(), other.schema())
                && len == other_len
                && squeeze == other_squeeze
        }
        (
            Trajectory::Window { chunk, shape, .. },
            Trajectory::Window {
                chunk: other,
                shape: other_shape,
                ..
            },
        ) => Arc::ptr_eq(chunk.schema(), other.schema()) && Arc::ptr_eq(shape, other_shape),
        _ => false,
    }
}

/// Where the cells of one column go.
struct ColumnPlan {
    cell: CellSpec,
    cell_bytes: usize,
    time: TimeAxis,
}

impl ColumnPlan {
    fn new<T: AsTrajectory>(items: &[T], at: usize, length_policy: LengthPolicy) -> Result<Self> {
        let first = items[0].trajectory();
        let model = first.column(at);
        let mut even = true;
        for item in items {
            let column = item.trajectory().column(at);
            if column.cell != model.cell || column.squeeze != model.squeeze {
                let text = |cell: &CellSpec, squeeze: bool| {
                    let time = if squeeze { "without" } else { "with" };
                    format!("{cell} {time} time axis")
                };
                return Err(Error::Signature(format!(
                    "column `{}` is {} in one item and {} in another: such items do not go into one \
                     batch, sample them one by one",
                    first.layout().names[at],
                    text(model.cell, model.squeeze),
                    text(column.cell, column.squeeze)
                )));
            }
            even &= column.len == model.len;
        }
        let lengths = || items.iter().map(|item| item.trajectory().column(at).len);
        let time = match length_policy {
            _ if model.squeeze => TimeAxis::Squeezed,
            _ if even => TimeAxis::Even(model.len),
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
            cell_bytes: model.cell.bytes(),
            cell: model.cell.clone(),
            time,
        })
    }

    /// First cell of item `i`.
    fn start(&self, i: usize) -> usize {
        match &self.time {
            TimeAxis::Squeezed => i,
            TimeAxis::Even(len) => i * len,
            TimeAxis::Ragged(splits) => usize::try_from(splits[i]).unwrap_or(0),
            TimeAxis::Padded { longest, .. } => i * longest,
        }
    }

    /// Bytes of item `i`, padding included.
    fn bytes(&self, i: usize) -> usize {
        match &self.time {
            TimeAxis::Squeezed => self.cell_bytes,
            TimeAxis::Even(len) => len * self.cell_bytes,
            TimeAxis::Padded { longest, .. } => longest * self.cell_bytes,
            TimeAxis::Ragged(_) => (self.start(i + 1) - self.start(i)) * self.cell_bytes,
        }
    }

    /// Bytes of item `i` without padding.
    fn own_bytes(&self, i: usize) -> usize {
        match &self.time {
            TimeAxis::Padded { lengths, .. } => lengths[i] * self.cell_bytes,
            _ => self.bytes(i),
        }
    }

    /// Bytes of all items, or the least that their strings take; `None` when they are too many to
    /// count.
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
        self.cell.dtype == DType::String
    }

    fn finish<T: AsTrajectory>(
        self,
        items: &[T],
        at: usize,
        bytes: PooledBytes,
        pool: &Pool,
        taken: &mut usize,
    ) -> Result<Column> {
        let data = if self.is_string() {
            ColumnData::Strings(self.gather_strings(items, at, pool, taken)?)
        } else {
            ColumnData::Bytes(bytes)
        };
        Ok(Column {
            cell: self.cell,
            time: self.time,
            data,
        })
    }

    /// `taken`: bytes of the whole batch so far, with the least of what is not gathered yet.
    fn gather_strings<T: AsTrajectory>(
        &self,
        items: &[T],
        at: usize,
        pool: &Pool,
        taken: &mut usize,
    ) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let least = self.min_bytes(items.len());
        let others = *taken - least.unwrap_or(0);
        let reserve = |out: &mut Vec<u8>, more: Option<usize>| {
            let sum = more.and_then(|more| others.checked_add(out.len())?.checked_add(more));
            pool.check(items.len(), sum)?;
            let reserved = more.and_then(|more| out.try_reserve(more).ok());
            reserved.ok_or_else(|| {
                let name = &items[0].trajectory().layout().names[at];
                let bytes = more.and_then(|more| out.len().checked_add(more));
                too_large(name, items.len(), bytes)
            })
        };
        reserve(&mut out, least)?;
        for (i, item) in items.iter().enumerate() {
            item.trajectory()
                .for_each_slice(at, |chunk, column, first, len| {
                    let pinned = chunk.payload().pin()?;
                    let stored = chunk.stored(&pinned, column);
                    let rows = chunk.extents()[column].rows as usize;
                    let cells = string_cells(stored, rows, first, len)?;
                    reserve(&mut out, Some(cells.len()))?;
                    out.extend_from_slice(cells);
                    Ok(())
                })?;
            if let TimeAxis::Padded { longest, lengths } = &self.time {
                let missing = (longest - lengths[i]) * self.cell.elements() * size_of::<u32>();
                reserve(&mut out, Some(missing))?;
                out.resize(out.len() + missing, 0);
            }
        }
        *taken = others.saturating_add(out.len());
        Ok(out)
    }
}

fn copy_in_parallel<T: AsTrajectory>(
    items: &[T],
    plans: &[ColumnPlan],
    buffers: &mut [PooledBytes],
    parts: usize,
) -> Result<()> {
    let share = items.len().div_ceil(parts);
    let mut rest: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut **buffer).collect();
    let mut outcomes: Vec<Result<()>> = vec![Ok(()); items.len().div_ceil(share)];
    rayon::scope(|scope| {
        for (part, (items, outcome)) in items.chunks(share).zip(&mut outcomes).enumerate() {
            let first = part * share;
            let mine: Vec<&mut [u8]> = rest
                .iter_mut()
                .zip(plans)
                .map(|(rest, plan)| {
                    let cells = plan.start(first + items.len()) - plan.start(first);
                    let (mine, others) = std::mem::take(rest).split_at_mut(cells * plan.cell_bytes);
                    *rest = others;
                    mine
                })
                .collect();
            scope.spawn(move |_| *outcome = copy_part(items, first, plans, mine));
        }
    });
    outcomes.into_iter().collect()
}

/// Copies the fixed-size columns of some items; `out[c]` begins at the first of them.
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
        // Most items are rows of a chunk in memory: look that up once for all columns.
        let rows = match trajectory {
            Trajectory::Rows { chunk, offset, .. } => chunk
                .heap()
                .map(|bytes| (chunk.extents(), bytes, *offset as usize)),
            Trajectory::Window { .. } | Trajectory::Spans(_) => None,
        };
        for (at, (plan, rest)) in plans.iter().zip(&mut out).enumerate() {
            // Each column's cells lie item after item: cut this item's off the front.
            let (target, later) = std::mem::take(rest).split_at_mut(plan.bytes(i));
            *rest = later;
            let (own, padding) = target.split_at_mut(plan.own_bytes(i));
            match rows {
                Some((extents, bytes, offset)) if extents[at].codec == Codec::Raw => {
                    let from = extents[at].offset as usize + offset * plan.cell_bytes;
                    copy(own, &bytes[from..from + own.len()]);
                }
                _ if own.is_empty() => {}
                _ => copy_slices(trajectory, at, plan.cell_bytes, own, &mut unpacked)?,
            }
            // Pooled buffers hold old bytes.
            padding.fill(0);
        }
    }
    Ok(())
}

/// Slices of one column that are read in their order.
const MAX_SLICES_IN_ORDER: usize = 8;

fn copy_slices(
    trajectory: &Trajectory,
    at: usize,
    cell_bytes: usize,
    mut target: &mut [u8],
    unpacked: &mut UnpackedColumns,
) -> Result<()> {
    let mut many = Vec::new();
    let mut count = 0;
    trajectory.for_each_slice(at, |chunk, column, offset, len| {
        let (now, later) = std::mem::take(&mut target).split_at_mut(len * cell_bytes);
        target = later;
        count += 1;
        if count > MAX_SLICES_IN_ORDER {
            many.push((chunk, column, offset * cell_bytes, now));
            return Ok(());
        }
        unpacked.read(chunk, column, offset * cell_bytes, now)
    })?;
    // Chunk by chunk: slices that go to and fro between large ones would have them unpacked each time.
    many.sort_unstable_by_key(|(chunk, column, ..)| (Arc::as_ptr(chunk), *column));
    many.into_iter()
        .try_for_each(|(chunk, column, from, now)| unpacked.read(chunk, column, from, now))
}

/// Copies between slices of one length; the sizes of scalars and small vectors without a call.
fn copy(target: &mut [u8], source: &[u8]) {
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

/// Asks for the first cells of each column.
fn prefetch_cells(trajectory: &Trajectory, plans: &[ColumnPlan]) {
    // A window's columns are mostly those of its chunk: near enough for a guess.
    if let Trajectory::Rows { chunk, offset, .. } | Trajectory::Window { chunk, offset, .. } =
        trajectory
        && let Some(bytes) = chunk.heap()
    {
        for (extent, plan) in chunk.extents().iter().zip(plans) {
            let at = extent.offset as usize + *offset as usize * plan.cell_bytes;
            prefetch(bytes.as_ptr().wrapping_add(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn sizes_beyond_counting_are_none() {
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
