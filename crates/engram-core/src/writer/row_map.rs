//! Which row of each column holds a step.

/// Stands for "no value at this step".
const NONE: u32 = u32::MAX;

/// Rows of a chunk by column and step. A chunk whose every step has every value needs no table.
#[derive(Debug, Default)]
pub(super) struct RowMap {
    sparse: Option<Box<[Vec<u32>]>>,
}

impl RowMap {
    /// True when step `s` of the chunk is row `s` of every column.
    pub(super) fn is_dense(&self) -> bool {
        self.sparse.is_none()
    }

    /// Row of `column` that holds the chunk's `step`.
    pub(super) fn row(&self, column: usize, step: u32) -> Option<u32> {
        match &self.sparse {
            None => Some(step),
            Some(columns) => Some(columns[column][step as usize]).filter(|row| *row != NONE),
        }
    }

    /// Records step number `step`; `rows` gives each column's row, or `None` without a value.
    pub(super) fn push(&mut self, step: u32, rows: impl Iterator<Item = Option<u32>> + Clone) {
        if self.sparse.is_none() {
            if rows.clone().all(|row| row == Some(step)) {
                return;
            }
            self.sparse = Some(rows.clone().map(|_| (0..step).collect()).collect());
        }
        for (column, row) in self.sparse.iter_mut().flatten().zip(rows) {
            column.push(row.unwrap_or(NONE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_sparse_at_the_first_gap() {
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
