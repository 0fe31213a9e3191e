//! Writing a large file past the system's cache: the disk gets it while the next bytes are prepared, and the cache keeps
//! what others read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::fs::OFlags;

use super::file_system::WritableFile;

/// What the disk is given at once.
const BLOCK: usize = 4 << 20;

/// Places, lengths and addresses are multiples of this.
const ALIGNED: usize = 4096;

/// A file written from front to back, in blocks that go to the disk in a thread of their own.
#[derive(Debug)]
pub(super) struct DirectFile {
    /// As everybody has it: for the last bytes, which fill no block.
    file: Arc<File>,
    direct: Arc<File>,
    block: Block,
    /// Where the block goes.
    place: u64,
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    full: SyncSender<(Block, u64)>,
    /// Blocks that were written, or how that failed.
    done: Receiver<io::Result<Block>>,
    /// Blocks given and not heard of.
    under_way: usize,
    thread: JoinHandle<()>,
}

/// Bytes at an address that the disk can read from.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    fn new() -> Self {
        let bytes = vec![0; BLOCK + ALIGNED];
        Self {
            start: bytes.as_ptr().align_offset(ALIGNED),
            bytes,
            len: 0,
        }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Takes what there is room for; returns the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.len));
        let at = self.start + self.len;
        self.bytes[at..at + now.len()].copy_from_slice(now);
        self.len += now.len();
        later
    }
}

impl DirectFile {
    /// A new file, where the file system offers that.
    pub(super) fn create(path: &Path, file: File) -> Result<Self, File> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
        match OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)
        {
            Ok(direct) => Ok(Self {
                file: Arc::new(file),
                direct: Arc::new(direct),
                block: Block::new(),
                place: 0,
                worker: None,
            }),
            Err(_) => Err(file),
        }
    }

    /// Gives the full block to the disk, and goes on with another.
    fn hand_over(&mut self) -> io::Result<()> {
        if self.worker.is_none() {
            self.worker = Some(Worker::new(&self.direct, &self.file)?);
        }
        let Some(worker) = &mut self.worker else {
            return Ok(());
        };
        let next = if worker.under_way < 2 {
            Block::new()
        } else {
            worker.wait()?
        };
        let full = std::mem::replace(&mut self.block, next);
        let len = full.len as u64;
        worker.give(full, self.place)?;
        self.place += len;
        Ok(())
    }
}

impl Worker {
    fn new(direct: &Arc<File>, plain: &Arc<File>) -> io::Result<Self> {
        let (full, blocks) = sync_channel::<(Block, u64)>(2);
        let (tell, done) = sync_channel(4);
        let (direct, plain) = (Arc::clone(direct), Arc::clone(plain));
        let thread = thread::Builder::new().name("engram-blocks".into());
        let thread = thread.spawn(move || {
            for (mut block, place) in blocks {
                // Some file systems open such files, and write none.
                let written = match direct.write_all_at(block.filled(), place) {
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        plain.write_all_at(block.filled(), place)
                    }
                    written => written,
                };
                block.len = 0;
                if tell.send(written.map(|()| block)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            full,
            done,
            under_way: 0,
            thread,
        })
    }

    fn give(&mut self, block: Block, place: u64) -> io::Result<()> {
        self.under_way += 1;
        let gone = |_| io::Error::other("the thread that writes blocks is gone");
        self.full.send((block, place)).map_err(gone)
    }

    /// A block that has been written.
    fn wait(&mut self) -> io::Result<Block> {
        let gone = |_| io::Error::other("the thread that writes blocks is gone");
        let written = self.done.recv().map_err(gone)?;
        self.under_way -= 1;
        written
    }
}

impl WritableFile for DirectFile {
    /// After a failure the file is of no use.
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        for piece in pieces {
            let mut rest = self.block.take(piece);
            while self.block.len == BLOCK {
                self.hand_over()?;
                rest = self.block.take(rest);
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if let Some(worker) = &mut self.worker {
            while worker.under_way > 0 {
                worker.wait()?;
            }
        }
        self.file.write_all_at(self.block.filled(), self.place)?;
        self.file.sync_data()
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if let Some(Worker {
            full, done, thread, ..
        }) = self.worker.take()
        {
            drop((full, done));
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pieces_of_any_size_arrive_in_order() {
        let name = format!("engram-direct-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).unwrap();
        let Ok(mut direct) = DirectFile::create(&path, file) else {
            // A file system without it: the plain file is used.
            return;
        };
        let mut expected = Vec::new();
        for (number, len) in [1, 4095, 4096, 3 * BLOCK + 5, 0, BLOCK - 7, 100_000]
            .into_iter()
            .enumerate()
        {
            let piece: Vec<u8> = (0..len)
                .map(|at| (at * 7 + number).to_le_bytes()[0])
                .collect();
            direct
                .append(&[&piece[..len / 3], &piece[len / 3..]])
                .unwrap();
            expected.extend(piece);
            direct.sync().unwrap();
            assert_eq!(fs::read(&path).unwrap(), expected, "after piece {number}");
        }
        fs::remove_file(&path).unwrap();
    }
}
