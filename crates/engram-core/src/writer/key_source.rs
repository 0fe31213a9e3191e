//! Generates the keys of items, chunks and episodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Keys are below 2^63 so that they fit a signed 64-bit integer.
const KEY_MASK: u64 = u64::MAX >> 1;

/// Number of random bits of a key that has a shard id, which is in the 10 bits above them.
const SHARD_KEY_BITS: u32 = 53;

/// The largest shard id.
pub const MAX_SHARD_ID: u16 = 1023;

/// The id of the shard whose items get keys. Copies share it, so it can be set when a writer learns it from its server.
/// 0: none.
#[derive(Clone, Debug, Default)]
pub struct ShardId(Arc<AtomicU16>);

impl ShardId {
    /// Returns an id that is not shared.
    #[must_use]
    pub fn new(id: u16) -> Self {
        let shard = Self::default();
        shard.set(id);
        shard
    }

    /// Returns the id.
    #[must_use]
    pub fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the id, from 0 to [`MAX_SHARD_ID`].
    pub fn set(&self, id: u16) {
        self.0.store(id.min(MAX_SHARD_ID), Ordering::Relaxed);
    }

    /// Returns a key below 2^63 that has this shard id, and otherwise the lower bits of a random number. Without a
    /// shard id, the key has all of these bits.
    #[must_use]
    pub fn key(&self, random: u64) -> u64 {
        match u64::from(self.get()) {
            0 => random & KEY_MASK,
            id => id << SHARD_KEY_BITS | random & ((1 << SHARD_KEY_BITS) - 1),
        }
    }
}

/// A sequence of keys, determined by its base: a pseudorandom number, and the numbers that follow it. The
/// [key map](crate::key_map) of a table has neighbouring keys close together, so that a writer's items are inserted and
/// removed faster.
#[derive(Clone, Debug)]
pub struct KeySource {
    /// The next key without a shard id. Its highest bits do not count.
    next: u64,
    shard: ShardId,
}

impl KeySource {
    /// Returns the sequence of keys of `base`, with a shard id. Use a random base: two writers with the same base
    /// would generate the same keys.
    #[must_use]
    pub const fn new(base: u64, shard: ShardId) -> Self {
        Self {
            next: splitmix64(base),
            shard,
        }
    }

    /// Returns the next key, which is below 2^63 and has the shard id, if there is one. It repeats a key of another
    /// sequence more rarely than a random number would.
    pub fn next_key(&mut self) -> u64 {
        let key = self.shard.key(self.next);
        self.next = self.next.wrapping_add(1);
        key
    }
}

/// One output of the `SplitMix64` generator of Steele, Lea and Flood.
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
            let mut keys = KeySource::new(base, ShardId::default());
            (0..10_000).map(|_| keys.next_key()).collect::<Vec<_>>()
        };
        let keys = first_keys(u64::MAX - 5);
        assert!(keys.iter().all(|key| *key <= KEY_MASK));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert_eq!(keys, first_keys(u64::MAX - 5));
        // The sequences of neighbouring bases are far apart.
        let others: HashSet<_> = first_keys(u64::MAX - 4).into_iter().collect();
        assert!(keys.iter().all(|key| !others.contains(key)));
        // The published first output of SplitMix64 for seed 0, masked.
        assert_eq!(
            KeySource::new(0, ShardId::default()).next_key(),
            0xe220_a839_7b1d_cdaf & KEY_MASK
        );
    }

    #[test]
    fn keys_have_the_shard_id_that_is_set_later() {
        let shard = ShardId::default();
        let mut keys = KeySource::new(3, shard.clone());
        let mut without = KeySource::new(3, ShardId::default());
        assert_eq!(keys.next_key(), without.next_key());
        shard.set(MAX_SHARD_ID);
        for _ in 0..1000 {
            let (key, random) = (keys.next_key(), without.next_key());
            assert_eq!(key >> SHARD_KEY_BITS, u64::from(MAX_SHARD_ID));
            assert_eq!(key & ((1 << 53) - 1), random & ((1 << 53) - 1));
            assert!(key <= KEY_MASK);
        }
    }
}
