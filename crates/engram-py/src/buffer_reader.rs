//! Reading all items or all steps of a replay buffer once, for `ReplayBuffer.epoch` and `ReplayBuffer.scan`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engram_core::ring::{BufferScan, Drawn, StepBuffer};
use parking_lot::RwLockWriteGuard;
use pyo3::prelude::*;

use crate::buffer_batch::BufferBatch;
use crate::replay_buffer::ReplayBuffer;

/// What was not read yet, of the items or steps of a buffer at one moment.
#[derive(Debug)]
pub(crate) enum Unread {
    /// Keys of items, of which the last one is read next.
    Shuffled(Vec<u64>),
    /// Items or steps in order.
    Ordered(BufferScan),
}

impl Unread {
    /// Number of items or steps. Some may not be in the buffer any more.
    fn len(&self) -> usize {
        match self {
            Self::Shuffled(keys) => keys.len(),
            Self::Ordered(scan) => usize::try_from(scan.len()).unwrap_or(usize::MAX),
        }
    }

    fn of_steps(&self) -> bool {
        match self {
            Self::Shuffled(_) => false,
            Self::Ordered(scan) => scan.of_steps(),
        }
    }
}

/// Reads a buffer once.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct BufferReader {
    buffer: Py<ReplayBuffer>,
    /// `None` while a thread reads a batch, and after an error.
    unread: Mutex<Option<Unread>>,
}

impl BufferReader {
    pub(crate) fn new(buffer: &Bound<'_, ReplayBuffer>, unread: Unread) -> Self {
        Self {
            buffer: buffer.clone().unbind(),
            unread: Mutex::new(Some(unread)),
        }
    }

    fn unread(&self) -> MutexGuard<'_, Option<Unread>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl BufferReader {
    /// Returns the next batch, which has fewer items at the end; None after the end.
    fn next(&self, py: Python<'_>, batch_size: usize) -> PyResult<Option<BufferBatch>> {
        let this = self.buffer.get();
        let Some((len, of_steps)) = self.unread().as_ref().map(|it| (it.len(), it.of_steps()))
        else {
            return Ok(None);
        };
        let items = batch_size.min(len);
        let columns = if of_steps {
            this.step_columns()
        } else {
            this.item_columns()
        };
        let mut buffers = columns.allocate(py, items)?;
        let bytes = columns.batch_bytes(items);
        let item_bytes = columns.columns.iter().map(|(_, cell)| cell.bytes());
        let outputs: Vec<_> = buffers.iter_mut().zip(item_bytes).collect();
        let Some(mut unread) = self.unread().take() else {
            return Ok(None);
        };
        let gather = |buffer: &StepBuffer, drawn: &Drawn| {
            let outputs = outputs.into_iter();
            let outputs = outputs.map(|(out, bytes)| &mut out[..bytes * drawn.starts.len()]);
            if of_steps {
                buffer.gather_sequences(&drawn.starts, 1, outputs.collect())
            } else {
                buffer.gather(drawn, outputs.collect())
            }
        };
        let (drawn, staged_end) = match &mut unread {
            Unread::Shuffled(keys) => this.locked(py, bytes, |mut buffer| {
                let drawn = buffer.take(keys, items); // may draw goals
                let buffer = RwLockWriteGuard::downgrade(buffer);
                gather(&buffer, &drawn)?;
                Ok((drawn, this.staged_end()))
            }),
            Unread::Ordered(scan) => this.reading(py, bytes, |buffer| {
                let drawn = buffer.read(scan, items);
                gather(buffer, &drawn)?;
                Ok((drawn, this.staged_end()))
            }),
        }?;
        *self.unread() = Some(unread);
        let items = drawn.starts.len();
        if items == 0 {
            return Ok(None);
        }
        let arrays = columns.arrays(py, buffers, items)?;
        let batch = BufferBatch::new(arrays, drawn, this.num_envs());
        Ok(Some(batch.with_staged_end(staged_end)))
    }
}
