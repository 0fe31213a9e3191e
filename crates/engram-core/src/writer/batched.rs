//! Records the steps of many environments that step together, and creates items by patterns.

mod append;
mod create_items;
mod lost_flags;
mod split_window;
mod td_errors;
pub(super) mod vector;

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Drain;

use super::StepPosition;
use super::item_recorder::ItemRecorder;
use super::key_source::KeySource;
use super::open_batch::{Grouping, OpenBatch};
use super::options::WriterOptions;
use super::pattern::Pattern;
use super::pending_items::PendingItems;
use crate::chunk::Chunk;
use crate::codec::Compressor;
use crate::error::{Error, Result};
use crate::item::NewItem;
use crate::schema::{CellSpec, Schema};
use crate::text::{column_of, count};
use lost_flags::LostFlags;

/// The open chunks are full once the strings appended to them have more than this many bytes, in all chunks together.
const STRING_BUDGET: usize = 256 << 10;

/// Records the steps of many environments that step together. If steps are small, neighbouring environments
/// form a group that shares a chunk: all rows of one environment, then all rows of the next.
#[derive(Debug)]
pub struct BatchedRecorder {
    options: WriterOptions,
    keys: KeySource,
    schema: Arc<Schema>,
    envs: usize,
    compressor: Compressor,
    history: VecDeque<BatchSegment>,
    open: Option<OpenBatch>,
    pending: PendingItems,
    patterns: Vec<BatchedPattern>,
    /// Number of newest steps that items can refer to, including the newest.
    longest_lookback: u64,
    /// Number of times that the open chunks were sealed.
    times_sealed: u64,
    /// Number of steps recorded of each environment.
    complete_steps: StepPosition,
    /// Per environment, the first step of its current episode.
    episode_start: Vec<StepPosition>,
    /// Per environment, the id of its current episode.
    episode: Vec<u64>,
    /// Environments whose current episode is not listed in the open chunk yet.
    envs_with_new_episode: Vec<usize>,
    lost_flags: LostFlags,
}

/// The sealed chunks of a range of steps, one chunk per group of environments.
#[derive(Debug)]
struct BatchSegment {
    /// First step of the chunks.
    first: StepPosition,
    /// Number of steps of each environment.
    steps: usize,
    /// Number of environments that share a chunk.
    envs_per_group: usize,
    chunks: Vec<Arc<Chunk>>,
    /// The side cells of the open chunks, if there were any.
    side: Option<Arc<Chunk>>,
    /// `OpenBatch::ordinal` of the open chunks.
    ordinal: u64,
}

#[derive(Debug)]
struct BatchedPattern {
    pattern: Pattern,
    /// Per environment, the number of complete steps when the pattern last created an item; 0 before that. Updated
    /// only if a condition of the pattern needs it.
    applied_at: Vec<StepPosition>,
}

