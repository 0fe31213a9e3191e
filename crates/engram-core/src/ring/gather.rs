//! Copies items of a ring into the columns of a batch.

use super::episode_flags::{ENDED, EpisodeColumns, FIRST, TERMINATED};
use super::options::{OutputColumn, OutputSource, StepBufferOptions};
use super::sequences::{Sequence, rows_of, sequence};
use super::{Drawn, FrameStack, ItemStart, Ring, RingItems};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gather::{PREFETCHED_ITEMS, copy, copy_in_parts};
use crate::prefetch::prefetch_line;

/// Copies or computes the columns of a batch.
#[derive(Debug)]
pub struct RingGather {
    outputs: Vec<OutputColumn>,
    /// Index and dtype of the column of the rewards.
    rewards: Option<(usize, DType)>,
    /// `discount ^ k` for `k` from 0 to `n_step`.
    powers: Vec<f64>,
}

/// The last step of one transition, and what was computed from all its steps.
#[derive(Clone, Copy)]
struct Transition {
    last_row: usize,
    /// Number of steps.
    steps: usize,
    /// Discounted sum of the rewards.
    reward_sum: f64,
    /// True if the episode terminated with the last step.
    terminated: bool,
}

impl RingGather {
    /// Checks the columns of rewards and of the ends of episodes.
    ///
    /// # Errors
    /// [`Error::Signature`] if one of them has a dtype or shape that is not allowed.
    pub(super) fn new(options: &StepBufferOptions<'_>) -> Result<Self> {
        let check = |column: usize, is_allowed: &dyn Fn(DType) -> bool, what: &str| {
            let cell = &options.cells[column];
            if cell.shape.is_empty() && is_allowed(cell.dtype) {
                return Ok(());
            }
            let name = &options.names[column];
            Err(Error::Signature(format!(
                "column `{name}` must be {what} per step; got {cell}"
            )))
        };
        if let Some(EpisodeColumns {
            terminated,
            truncated,
        }) = options.episode_columns
        {
            check(terminated, &|dtype| dtype == DType::Bool, "one bool")?;
            check(truncated, &|dtype| dtype == DType::Bool, "one bool")?;
        }
        if let Some(column) = options.reward_column {
            let what = "one float32, float64 or integer";
            check(column, &|dtype| to_number(dtype, &[0; 8]).is_some(), what)?;
        }
        let powers = match options.items {
            RingItems::Transitions { n_step, discount } => {
                let n_step = i32::try_from(n_step).unwrap_or(i32::MAX);
                (0..=n_step).map(|k| discount.powi(k)).collect()
            }
            RingItems::Steps | RingItems::Sequences { .. } | RingItems::Episodes { .. } => {
                Vec::new()
            }
        };
        Ok(Self {
            outputs: options.outputs.clone(),
            rewards: options
                .reward_column
                .map(|column| (column, options.cells[column].dtype)),
            powers,
        })
    }

    /// Number of steps before an item that its stacks of frames contain.
    pub(super) fn lookback(&self) -> usize {
        let stacks = self.outputs.iter().filter_map(|output| output.stack);
        let steps =
            stacks.map(|stack| (stack.frames - 1).saturating_sub(stack.includes_step.into()));
        steps.max().unwrap_or(0)
    }

    /// Copies items into one array per column. Each array has the bytes of all items.
    pub(super) fn gather(
        &self,
        ring: &Ring,
        items: &RingItems,
        drawn: &Drawn,
        outputs: Vec<&mut [u8]>,
    ) -> Result<()> {
        let Drawn {
            starts, goal_rows, ..
        } = drawn;
        let item_bytes: Vec<usize> = self
            .outputs
            .iter()
            .map(|output| output.cell.bytes())
            .collect();
        copy_in_parts(
            starts.len(),
            outputs,
            |column, item| item * item_bytes[column],
            |range, outputs| {
                let mut outputs = outputs;
                let goal_rows = goal_rows.get(range.clone()).unwrap_or_default();
                self.gather_goals(ring, &starts[range.clone()], goal_rows, &mut outputs);
                let sequences = |length, burn_in, continues| -> Vec<Sequence> {
                    let starts = starts[range.clone()].iter();
                    starts
                        .map(|start| sequence(ring, start, length, burn_in, continues))
                        .collect()
                };
                match *items {
                    RingItems::Steps => self.gather_steps(ring, &starts[range.clone()], outputs),
                    RingItems::Transitions { n_step, .. } => {
                        self.gather_transitions(ring, n_step, &starts[range.clone()], outputs);
                    }
                    RingItems::Sequences {
                        length,
                        burn_in,
                        continues,
                    } => {
                        let sequences = sequences(length, burn_in, continues);
                        self.gather_sequences(ring, &sequences, burn_in, burn_in + length, outputs);
                    }
                    RingItems::Episodes { max_length } => {
                        let episodes = sequences(max_length, 0, false);
                        self.gather_sequences(ring, &episodes, 0, max_length, outputs);
                    }
                }
                Ok(())
            },
        )
    }

