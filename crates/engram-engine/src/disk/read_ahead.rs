//! Reading a large file ahead in a thread: while one block is processed, the next ones are read.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::directory::ReadableFile;

/// Bytes per read.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// Free bytes in front of a block. The unprocessed rest of the previous block is copied there.
const PREFIX_BYTES: usize = 256 << 10;

/// Maximum number of blocks that are read ahead or in use. Must exceed the number of blocks that a batch
/// keeps alive while `chunk_checkers.rs` collects it; otherwise, reading would block forever.
const MAX_BLOCKS: usize = 10;

/// A block of a file. Dropping it returns its memory to the thread that reads, to be filled again.
#[derive(Debug, Default)]
pub(super) struct ReadBlock {
    /// Free space, then the content from `start` on.
    bytes: Vec<u8>,
    start: usize,
    /// Receives the memory when the block is dropped. `None` for a block that the reading thread did not fill: its
    /// memory is freed.
    return_to: Option<Sender<Vec<u8>>>,
}

impl ReadBlock {
    /// Reads `len` bytes into reused memory, after free space of `PREFIX_BYTES`.
    pub(super) fn read(
        file: &dyn ReadableFile,
        offset: u64,
        len: usize,
        mut bytes: Vec<u8>,
    ) -> io::Result<Self> {
        bytes.resize(PREFIX_BYTES + len, 0);
        file.read_at(&mut bytes[PREFIX_BYTES..], offset)?;
        Ok(Self {
            bytes,
            start: PREFIX_BYTES,
            return_to: None,
        })
    }

    /// Creates a block of these bytes, without free space.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            start: 0,
            return_to: None,
        }
    }

    /// Size of the block's memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn content(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns this block with `prefix`, the rest of the previous block, in front. Copies the block if its
    /// free space is too small.
    pub(super) fn with_prefix(mut self, prefix: &[u8]) -> Self {
        if let Some(start) = self.start.checked_sub(prefix.len()) {
            self.bytes[start..self.start].copy_from_slice(prefix);
            self.start = start;
            return self;
        }
        Self::from_bytes([prefix, self.content()].concat())
    }
}

impl Drop for ReadBlock {
    fn drop(&mut self) {
        if let Some(return_to) = &self.return_to {
            // If the reading thread has ended, the memory is freed.
            let _ = return_to.send(std::mem::take(&mut self.bytes));
        }
    }
}

/// Receives a file's blocks from the thread that reads them.
#[derive(Debug)]
pub(super) struct ReadAhead(Receiver<io::Result<ReadBlock>>);

impl ReadAhead {
    /// Starts a thread that reads `file` from `offset` to its end at `len`. Dropping the result ends the thread.
    pub(super) fn new(file: &Arc<dyn ReadableFile>, offset: u64, len: u64) -> io::Result<Self> {
        let (full, blocks) = channel();
        let (return_to, empty) = channel();
        for _ in 0..MAX_BLOCKS {
            let _ = return_to.send(Vec::new());
        }
        let file = Arc::clone(file);
        let read_all = move || {
            let mut offset = offset;
            for bytes in empty {
                let left = usize::try_from(len - offset).unwrap_or(usize::MAX);
                let block_len = left.min(BLOCK_BYTES);
                if block_len == 0 {
                    return;
                }
                let mut read = ReadBlock::read(&*file, offset, block_len, bytes);
                if let Ok(block) = &mut read {
                    block.return_to = Some(return_to.clone());
                }
                offset += block_len as u64;
                let failed = read.is_err();
                if full.send(read).is_err() || failed {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("engram-ahead".into())
            .spawn(read_all)?;
        Ok(Self(blocks))
    }

    /// Waits for the next block.
    pub(super) fn next(&self) -> io::Result<ReadBlock> {
        let ended = |_| io::Error::other("the thread that reads the file ended");
        self.0.recv().map_err(ended)?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A file whose reads fail if they end beyond this offset.
    #[derive(Debug)]
    struct FileThatFailsAfter(u64);

    impl ReadableFile for FileThatFailsAfter {
        fn len(&self) -> io::Result<u64> {
            Ok(1 << 30)
        }

        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            if offset + buffer.len() as u64 > self.0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer.fill(7);
            Ok(())
        }
    }

    #[test]
    fn the_reading_thread_ends_after_an_error_or_a_drop() {
        for readable_blocks in [0, 2, 1 << 10] {
            let file: Arc<dyn ReadableFile> =
                Arc::new(FileThatFailsAfter(readable_blocks * BLOCK_BYTES as u64));
            let file_in_thread = Arc::downgrade(&file);
            let ahead = ReadAhead::new(&file, 0, file.len().unwrap()).unwrap();
            drop(file);
            for _ in 0..readable_blocks.min(50) {
                assert_eq!(ahead.next().unwrap().content().len(), BLOCK_BYTES);
            }
            assert_eq!(ahead.next().is_err(), readable_blocks < 50);
            drop(ahead);
            while file_in_thread.strong_count() > 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
