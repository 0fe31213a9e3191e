//! Many environments that step together, and the items their patterns make.

mod items;
mod plan;

use std::collections::VecDeque;
use std::sync::Arc;

use super::Position;
pub use super::batch_chunk::BatchColumn;
use super::batch_chunk::{Grouping, OpenBatch};
use super::keys::KeySource;
use super::options::WriterOptions;
use super::pattern::Pattern;
use super::pending::Pending;
use crate::chunk::Chunk;
use crate::codec::Compressor;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::item::NewItem;
use crate::schema::{CellSpec, Schema};

/// Strings of the open chunks: they are cut when they have more bytes.
const STRING_BUDGET: usize = 256 << 10;

/// Takes one step of every environment at a time. Small steps of neighbouring environments
/// share a chunk, environment after environment.
#[derive(Debug)]
pub struct BatchedRecorder {
    options: WriterOptions,
    keys: KeySource,
    schema: Arc<Schema>,
    envs: usize,
    compressor: Compressor,
    history: VecDeque<BatchSegment>,
    open: Option<OpenBatch>,
    pending: Pending,
    patterns: Vec<Entry>,
    /// Steps of every environment so far.
    head: Position,
    /// Of each environment: where its episode began, and the episode's id.
    episode_first: Vec<Position>,
    episode: Vec<u64>,
    /// Environments whose episode is not among those of the open chunk.
    unlisted: Vec<usize>,
}

/// Sealed chunks of one stretch of steps, one per group of environments.
#[derive(Debug)]
struct BatchSegment {
    first: Position,
    steps: usize,
    group: usize,
    chunks: Vec<Arc<Chunk>>,
}

#[derive(Debug)]
struct Entry {
    pattern: Pattern,
    /// Per environment, position after the step at which it last made an item.
    applied: Vec<Position>,
}

impl BatchedRecorder {
    /// A recorder of `envs` environments, whose keys come from `base`, which should be random.
    /// Of the options, the history is taken from the patterns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without environments, or as [`WriterOptions::check`].
    pub fn new(
        options: WriterOptions,
        base: u64,
        envs: usize,
        schema: Arc<Schema>,
        patterns: Vec<Pattern>,
    ) -> Result<Self> {
        options.check()?;
        if envs == 0 || u32::try_from(envs).is_err() {
            return Err(Error::InvalidArgument(format!(
                "a batch has {envs} environments; it has 1 to {}",
                u32::MAX
            )));
        }
        let mut keys = KeySource::new(base);
        let entries = patterns.into_iter().map(|mut pattern| {
            pattern.bind(&schema);
            Entry {
                pattern,
                applied: vec![0; envs],
            }
        });
        Ok(Self {
            patterns: entries.collect(),
            compressor: Compressor::new(options.compression),
            options,
            episode: (0..envs).map(|_| keys.next_key()).collect(),
            keys,
            schema,
            envs,
            history: VecDeque::new(),
            open: None,
            pending: Pending::default(),
            head: 0,
            episode_first: vec![0; envs],
            unlisted: Vec::new(),
        })
    }

    /// The columns of a step.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// How many environments step together.
    #[must_use]
    pub fn envs(&self) -> usize {
        self.envs
    }