impl BatchedRecorder {
    /// Returns a recorder of `envs` environments. The keys of items, chunks and episodes are derived from `base`, which
    /// should be random. The patterns determine how many steps are retained; `options.history` must be valid, but is
    /// not used.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `envs` is out of range; the errors of
    /// [`WriterOptions::check`].
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
                "`num_envs` must be from 1 to {}; got {envs}",
                u32::MAX
            )));
        }
        let mut keys = KeySource::new(base, options.shard.clone());
        let patterns = patterns.into_iter().map(|mut pattern| {
            pattern.bind(&schema);
            BatchedPattern {
                pattern,
                applied_at: vec![0; envs],
            }
        });
        let patterns: Vec<_> = patterns.collect();
        let longest_lookback = patterns.iter().map(|p| p.pattern.lookback).max();
        Ok(Self {
            longest_lookback: longest_lookback.unwrap_or(0),
            lost_flags: LostFlags::new(&patterns.iter().map(|each| &each.pattern), &schema),
            patterns,
            times_sealed: 0,
            compressor: Compressor::new(options.compression),
            options,
            episode: (0..envs).map(|_| keys.next_key()).collect(),
            keys,
            schema,
            envs,
            history: VecDeque::new(),
            open: None,
            pending: PendingItems::default(),
            complete_steps: 0,
            episode_start: vec![0; envs],
            envs_with_new_episode: Vec::new(),
        })
    }

    /// The columns of a step.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Number of environments.
    #[must_use]
    pub fn envs(&self) -> usize {
        self.envs
    }

    /// Number of steps recorded of each environment.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.complete_steps
    }

    /// Returns the name of a bool column that was true at the last step of an episode, where no item has it: all
    /// patterns use it only at steps before the newest. Returns each such column once.
    pub fn take_lost_flag(&mut self) -> Option<&str> {
        let column = self.lost_flags.take()?;
        Some(&self.schema.layout.names[column])
    }

    /// Changes the shapes of the cells, starting with the next step.
    ///
    /// # Errors
    /// [`Error::Signature`] if the number of columns or a dtype would change; those of [`Self::flush`].
    pub fn reshape(&mut self, cells: Box<[CellSpec]>) -> Result<()> {
        let current = &self.schema;
        if cells.len() != current.cells.len() {
            return Err(Error::Signature(format!(
                "the step must have {}, as the first one had; got {}",
                count(current.cells.len(), "column"),
                cells.len()
            )));
        }
        let columns = current.layout.names.iter().zip(&current.cells).zip(&cells);
        for ((name, expected), got) in columns {
            if got.dtype != expected.dtype {
                let hint = if got.dtype.is_string() && expected.dtype.is_string() {
                    "; string is bytes, str is text"
                } else {
                    ""
                };
                return Err(Error::Signature(format!(
                    "{} must have dtype {}, as in the first step; got {}{hint}",
                    column_of("the step", name),
                    expected.dtype,
                    got.dtype
                )));
            }
        }
        self.seal_open_chunks()?;
        let layout = Arc::clone(&self.schema.layout);
        self.schema = Arc::new(Schema { layout, cells });
        Ok(())
    }

    /// Seals the open chunks, if there are any, and opens new ones, which begin with copies of the last steps if that
    /// keeps short items within one chunk.
    fn begin_chunks(&mut self) -> Result<()> {
        let grouping = self.options.grouping(&self.schema, self.envs);
        let rows = grouping.capacity_steps.checked_mul(self.envs);
        if rows.is_none_or(|rows| u32::try_from(rows).is_err()) {
            return Err(Error::InvalidArgument(format!(
                "`chunk_length` must be at most {} for {}; got {}",
                u32::MAX as usize / self.envs,
                count(self.envs, "environment"),
                grouping.capacity_steps
            )));
        }
        let overlap = (self.options).overlap_steps(
            &self.schema,
            grouping.capacity_steps,
            self.longest_lookback,
        );
        let overlap = match &self.open {
            Some(open) => open.steps.min(overlap as usize),
            None => 0,
        };
        let first = self.complete_steps - overlap as StepPosition;
        let ordinal = self.times_sealed + u64::from(self.open.is_some());
        let mut next = OpenBatch::new(&self.schema, grouping, ordinal, first)?;
        if let Some(open) = &self.open {
            next.copy_last_steps(open, overlap);
        }
        self.seal_open_chunks()?;
        self.open = Some(next);
        Ok(())
    }

    /// Seals the open chunks, if there are any, makes all items ready, and drops expired chunks from the history. On
    /// failure the steps and items of the recorder are unchanged; it may have skipped a key.
    fn seal_open_chunks(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let (grouping, first, steps) = (open.grouping, open.first, open.steps);
        let ordinal = open.ordinal;
        let Grouping {
            envs_per_group,
            capacity_steps,
            ..
        } = grouping;
        // Readers use a few rows of a shared chunk, so decompressing all of it would be too slow.
        let mut no_compression = Compressor::new(crate::Compression::Off);
        let compressor = if envs_per_group > 1 {
            &mut no_compression
        } else {
            &mut self.compressor
        };
        let side = open.side.seal(self.keys.next_key(), first)?;
        let packed = open.pack(compressor)?;
        let Some(open) = self.open.take() else {
            unreachable!("`open` is set above")
        };
        let keys = std::iter::repeat_with(|| self.keys.next_key());
        let chunks = open.seal(packed, keys);
        self.pending.resolve(|row| {
            // Rows of pending items count over all environments: `env * capacity_steps + step`. Side cells follow.
            let row = row as usize;
            if let (Some(side_row), Some(side)) = (row.checked_sub(grouping.rows()), &side) {
                return (side, u32::try_from(side_row).unwrap_or(u32::MAX));
            }
            let (env, step) = (row / capacity_steps, row % capacity_steps);
            let row = u32::try_from(env % envs_per_group * steps + step).unwrap_or(u32::MAX);
            (&chunks[env / envs_per_group], row)
        });
        self.history.push_back(BatchSegment {
            first,
            steps,
            envs_per_group,
            chunks,
            side,
            ordinal,
        });
        self.times_sealed += 1;
        let first_available = self.complete_steps.saturating_sub(self.longest_lookback);
        while (self.history.front())
            .is_some_and(|s| s.first + s.steps as StepPosition <= first_available)
        {
            self.history.pop_front();
        }
        Ok(())
    }
}

