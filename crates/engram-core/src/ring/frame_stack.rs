//! Stacks of the newest frames up to a step, made from frames that are stored once.

use super::Ring;
use super::episode_flags::FIRST;
use super::sequences::Sequence;
use crate::gather::copy;

/// How the cells of an output column are stacked: the last frame is its own cell, the frames before it are those of the
/// steps before, back to the first step of the episode, whose frame is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStack {
    /// Number of frames, at least 1.
    pub frames: usize,
    /// Column of the ring with the frames before the last one.
    pub earlier: usize,
    /// True if the frame before the last one is that of the same step, as `obs` precedes `next_obs`.
    pub includes_step: bool,
}

impl Ring {
    /// Writes the stack that ends with the cell of `column` in this slot.
    fn copy_stack(
        &self,
        column: usize,
        stack: FrameStack,
        env: usize,
        mut slot: usize,
        out: &mut [u8],
    ) {
        let previous = |slot| {
            let is_first = self.flags[self.row(env, slot)] & FIRST != 0;
            if is_first {
                slot
            } else {
                self.slot_before(slot, 1)
            }
        };
        let cell_bytes = self.columns[column].cell_bytes;
        let mut frames = out.chunks_exact_mut(cell_bytes.max(1)).rev();
        if let Some(last) = frames.next() {
            copy(last, self.columns[column].cell(self.row(env, slot)));
        }
        if !stack.includes_step {
            slot = previous(slot);
        }
        for frame in frames {
            copy(frame, self.columns[stack.earlier].cell(self.row(env, slot)));
            slot = previous(slot);
        }
    }

    /// Writes the stacks that end with the cells of `column` in these rows.
    pub(super) fn gather_stacks(
        &self,
        column: usize,
        stack: FrameStack,
        rows: &[usize],
        out: &mut [u8],
    ) {
        let bytes = stack.frames * self.columns[column].cell_bytes;
        for (number, (row, out)) in rows
            .iter()
            .zip(out.chunks_exact_mut(bytes.max(1)))
            .enumerate()
        {
            if let Some(later) = rows.get(number + 1) {
                self.columns[column].prefetch(*later);
            }
            self.copy_stack(column, stack, row / self.length, row % self.length, out);
        }
    }

    /// Writes the stacks of all steps of sequences, which get equal parts of `out`. The first step of a sequence is
    /// repeated, and zeros follow the last one, as in columns without stacks.
    pub(super) fn copy_stacked_sequences(
        &self,
        column: usize,
        stack: FrameStack,
        sequences: &[Sequence],
        out: &mut [u8],
    ) {
        let bytes = out.len() / sequences.len().max(1);
        let stack_bytes = stack.frames * self.columns[column].cell_bytes;
        for (sequence, out) in sequences.iter().zip(out.chunks_exact_mut(bytes.max(1))) {
            let mut slot = sequence.slot;
            let mut stacks = out.chunks_exact_mut(stack_bytes.max(1));
            for (number, out) in stacks
                .by_ref()
                .take(sequence.copies + sequence.steps)
                .enumerate()
            {
                if number > sequence.copies {
                    slot = self.slot_after(slot, 1);
                }
                self.copy_stack(column, stack, sequence.env, slot, out);
            }
            stacks.for_each(|padding| padding.fill(0));
        }
    }
}
