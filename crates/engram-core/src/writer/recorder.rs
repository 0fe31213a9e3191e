//! One stream of steps, and the items made of them.

mod chunks;
mod find;
mod read;

use std::sync::Arc;

use super::StepPosition;
use super::history::History;
use super::item_columns::{ItemColumns, Kind};
use super::keys::KeySource;
use super::open::OpenChunk;
use super::options::WriterOptions;
use super::pending::{Body, Pending};
use super::refusal::check_priority;
use super::select::{CellPositions, ColumnSelection, Selection};
use super::shapes::Shapes;
use crate::codec::Compressor;
use crate::error::{Error, Result};
use crate::item::NewItem;
use crate::schema::{CellSpec, Layout, Schema, Shape};

/// Takes steps cell by cell, and hands out items once the chunks they refer to are complete.
///
/// A step is any number of [`cell_mut`](Self::cell_mut) and [`set_string`](Self::set_string),
/// then [`finish_step`](Self::finish_step), or [`abort_step`](Self::abort_step) for none of it.
#[derive(Debug)]
pub struct Recorder {
    options: WriterOptions,
    keys: KeySource,
    schema: Arc<Schema>,
    compressor: Compressor,
    history: History,
    open: Option<OpenChunk>,
    pending: Pending,
    shapes: Shapes,
    /// Complete steps so far.
    head: StepPosition,
    /// The step after them has values of partial appends.
    step_open: bool,
    episode: u64,
    episode_first: StepPosition,
    /// Steps before this one were cleared.
    cleared: StepPosition,
    /// Steps back from the newest that items have reached since the last chunk was begun.
    reach: u64,
}

