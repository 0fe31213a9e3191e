//! Where the bytes of a chunk are stored, and how they are read.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::aligned::AlignedBytes;
use crate::error::{Error, Result};

/// Memory owned by something other than the chunk, for example a mapped file.
pub trait Region: fmt::Debug + Send + Sync {
    /// All bytes of the region.
    fn bytes(&self) -> &[u8];
}

/// Bytes that must be fetched before they can be read, for example from disk.
pub trait ColdBytes: fmt::Debug + Send + Sync {
    /// Fetches the bytes.
    ///
    /// # Errors
    /// [`crate::Error::Payload`] if they are corrupt: the items that refer to them are then removed.
    /// [`crate::Error::Storage`] if they cannot be read now.
    fn fetch(&self) -> Result<Arc<AlignedBytes>>;

    /// Number of bytes that a fetch returns.
    fn len(&self) -> usize;

    /// True if a fetch returns no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The bytes of a chunk.
#[derive(Debug)]
pub enum Payload {
    /// In memory owned by the chunk.
    Heap(AlignedBytes),
    /// In a region owned by something else.
    Mapped {
        /// The region.
        region: Arc<dyn Region>,
        /// Offset of the chunk's first byte in the region.
        offset: usize,
        /// Number of the chunk's bytes.
        len: usize,
    },
    /// Fetched on every access.
    Cold(Arc<dyn ColdBytes>),
}

/// The readable bytes of a payload.
#[derive(Debug)]
pub enum Pinned<'a> {
    /// Bytes that were in memory.
    Borrowed(&'a [u8]),
    /// Fetched bytes.
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
    /// Number of stored bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Mapped { len, .. } => *len,
            Self::Cold(cold) => cold.len(),
        }
    }

    /// True if no bytes are stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the bytes readable. May do I/O: never called under a table's lock.
    ///
    /// # Errors
    /// [`crate::Error::Payload`] if the region is too short, and the errors of [`ColdBytes::fetch`].
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
                let range = end.and_then(|end| bytes.get(*offset..end));
                Pinned::Borrowed(range.ok_or_else(|| {
                    Error::Payload(format!(
                        "chunk of {len} bytes at offset {offset} exceeds its memory region of {} bytes",
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
    struct VecRegion(Vec<u8>);

    impl Region for VecRegion {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    #[derive(Debug)]
    struct FailingBytes;

    impl ColdBytes for FailingBytes {
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
    fn every_payload_kind_pins_or_reports_the_cause() {
        let heap = Payload::Heap(abc());
        assert_eq!(&*heap.pin().unwrap(), b"abc");
        let region = Arc::new(VecRegion(b"xxabcxx".to_vec()));
        let mapped = Payload::Mapped {
            region,
            offset: 2,
            len: 3,
        };
        assert_eq!((&*mapped.pin().unwrap(), mapped.len()), (&b"abc"[..], 3));
        let region = Arc::new(VecRegion(b"abc".to_vec()));
        let short = Payload::Mapped {
            region,
            offset: 2,
            len: 3,
        };
        assert_eq!(
            short.pin().unwrap_err(),
            Error::Payload(
                "chunk of 3 bytes at offset 2 exceeds its memory region of 3 bytes".into()
            )
        );
        let cold = Payload::Cold(Arc::new(FailingBytes));
        assert_eq!(cold.len(), 3);
        assert_eq!(
            cold.pin().unwrap_err(),
            Error::Payload("chunk 7 is gone".into())
        );
    }
}
