//! The memory of a buffer: on the heap, or in a mapped file.

use super::filled::THE_BUFFER;
use super::live_state::LiveState;
use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};
use crate::schema::CellSpec;
use crate::text::describe_column;

/// The memory of a ring.
#[derive(Debug)]
pub(super) struct RingMemory {
    /// The cells of each column.
    pub(super) columns: Vec<AlignedBytes>,
    /// One byte per row.
    pub(super) flags: AlignedBytes,
}

impl RingMemory {
    /// Memory on the heap for this number of rows; `None` if it is too large for any machine.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn allocate(
        cells: &[CellSpec],
        names: &[Box<str>],
        rows: Option<usize>,
    ) -> Result<Self> {
        let allocate = |cell_bytes: usize, what: &dyn Fn() -> String| {
            let bytes = rows.and_then(|rows| rows.checked_mul(cell_bytes));
            bytes
                .and_then(AlignedBytes::zeroed)
                .ok_or_else(|| Error::out_of_memory(what(), bytes))
        };
        let columns = cells.iter().zip(names).map(|(cell, name)| {
            let what = || format!("{} of the replay buffer", describe_column(name));
            let too_large = || Error::out_of_memory(what(), None);
            let (_, cell_bytes) = cell.checked_size().ok_or_else(too_large)?;
            allocate(cell_bytes, &what)
        });
        Ok(Self {
            columns: columns.collect::<Result<_>>()?,
            flags: allocate(1, &|| THE_BUFFER.into())?,
        })
    }
}

/// The memory of a buffer that is not on the heap.
#[derive(Debug)]
pub struct BufferMemory {
    pub(super) live: LiveState,
    /// One number per row.
    pub(super) priorities: AlignedBytes,
    pub(super) ring: RingMemory,
}

impl BufferMemory {
    /// Sizes of the parts of the memory in bytes: the live state, the flags, the priorities, and each column. `None` if a
    /// size is too large for any machine.
    #[must_use]
    pub fn sizes(cells: &[CellSpec], num_envs: usize, length: usize) -> Option<Vec<usize>> {
        let rows = num_envs.checked_mul(length)?;
        let mut sizes = vec![
            LiveState::bytes(num_envs)?,
            rows,
            rows.checked_mul(size_of::<f64>())?,
        ];
        for cell in cells {
            sizes.push(rows.checked_mul(cell.checked_size()?.1)?);
        }
        Some(sizes)
    }

    /// Combines parts of the sizes that [`Self::sizes`] returns, in the same order.
    #[must_use]
    pub fn from_parts(parts: Vec<AlignedBytes>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let (live, flags, priorities) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            live: LiveState::new(live),
            priorities,
            ring: RingMemory {
                flags,
                columns: parts.collect(),
            },
        })
    }

    /// The state of the environments.
    #[must_use]
    pub fn live_state(&self) -> &LiveState {
        &self.live
    }
}
