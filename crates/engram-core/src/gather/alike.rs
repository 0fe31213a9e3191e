//! A cheap comparison of items.

use std::sync::Arc;

use super::AsTrajectory;
use crate::trajectory::Trajectory;

/// True if a cheap comparison shows that the items differ only in chunk and row. May be false
/// although they do.
pub(super) fn are_alike<T: AsTrajectory>(items: &[T]) -> bool {
    let mut items = items.iter().map(AsTrajectory::trajectory);
    let first = items.next();
    first.is_none_or(|first| items.all(|item| is_alike(first, item)))
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
