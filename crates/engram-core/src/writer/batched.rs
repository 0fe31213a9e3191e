//! Many environments that step together, and the items their patterns make.

mod items;
mod plan;
mod priority;

use std::collections::VecDeque;
use std::sync::Arc;

use super::StepPosition;
use super::batch_chunk::{Grouping, OpenBatch};
use super::batch_column::{BatchColumn, check};
use super::keys::KeySource;
use super::options::WriterOptions;
use super::pattern::Pattern;
use super::pending::Pending;
use crate::chunk::Chunk;
use crate::codec::Compressor;
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
    head: StepPosition,
    /// Of each environment: where its episode began, and the episode's id.
    episode_first: Vec<StepPosition>,
    episode: Vec<u64>,
    /// Environments whose episode is not among those of the open chunk.
    unlisted: Vec<usize>,
}

/// Sealed chunks of one stretch of steps, one per group of environments.
#[derive(Debug)]
struct BatchSegment {
    first: StepPosition,
    steps: usize,
    group: usize,
    chunks: Vec<Arc<Chunk>>,
}

#[derive(Debug)]
struct Entry {
    pattern: Pattern,
    /// Per environment, position after the step at which it last made an item.
    applied: Vec<StepPosition>,
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
    /// `accepts` says whether a table takes a priority that was found.
    ///
    /// # Errors
    /// [`Error::Signature`] for columns that do not fit, [`Error::InvalidArgument`] for batches
    /// too large or `ends` of another length: nothing is written then. [`Error::Signature`]
    /// also for items whose cells have several shapes, [`Error::Priority`] for TD errors that are
    /// no such numbers, and whatever `accepts` returns: the step is written then, and the other
    /// items are made.
    pub fn append_batch(
        &mut self,
        columns: &[BatchColumn<'_>],
        ends: Option<&[bool]>,
        accepts: impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        check(columns, ends, &self.schema, self.envs)?;
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
        let made = self.make_items(ends, &accepts);
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
        let first = self.head - carried as StepPosition;
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

    /// Seals the open chunks, if there are any. Where it fails nothing has changed.
    fn cut(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let (grouping, first, steps) = (open.grouping, open.first, open.steps);
        let Grouping { group, length, .. } = grouping;
        // A shared chunk is read a few rows at a time: unpacking all of it would cost too much.
        let mut raw = Compressor::new(crate::Compression::Off);
        let compressor = if group > 1 {
            &mut raw
        } else {
            &mut self.compressor
        };
        let packed = open.pack(compressor)?;
        let Some(open) = self.open.take() else {
            unreachable!("it was just packed")
        };
        let keys = std::iter::repeat_with(|| self.keys.next_key());
        let chunks = open.seal(packed, keys);
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
        while (self.history.front()).is_some_and(|s| s.first + s.steps as StepPosition <= floor) {
            self.history.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch_chunk::MAX_STRINGS;
    use super::*;
    use crate::aligned::failing;
    use crate::codec::Compression;
    use crate::dtype::DType;
    use crate::schema::Layout;
    use crate::writer::PatternColumn;
    use smallvec::smallvec;

    fn recorder(envs: usize) -> Result<BatchedRecorder> {
        let names = ["x", "s"];
        let schema = Arc::new(Schema {
            layout: Arc::new(Layout {
                names: names.map(Into::into).into(),
                structure: "".into(),
            }),
            cells: [DType::Int16, DType::String]
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
        };
        BatchedRecorder::new(options, 3, envs, schema, vec![pattern])
    }

    #[test]
    fn batches_that_do_not_fit_change_nothing() {
        assert_eq!(
            recorder(0).unwrap_err().to_string(),
            "a batch has 0 environments; it has 1 to 4294967295"
        );
        let mut recorder = recorder(2).unwrap();
        let strings = vec![vec![0; 4]; 2];
        let good = [BatchColumn::cells(&[0; 4]), BatchColumn::Strings(&strings)];
        let mut text = |columns: &[BatchColumn<'_>], ends: Option<&[bool]>| {
            recorder
                .append_batch(columns, ends, |_, _| Ok(()))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(&good[..1], None),
            "batch has 1 columns; its steps have 2"
        );
        assert_eq!(
            text(&[BatchColumn::cells(&[0; 5]), good[1]], None),
            "column `x` of the batch has 5 bytes; 2 environments have 4"
        );
        assert_eq!(
            text(&[good[0], BatchColumn::Strings(&strings[..1])], None),
            "column `s` of the batch has 1 cells; 2 environments have 2"
        );
        assert_eq!(
            text(&[good[0], BatchColumn::cells(&[])], None),
            "column `s` of the batch has 0 string cells; 2 environments have 2"
        );
        assert_eq!(
            text(&good, Some(&[true])),
            "episode_ends has 1 entries; there are 2 environments"
        );
        assert_eq!((recorder.steps(), recorder.pending_items()), (0, 0));
        assert_eq!(recorder.append_batch(&good, None, |_, _| Ok(())), Ok(2));
        let cells = recorder.schema().cells[..1].into();
        assert_eq!(
            recorder.reshape(cells).unwrap_err().to_string(),
            "columns would become [Int16]; they are [Int16, String], and only their shapes may \
             change"
        );
    }

    #[test]
    fn chunks_that_cannot_be_sealed_stay_open() {
        let strings = vec![[1, 0, 0, 0, b'a'].to_vec(), vec![0; 4]];
        let filled = |failing: bool| {
            let mut recorder = recorder(2).unwrap();
            for step in 0..3 {
                let cells = [step, 0, step + 10, 0];
                let batch = [BatchColumn::cells(&cells), BatchColumn::Strings(&strings)];
                recorder.append_batch(&batch, None, |_, _| Ok(())).unwrap();
                if failing {
                    failing::after(0);
                    let error = recorder.flush().unwrap_err().to_string();
                    assert!(error.ends_with("more than can be allocated"), "{error}");
                    assert_eq!(recorder.ready_items(), 0);
                }
            }
            recorder.flush().unwrap();
            let items: Vec<_> = recorder.take_ready().collect();
            let chunk = &items[0].1.trajectory.chunks()[0];
            let bytes = [0, 1].map(|c| chunk.stored(&chunk.payload().pin().unwrap(), c).to_vec());
            (items.len(), bytes)
        };
        assert_eq!(filled(true), filled(false));
    }

    #[test]
    fn carried_strings_count() {
        let mut recorder = recorder(2).unwrap();
        recorder.options.chunk_length = None;
        recorder.patterns[0].pattern.reach = 2;
        // One batch fits, but not a second beside the copy of the first.
        let bytes = MAX_STRINGS * 3 / 10;
        let mut large = vec![0; 4 + bytes];
        large[..4].copy_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
        let (large, small) = (vec![large; 2], vec![vec![0; 4]; 2]);
        let mut append = |strings: &[Vec<u8>]| {
            let batch = [BatchColumn::cells(&[0; 4]), BatchColumn::Strings(strings)];
            recorder.append_batch(&batch, None, |_, _| Ok(()))
        };
        append(&large).unwrap();
        let error = append(&large).unwrap_err().to_string();
        assert!(error.contains("bytes of strings does not fit"), "{error}");
        assert_eq!(append(&small), Ok(2));
        recorder.flush().unwrap();
        assert_eq!(recorder.take_ready().count(), 2);
    }

    #[test]
    fn chunks_name_the_episodes_of_their_steps() {
        let mut recorder = recorder(2).unwrap();
        let strings = vec![vec![0; 4]; 2];
        let batch = [BatchColumn::cells(&[0; 4]), BatchColumn::Strings(&strings)];
        for step in 0..6 {
            let ends = [step == 1 || step == 3, false];
            recorder
                .append_batch(&batch, Some(&ends), |_, _| Ok(()))
                .unwrap();
        }
        recorder.flush().unwrap();
        let items: Vec<_> = recorder.take_ready().collect();
        let episodes = |at: usize| {
            let (_, item): &(u32, NewItem) = &items[at];
            item.trajectory.chunks()[0].origin().episodes.clone()
        };
        // Steps 0 to 3: both first episodes and one more; steps 4 and 5: one more again.
        let (first, second) = (episodes(0), episodes(11));
        assert_eq!((first.len(), second.len()), (3, 2));
        let shared = first.iter().filter(|episode| second.contains(episode));
        assert_eq!(shared.count(), 1);
    }
}
