//! Where keys of items, chunks and episodes come from.

/// Keys stay below 2^63, so that they fit the signed integers of every client.
const MASK: u64 = u64::MAX >> 1;

/// A sequence of well spread keys, fixed by its base.
#[derive(Clone, Debug)]
pub struct KeySource {
    base: u64,
    drawn: u64,
}

impl KeySource {
    /// The keys of `base`, which should be random: writers with one base would share keys.
    #[must_use]
    pub const fn new(base: u64) -> Self {
        Self { base, drawn: 0 }
    }

    /// A key below 2^63 that this source has not given before.
    pub const fn next_key(&mut self) -> u64 {
        let key = splitmix64(self.base.wrapping_add(self.drawn)) & MASK;
        self.drawn = self.drawn.wrapping_add(1);
        key
    }
}

/// Steele, Lea and Flood's mixer: a bijection, so only the mask could make two keys equal.
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
    fn keys_are_distinct_small_enough_and_repeatable() {
        let take = |base| {
            let mut keys = KeySource::new(base);
            (0..10_000).map(|_| keys.next_key()).collect::<Vec<_>>()
        };
        let keys = take(u64::MAX - 5);
        assert!(keys.iter().all(|key| *key <= MASK));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert_eq!(keys, take(u64::MAX - 5));
        // The published first output of SplitMix64 for seed 0, masked.
        assert_eq!(KeySource::new(0).next_key(), 0xe220_a839_7b1d_cdaf & MASK);
    }
}