    /// Copies the goals of items: those that steps in `goal_rows` achieved, or the items' own ones; only these if there are
    /// no `goal_rows`.
    fn gather_goals(
        &self,
        ring: &Ring,
        starts: &[ItemStart],
        goal_rows: &[Option<usize>],
        outputs: &mut [&mut [u8]],
    ) {
        let is_goal = |output: &OutputColumn| matches!(output.source, OutputSource::Goal { .. });
        if !self.outputs.iter().any(is_goal) {
            return;
        }
        let rows = rows_of(ring, starts);
        for (output, out) in self.outputs.iter().zip(outputs) {
            if let OutputSource::Goal { column, achieved } = output.source {
                let cells = out.chunks_exact_mut(ring.columns[column].cell_bytes.max(1));
                for (number, (row, out)) in rows.iter().zip(cells).enumerate() {
                    let cell = match goal_rows.get(number).copied().flatten() {
                        Some(row) => ring.columns[achieved].cell(row),
                        None => ring.columns[column].cell(*row),
                    };
                    copy(out, cell);
                }
            }
        }
    }

    fn gather_steps(&self, ring: &Ring, starts: &[ItemStart], outputs: Vec<&mut [u8]>) {
        let rows = rows_of(ring, starts);
        for (output, out) in self.outputs.iter().zip(outputs) {
            if let OutputSource::First(column) = output.source {
                ring.gather_cells(column, output.stack, &rows, out);
            }
        }
    }

    fn gather_transitions(
        &self,
        ring: &Ring,
        n_step: usize,
        starts: &[ItemStart],
        outputs: Vec<&mut [u8]>,
    ) {
        let rows = rows_of(ring, starts);
        if let Some((column, _)) = self.rewards {
            for row in &rows {
                ring.columns[column].prefetch(*row);
                prefetch_line(&raw const ring.flags[*row]);
            }
        }
        let transitions = starts
            .iter()
            .map(|start| self.transition(ring, start, n_step));
        let transitions: Vec<Transition> = transitions.collect();
        let discount = |transition: &Transition| {
            if transition.terminated {
                0.0
            } else {
                self.powers[transition.steps]
            }
        };
        for (output, out) in self.outputs.iter().zip(outputs) {
            let all = transitions.iter();
            match output.source {
                OutputSource::First(column) => {
                    ring.gather_cells(column, output.stack, &rows, out);
                }
                OutputSource::Last(column) => {
                    let rows: Vec<usize> = all.map(|transition| transition.last_row).collect();
                    ring.gather_cells(column, output.stack, &rows, out);
                }
                OutputSource::Return => {
                    write_all(out, all.map(|each| to_f32_bytes(each.reward_sum)));
                }
                OutputSource::Discount => {
                    write_all(out, all.map(|each| to_f32_bytes(discount(each))));
                }
                OutputSource::NumSteps => write_all(
                    out,
                    all.map(|each| i32::try_from(each.steps).unwrap_or(i32::MAX).to_le_bytes()),
                ),
                _ => {}
            }
        }
    }

    /// Follows the steps of a transition: `n_step` of them, or fewer if the episode ends before.
    fn transition(&self, ring: &Ring, start: &ItemStart, n_step: usize) -> Transition {
        let (mut slot, mut reward_sum) = (start.slot, 0.0);
        let mut steps = 0;
        loop {
            let row = ring.row(start.env, slot);
            if let Some((column, dtype)) = self.rewards {
                let reward = to_number(dtype, ring.columns[column].cell(row)).unwrap_or(0.0);
                reward_sum += self.powers[steps] * reward;
            }
            steps += 1;
            let flags = ring.flags[row];
            if steps == n_step || flags & ENDED != 0 {
                return Transition {
                    last_row: row,
                    steps,
                    reward_sum,
                    terminated: flags & TERMINATED != 0,
                };
            }
            slot = ring.slot_after(slot, 1);
        }
    }

