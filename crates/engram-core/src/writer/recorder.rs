//! A recorder of one stream of steps, and of the items created from them.
//!
//! ```text
//!   sealed chunks (history)       open chunk                          pending items
//!  +-----------+-----------+     +-------------------+-----------+    +---------+-------+
//!  | steps 0-3 | steps 4-7 |     | complete steps    | open step |    | waiting | ready |
//!  +-----------+-----------+     +-------------------+-----------+    +---------+-------+
//!  immutable                     appended to                          refer to chunks
//! ```
//!
//! * The **open step** is the step that is being written. An append ends with
//!   [`Recorder::finish_step`]: `finish_step(false)` completes the step. After `finish_step(true)`, a
//!   partial append, the step stays open: items may refer to its cells, and further appends may add
//!   the missing columns. [`Recorder::abort_step`] discards only the cells written since the last
//!   `finish_step`.
//! * The **open chunk** collects steps of one episode and one schema. It is sealed, and so moves to
//!   the history, if a step is appended while it is full, if the columns change, if the episode ends,
//!   or in [`Recorder::flush`] if an item waits for it. The open step then moves to the next chunk,
//!   together with copies of the last steps if that keeps short items within one chunk. If the
//!   episode ends with `clear` and no item waits for the open chunk, it is dropped instead.
//! * A **pending item** waits while it, or an item created before it, refers to the open chunk.
//!   Sealing that chunk makes all waiting items ready. The caller sends what
//!   [`Recorder::take_ready`] returns.
//! * The **history** is checked when a chunk is sealed: chunks of which all steps are older than the
//!   newest `history` steps are dropped. Items that refer to a dropped chunk keep it in memory.

mod append_steps;
mod create_items;
mod read;
mod seal;

use std::ops::Range;
use std::sync::Arc;
use std::vec::Drain;

use super::StepPosition;
use super::history::History;
use super::item_columns::{ItemCells, ItemColumns};
use super::item_recorder::ItemRecorder;
use super::key_source::KeySource;
use super::open_chunk::OpenChunk;
use super::options::WriterOptions;
use super::pending_items::{PendingItems, PendingTrajectory};
use super::selection::{CellPositions, ColumnSelection, Selection};
use super::selection_error::check_priority;
use super::window_shape_cache::WindowShapeCache;
use crate::codec::Compressor;
use crate::error::{Error, Result};
use crate::item::NewItem;
use crate::schema::{CellSpec, Layout, Schema, Shape};
use crate::text::describe_column;

/// Records steps cell by cell, and returns items once the chunks that they refer to are sealed.
///
/// To append a step, write its cells with [`cell_mut`](Self::cell_mut) and
/// [`set_string`](Self::set_string), then call [`finish_step`](Self::finish_step), or
/// [`abort_step`](Self::abort_step) to discard them.
#[derive(Debug)]
pub struct Recorder {
    options: WriterOptions,
    keys: KeySource,
    schema: Arc<Schema>,
    compressor: Compressor,
    history: History,
    open: Option<OpenChunk>,
    pending: PendingItems,
    /// Window shapes of recent items, which later items can share.
    shapes: WindowShapeCache,
    /// Number of complete steps so far.
    complete_steps: StepPosition,
    /// True after a partial append until the step is complete.
    step_open: bool,
    /// Id of the current episode.
    episode: u64,
    /// First step of the current episode.
    episode_start: StepPosition,
    /// End of the steps that `end_episode(true)` made unavailable, exclusive.
    cleared: StepPosition,
    /// End of the steps that had expired when the history was last extended, exclusive.
    expired: StepPosition,
    /// Largest number of steps from the first step of an item to the newest step, both included, of the items
    /// created since `begin_chunk` was last called.
    longest_lookback: u64,
}

