//! From found slices to what is stored: the smallest form that says the same.

use std::sync::Arc;

use super::pending_items::{OpenSpans, PendingTrajectory};
use super::selection::{HistoryView, LocatedItem, OPEN};
use crate::schema::Layout;
use crate::trajectory::{Slice, SpanColumn, Trajectory, WindowShape};

/// WindowShapeCache that one writer's items are expected to take turns in.
const REMEMBERED: usize = 8;

/// The shapes of the newest items, so that the next of the same shape can share one.
#[derive(Debug, Default)]
pub(super) struct WindowShapeCache {
    known: Vec<Arc<WindowShape>>,
    next: usize,
}

impl WindowShapeCache {
    /// Turns a located into what the queue keeps.
    pub(super) fn body(
        &mut self,
        layout: &Arc<Layout>,
        located: &LocatedItem,
        view: &HistoryView<'_>,
    ) -> PendingTrajectory {
        let source = located.slices[0].chunk;
        if located.slices.iter().any(|slice| slice.chunk != source) {
            return PendingTrajectory::Spans(Box::new(spans(layout, located, view)))
                .sealed_if_complete();
        }
        if let Some((offset, len, squeeze)) = as_rows(layout, located, view) {
            return match sealed(view, source) {
                None => PendingTrajectory::Rows {
                    offset,
                    len,
                    squeeze,
                },
                Some(chunk) => PendingTrajectory::Sealed(Trajectory::Rows {
                    chunk,
                    offset,
                    len,
                    squeeze,
                }),
            };
        }
        let base = located.slices.iter().map(|s| s.offset).min().unwrap_or(0);
        // The first item of a shape pays for it in full: what is stored stays accounted for
        // even where no two items are alike.
        let Some(shape) = self.find(layout, located, base) else {
            return PendingTrajectory::Spans(Box::new(spans(layout, located, view)))
                .sealed_if_complete();
        };
        match sealed(view, source) {
            None => PendingTrajectory::Window {
                offset: base,
                shape,
            },
            Some(chunk) => PendingTrajectory::Sealed(Trajectory::Window {
                chunk,
                offset: base,
                shape,
            }),
        }
    }

    /// A shape seen before; one that was not is remembered for the next time.
    fn find(
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
        if let Some(shape) = self.known.iter().find(same) {
            return Some(Arc::clone(shape));
        }
        let shape = Arc::new(WindowShape {
            layout: Arc::clone(layout),
            columns: located.columns.to_vec().into(),
            slices: located.slices.iter().map(relative).collect(),
        });
        if self.known.len() < REMEMBERED {
            self.known.push(shape);
        } else {
            self.known[self.next] = shape;
            self.next = (self.next + 1) % REMEMBERED;
        }
        None
    }
}

impl PendingTrajectory {
    fn sealed_if_complete(self) -> Self {
        match self {
            Self::Spans(spans) if !spans.open => Self::Sealed(spans.close(None)),
            body => body,
        }
    }
}

fn sealed(view: &HistoryView<'_>, source: u32) -> Option<Arc<crate::Chunk>> {
    (source != OPEN).then(|| Arc::clone(&view.history.get(source as usize).chunk))
}

/// Offset, length and squeeze of a located that is the same rows of all columns of one chunk.
fn as_rows(
    layout: &Arc<Layout>,
    located: &LocatedItem,
    view: &HistoryView<'_>,
) -> Option<(u32, u32, bool)> {
    let (first, column) = (located.slices[0], located.columns[0]);
    let schema = view.schema(first.chunk)?;
    let alike = |(number, slice): (usize, &Slice)| {
        slice.column as usize == number && (slice.offset, slice.len) == (first.offset, first.len)
    };
    let fits = located.slices.len() == located.columns.len()
        && located.columns.len() == schema.cells.len()
        && located.slices.iter().enumerate().all(alike)
        && located.columns.iter().all(|c| c.squeeze == column.squeeze)
        && (Arc::ptr_eq(layout, &schema.layout) || *layout == schema.layout);
    fits.then_some((first.offset, first.len, column.squeeze))
}

/// Numbers the distinct chunks of a located, the open one last.
fn spans(layout: &Arc<Layout>, located: &LocatedItem, view: &HistoryView<'_>) -> OpenSpans {
    let used = || {
        located
            .slices
            .iter()
            .map(|s| s.chunk)
            .filter(|c| *c != OPEN)
    };
    let (low, high) = (used().min(), used().max());
    let low = low.unwrap_or(0);
    let mut numbers = vec![None; high.map_or(0, |high| (high - low + 1) as usize)];
    let mut sealed = Vec::new();
    for source in used() {
        let number = &mut numbers[(source - low) as usize];
        if number.is_none() {
            *number = u32::try_from(sealed.len()).ok();
            sealed.push(Arc::clone(&view.history.get(source as usize).chunk));
        }
    }
    let last = u32::try_from(sealed.len()).unwrap_or(OPEN);
    let slices = located.slices.iter().map(|slice| Slice {
        chunk: match slice.chunk {
            OPEN => last,
            source => numbers[(source - low) as usize].unwrap_or(last),
        },
        ..*slice
    });
    OpenSpans {
        layout: Arc::clone(layout),
        open: located.slices.iter().any(|slice| slice.chunk == OPEN),
        columns: located
            .columns
            .iter()
            .copied()
            .collect::<Box<[SpanColumn]>>(),
        slices: slices.collect(),
        sealed,
    }
}
