//! Copies large batches with several threads.

use std::ops::Range;
use std::sync::OnceLock;

use crate::error::Result;

/// Batches of at least this many bytes are copied by several threads.
const MIN_PARALLEL_BYTES: usize = 4 << 20;

/// Copies a batch of `items` items into its columns: calls `copy` with consecutive items and, per column, the bytes of
/// these items. Large batches are copied by rayon's threads. The result does not depend on their number.
///
/// `start(column, item)` returns the offset of an item in the bytes of a column; for `items`, the end of the last item.
///
/// # Errors
/// Those of `copy`.
pub(crate) fn copy_in_parts<F>(
    items: usize,
    columns: Vec<&mut [u8]>,
    start: impl Fn(usize, usize) -> usize + Sync,
    copy: F,
) -> Result<()>
where
    F: Fn(Range<usize>, Vec<&mut [u8]>) -> Result<()> + Sync,
{
    let total: usize = columns.iter().map(|column| column.len()).sum();
    let parts = if total >= MIN_PARALLEL_BYTES && may_use_thread_pool() {
        rayon::current_num_threads().min(items)
    } else {
        1
    };
    if parts <= 1 {
        return copy(0..items, columns);
    }
    let part_len = items.div_ceil(parts);
    let mut remaining = columns;
    let mut outcomes: Vec<Result<()>> = vec![Ok(()); items.div_ceil(part_len)];
    rayon::scope(|scope| {
        for (part, outcome) in outcomes.iter_mut().enumerate() {
            let first = part * part_len;
            let end = items.min(first + part_len);
            let out: Vec<&mut [u8]> = remaining
                .iter_mut()
                .enumerate()
                .map(|(column, remaining)| {
                    let len = start(column, end) - start(column, first);
                    let (out, later) = std::mem::take(remaining).split_at_mut(len);
                    *remaining = later;
                    out
                })
                .collect();
            let copy = &copy;
            scope.spawn(move |_| *outcome = copy(first..end, out));
        }
    });
    outcomes.into_iter().collect()
}

/// False in a process that was forked after the first call: the threads of its parent's pool do not exist there.
fn may_use_thread_pool() -> bool {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    let current = std::process::id();
    *PROCESS.get_or_init(|| current) == current
}
