//! Comparisons of items: whether they differ only in chunk and row, and whether they can be in one batch.

use std::sync::Arc;

use super::columns::AsTrajectory;
use crate::trajectory::Trajectory;

/// True if a cheap comparison shows that the items differ only in chunk and row. May return false for such items, too.
pub(super) fn are_alike<T: AsTrajectory>(items: &[T]) -> bool {
    let mut items = items.iter().map(AsTrajectory::trajectory);
    let first = items.next();
    first.is_none_or(|first| items.all(|item| is_alike(first, item)))
}

/// The number of items, counted from the first one, that can be in one batch: up to the first item whose columns differ
/// from those of item 0 in name, nesting, dtype or shape of cells, or in whether they have a time axis. Lengths may differ.
/// Byte strings and text count as different dtypes here, although [`gather`](super::gather) would join them as bytes.
pub fn batchable_prefix<T: AsTrajectory>(items: &[T]) -> usize {
    let Some(first) = items.first().map(AsTrajectory::trajectory) else {
        return 0;
    };
    // Most items are like the previous one, and `is_alike` is cheaper than `is_batchable`.
    let mut previous = first;
    let differs = items.iter().position(|item| {
        let item = item.trajectory();
        let differs = !is_alike(previous, item) && !is_batchable(first, item);
        previous = item;
        differs
    });
    differs.unwrap_or(items.len())
}

/// True if two items can be in one batch, and their columns have the same dtypes. Lengths may differ.
fn is_batchable(one: &Trajectory, other: &Trajectory) -> bool {
    let same_layout = Arc::ptr_eq(one.layout(), other.layout()) || one.layout() == other.layout();
    same_layout
        && (0..one.column_count()).all(|index| {
            let (one, other) = (one.column(index), other.column(index));
            one.cell == other.cell && one.squeeze == other.squeeze
        })
}

/// [`are_alike`] for two items.
fn is_alike(one: &Trajectory, other: &Trajectory) -> bool {
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
