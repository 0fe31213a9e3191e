//! The open chunks of a batched recorder: one per group of environments.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::StepPosition;
use super::column_input::ColumnInput;
use super::side_cells::SideCells;
use crate::aligned::ALIGN;
use crate::chunk::{Chunk, ChunkBuilder, MAX_CHUNK_BYTES, Origin, PackedColumns};
use crate::codec::Compressor;
use crate::error::{Error, Result};
use crate::schema::{CellSpec, Schema};
use crate::shared_bytes::SharedBytes;

/// Limit on a sum: the bytes of the strings in all open chunks, and the other bytes of a single chunk. It keeps each chunk
/// below the maximum chunk size, even if all strings are in the same chunk. Steps without strings are not checked.
pub(super) const MAX_BYTES_WITH_STRINGS: usize = if cfg!(test) {
    4 << 20
} else {
    MAX_CHUNK_BYTES / 2
};

/// The open chunks are full once their side cells have more than this many bytes.
const MAX_SIDE_BYTES: usize = 64 << 20;

/// How the environments of a batch share chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grouping {
    /// Number of environments of the batch.
    pub(super) envs: usize,
    /// Number of neighbouring environments that share a chunk.
    pub(super) envs_per_group: usize,
    /// Number of steps that a chunk has room for.
    pub(super) capacity_steps: usize,
}

impl Grouping {
    /// Number of groups. Each has one open chunk.
    pub(super) fn groups(&self) -> usize {
        self.envs.div_ceil(self.envs_per_group)
    }

    /// Number of rows that the open chunks of all groups have room for. A pending item refers to a row by its number in
    /// all of them, `env * capacity_steps + step`, and to row `n` of the side cells by the number `rows() + n`.
    pub(super) fn rows(&self) -> usize {
        self.envs * self.capacity_steps
    }

    /// The environments of a group.
    fn members(&self, group: usize) -> std::ops::Range<usize> {
        group * self.envs_per_group..self.envs.min((group + 1) * self.envs_per_group)
    }
}

/// The open chunks of all groups. The rows of each are ordered by environment: `member * capacity_steps + step`,
/// where `member` is the environment's index in its group.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) grouping: Grouping,
    /// Number of times that the recorder opened chunks before these.
    pub(super) ordinal: u64,
    /// First step of the chunks.
    pub(super) first: StepPosition,
    /// Number of steps written so far, those copied from the previous chunks included.
    pub(super) steps: usize,
    schema: Arc<Schema>,
    /// One per group.
    builders: Vec<ChunkBuilder>,
    /// Per group, the ids of the episodes of its steps.
    episodes: Vec<SmallVec<[u64; 1]>>,
    /// Per column, the encoded cells step after step; empty for columns of fixed-size cells. Sealing reorders them
    /// by environment.
    strings: Vec<Vec<Vec<u8>>>,
    /// Bytes of the strings of the steps appended to these chunks, with an offset of 4 bytes per cell.
    string_bytes: usize,
    /// The same for the steps copied from the previous chunks.
    overlap_bytes: usize,
    /// Cells outside the rows of these chunks.
    pub(super) side: SideCells,
}

impl OpenBatch {
    pub(super) fn new(
        schema: &Arc<Schema>,
        grouping: Grouping,
        ordinal: u64,
        first: StepPosition,
    ) -> Result<Self> {
        let builder = |group| {
            let rows = grouping.members(group).len() * grouping.capacity_steps;
            ChunkBuilder::new(Arc::clone(schema), rows)
        };
        Ok(Self {
            builders: (0..grouping.groups()).map(builder).collect::<Result<_>>()?,
            episodes: vec![SmallVec::new(); grouping.groups()],
            strings: vec![Vec::new(); schema.cells.len()],
            string_bytes: 0,
            overlap_bytes: 0,
            side: SideCells::new(Arc::clone(schema)),
            schema: Arc::clone(schema),
            grouping,
            ordinal,
            first,
            steps: 0,
        })
    }

    pub(super) fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// True if the chunks have no room for another step, if the strings in all of them, except those copied from the
    /// previous chunks, have more than `string_budget` bytes, or if there are many side cells.
    pub(super) fn is_full(&self, string_budget: usize) -> bool {
        self.steps == self.grouping.capacity_steps
            || self.string_bytes > string_budget
            // Without steps, the side cells are first observations: they must be sealed with the steps that follow
            // them.
            || self.steps > 0 && self.side.bytes() > MAX_SIDE_BYTES
    }

