//! The chunks that a batch of environments fills in step.

use std::sync::Arc;

use smallvec::SmallVec;

use super::StepPosition;
use super::batch_column::BatchColumn;
use crate::aligned::ALIGN;
use crate::chunk::{Chunk, ChunkBuilder, MAX_CHUNK_BYTES, Origin, PackedColumns};
use crate::codec::Compressor;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::{CellSpec, Schema};
use crate::shared_bytes::SharedBytes;

/// What the open chunks of one batch may hold where some columns are strings.
pub(super) const MAX_STRINGS: usize = if cfg!(test) {
    4 << 20
} else {
    MAX_CHUNK_BYTES / 2
};

/// How a batch of environments shares chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grouping {
    pub(super) envs: usize,
    /// Neighbouring environments that share a chunk.
    pub(super) group: usize,
    /// Steps that a chunk has room for.
    pub(super) length: usize,
}

impl Grouping {
    pub(super) fn groups(&self) -> usize {
        self.envs.div_ceil(self.group)
    }

    fn members(&self, group: usize) -> std::ops::Range<usize> {
        group * self.group..self.envs.min((group + 1) * self.group)
    }
}

/// The open chunks of all groups; environment-major: row `member * length + step`.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) grouping: Grouping,
    pub(super) first: StepPosition,
    pub(super) steps: usize,
    schema: Arc<Schema>,
    builders: Vec<ChunkBuilder>,
    episodes: Vec<SmallVec<[u64; 1]>>,
    /// Per column, encoded cells step after step; they are put in order when sealed.
    strings: Vec<Vec<Vec<u8>>>,
    string_bytes: usize,
    /// Those of the steps that were copied from the chunks before.
    carried_bytes: usize,
}

impl OpenBatch {
    pub(super) fn new(
        schema: &Arc<Schema>,
        grouping: Grouping,
        first: StepPosition,
    ) -> Result<Self> {
        let builder = |group| {
            let rows = grouping.members(group).len() * grouping.length;
            ChunkBuilder::new(Arc::clone(schema), rows)
        };
        Ok(Self {
            builders: (0..grouping.groups()).map(builder).collect::<Result<_>>()?,
            episodes: vec![SmallVec::new(); grouping.groups()],
            strings: vec![Vec::new(); schema.cells.len()],
            string_bytes: 0,
            carried_bytes: 0,
            schema: Arc::clone(schema),
            grouping,
            first,
            steps: 0,
        })
    }

    pub(super) fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    pub(super) fn is_full(&self, string_budget: usize) -> bool {
        self.steps == self.grouping.length || self.string_bytes > string_budget
    }

    /// Says that steps of this episode follow for the environment.
    pub(super) fn add_episode(&mut self, env: usize, episode: u64) {
        self.episodes[env / self.grouping.group].push(episode);
    }

