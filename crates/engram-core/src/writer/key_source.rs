//! Generates the keys of items, chunks and episodes.

/// Keys are below 2^63 so that they fit a signed 64-bit integer.
const KEY_MASK: u64 = u64::MAX >> 1;

/// A pseudorandom sequence of keys, determined by its base.
#[derive(Clone, Debug)]
pub struct KeySource {
    base: u64,
    count: u64,
}

impl KeySource {
    /// Returns the sequence of keys of `base`. Use a random base: two writers with the same base
    /// would generate the same keys.
    #[must_use]
    pub const fn new(base: u64) -> Self {
        Self { base, count: 0 }
    }

    /// Returns the next key, which is below 2^63. It repeats an earlier key only as rarely as a random number
    /// would.
    pub const fn next_key(&mut self) -> u64 {
        let key = splitmix64(self.base.wrapping_add(self.count)) & KEY_MASK;
        self.count = self.count.wrapping_add(1);
        key
    }
}

/// One output of the `SplitMix64` generator of Steele, Lea and Flood. A bijection, so two keys can be equal
/// only because the mask drops a bit.
const fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_below_2_63_and_reproducible() {
        let first_keys = |base| {
            let mut keys = KeySource::new(base);
            (0..10_000).map(|_| keys.next_key()).collect::<Vec<_>>()
        };
        let keys = first_keys(u64::MAX - 5);
        assert!(keys.iter().all(|key| *key <= KEY_MASK));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert_eq!(keys, first_keys(u64::MAX - 5));
        // The published first output of SplitMix64 for seed 0, masked.
        assert_eq!(
            KeySource::new(0).next_key(),
            0xe220_a839_7b1d_cdaf & KEY_MASK
        );
    }
}
