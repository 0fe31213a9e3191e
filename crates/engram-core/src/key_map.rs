//! A sharded hash map from `u64` keys to `u32` values. Each shard is small enough to regrow under a table's lock.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// Number of neighbouring keys in the same shard. Writers insert and remove neighbouring keys one after the other: the memory
/// of their shard is then in the processor's cache.
const KEYS_TOGETHER: u64 = 32;

/// Number of neighbouring keys whose values are in one entry of a shard. Writers number their items consecutively, so that
/// most entries are full: they take less memory than an entry per key, and neighbours are next to each other.
const KEYS_PER_BLOCK: usize = 8;

/// Number of shards. Regrowing one map of 10^7 keys takes 200 ms, regrowing one shard under
/// 1 ms.
const SHARDS: usize = 1024;

/// In place of a value: the key has none.
const NONE: u32 = u32::MAX;

/// The values of neighbouring keys; at least one is not [`NONE`].
type Block = [u32; KEYS_PER_BLOCK];

/// A sharded hash map from `u64` keys to values below `u32::MAX`.
#[derive(Debug)]
pub struct KeyMap {
    shards: Box<[HashMap<u64, Block>]>,
}

impl Default for KeyMap {
    fn default() -> Self {
        Self {
            shards: std::iter::repeat_with(HashMap::new).take(SHARDS).collect(),
        }
    }
}

impl KeyMap {
    /// Returns the number of a key's shard: the top 10 bits of a hash, for 1,024 shards. Multiplicative hashing
    /// spreads sequential numbers as evenly as random ones.
    fn shard_number(key: u64) -> usize {
        ((key / KEYS_TOGETHER).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<u32> {
        let (block, index) = split(key);
        let values = self.shards[Self::shard_number(key)].get(&block)?;
        Some(values[index]).filter(|value| *value != NONE)
    }

    /// Loads the memory that later calls for these keys use. The cache misses of different keys overlap here; in the
    /// later calls, between which other work is done, they would not.
    pub fn prefetch(&self, keys: impl Iterator<Item = u64>) {
        let mut previous = None;
        for key in keys {
            let block = Some(split(key).0);
            if block != previous {
                std::hint::black_box(self.get(key));
                previous = block;
            }
        }
    }

    /// Sets the value of `key`.
    pub fn insert(&mut self, key: u64, value: u32) {
        debug_assert_ne!(value, NONE);
        *self.value(key) = value;
    }

    /// Removes `key`; returns its value.
    pub fn remove(&mut self, key: u64) -> Option<u32> {
        let (block, index) = split(key);
        let Entry::Occupied(mut entry) = self.shards[Self::shard_number(key)].entry(block) else {
            return None;
        };
        let value = std::mem::replace(&mut entry.get_mut()[index], NONE);
        if *entry.get() == [NONE; KEYS_PER_BLOCK] {
            entry.remove();
        }
        Some(value).filter(|value| *value != NONE)
    }

    /// Returns a mutable reference to the value of `key`; inserts 0 if there is none.
    pub fn get_or_zero(&mut self, key: u64) -> &mut u32 {
        let value = self.value(key);
        if *value == NONE {
            *value = 0;
        }
        value
    }

    /// The memory of the value of `key`, which may be [`NONE`] and must then be set.
    fn value(&mut self, key: u64) -> &mut u32 {
        let (block, index) = split(key);
        let shard = &mut self.shards[Self::shard_number(key)];
        &mut shard.entry(block).or_insert([NONE; KEYS_PER_BLOCK])[index]
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        let values = self.shards.iter().flat_map(HashMap::values).flatten();
        values.filter(|value| **value != NONE).count()
    }

    /// True if there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(HashMap::is_empty)
    }
}

/// The number of a key's block, and the key's index in the block.
fn split(key: u64) -> (u64, usize) {
    #[expect(clippy::cast_possible_truncation, reason = "below `KEYS_PER_BLOCK`")]
    let index = (key % KEYS_PER_BLOCK as u64) as usize;
    (key / KEYS_PER_BLOCK as u64, index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(changes in prop::collection::vec((0..40_u64, 0..4_u32), 1..200)) {
            let (mut map, mut model) = (KeyMap::default(), std::collections::BTreeMap::new());
            for (key, change) in changes {
                match change {
                    0 => prop_assert_eq!(map.remove(key), model.remove(&key)),
                    1 => {
                        *map.get_or_zero(key) += 1;
                        *model.entry(key).or_insert(0) += 1;
                    }
                    value => {
                        map.insert(key, value);
                        model.insert(key, value);
                    }
                }
                for key in 0..40 {
                    prop_assert_eq!(map.get(key), model.get(&key).copied());
                }
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    #[test]
    fn sequential_keys_spread_over_all_shards() {
        let mut map = KeyMap::default();
        for key in 0..100_000_u32 {
            map.insert(key.into(), key);
        }
        let together = (64..64 + KEYS_TOGETHER).map(KeyMap::shard_number);
        assert_eq!(together.collect::<std::collections::HashSet<_>>().len(), 1);
        let fullest = map.shards.iter().map(HashMap::len).max().unwrap();
        assert!(fullest < 2 * 100_000 / KEYS_PER_BLOCK / SHARDS, "{fullest}");
        assert_eq!(
            (map.len(), map.get(77), map.remove(77), map.get(77)),
            (100_000, Some(77), Some(77), None)
        );
    }
}
