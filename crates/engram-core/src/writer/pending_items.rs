//! Created items in creation order: those that are ready, and those that wait for the open chunk. The open chunks of a
//! batched recorder, one per group of environments, count as one here.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::item::NewItem;
use crate::trajectory::{Spans, Trajectory, WindowShape};

/// An item's trajectory while the open chunk is not sealed yet.
#[derive(Debug)]
pub(super) enum PendingTrajectory {
    /// Rows of all columns of the open chunk.
    Rows {
        /// First row.
        offset: u32,
        len: u32,
        squeeze: bool,
    },
    /// Slices of the open chunk.
    Window {
        /// Row that the offsets of the shape count from.
        offset: u32,
        shape: Arc<WindowShape>,
    },
    /// Slices of sealed chunks and of the open chunk, which is added once it is sealed: its index follows those of the
    /// sealed chunks.
    Spans(UnsharedSpans),
    /// Slices of sealed chunks only.
    Sealed(Trajectory),
}

impl PendingTrajectory {
    /// Slices of the chunks of `spans` and, if `uses_open_chunk`, of the open chunk.
    pub(super) fn of_spans(spans: Spans, uses_open_chunk: bool) -> Self {
        let spans = Arc::new(spans);
        if uses_open_chunk {
            Self::Spans(UnsharedSpans(spans))
        } else {
            Self::Sealed(Trajectory::Spans(spans))
        }
    }

    /// The trajectory after the open chunk was sealed as one or more chunks. `locate` maps a row of the open chunk to a
    /// sealed chunk and its row.
    pub(super) fn resolve<'a>(self, locate: impl Fn(u32) -> (&'a Arc<Chunk>, u32)) -> Trajectory {
        match self {
            Self::Rows {
                offset,
                len,
                squeeze,
            } => {
                let (chunk, offset) = locate(offset);
                Trajectory::Rows {
                    chunk: Arc::clone(chunk),
                    offset,
                    len,
                    squeeze,
                }
            }
            Self::Window { offset, shape } => {
                let (chunk, offset) = locate(offset);
                Trajectory::Window {
                    chunk: Arc::clone(chunk),
                    offset,
                    shape,
                }
            }
            Self::Spans(spans) => spans.resolve(locate),
            Self::Sealed(trajectory) => trajectory,
        }
    }
}

/// [`Spans`] to which no other item refers yet.
#[derive(Debug)]
pub(super) struct UnsharedSpans(Arc<Spans>);

impl UnsharedSpans {
    /// Replaces the rows of the open chunk, which follows the sealed ones, by those of the chunks that it was sealed as.
    fn resolve<'a>(mut self, locate: impl Fn(u32) -> (&'a Arc<Chunk>, u32)) -> Trajectory {
        if let Some(spans) = Arc::get_mut(&mut self.0) {
            let open_index = spans.chunks.len();
            for slice in &mut spans.slices {
                if slice.chunk as usize == open_index {
                    let (chunk, offset) = locate(slice.offset);
                    // At most two: an item belongs to one environment, so its rows are in one chunk, and its side cells
                    // in another one.
                    let mut open = spans.chunks[open_index..].iter();
                    let known = open.position(|other| Arc::ptr_eq(other, chunk));
                    let index = known.unwrap_or(spans.chunks.len() - open_index);
                    if known.is_none() {
                        spans.chunks.push(Arc::clone(chunk));
                    }
                    slice.offset = offset;
                    slice.chunk += u32::from(index > 0);
                }
            }
        }
        Trajectory::Spans(self.0)
    }
}

#[derive(Debug)]
struct PendingItem {
    table: u32,
    key: u64,
    priority: f64,
    trajectory: PendingTrajectory,
}

/// The items of a recorder that `take_ready` has not returned yet, in two lists: all items in `waiting` were
/// created after those in `ready`.
#[derive(Debug, Default)]
pub(super) struct PendingItems {
    /// Items that refer to the open chunk, or were created after one that does.
    waiting: Vec<PendingItem>,
    /// Items that can be sent, each with the caller's number of its table.
    ready: Vec<(u32, NewItem)>,
}

impl PendingItems {
    /// True if an item cannot be sent before the open chunk is sealed.
    pub(super) fn needs_open_chunk(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Number of items in both lists.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    /// Number of items in `waiting`.
    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds an item, which is ready or waits for the open chunk.
    pub(super) fn push(
        &mut self,
        table: u32,
        key: u64,
        priority: f64,
        trajectory: PendingTrajectory,
    ) {
        match trajectory {
            PendingTrajectory::Sealed(trajectory) if self.waiting.is_empty() => {
                let item = NewItem {
                    key,
                    trajectory,
                    priority,
                };
                self.ready.push((table, item));
            }
            // An item of sealed chunks waits if an earlier one does, to keep the creation order.
            trajectory => self.waiting.push(PendingItem {
                table,
                key,
                priority,
                trajectory,
            }),
        }
    }

    /// Makes all items ready after the open chunk was sealed; see [`PendingTrajectory::resolve`].
    pub(super) fn resolve<'a>(&mut self, locate: impl Fn(u32) -> (&'a Arc<Chunk>, u32)) {
        self.ready.reserve(self.waiting.len());
        for PendingItem {
            table,
            key,
            priority,
            trajectory,
        } in self.waiting.drain(..)
        {
            let item = NewItem {
                key,
                trajectory: trajectory.resolve(&locate),
                priority,
            };
            self.ready.push((table, item));
        }
    }

    /// Removes and returns the items in `ready`.
    pub(super) fn take_ready(&mut self) -> std::vec::Drain<'_, (u32, NewItem)> {
        self.ready.drain(..)
    }
}
