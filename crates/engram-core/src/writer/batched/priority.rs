//! TD errors among the steps of one environment.

use std::collections::VecDeque;

use super::super::StepPosition;
use super::super::batch_chunk::OpenBatch;
use super::super::pattern::Pattern;
use super::super::priority::Sizes;
use super::BatchSegment;
use super::plan::place;
use crate::dtype::DType;
use crate::error::Result;

/// The sizes in a column of the item that a pattern makes of the steps from `first` on, all of which are there.
pub(super) fn sizes(
    pattern: &Pattern,
    column: usize,
    history: &VecDeque<BatchSegment>,
    open: &OpenBatch,
    env: usize,
    first: StepPosition,
) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    let name = pattern.name(column);
    for slice in pattern.shape.column_slices(column) {
        let source = slice.column as usize;
        let mut at = first + StepPosition::from(slice.offset);
        let end = at + StepPosition::from(slice.len);
        while at < end {
            let Some(place) = place(history, open, at) else {
                break;
            };
            let until = end.min(place.end);
            let step = offset(at - place.first);
            let len = offset(until - at);
            if let Some(segment) = place.segment {
                let chunk = &segment.chunks[env / segment.group];
                let row = segment.row(env) as usize + step;
                sizes.add_rows(name, chunk, source, row, len)?;
            } else {
                let spec = &open.schema().cells[source];
                for step in step..step + len {
                    let cell = match spec.dtype {
                        DType::String => &[],
                        _ => open.cell(source, env, step),
                    };
                    sizes.add(name, spec, cell)?;
                }
            }
            at = until;
        }
    }
    Ok(sizes)
}

/// Steps of a chunk were counted in 32 bits when it was begun.
fn offset(steps: StepPosition) -> usize {
    usize::try_from(steps).unwrap_or(usize::MAX)
}