impl Recorder {
    /// Returns a recorder without columns; [`restructure`](Self::restructure) adds them. The keys of items, chunks
    /// and episodes are derived from `base`, which should be random.
    ///
    /// # Errors
    /// Those of [`WriterOptions::check`].
    pub fn new(options: WriterOptions, base: u64) -> Result<Self> {
        options.check()?;
        let mut keys = KeySource::new(base, options.shard.clone());
        Ok(Self {
            compressor: Compressor::new(options.compression),
            options,
            episode: keys.next_key(),
            keys,
            schema: Arc::new(Schema {
                layout: Arc::new(Layout {
                    names: Box::default(),
                    structure: "".into(),
                }),
                cells: Box::default(),
            }),
            history: History::default(),
            open: None,
            pending: PendingItems::default(),
            shapes: WindowShapeCache::default(),
            complete_steps: 0,
            step_open: false,
            episode_start: 0,
            cleared: 0,
            expired: 0,
            longest_lookback: 0,
        })
    }

    /// The current columns.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The steps that items may refer to, including the open step after a partial append.
    #[must_use]
    pub fn available_steps(&self) -> Range<StepPosition> {
        self.available_before(self.complete_steps + StepPosition::from(self.step_open))
    }

    /// The steps that items may refer to if step `end - 1` is the newest.
    pub(super) fn available_before(&self, end: StepPosition) -> Range<StepPosition> {
        let oldest = end.saturating_sub(self.options.history);
        oldest.max(self.cleared).max(self.expired)..end
    }

    /// Number of complete steps so far, over all episodes.
    pub(super) fn complete_steps(&self) -> StepPosition {
        self.complete_steps
    }

    /// Raises the number of retained steps to at least `history`. Expired steps, whose chunks may have been dropped,
    /// stay expired.
    pub fn extend_history(&mut self, history: u64) {
        self.expired = self.available_steps().start;
        self.options.history = self.options.history.max(history);
    }

    /// Number of complete steps of the current episode.
    #[must_use]
    pub fn episode_steps(&self) -> u64 {
        self.complete_steps - self.episode_start
    }

    pub(super) fn episode_start(&self) -> StepPosition {
        self.episode_start
    }

    /// True after a partial append until the step is complete.
    #[must_use]
    pub fn step_is_open(&self) -> bool {
        self.step_open
    }

    /// Returns a new key for an item.
    pub fn next_key(&mut self) -> u64 {
        self.keys.next_key()
    }

    /// Changes the columns: old column `i` becomes column `map[i]`. Other columns are new and have no values yet.
    /// Allowed while a step is open.
    ///
    /// # Errors
    /// [`Error::Signature`] if an old column would change its dtype or shape; those of [`Self::flush`].
    pub fn restructure(
        &mut self,
        layout: Arc<Layout>,
        cells: Box<[CellSpec]>,
        map: &[usize],
    ) -> Result<()> {
        for (old, new) in map.iter().enumerate() {
            let (requested, current) = (&cells[*new], &self.schema.cells[old]);
            if requested != current {
                return Err(Error::Signature(format!(
                    "{} must stay {}{:?} when columns are added; got {}{:?}",
                    describe_column(&self.schema.layout.names[old]),
                    current.dtype,
                    current.shape,
                    requested.dtype,
                    requested.shape,
                )));
            }
        }
        let count = cells.len();
        self.seal_open_chunk(Arc::new(Schema { layout, cells }), 0, |old| map[old])?;
        self.history.remap(map, count);
        self.compressor = Compressor::new(self.options.compression);
        Ok(())
    }

    /// Changes the shape of a column's cells, starting with the next cell written. Discards this column's cell of
    /// the current append.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an earlier partial append has set this column in the open step; those of
    /// [`Self::flush`].
    pub fn reshape(&mut self, column: usize, shape: Shape) -> Result<()> {
        self.check_unset(column)?;
        if let Some(open) = &mut self.open {
            open.discard_cell(column);
        }
        let mut cells = self.schema.cells.clone();
        cells[column].shape = shape;
        let layout = Arc::clone(&self.schema.layout);
        self.seal_open_chunk(Arc::new(Schema { layout, cells }), 0, |old| old)
    }

