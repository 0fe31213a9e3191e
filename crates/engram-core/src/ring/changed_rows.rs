//! A set of rows.

use super::filled::filled;
use crate::error::Result;

/// Bits per word.
const BITS: usize = u64::BITS as usize;

/// Maximum number of rows in a list. Few rows are faster in a list than in a bitmap, of which each has its own cache line.
const MAX_LISTED: usize = 1024;

/// Rows of a buffer. Neither the time to add a row nor that to find the next one depends on how many there are.
#[derive(Debug)]
pub(super) struct ChangedRows {
    /// The rows that were added last, which may repeat rows.
    listed: Vec<usize>,
    /// The other rows: one bit per row.
    rows: Vec<u64>,
    /// One bit per word of `rows` that is not 0.
    words: Vec<u64>,
    /// Number of bits of `rows` that are 1.
    len: usize,
}

impl ChangedRows {
    /// An empty set of rows below `n`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub(super) fn new(n: usize) -> Result<Self> {
        let words = n.div_ceil(BITS);
        Ok(Self {
            listed: Vec::new(),
            rows: filled(0, words)?,
            words: filled(0, words.div_ceil(BITS))?,
            len: 0,
        })
    }

    /// Number of rows, without those that were added last, fewer than [`MAX_LISTED`].
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a row.
    pub(super) fn insert(&mut self, row: usize) {
        self.listed.push(row);
        if self.listed.len() == MAX_LISTED {
            self.empty_list();
        }
    }

    /// Moves the rows of the list to the bitmap.
    fn empty_list(&mut self) {
        for row in self.listed.drain(..) {
            let (number, bit) = (row / BITS, 1 << (row % BITS));
            let word = &mut self.rows[number];
            self.len += usize::from(*word & bit == 0);
            *word |= bit;
            self.words[number / BITS] |= 1 << (number % BITS);
        }
    }

    /// Removes all rows, and passes them to `visit`: many of them in ascending order, few of them in any order, in which
    /// they may be repeated.
    pub(super) fn take(&mut self, visit: impl FnOnce(&[usize])) {
        if self.len == 0 {
            visit(&self.listed);
            self.listed.clear();
            return;
        }
        self.empty_list();
        let mut taken = Vec::with_capacity(self.len);
        for (first, words) in self.words.iter_mut().enumerate() {
            for word in bits(std::mem::take(words)) {
                let number = first * BITS + word;
                let rows = std::mem::take(&mut self.rows[number]);
                taken.extend(bits(rows).map(|row| number * BITS + row));
            }
        }
        self.len = 0;
        visit(&taken);
    }
}

/// The numbers of the bits that are 1, in ascending order.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(
            parts in prop::collection::vec((0..9000_usize, 1..9000_usize, 0..2500_usize), 1..5),
        ) {
            let mut changed = ChangedRows::new(9000).unwrap();
            for (first, step, count) in parts {
                let rows: Vec<usize> = (0..count).map(|n| (first + n * step) % 9000).collect();
                for row in &rows {
                    changed.insert(*row);
                }
                let listed = if count < MAX_LISTED {
                    rows.clone()
                } else {
                    rows.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
                };
                let in_bitmap = rows[..count / MAX_LISTED * MAX_LISTED].iter();
                prop_assert_eq!(changed.len(), in_bitmap.collect::<BTreeSet<_>>().len());
                let mut taken = Vec::new();
                changed.take(|rows| taken.extend_from_slice(rows));
                prop_assert_eq!(&taken, &listed);
                changed.take(|rows| taken = rows.to_vec());
                prop_assert_eq!((changed.len(), taken), (0, vec![]));
            }
        }
    }
}
