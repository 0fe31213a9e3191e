//! Keys of items: dm-reverb draws them from all of 64 bits, Engram from 63.

/// The key under which we keep an item of dm-reverb's key.
///
/// Its highest bit is dropped, wherever a key comes in: random keys stay apart, and whoever samples
/// an item gets the key that changes it. Keys that Engram gave are their own.
pub(crate) const fn kept(key: u64) -> u64 {
    key & (u64::MAX >> 1)
}