    /// Returns the memory of the open step's cell in a column of fixed-size cells. The caller must fill it. A second
    /// call in the same append replaces the cell.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an earlier partial append has set this column in the open step, or if a chunk
    /// would become too large; [`Error::OutOfMemory`].
    pub fn cell_mut(&mut self, column: usize) -> Result<&mut [u8]> {
        self.check_unset(column)?;
        Ok(self.writable_chunk()?.cell_mut(column))
    }

    /// Sets the open step's cell in a string column. `encoded` has, per element, a little-endian
    /// `u32` length and the bytes.
    ///
    /// # Errors
    /// Those of [`Self::cell_mut`].
    pub fn set_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.check_unset(column)?;
        self.writable_chunk()?.set_string(column, encoded)
    }

    /// Discards the cells written since the last `finish_step`.
    pub fn abort_step(&mut self) {
        if let Some(open) = &mut self.open {
            open.abort();
        }
    }

    /// Ends an append: the cells written so far become part of the open step. Unless `partial`,
    /// completes the step; columns without a cell then have no value in it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a chunk would become too large, [`Error::OutOfMemory`].
    pub fn finish_step(&mut self, partial: bool) -> Result<()> {
        let open = self.writable_chunk()?;
        if partial {
            open.finish_partial_append();
        } else {
            open.complete_step();
            self.complete_steps += 1;
        }
        self.step_open = partial;
        Ok(())
    }

    /// Creates an item for the caller's table number `table`, unless `check` returns an error. `check` receives the
    /// item's columns, to compare them with the table's signature.
    ///
    /// # Errors
    /// [`Error::Priority`] for NaN; [`Error::ExpiredStep`] for steps that are no longer retained or were cleared;
    /// [`Error::InvalidArgument`] for a selection that is empty, too long, or squeezed and not a single step, or
    /// that has steps or values that were never written; [`Error::Signature`] if cells of a column differ in shape;
    /// and any error of `check`.
    pub fn create_item(
        &mut self,
        table: u32,
        key: u64,
        priority: f64,
        selection: &Selection<'_>,
        check: impl FnOnce(&ItemColumns<'_>) -> Result<()>,
    ) -> Result<()> {
        check_priority(priority)?;
        let schema = Arc::clone(&self.schema);
        let available = self.available_steps();
        let (first, len, squeeze) = match *selection {
            Selection::Last(len) => (self.first_of_last(len)?, len, false),
            Selection::Steps {
                first,
                len,
                squeeze,
            } => (first, len, squeeze),
            Selection::Columns { layout, columns } => {
                let located = self.locate(layout, columns.iter().copied())?;
                let item = (table, key, priority);
                return self.push_located(item, layout, &located, available, check);
            }
        };
        if let Some(offset) = self.rows_in_open(first, len, squeeze, available.start) {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            check(&ItemColumns(ItemCells::Rows {
                schema: &schema,
                len: (!squeeze).then_some(len as usize),
            }))?;
            self.record_lookback(first, available.end);
            let trajectory = PendingTrajectory::Rows {
                offset,
                len,
                squeeze,
            };
            self.pending.push(table, key, priority, trajectory);
            return Ok(());
        }
        let all = (0..schema.cells.len()).map(|source| ColumnSelection {
            source,
            cells: CellPositions::Range {
                first,
                stride: 1,
                len,
            },
            squeeze,
        });
        let located = self.locate(&schema.layout, all)?;
        self.push_located(
            (table, key, priority),
            &schema.layout,
            &located,
            available,
            check,
        )
    }

    /// Ends the episode: discards the cells written since the last `finish_step`, completes the
    /// open step, and makes all items ready. With `clear`, later items cannot refer to the steps so
    /// far.
    ///
    /// # Errors
    /// Those of [`Self::flush`].
    pub fn end_episode(&mut self, clear: bool) -> Result<()> {
        self.abort_step();
        if self.step_open {
            self.finish_step(false)?;
        }
        if clear && !self.pending.needs_open_chunk() {
            self.open = None;
        }
        self.seal_open_chunk(Arc::clone(&self.schema), 0, |old| old)?;
        if clear {
            self.history.clear();
            self.cleared = self.complete_steps;
        }
        self.episode = self.keys.next_key();
        self.episode_start = self.complete_steps;
        Ok(())
    }

    /// True if items wait for the open chunk to be sealed although it is full: the next step seals it, or a flush.
    #[must_use]
    pub fn has_full_unsent_chunk(&self) -> bool {
        self.pending.needs_open_chunk() && self.open.as_ref().is_some_and(OpenChunk::is_full)
    }
}

