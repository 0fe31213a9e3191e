//! Items that wait for the chunk they refer to, in creation order.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::item::NewItem;
use crate::schema::Layout;
use crate::trajectory::{Slice, SpanColumn, Spans, Trajectory, WindowShape};

/// What an item is made of, before the open chunk is sealed.
#[derive(Debug)]
pub(super) enum PendingTrajectory {
    /// All columns of the open chunk.
    Rows {
        offset: u32,
        len: u32,
        squeeze: bool,
    },
    /// Slices of the open chunk.
    Window {
        offset: u32,
        shape: Arc<WindowShape>,
    },
    /// Slices of sealed chunks and of the open one.
    Spans(Box<OpenSpans>),
    /// Sealed chunks only.
    Sealed(Trajectory),
}

/// A [`Spans`] that may have a place left for the open chunk.
#[derive(Debug)]
pub(super) struct OpenSpans {
    pub(super) layout: Arc<Layout>,
    pub(super) sealed: Vec<Arc<Chunk>>,
    /// True when the chunk number after the sealed ones means the open chunk.
    pub(super) open: bool,
    pub(super) columns: Box<[SpanColumn]>,
    pub(super) slices: Box<[Slice]>,
}

impl OpenSpans {
    pub(super) fn close(mut self, open: Option<&Arc<Chunk>>) -> Trajectory {
        self.sealed.extend(open.cloned());
        Trajectory::Spans(Arc::new(Spans {
            layout: self.layout,
            chunks: self.sealed.into(),
            columns: self.columns,
            slices: self.slices,
        }))
    }
}

#[derive(Debug)]
struct PendingItem {
    table: u32,
    key: u64,
    priority: f64,
    body: PendingTrajectory,
}

/// Queue of items: those that wait come after those that are ready.
#[derive(Debug, Default)]
pub(super) struct PendingItems {
    waiting: Vec<PendingItem>,
    ready: Vec<(u32, NewItem)>,
}

impl PendingItems {
    /// True when an item waits for the open chunk.
    pub(super) fn needs_open_chunk(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Items that nobody has taken yet.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    /// Items that are ready.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn push(&mut self, table: u32, key: u64, priority: f64, body: PendingTrajectory) {
        match body {
            PendingTrajectory::Sealed(trajectory) if self.waiting.is_empty() => {
                let item = NewItem {
                    key,
                    trajectory,
                    priority,
                };
                self.ready.push((table, item));
            }
            // Behind one that waits, a complete item waits too: creation order is kept.
            body => self.waiting.push(PendingItem {
                table,
                key,
                priority,
                body,
            }),
        }
    }

    /// The open chunk is sealed as one or more: nothing waits any more. `place` maps a row of
    /// the open chunk to a sealed chunk and its row.
    pub(super) fn resolve<'a>(&mut self, place: impl Fn(u32) -> (&'a Arc<Chunk>, u32)) {
        self.ready.reserve(self.waiting.len());
        for PendingItem {
            table,
            key,
            priority,
            body,
        } in self.waiting.drain(..)
        {
            let trajectory = match body {
                PendingTrajectory::Rows {
                    offset,
                    len,
                    squeeze,
                } => {
                    let (chunk, offset) = place(offset);
                    Trajectory::Rows {
                        chunk: Arc::clone(chunk),
                        offset,
                        len,
                        squeeze,
                    }
                }
                PendingTrajectory::Window { offset, shape } => {
                    let (chunk, offset) = place(offset);
                    Trajectory::Window {
                        chunk: Arc::clone(chunk),
                        offset,
                        shape,
                    }
                }
                PendingTrajectory::Spans(mut spans) => {
                    let number = spans.sealed.len();
                    let mut open = None;
                    for slice in &mut spans.slices {
                        if slice.chunk as usize == number {
                            // An item is of one environment, so its open slices share a chunk.
                            let (chunk, offset) = place(slice.offset);
                            slice.offset = offset;
                            open = Some(chunk);
                        }
                    }
                    spans.close(open)
                }
                PendingTrajectory::Sealed(trajectory) => trajectory,
            };
            let item = NewItem {
                key,
                trajectory,
                priority,
            };
            self.ready.push((table, item));
        }
    }

    pub(super) fn take_ready(&mut self) -> std::vec::Drain<'_, (u32, NewItem)> {
        self.ready.drain(..)
    }
}
