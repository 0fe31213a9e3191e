//! Tracks the largest of many values that change.

use super::filled::filled;
use crate::error::Result;

/// Minimum number of values per block.
const MIN_BLOCK: usize = 64;

/// Tracks the largest of `n` values, all at least 0. The caller stores the values themselves.
///
/// The values are divided into blocks of about `sqrt(n)` values, at least 64, each with an upper bound of its values. A
/// change updates at most the bound of its block. When the largest value is requested, the bounds that could be too high
/// are corrected, from the highest one on.
#[derive(Debug)]
pub(super) struct Largest {
    /// Binary logarithm of the number of values per block.
    block_bits: u32,
    bounds: Vec<Bound>,
    /// The largest value, and a lower bound of how many values are equal to it. `None` if the largest value is unknown.
    current: Option<(f64, usize)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    value: f64,
    /// True if the bound may be higher than all values of the block.
    loose: bool,
}

impl Largest {
    /// Begins with `n` values that are all 0.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub(super) fn new(n: usize) -> Result<Self> {
        let block = n.isqrt().next_power_of_two().max(MIN_BLOCK);
        Ok(Self {
            block_bits: block.ilog2(),
            bounds: filled(Bound::default(), n.div_ceil(block))?,
            current: Some((0.0, n)),
        })
    }

    /// Records that the value at `index` was `old` and is `new` now.
    pub(super) fn change(&mut self, index: usize, old: f64, new: f64) {
        let bound = &mut self.bounds[index >> self.block_bits];
        if new >= bound.value {
            *bound = Bound {
                value: new,
                loose: false,
            };
        } else if old >= bound.value {
            bound.loose = true;
        }
        self.current = match self.current {
            Some((largest, _)) if new > largest => Some((new, 1)),
            Some((largest, count)) => {
                let count = count + usize::from(new >= largest) - usize::from(old >= largest);
                (count > 0).then_some((largest, count))
            }
            None => None,
        };
    }

    /// Returns the largest of `values`, which must have all recorded changes.
    pub(super) fn get(&mut self, values: &[f64]) -> f64 {
        if let Some((largest, _)) = self.current {
            return largest;
        }
        loop {
            let mut highest = 0;
            for (block, bound) in self.bounds.iter().enumerate() {
                if bound.value > self.bounds[highest].value {
                    highest = block;
                }
            }
            let bound = &mut self.bounds[highest];
            if !bound.loose {
                self.current = Some((bound.value, 1));
                return bound.value;
            }
            let first = highest << self.block_bits;
            let block = &values[first..values.len().min(first + (1 << self.block_bits))];
            *bound = Bound {
                value: block.iter().copied().fold(0.0, f64::max),
                loose: false,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_search(
            changes in prop::collection::vec((0..1000_usize, 0..6_u32, any::<bool>()), 1..300),
        ) {
            let mut values = vec![0.0; 1000];
            let mut largest = Largest::new(1000).unwrap();
            for (index, value, query) in changes {
                let new = f64::from(value);
                largest.change(index, values[index], new);
                values[index] = new;
                if query {
                    let expected = values.iter().copied().fold(0.0, f64::max);
                    prop_assert!(largest.get(&values).total_cmp(&expected).is_eq());
                }
            }
        }
    }
}