    /// Steps of every environment so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.head
    }

    /// Items that were made and not yet taken.
    #[must_use]
    pub fn pending_items(&self) -> usize {
        self.pending.len()
    }

    /// Gives the cells other shapes from the next step on.
    ///
    /// # Errors
    /// [`Error::Signature`] when a column would change its dtype or their number changes.
    pub fn reshape(&mut self, cells: Box<[CellSpec]>) -> Result<()> {
        let dtypes = |cells: &[CellSpec]| cells.iter().map(|c| c.dtype).collect::<Vec<_>>();
        if dtypes(&cells) != dtypes(&self.schema.cells) {
            return Err(Error::Signature(format!(
                "columns would become {:?}; they are {:?}, and only their shapes may change",
                dtypes(&cells),
                dtypes(&self.schema.cells)
            )));
        }
        self.cut()?;
        let layout = Arc::clone(&self.schema.layout);
        self.schema = Arc::new(Schema { layout, cells });
        Ok(())
    }

    /// Adds one step of every environment and makes the items that the patterns ask for; says
    /// how many. Where `ends` is true this is the last step of that environment's episode.
    ///
    /// # Errors
    /// [`Error::Signature`] for columns that do not fit, [`Error::InvalidArgument`] for batches
    /// too large or `ends` of another length: nothing is written then. [`Error::Signature`]
    /// also for items whose cells have several shapes: the step is written then, and the other
    /// patterns' items are made.
    pub fn append_batch(
        &mut self,
        columns: &[BatchColumn<'_>],
        ends: Option<&[bool]>,
    ) -> Result<usize> {
        self.check(columns, ends)?;
        if self.open.as_ref().is_none_or(|o| o.is_full(STRING_BUDGET)) {
            self.begin()?;
        }
        let Some(open) = &mut self.open else {
            unreachable!("chunks were just begun")
        };
        open.push(columns)?;
        for env in self.unlisted.drain(..) {
            open.add_episode(env, self.episode[env]);
        }
        self.head += 1;
        let made = self.make_items(ends);
        for (env, _) in ends
            .iter()
            .flat_map(|e| e.iter().enumerate())
            .filter(|(_, end)| **end)
        {
            self.episode_first[env] = self.head;
            self.episode[env] = self.keys.next_key();
            self.unlisted.push(env);
        }
        made
    }

    /// Completes the open chunks: all items made so far are ready then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a chunk is too large.
    pub fn flush(&mut self) -> Result<()> {
        if self.pending.is_waiting() {
            self.cut()?;
        }
        Ok(())
    }

    /// Items whose chunks are complete.
    #[must_use]
    pub fn ready_items(&self) -> usize {
        self.pending.ready_len()
    }

    /// Takes the items whose chunks are complete, each with its table.
    pub fn take_ready(&mut self) -> std::vec::Drain<'_, (u32, NewItem)> {
        self.pending.take_ready()
    }

    fn check(&self, columns: &[BatchColumn<'_>], ends: Option<&[bool]>) -> Result<()> {
        let cells = &self.schema.cells;
        if columns.len() != cells.len() {
            return Err(Error::Signature(format!(
                "batch has {} columns; its steps have {}",
                columns.len(),
                cells.len()
            )));
        }
        for ((column, cell), name) in columns.iter().zip(cells).zip(&self.schema.layout.names) {
            let (found, asked, unit) = match (column, cell.dtype) {
                (BatchColumn::Strings(cells), DType::String) => (cells.len(), self.envs, "cells"),
                (BatchColumn::Cells(_), DType::String) => (0, self.envs, "string cells"),
                (BatchColumn::Strings(_), _) => (0, self.envs * cell.bytes(), "bytes"),
                (BatchColumn::Cells(bytes), _) => (bytes.len(), self.envs * cell.bytes(), "bytes"),
            };
            if found != asked {
                return Err(Error::Signature(format!(
                    "column `{name}` of the batch has {found} {unit}; {} environments have {asked}",
                    self.envs
                )));
            }
        }
        match ends {
            Some(ends) if ends.len() != self.envs => Err(Error::InvalidArgument(format!(
                "episode_ends has {} entries; there are {} environments",
                ends.len(),
                self.envs
            ))),
            _ => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<()> {
        let grouping = self.options.grouping(&self.schema, self.envs);
        let rows = grouping.length.checked_mul(self.envs);
        if rows.is_none_or(|rows| u32::try_from(rows).is_err()) {
            return Err(Error::InvalidArgument(format!(
                "chunks of {} steps of {} environments have too many rows; they have at most {}: \
                 lower chunk_length",
                grouping.length,
                self.envs,
                u32::MAX
            )));
        }
        let reach = self.patterns.iter().map(|e| e.pattern.reach).max();
        let carried = self
            .options
            .carried_steps(&self.schema, grouping.length, reach.unwrap_or(0));
        let carried = match &self.open {
            Some(open) => open.steps.min(carried as usize),
            None => 0,
        };
        let first = self.head - carried as Position;
        let mut next = OpenBatch::new(&self.schema, grouping, first)?;
        if let Some(open) = &self.open {
            next.carry(open, carried);
        }
        self.cut()?;
        for (env, episode) in self.episode.iter().enumerate() {
            next.add_episode(env, *episode);
        }
        self.unlisted.clear();
        self.open = Some(next);
        Ok(())
    }

    /// Seals the open chunks, if there are any.
    fn cut(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let (grouping, first, steps) = (open.grouping, open.first, open.steps);
        let Grouping { group, length, .. } = grouping;
        let keys = std::iter::repeat_with(|| self.keys.next_key());
        // A shared chunk is read a few rows at a time: unpacking all of it would cost too much.
        let mut raw = Compressor::new(crate::Compression::Off);
        let compressor = if group > 1 {
            &mut raw
        } else {
            &mut self.compressor
        };
        let chunks = open.seal(keys, compressor)?;
        self.pending.resolve(|row| {
            let (env, step) = (row as usize / length, row as usize % length);
            let row = u32::try_from(env % group * steps + step).unwrap_or(u32::MAX);
            (&chunks[env / group], row)
        });
        self.history.push_back(BatchSegment {
            first,
            steps,
            group,
            chunks,
        });
        let reach = self.patterns.iter().map(|e| e.pattern.reach).max();
        let floor = self.head.saturating_sub(reach.unwrap_or(0));
        while (self.history.front()).is_some_and(|s| s.first + s.steps as Position <= floor) {
            self.history.pop_front();
        }
        Ok(())
    }
}
