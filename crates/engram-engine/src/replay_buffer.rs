//! Replay buffers in memory or in a mapped file.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use engram_core::ring::{EpisodeColumns, RingItems, StepBuffer, StepBufferOptions};
use engram_core::{DType, Error, Result, Schema, SharedBytes};

use crate::disk::{BufferFlush, BufferSize, FlushedState, Interrupted, MappedFile, boot_id};
use crate::huge_pages::request_huge_pages;

/// A [`StepBuffer`], and the file that its steps are in, if there is one.
#[derive(Debug)]
pub struct ReplayBuffer {
    /// Declared before the file, so that it is dropped first: the file is unlocked last. Empty once the buffer is closed.
    steps: StepBuffer,
    file: Option<MappedFile>,
    /// True if the file did not exist before.
    is_new: bool,
    is_closed: bool,
    /// Why `close` could not make everything durable.
    close_error: Option<Error>,
}

impl ReplayBuffer {
    /// Creates an empty buffer in memory.
    ///
    /// # Errors
    /// Those of [`StepBuffer::new`].
    pub fn new(options: &StepBufferOptions<'_>) -> Result<Self> {
        let mut steps = StepBuffer::new(options)?;
        steps.heap_memory().for_each(request_huge_pages);
        Ok(Self {
            steps,
            file: None,
            is_new: false,
            is_closed: false,
            close_error: None,
        })
    }

    /// Opens the buffer in a file, or creates the file. `schema` is that of the steps; `id` must differ each time.
    ///
    /// Whatever the items are, the file records where episodes end if the steps have the columns for that, so that each of
    /// its buffers can have other items.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be created, read or written, is damaged, or is in use, or `interrupted` returns
    /// true;
    /// [`Error::InvalidArgument`] if its buffer has another size, [`Error::Signature`] if its steps have another schema;
    /// those of [`StepBuffer::new`] and [`StepBuffer::reopen`].
    pub fn open(
        path: &Path,
        options: StepBufferOptions<'_>,
        schema: &Arc<Schema>,
        id: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<Self> {
        Self::open_after_boot(path, options, schema, id, interrupted, &boot_id())
    }

    /// [`Self::open`] in the run of the machine that `boot` identifies.
    fn open_after_boot(
        path: &Path,
        mut options: StepBufferOptions<'_>,
        schema: &Arc<Schema>,
        id: u64,
        interrupted: Interrupted<'_>,
        boot: &str,
    ) -> Result<Self> {
        options.episode_columns = options.episode_columns.or_else(|| episode_columns(schema));
        let size = BufferSize {
            num_envs: options.num_envs,
            length: options.length,
        };
        let opened = MappedFile::open(path, schema, size, boot)?;
        let is_new = opened.is_none();
        let ((mut file, memory), state) = if let Some(opened) = opened {
            opened
        } else {
            let state = FlushedState::empty(options.num_envs, options.seed);
            let created = MappedFile::create(path, schema, size, state.clone(), id, interrupted)?;
            (created, state)
        };
        let started = StepBuffer::in_memory(&options, Some(memory)).and_then(|mut steps| {
            steps.heap_memory().for_each(request_huge_pages);
            let reopened = steps.reopen(&state.envs, state.rng);
            reopened.map_err(|error| file.to_error(error))?;
            file.start(boot)?;
            Ok(steps)
        });
        if started.is_err() && is_new {
            file.remove();
        }
        Ok(Self {
            steps: started?,
            file: Some(file),
            is_new,
            is_closed: false,
            close_error: None,
        })
    }

    /// Checks that the buffer is not closed.
    ///
    /// # Errors
    /// [`Error::Closed`] if it is.
    pub fn check_open(&self) -> Result<()> {
        if self.is_closed {
            return Err(Error::Closed("the replay buffer is closed".into()));
        }
        Ok(())
    }

    /// Columns and nesting of the steps of the buffer in a file; `None` if there is no file.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be read or is damaged, or is not that of a buffer.
    pub fn schema_of(path: &Path) -> Result<Option<Arc<Schema>>> {
        MappedFile::schema(path)
    }

    /// Adds steps; see [`StepBuffer::add`].
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written. Then nothing is added.
    pub fn add(&mut self, envs: &[usize], columns: &[SharedBytes<'_>], steps: usize) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.reserve(&self.steps, envs, steps)?;
        }
        self.steps.add(envs, columns, steps);
        Ok(())
    }

    /// Adds a whole episode; see [`StepBuffer::add_episode`].
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written. Then nothing changes.
    pub fn add_episode(
        &mut self,
        env: usize,
        columns: &[SharedBytes<'_>],
        steps: usize,
    ) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.reserve(&self.steps, &[env], steps)?;
        }
        self.steps.add_episode(env, columns, steps);
        Ok(())
    }

