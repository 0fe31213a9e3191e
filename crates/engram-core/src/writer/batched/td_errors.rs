//! Reads the TD errors of an item of one environment.

use std::collections::VecDeque;

use super::super::StepPosition;
use super::super::open_batch::OpenBatch;
use super::super::pattern::Pattern;
use super::super::priority_rule::TdErrorStats;
use super::BatchSegment;
use super::split_window::locate_step;
use crate::dtype::DType;
use crate::error::Result;

/// Returns the statistics of column `column` of the item that a pattern creates from environment `env`'s steps
/// starting at `first`. All of these steps must be available.
pub(super) fn td_error_stats(
    pattern: &Pattern,
    column: usize,
    history: &VecDeque<BatchSegment>,
    open: &OpenBatch,
    env: usize,
    first: StepPosition,
) -> Result<TdErrorStats> {
    let mut stats = TdErrorStats::default();
    let name = pattern.name(column);
    for slice in pattern.shape.column_slices(column) {
        let source = slice.column as usize;
        let mut position = first + StepPosition::from(slice.offset);
        let end = position + StepPosition::from(slice.len);
        while position < end {
            let Some(location) = locate_step(history, open, position) else {
                break;
            };
            let until = end.min(location.end);
            let step = to_usize(position - location.first);
            let len = to_usize(until - position);
            if let Some(segment) = location.segment {
                let chunk = &segment.chunks[env / segment.envs_per_group];
                let row = segment.first_row(env) as usize + step;
                stats.add_rows(name, chunk, source, row, len)?;
            } else {
                let spec = &open.schema().cells[source];
                for step in step..step + len {
                    let cell = match spec.dtype {
                        // `add` rejects the dtype before it reads the cell.
                        DType::Bytes | DType::Text => &[],
                        _ => open.cell(source, env, step),
                    };
                    stats.add(name, spec, cell)?;
                }
            }
            position = until;
        }
    }
    Ok(stats)
}

/// Converts a number of steps within a chunk, which fits 32 bits.
fn to_usize(steps: StepPosition) -> usize {
    usize::try_from(steps).unwrap_or(usize::MAX)
}