    fn gather_sequences(
        &self,
        ring: &Ring,
        sequences: &[Sequence],
        burn_in: usize,
        len: usize,
        outputs: Vec<&mut [u8]>,
    ) {
        for (output, out) in self.outputs.iter().zip(outputs) {
            let each = sequences
                .iter()
                .zip(out.chunks_exact_mut(output.cell.bytes().max(1)));
            match output.source {
                OutputSource::All(column) => match output.stack {
                    None => ring.copy_sequences(column, sequences, out),
                    Some(stack) => ring.copy_stacked_sequences(column, stack, sequences, out),
                },
                OutputSource::Valid => each.for_each(|(sequence, out)| {
                    out.fill(0);
                    out[sequence.copies..sequence.copies + sequence.steps].fill(1);
                }),
                OutputSource::Learning => each.for_each(|(sequence, out)| {
                    out.fill(0);
                    out[burn_in..sequence.copies + sequence.steps].fill(1);
                }),
                OutputSource::IsFirst => each.for_each(|(sequence, out)| {
                    out.fill(0);
                    out[..sequence.copies].fill(1);
                    let mut slot = sequence.slot;
                    for is_first in
                        &mut out[sequence.copies..len.min(sequence.copies + sequence.steps)]
                    {
                        *is_first = u8::from(ring.flags[ring.row(sequence.env, slot)] & FIRST != 0);
                        slot = ring.slot_after(slot, 1);
                    }
                }),
                _ => {}
            }
        }
    }
}

impl Ring {
    /// Copies the cells of a column in these rows, or the stacks that end with them, one after the other.
    fn gather_cells(
        &self,
        column: usize,
        stack: Option<FrameStack>,
        rows: &[usize],
        out: &mut [u8],
    ) {
        match stack {
            None => self.columns[column].gather(rows, out),
            Some(stack) => self.gather_stacks(column, stack, rows, out),
        }
    }
}

impl super::RingColumn {
    pub(super) fn cells(&self, row: usize, len: usize) -> &[u8] {
        &self.bytes[row * self.cell_bytes..(row + len) * self.cell_bytes]
    }

    pub(super) fn cell(&self, row: usize) -> &[u8] {
        self.cells(row, 1)
    }

    pub(super) fn prefetch(&self, row: usize) {
        prefetch_line(self.bytes.as_ptr().wrapping_add(row * self.cell_bytes));
    }

    /// Copies the cells of these rows, one after the other.
    pub(super) fn gather(&self, rows: &[usize], out: &mut [u8]) {
        for row in rows.iter().take(PREFETCHED_ITEMS) {
            self.prefetch(*row);
        }
        match self.cell_bytes {
            0 => {}
            1 => self.gather_fixed::<1>(rows, out),
            2 => self.gather_fixed::<2>(rows, out),
            4 => self.gather_fixed::<4>(rows, out),
            8 => self.gather_fixed::<8>(rows, out),
            16 => self.gather_fixed::<16>(rows, out),
            32 => self.gather_fixed::<32>(rows, out),
            size => {
                for (number, (row, out)) in rows.iter().zip(out.chunks_exact_mut(size)).enumerate()
                {
                    if let Some(later) = rows.get(number + PREFETCHED_ITEMS) {
                        self.prefetch(*later);
                    }
                    out.copy_from_slice(self.cell(*row));
                }
            }
        }
    }

    /// [`Self::gather`] for cells of `N` bytes, which are copied without a function call.
    fn gather_fixed<const N: usize>(&self, rows: &[usize], out: &mut [u8]) {
        let (cells, _) = self.bytes.as_chunks::<N>();
        let (out, _) = out.as_chunks_mut::<N>();
        for (number, (row, out)) in rows.iter().zip(out).enumerate() {
            if let Some(later) = rows.get(number + PREFETCHED_ITEMS) {
                prefetch_line(cells.as_ptr().wrapping_add(*later));
            }
            *out = cells[*row];
        }
    }
}

/// Decodes a number of this dtype; `None` if rewards cannot have this dtype.
fn to_number(dtype: DType, bytes: &[u8]) -> Option<f64> {
    macro_rules! read {
        ($type:ty) => {
            bytes
                .first_chunk()
                .map(|bytes| <$type>::from_le_bytes(*bytes))
        };
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "rewards are rounded to float32 later"
    )]
    match dtype {
        DType::Float32 => read!(f32).map(f64::from),
        DType::Float64 => read!(f64),
        DType::Int8 => read!(i8).map(f64::from),
        DType::Int16 => read!(i16).map(f64::from),
        DType::Int32 => read!(i32).map(f64::from),
        DType::Int64 => read!(i64).map(|number| number as f64),
        DType::Uint8 => read!(u8).map(f64::from),
        DType::Uint16 => read!(u16).map(f64::from),
        DType::Uint32 => read!(u32).map(f64::from),
        DType::Uint64 => read!(u64).map(|number| number as f64),
        _ => None,
    }
}

/// The bytes of a number as float32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a float32 column rounds values"
)]
fn to_f32_bytes(value: f64) -> [u8; 4] {
    (value as f32).to_le_bytes()
}

/// Writes cells of four bytes, one after the other.
fn write_all(out: &mut [u8], cells: impl Iterator<Item = [u8; 4]>) {
    for (out, cell) in out.as_chunks_mut().0.iter_mut().zip(cells) {
        *out = cell;
    }
}
