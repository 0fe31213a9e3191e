//! Item keys: dm-reverb's have 64 bits, Engram's 63.

/// Engram's key for a key of a dm-reverb client: the key without its highest bit.
///
/// Applied to every key that a client sends, so that a client can use the key in a sample in later requests. Random
/// keys stay distinct with high probability.
pub(crate) const fn engram_key(key: u64) -> u64 {
    key & (u64::MAX >> 1)
}