    /// Records that the following steps of the environment belong to this episode.
    pub(super) fn add_episode(&mut self, env: usize, episode: u64) {
        self.episodes[env / self.grouping.envs_per_group].push(episode);
    }

    /// True before the first `add_episode`.
    pub(super) fn lists_no_episodes(&self) -> bool {
        self.episodes.iter().all(SmallVec::is_empty)
    }

    /// Adds the first of the steps with the indices `steps` for all environments, and returns how many: one if there are
    /// columns of strings, otherwise as many as the chunks have room for, which must be at least one. The caller calls it
    /// again with the others. `columns` have `steps_per_env` steps per environment, environment after environment; the
    /// caller has checked them against the schema.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if strings do not fit; nothing is then added.
    pub(super) fn push_steps(
        &mut self,
        columns: &[ColumnInput<'_>],
        steps_per_env: usize,
        steps: Range<usize>,
    ) -> Result<usize> {
        let has_strings = (columns.iter()).any(|column| matches!(column, ColumnInput::Strings(_)));
        // The chunks may be full after any step with strings.
        let room = self.grouping.capacity_steps - self.steps;
        let steps = steps.start
            ..steps
                .end
                .min(steps.start + if has_strings { 1 } else { room });
        self.count_string_bytes(columns, steps_per_env, steps.start)?;
        for (column, data) in columns.iter().enumerate() {
            match data {
                ColumnInput::Cells(bytes) if steps_per_env == 1 => {
                    self.scatter_step(column, *bytes);
                }
                ColumnInput::Cells(bytes) => self.copy_runs(column, *bytes, steps_per_env, &steps),
                ColumnInput::Strings(cells) => {
                    let step = cells.iter().skip(steps.start).step_by(steps_per_env);
                    self.strings[column].extend(step.cloned());
                }
            }
        }
        self.steps += steps.len();
        Ok(steps.len())
    }

    /// Adds the bytes of a step's strings to `string_bytes`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they do not fit; nothing is then counted.
    fn count_string_bytes(
        &mut self,
        columns: &[ColumnInput<'_>],
        steps_per_env: usize,
        step: usize,
    ) -> Result<()> {
        let bytes = |column: &ColumnInput<'_>| column.string_bytes(steps_per_env, step);
        let added_string_bytes: usize = columns.iter().map(bytes).sum();
        // Checked here so that sealing cannot exceed the maximum chunk size.
        let used = self.string_bytes + self.overlap_bytes + self.fixed_bytes();
        if added_string_bytes > 0 && used + added_string_bytes > MAX_BYTES_WITH_STRINGS {
            return Err(Error::InvalidArgument(format!(
                "the step has {added_string_bytes} bytes of strings, which do not fit into the open \
                 chunks: {used} of {MAX_BYTES_WITH_STRINGS} bytes are used or reserved; write fewer \
                 environments or shorter strings per step, or lower `chunk_length`"
            )));
        }
        self.string_bytes += added_string_bytes;
        Ok(())
    }

    /// Copies one step of a fixed-size column. `cells` has one cell per environment.
    fn scatter_step(&mut self, column: usize, cells: SharedBytes<'_>) {
        let capacity_steps = self.grouping.capacity_steps;
        let size = self.schema.cells[column].bytes();
        let mut remaining = cells;
        for builder in &mut self.builders {
            let target = builder.column_mut(column);
            let (group_cells, later_groups) = remaining.split_at(target.len() / capacity_steps);
            scatter(target, group_cells, size, capacity_steps, self.steps);
            remaining = later_groups;
        }
    }

    /// Copies steps of a fixed-size column. `cells` has `steps_per_env` steps per environment, environment after
    /// environment.
    fn copy_runs(
        &mut self,
        column: usize,
        cells: SharedBytes<'_>,
        steps_per_env: usize,
        steps: &Range<usize>,
    ) {
        let size = self.schema.cells[column].bytes();
        let (stride, offset) = (self.grouping.capacity_steps * size, self.steps * size);
        let mut env = 0;
        for builder in &mut self.builders {
            if size == 0 {
                break;
            }
            for target in builder.column_mut(column).chunks_exact_mut(stride) {
                let run = cells.slice(
                    (env * steps_per_env + steps.start) * size,
                    steps.len() * size,
                );
                run.copy_to(&mut target[offset..offset + run.len()]);
                env += 1;
            }
        }
    }

    /// Copies the last `steps` steps of `old`, which has the same schema and grouping.
    pub(super) fn copy_last_steps(&mut self, old: &Self, steps: usize) {
        let first_copied = old.steps - steps;
        let (capacity_steps, envs) = (self.grouping.capacity_steps, self.grouping.envs);
        for (new, old) in self.builders.iter_mut().zip(&old.builders) {
            let rows = new.capacity();
            for column in 0..self.schema.cells.len() {
                for first_row in (0..rows).step_by(capacity_steps) {
                    for step in 0..steps {
                        new.cell_mut(column, first_row + step)
                            .copy_from_slice(old.cell(column, first_row + first_copied + step));
                    }
                }
            }
        }
        for (new, old) in self.strings.iter_mut().zip(&old.strings) {
            let copied = old.iter().skip(first_copied * envs);
            self.overlap_bytes += copied.clone().map(|cell| cell.len() + 4).sum::<usize>();
            new.extend(copied.cloned());
        }
        self.steps = steps;
    }

    /// Returns the index of a step in these chunks, which must have it.
    pub(super) fn index_of(&self, position: StepPosition) -> usize {
        // The steps of a chunk fit 32 bits.
        usize::try_from(position - self.first).unwrap_or(usize::MAX)
    }

    /// Copies an environment's newest cell of a fixed-size column to the side cells, then overwrites it with `cell`.
    /// Returns the row of the copy. `episode` is the id of the episode that the side cells list for it.
    pub(super) fn replace_newest(
        &mut self,
        column: usize,
        env: usize,
        cell: &[u8],
        episode: u64,
    ) -> u32 {
        let Grouping {
            envs_per_group,
            capacity_steps,
            ..
        } = self.grouping;
        let row = env % envs_per_group * capacity_steps + self.steps - 1;
        let newest = self.builders[env / envs_per_group].cell_mut(column, row);
        let copy = self.side.push(column, newest, episode);
        newest.copy_from_slice(cell);
        copy
    }

    /// Returns an environment's cell of a fixed-size column, at a step counted from `first`.
    pub(super) fn cell(&self, column: usize, env: usize, step: usize) -> &[u8] {
        let Grouping {
            envs_per_group,
            capacity_steps,
            ..
        } = self.grouping;
        let row = env % envs_per_group * capacity_steps + step;
        self.builders[env / envs_per_group].cell(column, row)
    }

    /// Encodes the columns of all chunks. This is the part of sealing that can fail. Afterwards the row of a
    /// cell is `member * steps + step`.
    ///
    /// # Errors
    /// Those of [`ChunkBuilder::push_string`] and [`ChunkBuilder::pack`]; the open chunks are then unchanged.
    pub(super) fn pack(&mut self, compressor: &mut Compressor) -> Result<Vec<PackedColumns>> {
        let mut packed = Vec::with_capacity(self.builders.len());
        for group in 0..self.builders.len() {
            let outcome = self
                .arrange_rows(group)
                .and_then(|()| self.builders[group].pack(compressor));
            match outcome {
                Ok(columns) => packed.push(columns),
                Err(error) => {
                    (0..=group).for_each(|group| self.undo_arrange_rows(group));
                    return Err(error);
                }
            }
        }
        Ok(packed)
    }

    /// Returns the packed chunks as immutable chunks. `keys` are the keys of the chunks.
    pub(super) fn seal(
        self,
        packed: Vec<PackedColumns>,
        keys: impl Iterator<Item = u64>,
    ) -> Vec<Arc<Chunk>> {
        let (first_step, steps) = (self.first, u32::try_from(self.steps).unwrap_or(u32::MAX));
        let parts = self.builders.into_iter().zip(self.episodes);
        let parts = parts.zip(packed).zip(keys);
        let chunks = parts.map(|(((builder, episodes), packed), key)| {
            let origin = Origin {
                key,
                episodes,
                first_step,
                steps,
            };
            Arc::new(builder.finish(packed, origin))
        });
        chunks.collect()
    }

    /// Brings the cells of a group into their final order: removes the unused rows between its
    /// environments, and adds the strings, environment after environment.
    fn arrange_rows(&mut self, group: usize) -> Result<()> {
        let members = self.grouping.members(group);
        let rows = u32::try_from(members.len() * self.steps).unwrap_or(u32::MAX);
        let builder = &mut self.builders[group];
        let capacity_steps = self.grouping.capacity_steps;
        for (column, cell) in self.schema.cells.iter().enumerate() {
            if !cell.dtype.is_string() {
                let (stride, used) = (cell.bytes() * capacity_steps, cell.bytes() * self.steps);
                compact(builder.column_mut(column), stride, used);
                builder.set_rows(column, rows);
            }
        }
        for (column, strings) in self.strings.iter().enumerate() {
            if self.schema.cells[column].dtype.is_string() {
                for env in members.clone() {
                    for cell in strings.iter().skip(env).step_by(self.grouping.envs) {
                        builder.push_string(column, cell)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Undoes `arrange_rows`, also one that failed.
    fn undo_arrange_rows(&mut self, group: usize) {
        let builder = &mut self.builders[group];
        let capacity_steps = self.grouping.capacity_steps;
        for (column, cell) in self.schema.cells.iter().enumerate() {
            if cell.dtype.is_string() {
                builder.clear_strings(column);
            } else {
                let (stride, used) = (cell.bytes() * capacity_steps, cell.bytes() * self.steps);
                expand(builder.column_mut(column), stride, used);
            }
        }
    }

    /// Upper bound of a chunk's bytes without its strings: cells, string offsets and padding.
    fn fixed_bytes(&self) -> usize {
        let rows = self.grouping.capacity_steps * self.grouping.envs_per_group;
        let column = |cell: &CellSpec| (cell.bytes().max(4) * (rows + 1)) + ALIGN;
        self.schema.cells.iter().map(column).sum()
    }
}

/// Splits `target` into one run of `capacity_steps` cells per environment, and writes cell `n` of
/// `cells` to position `step` of run `n`. A cell has `size` bytes.
fn scatter(
    target: &mut [u8],
    cells: SharedBytes<'_>,
    size: usize,
    capacity_steps: usize,
    step: usize,
) {
    match size {
        0 => {}
        1 => scatter_sized::<1>(target, cells, capacity_steps, step),
        2 => scatter_sized::<2>(target, cells, capacity_steps, step),
        4 => scatter_sized::<4>(target, cells, capacity_steps, step),
        8 => scatter_sized::<8>(target, cells, capacity_steps, step),
        16 => scatter_sized::<16>(target, cells, capacity_steps, step),
        _ => {
            let runs = target.chunks_exact_mut(size * capacity_steps);
            for (run, cell) in runs.zip(cells.pieces(size)) {
                cell.copy_to(&mut run[step * size..][..size]);
            }
        }
    }
}

/// [`scatter`] for a cell size known at compile time: each copy is one move instead of a call.
fn scatter_sized<const N: usize>(
    target: &mut [u8],
    cells: SharedBytes<'_>,
    capacity_steps: usize,
    step: usize,
) {
    let target_cells = target.as_chunks_mut::<N>().0[step..].iter_mut();
    for (target_cell, cell) in target_cells
        .step_by(capacity_steps)
        .zip(cells.arrays::<N>())
    {
        *target_cell = cell;
    }
}

/// Moves the first `used` of every `stride` bytes to the front, without gaps.
fn compact(bytes: &mut [u8], stride: usize, used: usize) {
    if used == stride {
        return;
    }
    let count = bytes.len().checked_div(stride).unwrap_or(0);
    for n in 1..count {
        bytes.copy_within(n * stride..n * stride + used, n * used);
    }
}

/// Undoes [`compact`]: moves run `n` of `used` bytes to offset `n * stride`. The bytes between the
/// runs are arbitrary.
fn expand(bytes: &mut [u8], stride: usize, used: usize) {
    if used == stride {
        return;
    }
    let count = bytes.len().checked_div(stride).unwrap_or(0);
    for n in (1..count).rev() {
        bytes.copy_within(n * used..(n + 1) * used, n * stride);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_cells_survive_compact_and_expand() {
        for size in [0, 1, 2, 3, 4, 8, 16, 24] {
            let (envs, capacity_steps) = (3, 4);
            let mut target = vec![0; envs * capacity_steps * size];
            let mut expected = vec![Vec::new(); envs];
            for step in 0..3_u8 {
                let cells: Vec<u8> = (0..3).flat_map(|env| vec![10 * env + step; size]).collect();
                scatter(
                    &mut target,
                    cells.as_slice().into(),
                    size,
                    capacity_steps,
                    step.into(),
                );
                for (env, cell) in (0..envs).zip(cells.chunks(size.max(1))) {
                    expected[env].extend_from_slice(cell);
                }
            }
            let before = target.clone();
            compact(&mut target, size * capacity_steps, size * 3);
            assert_eq!(target[..envs * 3 * size], expected.concat());
            expand(&mut target, size * capacity_steps, size * 3);
            for env in 0..envs {
                let cells = env * size * capacity_steps..(env * capacity_steps + 3) * size;
                assert_eq!(target[cells.clone()], before[cells]);
            }
        }
    }
}
