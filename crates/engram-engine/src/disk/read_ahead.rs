//! Reading a large file from front to back, in a thread of its own: while blocks are looked at, the next comes.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::file_system::Read;

/// Bytes that are read at once.
pub(super) const BLOCK: usize = 1 << 20;

/// Room before a block, for what is left of the one before.
const ROOM: usize = 256 << 10;

/// Blocks that are read ahead or being looked at: more than a parcel in the making keeps (`checkers.rs`).
const BLOCKS: usize = 10;

/// Bytes, of which some at the front do not count. Whoever drops it gives the memory back to be filled again.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    start: usize,
    done: Option<Sender<Vec<u8>>>,
}

impl Block {
    /// Reads so many bytes, with room before them in memory that is done with.
    pub(super) fn read(
        file: &dyn Read,
        place: u64,
        len: usize,
        mut bytes: Vec<u8>,
    ) -> io::Result<Self> {
        bytes.resize(ROOM + len, 0);
        file.read_at(&mut bytes[ROOM..], place)?;
        Ok(Self {
            bytes,
            start: ROOM,
            done: None,
        })
    }

    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            start: 0,
            done: None,
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The rest of another block, and this one.
    pub(super) fn behind(mut self, rest: &[u8]) -> Self {
        if let Some(start) = self.start.checked_sub(rest.len()) {
            self.bytes[start..self.start].copy_from_slice(rest);
            self.start = start;
            return self;
        }
        Self::of([rest, self.filled()].concat())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(done) = &self.done {
            // Where nobody reads any more, it is freed.
            let _ = done.send(std::mem::take(&mut self.bytes));
        }
    }
}

/// A file's bytes from a place on.
#[derive(Debug)]
pub(super) struct ReadAhead(Receiver<io::Result<Block>>);

impl ReadAhead {
    /// Begins to read; ends when this is dropped, or at `len`.
    pub(super) fn new(file: &Arc<dyn Read>, place: u64, len: u64) -> io::Result<Self> {
        let (full, blocks) = channel();
        let (done, empty) = channel();
        for _ in 0..BLOCKS {
            let _ = done.send(Vec::new());
        }
        let file = Arc::clone(file);
        let reads = move || {
            let mut place = place;
            for bytes in empty {
                let left = len - place;
                let now = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK);
                if now == 0 {
                    return;
                }
                let mut read = Block::read(&*file, place, now, bytes);
                if let Ok(block) = &mut read {
                    block.done = Some(done.clone());
                }
                place += now as u64;
                let failed = read.is_err();
                if full.send(read).is_err() || failed {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("engram-ahead".into())
            .spawn(reads)?;
        Ok(Self(blocks))
    }

    /// The next block.
    pub(super) fn next(&self) -> io::Result<Block> {
        let gone = |_| io::Error::other("the thread that reads is gone");
        self.0.recv().map_err(gone)?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A file that can be read up to a place.
    #[derive(Debug)]
    struct Cut(u64);

    impl Read for Cut {
        fn len(&self) -> io::Result<u64> {
            Ok(1 << 30)
        }

        fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
            if place + buffer.len() as u64 > self.0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer.fill(7);
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_fails_or_is_dropped_ends() {
        for good in [0, 2, 1 << 10] {
            let file: Arc<dyn Read> = Arc::new(Cut(good * BLOCK as u64));
            let used = Arc::downgrade(&file);
            let ahead = ReadAhead::new(&file, 0, file.len().unwrap()).unwrap();
            drop(file);
            for _ in 0..good.min(50) {
                assert_eq!(ahead.next().unwrap().filled().len(), BLOCK);
            }
            assert_eq!(ahead.next().is_err(), good < 50);
            drop(ahead);
            while used.strong_count() > 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
