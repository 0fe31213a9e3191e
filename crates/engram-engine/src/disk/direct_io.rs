//! Writing a large file with direct I/O: a thread writes full blocks while the caller fills the next
//! ones. The file does not displace other files from the page cache.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::fs::OFlags;

use super::directory::{FileId, WritableFile, file_id, open_file};

/// Bytes per write.
const BLOCK_BYTES: usize = 4 << 20;

/// Direct I/O requires file offsets, lengths and addresses that are multiples of this.
const ALIGNMENT: usize = 4096;

/// Maximum number of blocks submitted and not yet written.
const MAX_IN_FLIGHT: usize = 2;

/// A file that is written sequentially with direct I/O. A thread writes its full blocks.
#[derive(Debug)]
pub(super) struct DirectFile {
    /// The file, opened without direct I/O: for the last bytes, which do not fill a block, and if direct writes are
    /// rejected.
    file: Arc<File>,
    /// The same file, opened for direct I/O.
    direct: Arc<File>,
    /// The block being filled.
    block: AlignedBlock,
    /// File offset of `block`.
    offset: u64,
    /// `None` before the first block is full.
    writer: Option<BlockWriter>,
}

/// The thread that writes blocks.
#[derive(Debug)]
struct BlockWriter {
    /// Blocks to write, with their file offsets.
    full: SyncSender<(AlignedBlock, u64)>,
    /// Written blocks, to be filled again, or the error.
    written: Receiver<io::Result<AlignedBlock>>,
    /// Number of blocks submitted and not received back.
    in_flight: usize,
    thread: JoinHandle<()>,
}

/// A buffer of `BLOCK_BYTES` bytes at an address that suits direct I/O.
#[derive(Debug)]
struct AlignedBlock {
    bytes: Vec<u8>,
    /// Position of the first aligned byte in `bytes`.
    start: usize,
    /// Number of filled bytes from `start` on.
    len: usize,
}

impl AlignedBlock {
    fn new() -> Self {
        let bytes = vec![0; BLOCK_BYTES + ALIGNMENT];
        Self {
            start: bytes.as_ptr().align_offset(ALIGNMENT),
            bytes,
            len: 0,
        }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Appends as many of the bytes as fit; returns the rest.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (fitting, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.len));
        let end = self.start + self.len;
        self.bytes[end..end + fitting.len()].copy_from_slice(fitting);
        self.len += fitting.len();
        rest
    }
}

impl DirectFile {
    /// Opens a new file a second time, for direct I/O; returns `file` if its file system does not support that.
    pub(super) fn create(directory: BorrowedFd<'_>, name: &str, file: File) -> Result<Self, File> {
        let Ok(direct) = open_file(directory, name, OFlags::WRONLY | OFlags::DIRECT) else {
            return Err(file);
        };
        if !matches!((file_id(&direct), file_id(&file)), (Ok(one), Ok(other)) if one == other) {
            return Err(file);
        }
        Ok(Self {
            file: Arc::new(file),
            direct: Arc::new(direct),
            block: AlignedBlock::new(),
            offset: 0,
            writer: None,
        })
    }

    /// Submits the full block to the thread, starting it if necessary, and continues with an empty one.
    /// Waits for a block first if `MAX_IN_FLIGHT` are in flight.
    fn write_block(&mut self) -> io::Result<()> {
        if self.writer.is_none() {
            self.writer = Some(BlockWriter::new(&self.direct, &self.file)?);
        }
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let next = if writer.in_flight < MAX_IN_FLIGHT {
            AlignedBlock::new()
        } else {
            writer.wait()?
        };
        let full = std::mem::replace(&mut self.block, next);
        let len = full.len as u64;
        writer.submit(full, self.offset)?;
        self.offset += len;
        Ok(())
    }
}

impl BlockWriter {
    fn new(direct: &Arc<File>, plain: &Arc<File>) -> io::Result<Self> {
        let (full, blocks) = sync_channel::<(AlignedBlock, u64)>(MAX_IN_FLIGHT);
        let (reply, written) = sync_channel(2 * MAX_IN_FLIGHT);
        let (direct, plain) = (Arc::clone(direct), Arc::clone(plain));
        let thread = thread::Builder::new().name("engram-blocks".into());
        let thread = thread.spawn(move || {
            for (mut block, offset) in blocks {
                // Some file systems open files for direct I/O, but reject direct writes.
                let outcome = match direct.write_all_at(block.filled(), offset) {
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        plain.write_all_at(block.filled(), offset)
                    }
                    outcome => outcome,
                };
                block.len = 0;
                if reply.send(outcome.map(|()| block)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            full,
            written,
            in_flight: 0,
            thread,
        })
    }

    fn submit(&mut self, block: AlignedBlock, offset: u64) -> io::Result<()> {
        self.in_flight += 1;
        let ended = |_| io::Error::other("the thread that writes the file ended");
        self.full.send((block, offset)).map_err(ended)
    }

    /// Waits until a block is written; returns it to be filled again.
    fn wait(&mut self) -> io::Result<AlignedBlock> {
        let ended = |_| io::Error::other("the thread that writes the file ended");
        let outcome = self.written.recv().map_err(ended)?;
        self.in_flight -= 1;
        outcome
    }
}

impl WritableFile for DirectFile {
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        for piece in pieces {
            let mut rest = self.block.fill(piece);
            while self.block.len == BLOCK_BYTES {
                self.write_block()?;
                rest = self.block.fill(rest);
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if let Some(writer) = &mut self.writer {
            while writer.in_flight > 0 {
                writer.wait()?;
            }
        }
        self.file.write_all_at(self.block.filled(), self.offset)?;
        self.file.sync_data()
    }

    fn id(&self) -> io::Result<FileId> {
        file_id(&self.file)
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if let Some(BlockWriter {
            full,
            written,
            thread,
            ..
        }) = self.writer.take()
        {
            drop((full, written));
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn pieces_of_any_size_are_written_in_order() {
        let name = format!("engram-direct-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let file = File::create(&path).unwrap();
        let directory = File::open(std::env::temp_dir()).unwrap();
        let Ok(mut direct) = DirectFile::create(directory.as_fd(), &name, file) else {
            // The file system does not support direct I/O.
            return;
        };
        let mut expected = Vec::new();
        for (number, len) in [
            1,
            4095,
            4096,
            3 * BLOCK_BYTES + 5,
            0,
            BLOCK_BYTES - 7,
            100_000,
        ]
        .into_iter()
        .enumerate()
        {
            let piece: Vec<u8> = (0..len)
                .map(|index| (index * 7 + number).to_le_bytes()[0])
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
