//! Reading a large file from front to back, in a thread of its own: while a block is looked at, the next comes.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::files::Read;

/// Bytes that are read at once.
pub(super) const BLOCK: usize = 2 << 20;

/// Room before a block, for what is left of the one before.
const ROOM: usize = 256 << 10;

/// Blocks that are read ahead, or being looked at.
const BLOCKS: usize = 3;

/// Bytes, of which some at the front do not count.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    start: usize,
}

impl Block {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }

    /// As many bytes, in the same memory.
    pub(super) fn of_len(mut self, len: usize) -> Self {
        self.start = 0;
        self.bytes.resize(len, 0);
        self
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Reads a block, or what is left of the file, into the room of another.
    pub(super) fn read(file: &dyn Read, place: u64, len: u64, mut done: Self) -> io::Result<Self> {
        let left = usize::try_from(len - place)
            .unwrap_or(usize::MAX)
            .min(BLOCK);
        // What one large record took is given back.
        done.bytes.truncate(ROOM + left);
        done.bytes.shrink_to(2 * BLOCK);
        done.bytes.resize(ROOM + left, 0);
        done.start = ROOM;
        file.read_at(&mut done.bytes[ROOM..], place)?;
        Ok(done)
    }

    /// The rest of another block, and this one.
    pub(super) fn behind(mut self, rest: &[u8]) -> Self {
        if rest.len() <= self.start {
            let from = self.start - rest.len();
            self.bytes[from..self.start].copy_from_slice(rest);
            self.start = from;
            return self;
        }
        let bytes = [rest, self.filled()].concat();
        Self { bytes, start: 0 }
    }
}

/// A file's bytes from a place on.
#[derive(Debug)]
pub(super) struct Ahead {
    blocks: Receiver<io::Result<Block>>,
    done: Sender<Block>,
}

impl Ahead {
    /// Begins to read; ends when this is dropped, or at `len`.
    pub(super) fn new(file: &Arc<dyn Read>, place: u64, len: u64) -> io::Result<Self> {
        let (full, blocks) = channel();
        let (done, empty) = channel();
        for _ in 0..BLOCKS {
            let _ = done.send(Block::default());
        }
        let file = Arc::clone(file);
        let reads = move || {
            let mut place = place;
            for block in empty {
                if place >= len {
                    return;
                }
                let read = Block::read(&*file, place, len, block);
                place += BLOCK as u64;
                if full.send(read).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("engram-ahead".into())
            .spawn(reads)?;
        Ok(Self { blocks, done })
    }

    /// The next block, in exchange for one that is done with.
    pub(super) fn next(&self, done: Block) -> io::Result<Block> {
        let _ = self.done.send(done);
        let gone = |_| io::Error::other("the thread that reads is gone");
        self.blocks.recv().map_err(gone)?
    }
}