impl Recorder {
    /// A recorder without columns: [`restructure`](Self::restructure) gives it some. Keys come
    /// from `base`, which should be random.
    ///
    /// # Errors
    /// As [`WriterOptions::check`].
    pub fn new(options: WriterOptions, base: u64) -> Result<Self> {
        options.check()?;
        let mut keys = KeySource::new(base);
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
            pending: Pending::default(),
            shapes: Shapes::default(),
            head: 0,
            step_open: false,
            episode_first: 0,
            cleared: 0,
            reach: 0,
        })
    }

    /// The columns of now.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The steps that may be referred to, a step in progress included.
    #[must_use]
    pub fn available_steps(&self) -> std::ops::Range<StepPosition> {
        let end = self.head + StepPosition::from(self.step_open);
        end.saturating_sub(self.options.history).max(self.cleared)..end
    }

    /// Keeps at least the newest `history` steps from now on.
    pub fn extend_history(&mut self, history: u64) {
        self.options.history = self.options.history.max(history);
    }

    /// Complete steps of this episode.
    #[must_use]
    pub fn episode_steps(&self) -> u64 {
        self.head - self.episode_first
    }

    pub(super) fn episode_first(&self) -> StepPosition {
        self.episode_first
    }

    /// True after a partial append, until the step is complete.
    #[must_use]
    pub fn step_is_open(&self) -> bool {
        self.step_open
    }

    /// Items that were created and not yet taken.
    #[must_use]
    pub fn pending_items(&self) -> usize {
        self.pending.len()
    }

    /// A key for an item.
    pub fn next_key(&mut self) -> u64 {
        self.keys.next_key()
    }

    /// Changes the columns, also in the middle of a step: old column `i` becomes column `map[i]`.
    /// Columns that no old one maps to begin without values.
    ///
    /// # Errors
    /// [`Error::Signature`] when a column would change its cells.
    pub fn restructure(
        &mut self,
        layout: Arc<Layout>,
        cells: Box<[CellSpec]>,
        map: &[usize],
    ) -> Result<()> {
        for (old, new) in map.iter().enumerate() {
            let (asked, found) = (&cells[*new], &self.schema.cells[old]);
            if asked != found {
                return Err(Error::Signature(format!(
                    "column `{}` would become {}{:?}; it was {}{:?}, and a new structure keeps \
                     the columns it had",
                    self.schema.layout.names[old],
                    asked.dtype,
                    asked.shape,
                    found.dtype,
                    found.shape,
                )));
            }
        }
        let count = cells.len();
        self.cut(Arc::new(Schema { layout, cells }), 0, |old| map[old])?;
        self.history.remap(map, count);
        self.compressor = Compressor::new(self.options.compression);
        Ok(())
    }

    /// Gives the cells of a column another shape from the step in progress on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when that step has a value in this column already.
    pub fn reshape(&mut self, column: usize, shape: Shape) -> Result<()> {
        self.check_unset(column)?;
        if let Some(open) = &mut self.open {
            open.forget(column);
        }
        let mut cells = self.schema.cells.clone();
        cells[column].shape = shape;
        let layout = Arc::clone(&self.schema.layout);
        self.cut(Arc::new(Schema { layout, cells }), 0, |old| old)
    }

    /// Where to write a column's cell of the step in progress.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when that step has a value in this column already, or when a
    /// chunk would be too large.
    pub fn cell_mut(&mut self, column: usize) -> Result<&mut [u8]> {
        self.check_unset(column)?;
        Ok(self.room()?.cell_mut(column))
    }

    /// Sets a string column's cell of the step in progress: per element a little-endian `u32`
    /// length and the bytes.
    ///
    /// # Errors
    /// As [`Self::cell_mut`].
    pub fn set_string(&mut self, column: usize, encoded: &[u8]) -> Result<()> {
        self.check_unset(column)?;
        self.room()?.set_string(column, encoded)
    }

    /// Forgets the cells written since the last `finish_step`.
    pub fn abort_step(&mut self) {
        if let Some(open) = &mut self.open {
            open.abort();
        }
    }

    /// Keeps the cells written; unless `partial`, the step is complete. Columns without a cell
    /// have no value at this step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a chunk would be too large.
    pub fn finish_step(&mut self, partial: bool) -> Result<()> {
        let open = self.room()?;
        if partial {
            open.keep_partial();
        } else {
            open.complete();
            self.head += 1;
        }
        self.step_open = partial;
        Ok(())
    }

    /// Makes an item for the table that the caller knows as `table`. `check` may refuse it.
    ///
    /// # Errors
    /// [`Error::Priority`] for NaN, [`Error::ExpiredStep`] for steps no longer kept,
    /// [`Error::InvalidArgument`] for steps or values that never were or for an empty selection,
    /// [`Error::Signature`] for cells of several shapes, and whatever `check` returns.
    pub fn create_item(
        &mut self,
        table: u32,
        key: u64,
        priority: f64,
        selection: &Selection<'_>,
        check: impl FnOnce(&ItemColumns<'_>) -> Result<()>,
    ) -> Result<()> {
        check_priority(priority)?;
        let steps = Arc::clone(&self.schema);
        let (first, len, squeeze) = match *selection {
            Selection::Last(len) => (self.last(len)?, len, false),
            Selection::Steps {
                first,
                len,
                squeeze,
            } => (first, len, squeeze),
            Selection::Columns { layout, columns } => {
                let draft = self.find(layout, columns.iter().copied())?;
                return self.accept(table, key, priority, layout, &draft, check);
            }
        };
        if let Some(offset) = self.rows_in_open(first, len, squeeze) {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            check(&ItemColumns(Kind::Rows {
                schema: &steps,
                len: (!squeeze).then_some(len as usize),
            }))?;
            self.reached(first);
            let body = Body::Rows {
                offset,
                len,
                squeeze,
            };
            self.pending.push(table, key, priority, body);
            return Ok(());
        }
        let all = (0..steps.cells.len()).map(|source| ColumnSelection {
            source,
            cells: CellPositions::Range {
                first,
                stride: 1,
                len,
            },
            squeeze,
        });
        let draft = self.find(&steps.layout, all)?;
        self.accept(table, key, priority, &steps.layout, &draft, check)
    }

    /// Completes the chunks that created items wait for: all items are ready then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the chunk is too large.
    pub fn flush(&mut self) -> Result<()> {
        if self.pending.is_waiting() {
            self.cut(Arc::clone(&self.schema), 0, |old| old)?;
        }
        Ok(())
    }

    /// Ends the episode: a step in progress is complete as it is, all items are ready. With
    /// `clear` no later item can refer to its steps.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn end_episode(&mut self, clear: bool) -> Result<()> {
        self.abort_step();
        if self.step_open {
            self.finish_step(false)?;
        }
        if clear && !self.pending.is_waiting() {
            self.open = None;
        }
        self.cut(Arc::clone(&self.schema), 0, |old| old)?;
        if clear {
            self.history.clear();
            self.cleared = self.head;
        }
        self.episode = self.keys.next_key();
        self.episode_first = self.head;
        Ok(())
    }

    /// True when items wait in a chunk that is full: only the next step, or a flush, sends them.
    #[must_use]
    pub fn has_full_unsent_chunk(&self) -> bool {
        self.pending.is_waiting() && self.open.as_ref().is_some_and(OpenChunk::is_full)
    }

    /// Items whose chunks are complete.
    #[must_use]
    pub fn ready_items(&self) -> usize {
        self.pending.ready_len()
    }

    /// Takes the items whose chunks are complete, in creation order, each with its table.
    pub fn take_ready(&mut self) -> std::vec::Drain<'_, (u32, NewItem)> {
        self.pending.take_ready()
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
    fn a_step_takes_one_value_per_column_or_none_at_all() {
        let mut recorder = recorder(4, None);
        recorder.cell_mut(0).unwrap().fill(1);
        recorder.finish_step(true).unwrap();
        recorder.cell_mut(1).unwrap().fill(1);
        assert_eq!(
            recorder.cell_mut(0).unwrap_err().to_string(),
            "column `a` has a value in the open step already; a step takes one value per column"
        );
        recorder.abort_step();
        assert!(recorder.has_value(0, 0) && !recorder.has_value(1, 0));
        assert_eq!(
            (recorder.episode_steps(), recorder.step_is_open()),
            (0, true)
        );
        recorder.finish_step(false).unwrap();
        assert!(!recorder.has_value(1, 0));
        assert_eq!(recorder.episode_steps(), 1);
    }

    #[test]
    fn a_new_structure_keeps_its_columns() {
        let mut recorder = recorder(4, None);
        append(&mut recorder, 1);
        let layout = Arc::clone(&recorder.schema().layout);
        let outcome = recorder.restructure(layout, cells(), &[1, 0]);
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "column `a` would become int64[]; it was uint8[3], and a new structure keeps the \
             columns it had"
        );
    }
}
