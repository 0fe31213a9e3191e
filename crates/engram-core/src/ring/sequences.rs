//! Copies sequences: consecutive steps of one environment.

use super::episode_flags::{ENDED, FIRST};
use super::{ItemStart, Ring, StepBuffer};
use crate::error::Result;
use crate::gather::{copy, copy_in_parts};

/// The steps of one sequence: copies of its first step, then consecutive steps, then zeros.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    pub(super) env: usize,
    /// Slot of the first step.
    pub(super) slot: usize,
    /// Number of steps, without copies and zeros.
    pub(super) steps: usize,
    /// Number of copies of the first step, which precede it.
    pub(super) copies: usize,
}

/// The sequence whose first step after the burn-in is `start`.
pub(super) fn sequence(
    ring: &Ring,
    start: &ItemStart,
    length: usize,
    burn_in: usize,
    continues: bool,
) -> Sequence {
    let flags = |slot| ring.flags[ring.row(start.env, slot)];
    let (mut slot, mut steps_before) = (start.slot, 0);
    while steps_before < burn_in && flags(slot) & FIRST == 0 {
        slot = ring.slot_before(slot, 1);
        steps_before += 1;
    }
    let mut steps_from_start = length;
    if !continues {
        let mut last = start.slot;
        steps_from_start = 1;
        while steps_from_start < length && flags(last) & ENDED == 0 {
            last = ring.slot_after(last, 1);
            steps_from_start += 1;
        }
    }
    Sequence {
        env: start.env,
        slot,
        steps: steps_before + steps_from_start,
        copies: burn_in - steps_before,
    }
}

/// The rows of the steps that items begin with.
pub(super) fn rows_of(ring: &Ring, starts: &[ItemStart]) -> Vec<usize> {
    starts
        .iter()
        .map(|start| ring.row(start.env, start.slot))
        .collect()
}

impl StepBuffer {
    /// Copies `length` steps from each start on into one array per column. `length` must be at most the number of slots of
    /// an environment.
    ///
    /// # Errors
    /// None, as for [`Self::gather`].
    pub fn gather_sequences(
        &self,
        starts: &[ItemStart],
        length: usize,
        outputs: Vec<&mut [u8]>,
    ) -> Result<()> {
        let ring = &self.ring;
        copy_in_parts(
            starts.len(),
            outputs,
            |column, item| item * length * ring.columns[column].cell_bytes,
            |range, outputs| {
                let starts = &starts[range];
                if length == 1 {
                    let rows = rows_of(ring, starts);
                    for (column, out) in ring.columns.iter().zip(outputs) {
                        column.gather(&rows, out);
                    }
                    return Ok(());
                }
                let sequences = starts.iter().map(|start| Sequence {
                    env: start.env,
                    slot: start.slot,
                    steps: length,
                    copies: 0,
                });
                let sequences: Vec<Sequence> = sequences.collect();
                for (column, out) in outputs.into_iter().enumerate() {
                    ring.copy_sequences(column, &sequences, out);
                }
                Ok(())
            },
        )
    }
}

impl Ring {
    /// Copies a column of sequences, which all get an equal part of `out`.
    pub(super) fn copy_sequences(&self, column: usize, sequences: &[Sequence], out: &mut [u8]) {
        let bytes = out.len() / sequences.len().max(1);
        let each = sequences.iter().zip(out.chunks_exact_mut(bytes.max(1)));
        for (number, (sequence, out)) in each.enumerate() {
            if let Some(later) = sequences.get(number + 1) {
                self.columns[column].prefetch(self.row(later.env, later.slot));
            }
            self.copy_sequence(column, sequence, out);
        }
    }

    /// Copies a column of a sequence.
    fn copy_sequence(&self, column: usize, sequence: &Sequence, out: &mut [u8]) {
        let column = &self.columns[column];
        let cell_bytes = column.cell_bytes;
        let first = self.row(sequence.env, sequence.slot);
        let (copies, out) = out.split_at_mut(sequence.copies * cell_bytes);
        for cell in copies.chunks_exact_mut(cell_bytes.max(1)) {
            copy(cell, column.cell(first));
        }
        let until_wrap = sequence.steps.min(self.length - sequence.slot);
        let (before_wrap, rest) = out.split_at_mut(until_wrap * cell_bytes);
        let (after_wrap, padding) = rest.split_at_mut((sequence.steps - until_wrap) * cell_bytes);
        copy(before_wrap, column.cells(first, until_wrap));
        copy(
            after_wrap,
            column.cells(self.row(sequence.env, 0), sequence.steps - until_wrap),
        );
        padding.fill(0);
    }
}