    /// Begins to write the steps, priorities and random state that the buffer has now to disk. [`BufferFlush::sync`] writes
    /// them, [`Self::finish_flush`] makes them durable. Meanwhile the buffer can be used.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the buffer has no file.
    pub fn begin_flush(&self) -> Result<BufferFlush> {
        let file = self.file.as_ref().ok_or_else(|| {
            let text = "`flush` needs a buffer in a file; create it with `storage=MappedFile(...)`, or use `save`";
            Error::InvalidArgument(text.into())
        })?;
        Ok(file.begin_flush(&self.steps))
    }

    /// Ends a flush; `synced` is the outcome of [`BufferFlush::sync`].
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written, or `synced` is an error; or if another thread has closed the buffer
    /// meanwhile, and that has failed.
    pub fn finish_flush(&mut self, flush: BufferFlush, synced: Result<()>) -> Result<()> {
        match (&mut self.file, &self.close_error) {
            (Some(file), _) => file.finish_flush(&self.steps, flush, synced, false),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => synced,
        }
    }

    /// Makes everything durable, and releases the file and all memory. Does nothing if the buffer is closed.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written. The buffer is closed nevertheless.
    pub fn close(&mut self) -> Result<()> {
        let flushed = self.file.as_mut().map_or(Ok(()), |file| {
            let flush = file.begin_flush(&self.steps);
            let synced = flush.sync();
            file.finish_flush(&self.steps, flush, synced, true)
        });
        self.close_error = flushed.as_ref().err().cloned().or(self.close_error.take());
        self.release()?;
        flushed
    }

    /// Closes a buffer that was not used. Removes its file if it did not exist before.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn discard(&mut self) -> Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| self.is_new) {
            file.remove();
        }
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        self.is_closed = true;
        let nothing = StepBufferOptions {
            cells: &[],
            names: &[],
            num_envs: 1,
            length: 1,
            items: RingItems::Steps,
            outputs: Vec::new(),
            episode_columns: None,
            reward_column: None,
            hindsight: None,
            exponent: None,
            recent: None,
            seed: 0,
        };
        self.steps = StepBuffer::new(&nothing)?;
        self.file = None;
        Ok(())
    }
}

/// The columns that state where the episodes of such steps end.
fn episode_columns(schema: &Schema) -> Option<EpisodeColumns> {
    let find = |name: &str| {
        let column = schema.layout.names.iter().position(|it| **it == *name)?;
        let cell = &schema.cells[column];
        (cell.dtype == DType::Bool && cell.shape.is_empty()).then_some(column)
    };
    Some(EpisodeColumns {
        terminated: find("terminated")?,
        truncated: find("truncated")?,
    })
}

impl Deref for ReplayBuffer {
    type Target = StepBuffer;

    fn deref(&self) -> &StepBuffer {
        &self.steps
    }
}

impl DerefMut for ReplayBuffer {
    fn deref_mut(&mut self) -> &mut StepBuffer {
        &mut self.steps
    }
}

#[cfg(test)]
mod tests;
