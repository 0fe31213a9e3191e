//! What the recorders of all kinds of writers have in common.

use std::fmt::Debug;
use std::vec::Drain;

use crate::error::Result;
use crate::item::NewItem;

/// Turns steps into items, each of which is ready once its chunks, and those of all items created before it, are sealed.
pub trait ItemRecorder: Debug {
    /// Seals the open chunks if items wait for them. Afterwards all items are ready.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a chunk is too large,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn flush(&mut self) -> Result<()>;

    /// Removes and returns the ready items in creation order, each with the caller's number of its table.
    fn take_ready(&mut self) -> Drain<'_, (u32, NewItem)>;

    /// Number of items created and not yet removed by [`ItemRecorder::take_ready`].
    #[must_use]
    fn pending_items(&self) -> usize;

    /// Number of items that wait for a chunk that is not sealed: their own, or that of an earlier item.
    #[must_use]
    fn unsent_items(&self) -> usize;
}
