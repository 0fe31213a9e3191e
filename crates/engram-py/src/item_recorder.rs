//! What the recorders of all kinds of writers have in common.

use std::fmt::Debug;
use std::vec::Drain;

use engram_core::writer::{BatchedRecorder, Recorder, VectorRecorder};
use engram_core::{NewItem, Result};

/// Turns steps into items, each of which is ready once its chunks are sealed.
pub(crate) trait ItemRecorder: Debug {
    /// Makes all items ready.
    fn flush(&mut self) -> Result<()>;

    /// Removes and returns the ready items, each with the number of its table.
    fn take_ready(&mut self) -> Drain<'_, (u32, NewItem)>;

    /// Number of items that [`ItemRecorder::take_ready`] would return.
    fn ready_items(&self) -> usize;

    /// Number of items that were not returned yet.
    fn pending_items(&self) -> usize;

    /// Number of items that wait for a chunk that is not sealed: their own, or that of an earlier item.
    fn unsent_items(&self) -> usize {
        self.pending_items() - self.ready_items()
    }
}

/// Implements [`ItemRecorder`] with the methods of the same names.
macro_rules! impl_item_recorder {
    ($($recorder:ident),*) => {$(
        impl ItemRecorder for $recorder {
            fn flush(&mut self) -> Result<()> {
                $recorder::flush(self)
            }

            fn take_ready(&mut self) -> Drain<'_, (u32, NewItem)> {
                $recorder::take_ready(self)
            }

            fn ready_items(&self) -> usize {
                $recorder::ready_items(self)
            }

            fn pending_items(&self) -> usize {
                $recorder::pending_items(self)
            }
        }
    )*};
}

impl_item_recorder!(Recorder, BatchedRecorder, VectorRecorder);