impl ItemRecorder for Recorder {
    fn flush(&mut self) -> Result<()> {
        if self.pending.needs_open_chunk() {
            self.seal_open_chunk(Arc::clone(&self.schema), 0, |old| old)?;
        }
        Ok(())
    }

    fn take_ready(&mut self) -> Drain<'_, (u32, NewItem)> {
        self.pending.take_ready()
    }

    fn pending_items(&self) -> usize {
        self.pending.len()
    }

    fn unsent_items(&self) -> usize {
        self.pending.waiting_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Compression;
    use crate::dtype::DType;
    use smallvec::smallvec;

    /// Columns `a` (three bytes) and `b` (a number).
    pub(super) fn recorder(history: u64, chunk_length: Option<usize>) -> Recorder {
        let options = WriterOptions {
            history,
            chunk_length,
            compression: Compression::Auto,
            shard: crate::writer::ShardId::default(),
        };
        let mut recorder = Recorder::new(options, 1).unwrap();
        let layout = Arc::new(Layout {
            names: Box::new(["a".into(), "b".into()]),
            structure: "".into(),
        });
        recorder.restructure(layout, cells(), &[]).unwrap();
        recorder
    }

    fn cells() -> Box<[CellSpec]> {
        let cell = |dtype, shape| CellSpec { dtype, shape };
        Box::new([
            cell(DType::Uint8, smallvec![3]),
            cell(DType::Int64, smallvec![]),
        ])
    }

    pub(super) fn append(recorder: &mut Recorder, steps: usize) {
        for _ in 0..steps {
            recorder.cell_mut(0).unwrap().fill(1);
            recorder.cell_mut(1).unwrap().fill(2);
            recorder.finish_step(false).unwrap();
        }
    }

    #[test]
    fn a_step_accepts_at_most_one_value_per_column() {
        let mut recorder = recorder(4, None);
        recorder.cell_mut(0).unwrap().fill(1);
        recorder.finish_step(true).unwrap();
        recorder.cell_mut(1).unwrap().fill(1);
        assert_eq!(
            recorder.cell_mut(0).unwrap_err().to_string(),
            "column `a` already has a value in the open step; a step can have only one value per \
             column"
        );
        recorder.abort_step();
        assert!(recorder.cell_spec(0, 0).is_some() && recorder.cell_spec(1, 0).is_none());
        assert_eq!(
            (recorder.episode_steps(), recorder.step_is_open()),
            (0, true)
        );
        recorder.finish_step(false).unwrap();
        assert!(recorder.cell_spec(1, 0).is_none());
        assert_eq!(recorder.episode_steps(), 1);
    }

    #[test]
    fn restructure_cannot_change_the_type_of_a_column() {
        let mut recorder = recorder(4, None);
        append(&mut recorder, 1);
        let layout = Arc::clone(&recorder.schema().layout);
        let outcome = recorder.restructure(layout, cells(), &[1, 0]);
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "column `a` must stay uint8[3] when columns are added; got int64[]"
        );
    }
}
