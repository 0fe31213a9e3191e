//! Columns whose cells are in the memory of a device. A ring has their numbers instead, as int64: the number of a cell is its row
//! plus 1. Number 0 stands for zeros, such as those after the end of an episode.

use super::{Ring, StepBuffer};

/// For each column of a ring: a copy of the cells of all rows, if the ring has only their numbers. May be empty if the ring has
/// the cells of all columns.
pub type DeviceCells<'a> = Vec<Option<&'a mut [u8]>>;

impl Ring {
    /// The numbers of the cells that the next `steps` steps of an environment are stored in.
    pub(super) fn cell_numbers(
        &self,
        env: usize,
        steps: usize,
    ) -> impl Iterator<Item = [u8; 8]> + '_ {
        let first = self.envs[env].next_slot;
        (0..steps).map(move |step| {
            let row = self.row(env, (first + step) % self.length);
            (row as u64 + 1).to_le_bytes()
        })
    }

    /// Writes cells to the rows of the next steps of an environment; `all` has the cells of all rows.
    pub(super) fn copy_to_next_rows(
        &self,
        env: usize,
        cells: &[u8],
        cell_bytes: usize,
        all: &mut [u8],
    ) {
        let first = self.envs[env].next_slot;
        for (step, cell) in cells.chunks_exact(cell_bytes.max(1)).enumerate() {
            let row = self.row(env, (first + step) % self.length);
            all[row * cell_bytes..(row + 1) * cell_bytes].copy_from_slice(cell);
        }
    }
}

impl StepBuffer {
    /// The numbers of the cells that the next `steps` steps of each of `envs` are stored in, environment after environment.
    pub fn cell_numbers(&self, envs: &[usize], steps: usize) -> impl Iterator<Item = [u8; 8]> {
        let envs = envs.iter();
        envs.flat_map(move |env| self.ring.cell_numbers(*env, steps))
    }
}
