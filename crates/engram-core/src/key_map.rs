//! A sharded hash map with `u64` keys. Each shard is small enough to regrow under a table's lock.

use hashbrown::HashMap;

/// Number of neighbouring keys in the same shard. Writers insert and remove neighbouring keys one after the other: the memory
/// of their shard is then in the processor's cache.
const KEYS_TOGETHER: u64 = 32;

/// Number of shards. Regrowing one map of 10^7 keys takes 200 ms, regrowing one shard under
/// 1 ms.
const SHARDS: usize = 1024;

/// A sharded hash map with `u64` keys.
#[derive(Debug)]
pub struct KeyMap<V> {
    shards: Box<[HashMap<u64, V>]>,
}

impl<V: Copy> Default for KeyMap<V> {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(HashMap::new).take(SHARDS).collect(),
        }
    }
}

impl<V: Copy> KeyMap<V> {
    /// Returns the number of a key's shard: the top 10 bits of a hash, for 1,024 shards. Multiplicative hashing
    /// spreads sequential numbers as evenly as random ones.
    fn shard_number(key: u64) -> usize {
        ((key / KEYS_TOGETHER).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<V> {
        self.shards[Self::shard_number(key)].get(&key).copied()
    }

    /// Loads the memory that later calls for these keys use. The cache misses of different keys overlap here; in the
    /// later calls, between which other work is done, they would not.
    pub fn prefetch(&self, keys: impl Iterator<Item = u64>) {
        for key in keys {
            std::hint::black_box(self.get(key));
        }
    }

    /// Sets the value of `key`.
    pub fn insert(&mut self, key: u64, value: V) {
        self.shards[Self::shard_number(key)].insert(key, value);
    }

    /// Removes `key`; returns its value.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        self.shards[Self::shard_number(key)].remove(&key)
    }

    /// Returns a mutable reference to the value of `key`; inserts `V::default()` if there is none.
    pub fn get_or_default(&mut self, key: u64) -> &mut V
    where
        V: Default,
    {
        self.shards[Self::shard_number(key)].entry(key).or_default()
    }

    /// Number of keys, summed over all shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(HashMap::len).sum()
    }

    /// True if there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(HashMap::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_keys_spread_over_all_shards() {
        let mut map = KeyMap::default();
        for key in 0..100_000_u64 {
            map.insert(key, key);
        }
        let together = (64..64 + KEYS_TOGETHER).map(KeyMap::<u64>::shard_number);
        assert_eq!(together.collect::<std::collections::HashSet<_>>().len(), 1);
        let fullest = map.shards.iter().map(HashMap::len).max().unwrap();
        assert!(fullest < 2 * 100_000 / SHARDS, "{fullest}");
        assert_eq!(
            (map.len(), map.get(77), map.remove(77), map.get(77)),
            (100_000, Some(77), Some(77), None)
        );
    }
}
