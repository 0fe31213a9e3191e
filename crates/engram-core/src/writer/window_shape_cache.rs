//! Builds the trajectories of items. Items that lie in one chunk each and have the same shape share a
//! [`WindowShape`], which takes less memory than separate slices.

use std::sync::Arc;

use super::pending_items::PendingTrajectory;
use super::selection::{HistoryView, LocatedItem, OPEN};
use crate::chunk::Chunk;
use crate::schema::Layout;
use crate::trajectory::{Slice, SpanChunks, Spans, WindowShape};

/// Maximum number of window shapes in the cache.
const MAX_SHAPES: usize = 8;

/// The window shapes of recent items, which later items of the same shape share.
#[derive(Debug, Default)]
pub(super) struct WindowShapeCache {
    shapes: Vec<Arc<WindowShape>>,
    /// Index of the shape to replace next, once the cache is full.
    next: usize,
}

impl WindowShapeCache {
    /// Returns the trajectory of the located cells: rows if possible, otherwise a window if they lie in one chunk and
    /// the shape of a recent item is the same, otherwise spans.
    pub(super) fn trajectory(
        &mut self,
        layout: &Arc<Layout>,
        located: &LocatedItem,
        view: &HistoryView<'_>,
    ) -> PendingTrajectory {
        let chunk_index = located.slices[0].chunk;
        if (located.slices.iter()).any(|slice| slice.chunk != chunk_index) {
            return build_spans(layout, located, view);
        }
        let trajectory = if let Some((offset, len, squeeze)) = as_rows(layout, located, view) {
            PendingTrajectory::Rows {
                offset,
                len,
                squeeze,
            }
        } else {
            let offset = located.slices.iter().map(|s| s.offset).min().unwrap_or(0);
            // The first item of a shape becomes `Spans`, whose slices count towards `max_bytes` of tables. A shared
            // shape does not count: without this rule, items of different shapes would take memory uncounted.
            let Some(shape) = self.find_or_store(layout, located, offset) else {
                return build_spans(layout, located, view);
            };
            PendingTrajectory::Window { offset, shape }
        };
        match sealed_chunk(view, chunk_index) {
            None => trajectory,
            Some(chunk) => PendingTrajectory::Sealed(trajectory.resolve(|row| (chunk, row))),
        }
    }

    /// Returns the shape of the located cells if it is in the cache. Otherwise stores it for
    /// later items and returns `None`. The offsets of the shape count from row `base`.
    fn find_or_store(
        &mut self,
        layout: &Arc<Layout>,
        located: &LocatedItem,
        base: u32,
    ) -> Option<Arc<WindowShape>> {
        let relative = |slice: &Slice| Slice {
            chunk: 0,
            offset: slice.offset - base,
            ..*slice
        };
        let same = |shape: &&Arc<WindowShape>| {
            *shape.columns == *located.columns
                && shape.slices.len() == located.slices.len()
                && shape
                    .slices
                    .iter()
                    .copied()
                    .eq(located.slices.iter().map(relative))
                && (Arc::ptr_eq(&shape.layout, layout) || shape.layout == *layout)
        };
        if let Some(shape) = self.shapes.iter().find(same) {
            return Some(Arc::clone(shape));
        }
        let shape = Arc::new(WindowShape {
            layout: Arc::clone(layout),
            columns: located.columns.to_vec().into(),
            slices: located.slices.iter().map(relative).collect(),
        });
        if self.shapes.len() < MAX_SHAPES {
            self.shapes.push(shape);
        } else {
            self.shapes[self.next] = shape;
            self.next = (self.next + 1) % MAX_SHAPES;
        }
        None
    }
}

/// Returns a sealed chunk of the history, or `None` for the open chunk.
fn sealed_chunk<'a>(view: &HistoryView<'a>, index: u32) -> Option<&'a Arc<Chunk>> {
    (index != OPEN).then(|| &view.history.get(index as usize).chunk)
}

/// Returns offset, length and squeeze if the cells are the same rows of all columns of one chunk.
fn as_rows(
    layout: &Arc<Layout>,
    located: &LocatedItem,
    view: &HistoryView<'_>,
) -> Option<(u32, u32, bool)> {
    let (first, column) = (located.slices[0], located.columns[0]);
    let schema = view.schema(first.chunk)?;
    let same_rows = |(number, slice): (usize, &Slice)| {
        slice.column as usize == number && (slice.offset, slice.len) == (first.offset, first.len)
    };
    let matches = located.slices.len() == located.columns.len()
        && located.columns.len() == schema.cells.len()
        && located.slices.iter().enumerate().all(same_rows)
        && located.columns.iter().all(|c| c.squeeze == column.squeeze)
        && (Arc::ptr_eq(layout, &schema.layout) || *layout == schema.layout);
    matches.then_some((first.offset, first.len, column.squeeze))
}

/// Returns the cells as spans. The spans' chunks are numbered in order of first use, the open chunk last.
fn build_spans(
    layout: &Arc<Layout>,
    located: &LocatedItem,
    view: &HistoryView<'_>,
) -> PendingTrajectory {
    let sealed_indices = || {
        located
            .slices
            .iter()
            .map(|s| s.chunk)
            .filter(|c| *c != OPEN)
    };
    // `new_indices[i]` is the index, among the item's chunks, of the chunk of segment `low + i`.
    let (low, high) = (sealed_indices().min(), sealed_indices().max());
    let low = low.unwrap_or(0);
    let mut new_indices = vec![None; high.map_or(0, |high| (high - low + 1) as usize)];
    let mut sealed = SpanChunks::new();
    for index in sealed_indices() {
        let new_index = &mut new_indices[(index - low) as usize];
        if new_index.is_none() {
            *new_index = u32::try_from(sealed.len()).ok();
            sealed.push(Arc::clone(&view.history.get(index as usize).chunk));
        }
    }
    let open_index = u32::try_from(sealed.len()).unwrap_or(OPEN);
    let slices = located.slices.iter().map(|slice| Slice {
        chunk: match slice.chunk {
            OPEN => open_index,
            index => new_indices[(index - low) as usize].unwrap_or(open_index),
        },
        ..*slice
    });
    let spans = Spans {
        layout: Arc::clone(layout),
        columns: located.columns[..].into(),
        slices: slices.collect(),
        chunks: sealed,
    };
    let uses_open_chunk = located.slices.iter().any(|slice| slice.chunk == OPEN);
    PendingTrajectory::of_spans(spans, uses_open_chunk)
}
