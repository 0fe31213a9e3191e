//! Copies large batches with several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// Batches of at least this many bytes are copied by several threads.
const MIN_PARALLEL_BYTES: usize = 4 << 20;

/// The parts of large batches have about this many bytes: enough that their number costs nothing, and so few that a thread
/// that the system interrupts does not keep the others waiting for long.
const PART_BYTES: usize = 512 << 10;

/// Copies a batch of `items` items into its columns: calls `copy` with consecutive items and, per column, the bytes of
/// these items. Large batches are copied by this thread and rayon's. The result does not depend on their number.
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
    let threads = if total >= MIN_PARALLEL_BYTES && may_use_thread_pool() {
        rayon::current_num_threads()
    } else {
        1
    };
    if threads <= 1 {
        return copy(0..items, columns);
    }
    let part_len = items.div_ceil((total / PART_BYTES).max(threads));
    let mut remaining = columns;
    let parts = (0..items).step_by(part_len).map(|first| {
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
        (first..end, out)
    });
    let parts: Vec<_> = parts.collect();
    let mut outcomes: Vec<Result<()>> = vec![Ok(()); parts.len()];
    let unclaimed = Mutex::new(parts.into_iter().zip(&mut outcomes));
    let copy_unclaimed = || {
        loop {
            // A thread that panicked has not changed the other parts.
            let next = (unclaimed.lock().unwrap_or_else(PoisonError::into_inner)).next();
            let Some(((range, out), outcome)) = next else {
                return;
            };
            *outcome = copy(range, out);
        }
    };
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| copy_unclaimed());
        }
        copy_unclaimed();
    });
    drop(unclaimed);
    outcomes.into_iter().collect()
}

/// False in a process that was forked after the first call: the threads of its parent's pool do not exist there.
fn may_use_thread_pool() -> bool {
    // Not a `OnceLock`: a child that is forked while another thread sets it would wait forever.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let current = std::process::id();
    let first = PROCESS.compare_exchange(0, current, Ordering::Relaxed, Ordering::Relaxed);
    first.is_ok() || first == Err(current)
}
