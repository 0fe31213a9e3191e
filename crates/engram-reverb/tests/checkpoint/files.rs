//! Directories that are gone after a test, and files of records.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// A directory; the outermost is removed when it is dropped.
pub(crate) struct Directory {
    path: PathBuf,
    removed: bool,
}

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("engram-reverb-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self {
            path,
            removed: true,
        }
    }

    pub(crate) fn below(&self, name: &str) -> Self {
        let path = self.path.join(name);
        std::fs::create_dir(&path).unwrap();
        Self {
            path,
            removed: false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path.join(name), bytes).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.removed {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Records as they are.
pub(crate) fn plain(records: &[Vec<u8>]) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let sum = crc32c::crc32c(bytes);
        sum.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let mut out = Vec::new();
    for record in records {
        let length = (record.len() as u64).to_le_bytes();
        out.extend_from_slice(&length);
        out.extend_from_slice(&sum(&length));
        out.extend_from_slice(record);
        out.extend_from_slice(&sum(record));
    }
    out
}

/// Records, compressed.
pub(crate) fn zipped(records: &[Vec<u8>]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&plain(records)).unwrap();
    encoder.finish().unwrap()
}

/// What was compressed, if it is all there.
pub(crate) fn unzipped(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let read = ZlibDecoder::new(bytes).read_to_end(&mut out);
    read.ok().map(|_| out)
}
