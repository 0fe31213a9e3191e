//! Where a chunk's bytes live, and how a reader gets at them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};

/// Memory that something else owns: a mapped file, a shared segment.
pub trait Region: fmt::Debug + Send + Sync {
    /// The whole region.
    fn bytes(&self) -> &[u8];
}

/// Bytes that must be fetched before they can be read: a spilled chunk.
pub trait ColdBytes: fmt::Debug + Send + Sync {
    /// Reads them.
    ///
    /// # Errors
    /// [`crate::Error::Payload`] when they cannot be read or do not check out.
    fn fetch(&self) -> Result<Arc<AlignedBytes>>;

    /// How many bytes a fetch returns.
    fn len(&self) -> usize;

    /// True when a fetch returns nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a chunk's bytes live.
#[derive(Debug)]
pub enum Payload {
    /// In memory of our own.
    Heap(AlignedBytes),
    /// Inside a region owned by something else.
    Mapped {
        /// The owner.
        region: Arc<dyn Region>,
        /// Where the chunk's bytes begin.
        offset: usize,
        /// How many there are.
        len: usize,
    },
    /// Elsewhere; fetched when asked for.
    Cold(Arc<dyn ColdBytes>),
}

/// Readable bytes of a payload, held for as long as this value lives.
#[derive(Debug)]
pub enum Pinned<'a> {
    /// They were in memory.
    Borrowed(&'a [u8]),
    /// They were fetched.
    Fetched(Arc<AlignedBytes>),
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Fetched(bytes) => bytes,
        }
    }
}

impl Payload {
    /// Stored bytes, wherever they are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Mapped { len, .. } => *len,
            Self::Cold(cold) => cold.len(),
        }
    }

    /// True when nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the bytes readable. Never called under a table's lock.
    ///
    /// # Errors
    /// [`crate::Error::Payload`] when cold bytes cannot be fetched, or a region is too short.
    pub fn pin(&self) -> Result<Pinned<'_>> {
        Ok(match self {
            Self::Heap(bytes) => Pinned::Borrowed(bytes),
            Self::Mapped {
                region,
                offset,
                len,
            } => {
                let bytes = region.bytes();
                let end = offset.checked_add(*len);
                let found = end.and_then(|end| bytes.get(*offset..end));
                Pinned::Borrowed(found.ok_or_else(|| {
                    Error::Payload(format!(
                        "chunk lies at byte {offset} of a region and has {len}, but the region has {}",
                        bytes.len()
                    ))
                })?)
            }
            Self::Cold(cold) => Pinned::Fetched(cold.fetch()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Segment(Vec<u8>);

    impl Region for Segment {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    #[derive(Debug)]
    struct Lost;

    impl ColdBytes for Lost {
        fn fetch(&self) -> Result<Arc<AlignedBytes>> {
            Err(Error::Payload("chunk 7 is gone".into()))
        }

        fn len(&self) -> usize {
            3
        }
    }

    fn abc() -> AlignedBytes {
        let mut bytes = AlignedBytes::zeroed(3).unwrap();
        bytes.copy_from_slice(b"abc");
        bytes
    }

    #[test]
    fn every_kind_of_payload_pins_or_says_why_not() {
        let heap = Payload::Heap(abc());
        assert_eq!(&*heap.pin().unwrap(), b"abc");
        let region = Arc::new(Segment(b"xxabcxx".to_vec()));
        let mapped = Payload::Mapped {
            region,
            offset: 2,
            len: 3,
        };
        assert_eq!((&*mapped.pin().unwrap(), mapped.len()), (&b"abc"[..], 3));
        let region = Arc::new(Segment(b"abc".to_vec()));
        let short = Payload::Mapped {
            region,
            offset: 2,
            len: 3,
        };
        assert_eq!(
            short.pin().unwrap_err(),
            Error::Payload(
                "chunk lies at byte 2 of a region and has 3, but the region has 3".into()
            )
        );
        let cold = Payload::Cold(Arc::new(Lost));
        assert_eq!(cold.len(), 3);
        assert_eq!(
            cold.pin().unwrap_err(),
            Error::Payload("chunk 7 is gone".into())
        );
    }
}