impl ItemRecorder for BatchedRecorder {
    fn flush(&mut self) -> Result<()> {
        if self.pending.needs_open_chunk() {
            self.seal_open_chunks()?;
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
    use super::super::open_batch::MAX_BYTES_WITH_STRINGS;
    use super::*;
    use crate::aligned::failing;
    use crate::codec::Compression;
    use crate::dtype::DType;
    use crate::schema::Layout;
    use crate::writer::{ColumnInput, PatternColumn};
    use smallvec::smallvec;

    fn recorder(envs: usize) -> Result<BatchedRecorder> {
        let names = ["x", "s"];
        let schema = Arc::new(Schema {
            layout: Arc::new(Layout {
                names: names.map(Into::into).into(),
                structure: "".into(),
            }),
            cells: [DType::Int16, DType::Bytes]
                .map(|dtype| CellSpec {
                    dtype,
                    shape: smallvec![],
                })
                .into(),
        });
        let columns = [0, 1].map(|source| PatternColumn {
            source,
            start: -1,
            stop: 0,
            step: 1,
            squeeze: false,
        });
        let layout = Arc::clone(&schema.layout);
        let pattern = Pattern::new(0, layout, columns.into(), Box::default(), 1.0)?;
        let options = WriterOptions {
            history: 1,
            chunk_length: Some(4),
            compression: Compression::Auto,
            shard: crate::writer::ShardId::default(),
        };
        BatchedRecorder::new(options, 3, envs, schema, vec![pattern])
    }

    #[test]
    fn a_rejected_step_changes_nothing() {
        assert_eq!(
            recorder(0).unwrap_err().to_string(),
            "`num_envs` must be from 1 to 4294967295; got 0"
        );
        let mut recorder = recorder(2).unwrap();
        let strings = vec![vec![0; 4]; 2];
        let good = [ColumnInput::cells(&[0; 4]), ColumnInput::Strings(&strings)];
        let mut text = |columns: &[ColumnInput<'_>], ends: Option<&[bool]>| {
            recorder
                .append_batch(columns, ends, |_, _| Ok(()))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(&good[..1], None),
            "the step must have 2 columns; got 1"
        );
        assert_eq!(
            text(&[ColumnInput::cells(&[0; 5]), good[1]], None),
            "column `x` of the step must have 4 bytes for 2 environments; got 5"
        );
        assert_eq!(
            text(&[good[0], ColumnInput::Strings(&strings[..1])], None),
            "column `s` of the step must have 2 cells for 2 environments; got 1"
        );
        assert_eq!(
            text(&[good[0], ColumnInput::cells(&[])], None),
            "column `s` of the step must have 2 string cells for 2 environments; got 0"
        );
        assert_eq!(
            text(&good, Some(&[true])),
            "`episode_ends` must have one entry for each of 2 environments; got 1"
        );
        assert_eq!((recorder.steps(), recorder.pending_items()), (0, 0));
        assert_eq!(recorder.append_batch(&good, None, |_, _| Ok(())), Ok(2));
        let cells = recorder.schema().cells[..1].into();
        assert_eq!(
            recorder.reshape(cells).unwrap_err().to_string(),
            "the step must have 2 columns, as the first one had; got 1"
        );
        let mut cells = recorder.schema().cells.clone();
        cells.swap(0, 1);
        assert_eq!(
            recorder.reshape(cells).unwrap_err().to_string(),
            "column `x` of the step must have dtype int16, as in the first step; got string"
        );
    }

    #[test]
    fn chunks_that_cannot_be_sealed_stay_open() {
        let strings = vec![[1, 0, 0, 0, b'a'].to_vec(), vec![0; 4]];
        let record = |failing: bool| {
            let mut recorder = recorder(2).unwrap();
            for step in 0..3 {
                let cells = [step, 0, step + 10, 0];
                let batch = [ColumnInput::cells(&cells), ColumnInput::Strings(&strings)];
                recorder.append_batch(&batch, None, |_, _| Ok(())).unwrap();
                if failing {
                    failing::after(0);
                    let error = recorder.flush().unwrap_err().to_string();
                    assert!(error.ends_with("more than can be allocated"), "{error}");
                    assert_eq!(recorder.unsent_items(), recorder.pending_items());
                }
            }
            recorder.flush().unwrap();
            let items: Vec<_> = recorder.take_ready().collect();
            let chunk = &items[0].1.trajectory.chunks()[0];
            let bytes = [0, 1].map(|c| chunk.stored(c).to_vec());
            (items.len(), bytes)
        };
        assert_eq!(record(true), record(false));
    }

    #[test]
    fn strings_copied_from_the_previous_chunks_are_counted() {
        let mut recorder = recorder(2).unwrap();
        recorder.options.chunk_length = None;
        recorder.patterns[0].pattern.lookback = 2;
        recorder.longest_lookback = 2;
        // One step fits into the open chunks. A second one does not, because the new chunks also
        // have a copy of the first step.
        let bytes = MAX_BYTES_WITH_STRINGS * 3 / 10;
        let mut large = vec![0; 4 + bytes];
        large[..4].copy_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
        let (large, small) = (vec![large; 2], vec![vec![0; 4]; 2]);
        let mut append = |strings: &[Vec<u8>]| {
            let batch = [ColumnInput::cells(&[0; 4]), ColumnInput::Strings(strings)];
            recorder.append_batch(&batch, None, |_, _| Ok(()))
        };
        append(&large).unwrap();
        let error = append(&large).unwrap_err().to_string();
        assert!(
            error.contains("which do not fit into the open chunks")
                && error.ends_with(
                    "; write fewer environments or shorter strings per step, or lower `chunk_length`"
                ),
            "{error}"
        );
        assert_eq!(append(&small), Ok(2));
        recorder.flush().unwrap();
        assert_eq!(recorder.take_ready().count(), 2);
    }

    #[test]
    fn chunks_list_the_episodes_of_their_steps() {
        let mut recorder = recorder(2).unwrap();
        let strings = vec![vec![0; 4]; 2];
        let batch = [ColumnInput::cells(&[0; 4]), ColumnInput::Strings(&strings)];
        for step in 0..6 {
            let ends = [step == 1 || step == 3, false];
            recorder
                .append_batch(&batch, Some(&ends), |_, _| Ok(()))
                .unwrap();
        }
        recorder.flush().unwrap();
        let items: Vec<_> = recorder.take_ready().collect();
        let episodes = |index: usize| {
            let (_, item): &(u32, NewItem) = &items[index];
            item.trajectory.chunks()[0].origin().episodes.clone()
        };
        // Chunk of steps 0 to 3: both first episodes, and the one begun at step 2.
        // Chunk of steps 4 and 5: environment 0's third episode, environment 1's first.
        let (first, second) = (episodes(0), episodes(11));
        assert_eq!((first.len(), second.len()), (3, 2));
        let shared = first.iter().filter(|episode| second.contains(episode));
        assert_eq!(shared.count(), 1);
    }
}