    /// Adds one step of all environments; the columns were checked against the schema.
    pub(super) fn push(&mut self, columns: &[BatchColumn<'_>]) -> Result<()> {
        let new: usize = columns.iter().map(BatchColumn::string_bytes).sum();
        // Checked here, so that sealing finds room for everything.
        let held = self.string_bytes + self.carried_bytes + self.fixed_bytes();
        if new > 0 && held + new > MAX_STRINGS {
            return Err(Error::InvalidArgument(format!(
                "a batch of {new} bytes of strings does not fit; the chunks of one batch hold at \
                 most {MAX_STRINGS} bytes and have {held} already: write fewer environments or \
                 shorter strings at once"
            )));
        }
        self.string_bytes += new;
        let length = self.grouping.length;
        for (column, data) in columns.iter().enumerate() {
            match data {
                BatchColumn::Cells(bytes) => {
                    let mut rest = *bytes;
                    for builder in &mut self.builders {
                        let cell = self.schema.cells[column].bytes();
                        let room = builder.column_mut(column);
                        let (mine, others) = rest.split_at(room.len() / length);
                        scatter(room, mine, cell, length, self.steps);
                        rest = others;
                    }
                }
                BatchColumn::Strings(cells) => self.strings[column].extend_from_slice(cells),
            }
        }
        self.steps += 1;
        Ok(())
    }

    /// Copies the last `steps` steps of `old`, which has the same schema and grouping.
    pub(super) fn carry(&mut self, old: &Self, steps: usize) {
        let from = old.steps - steps;
        let (length, envs) = (self.grouping.length, self.grouping.envs);
        for (new, old) in self.builders.iter_mut().zip(&old.builders) {
            let rows = new.capacity();
            for column in 0..self.schema.cells.len() {
                for row in (0..rows).step_by(length) {
                    for step in 0..steps {
                        new.cell_mut(column, row + step)
                            .copy_from_slice(old.cell(column, row + from + step));
                    }
                }
            }
        }
        for (new, old) in self.strings.iter_mut().zip(&old.strings) {
            let carried = old.iter().skip(from * envs);
            self.carried_bytes += carried.clone().map(|cell| cell.len() + 4).sum::<usize>();
            new.extend(carried.cloned());
        }
        self.steps = steps;
    }

    /// Bytes of the newest cell of an environment in a column of fixed-size cells.
    pub(super) fn newest(&self, column: usize, env: usize) -> &[u8] {
        self.cell(column, env, self.steps - 1)
    }

    /// Bytes of the cell of an environment at a step, counted from the first, in a column of
    /// fixed-size cells.
    pub(super) fn cell(&self, column: usize, env: usize, step: usize) -> &[u8] {
        let Grouping { group, length, .. } = self.grouping;
        self.builders[env / group].cell(column, env % group * length + step)
    }

    /// Prepares to seal them; rows are `member * steps + step` then.
    ///
    /// # Errors
    /// As [`ChunkBuilder::seal`]; nothing has changed then.
    pub(super) fn pack(&mut self, compressor: &mut Compressor) -> Result<Vec<PackedColumns>> {
        let mut packed = Vec::with_capacity(self.builders.len());
        for group in 0..self.builders.len() {
            let outcome = self
                .line_up(group)
                .and_then(|()| self.builders[group].pack(compressor));
            match outcome {
                Ok(done) => packed.push(done),
                Err(error) => {
                    (0..=group).for_each(|group| self.undo_line_up(group));
                    return Err(error);
                }
            }
        }
        Ok(packed)
    }

    /// Makes what was packed immutable.
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

    /// Moves the rows of a group together.
    fn line_up(&mut self, group: usize) -> Result<()> {
        let members = self.grouping.members(group);
        let rows = u32::try_from(members.len() * self.steps).unwrap_or(u32::MAX);
        let builder = &mut self.builders[group];
        let length = self.grouping.length;
        for (column, cell) in self.schema.cells.iter().enumerate() {
            if cell.dtype != DType::String {
                let (each, keep) = (cell.bytes() * length, cell.bytes() * self.steps);
                compact(builder.column_mut(column), each, keep);
                builder.set_rows(column, rows);
            }
        }
        for (column, strings) in self.strings.iter().enumerate() {
            if self.schema.cells[column].dtype == DType::String {
                for env in members.clone() {
                    for cell in strings.iter().skip(env).step_by(self.grouping.envs) {
                        builder.push_string(column, cell)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn undo_line_up(&mut self, group: usize) {
        let builder = &mut self.builders[group];
        let length = self.grouping.length;
        for (column, cell) in self.schema.cells.iter().enumerate() {
            if cell.dtype == DType::String {
                builder.clear_strings(column);
            } else {
                let (each, keep) = (cell.bytes() * length, cell.bytes() * self.steps);
                spread(builder.column_mut(column), each, keep);
            }
        }
    }

    /// Bytes of a chunk but for its strings: cells, offsets of strings, padding.
    fn fixed_bytes(&self) -> usize {
        let rows = self.grouping.length * self.grouping.group;
        let column = |cell: &CellSpec| (cell.bytes().max(4) * (rows + 1)) + ALIGN;
        self.schema.cells.iter().map(column).sum()
    }
}

/// Writes cell `n` of `cells` to place `step` of the `n`-th `length` places of `room`.
fn scatter(room: &mut [u8], cells: SharedBytes<'_>, size: usize, length: usize, step: usize) {
    match size {
        0 => {}
        1 => scatter_sized::<1>(room, cells, length, step),
        2 => scatter_sized::<2>(room, cells, length, step),
        4 => scatter_sized::<4>(room, cells, length, step),
        8 => scatter_sized::<8>(room, cells, length, step),
        16 => scatter_sized::<16>(room, cells, length, step),
        _ => {
            let places = room.chunks_exact_mut(size * length);
            for (place, cell) in places.zip(cells.pieces(size)) {
                cell.copy_to(&mut place[step * size..][..size]);
            }
        }
    }
}

/// A copy of known size is one move, not a call.
fn scatter_sized<const N: usize>(
    room: &mut [u8],
    cells: SharedBytes<'_>,
    length: usize,
    step: usize,
) {
    let places = room.as_chunks_mut::<N>().0[step..].iter_mut();
    for (place, cell) in places.step_by(length).zip(cells.arrays::<N>()) {
        *place = cell;
    }
}

/// Moves the first `keep` of every `each` bytes together.
fn compact(bytes: &mut [u8], each: usize, keep: usize) {
    if keep == each {
        return;
    }
    let count = bytes.len().checked_div(each).unwrap_or(0);
    for n in 1..count {
        bytes.copy_within(n * each..n * each + keep, n * keep);
    }
}

/// Undoes [`compact`].
fn spread(bytes: &mut [u8], each: usize, keep: usize) {
    if keep == each {
        return;
    }
    let count = bytes.len().checked_div(each).unwrap_or(0);
    for n in (1..count).rev() {
        bytes.copy_within(n * keep..(n + 1) * keep, n * each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_scattered_and_moved_together_again() {
        for size in [0, 1, 2, 3, 4, 8, 16, 24] {
            let (envs, length) = (3, 4);
            let mut room = vec![0; envs * length * size];
            let mut expected = vec![Vec::new(); envs];
            for step in 0..3_u8 {
                let cells: Vec<u8> = (0..3).flat_map(|env| vec![10 * env + step; size]).collect();
                scatter(
                    &mut room,
                    cells.as_slice().into(),
                    size,
                    length,
                    step.into(),
                );
                for (env, cell) in (0..envs).zip(cells.chunks(size.max(1))) {
                    expected[env].extend_from_slice(cell);
                }
            }
            let before = room.clone();
            compact(&mut room, size * length, size * 3);
            assert_eq!(room[..envs * 3 * size], expected.concat());
            spread(&mut room, size * length, size * 3);
            for env in 0..envs {
                let cells = env * size * length..(env * length + 3) * size;
                assert_eq!(room[cells.clone()], before[cells]);
            }
        }
    }
}
