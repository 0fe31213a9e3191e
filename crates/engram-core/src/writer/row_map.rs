//! Maps the steps of a chunk to the rows of its columns.

/// Marks a step without a value.
const NO_VALUE: u32 = u32::MAX;

/// The row of each column at each step.
#[derive(Debug, Default)]
pub(super) struct RowMap {
    /// Per column, the row of each step. `None` while no value is missing: row `i` is then step `i`.
    sparse: Option<Box<[Vec<u32>]>>,
}

impl RowMap {
    /// True if no value is missing: row `i` of every column is step `i` of the chunk.
    pub(super) fn is_dense(&self) -> bool {
        self.sparse.is_none()
    }

    /// Returns the row of `column` at the chunk's `step`, or `None` if it has no value there.
    pub(super) fn row(&self, column: usize, step: u32) -> Option<u32> {
        match &self.sparse {
            None => Some(step),
            Some(columns) => Some(columns[column][step as usize]).filter(|row| *row != NO_VALUE),
        }
    }

    /// Adds the chunk's next step, which is number `step`. `rows` yields the row of each column, `None` without a
    /// value.
    pub(super) fn push(&mut self, step: u32, rows: impl Iterator<Item = Option<u32>> + Clone) {
        if self.sparse.is_none() {
            if rows.clone().all(|row| row == Some(step)) {
                return;
            }
            self.sparse = Some(rows.clone().map(|_| (0..step).collect()).collect());
        }
        for (column, row) in self.sparse.iter_mut().flatten().zip(rows) {
            column.push(row.unwrap_or(NO_VALUE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn becomes_sparse_at_the_first_missing_value() {
        let mut map = RowMap::default();
        map.push(0, [Some(0), Some(0)].into_iter());
        assert!(map.is_dense());
        map.push(1, [Some(1), None].into_iter());
        map.push(2, [Some(2), Some(1)].into_iter());
        assert!(!map.is_dense());
        assert_eq!(
            [0, 1, 2].map(|s| map.row(0, s)),
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!([0, 1, 2].map(|s| map.row(1, s)), [Some(0), None, Some(1)]);
    }
}
