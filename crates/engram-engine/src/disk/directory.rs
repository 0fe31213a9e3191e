//! The file operations that a durable store needs, as traits. Tests use an implementation that
//! simulates power loss.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::file_format::write_all;

/// Identifies a file independently of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// Mode of new files: other users can neither read them nor lock the directory.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A directory that is read; its files are accessed by name.
pub(crate) trait ReadableDirectory: fmt::Debug + Send + Sync {
    /// Path of the directory, for messages.
    fn path(&self) -> &Path;

    /// Names of all files. Names that are not UTF-8 may be missing or changed.
    fn list(&self) -> io::Result<Vec<String>>;

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>>;

    /// Identifies the file with this name.
    fn id(&self, name: &str) -> io::Result<FileId>;
}

/// A directory that is also written.
pub(crate) trait Directory: ReadableDirectory {
    /// Creates an empty file; removes an existing one of this name.
    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>>;

    /// Like `create`, for a file that may be large and is synced once, after its last byte. The file must not be used
    /// after an error, unlike one from `create`.
    fn create_large(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        self.create(name)
    }

    /// Truncates a file to `len` bytes and makes this durable.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;

    /// Makes a file's bytes durable.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Renames a file. Fails if there is a file with the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Renames a file. Replaces a file with the new name.
    fn replace(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all earlier creations, renames and removals of files durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Checks that `path` still leads to this directory; the error states what has happened to the
    /// directory.
    fn check_path(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that this process still has the directory locked; locks it again if the lock file was removed.
    /// Returns false if another process may have opened the directory. Returns true if this process never locked it.
    fn check_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Releases the lock, if this process has locked the directory.
    fn unlock(&self) {}
}

/// A file that is being written.
pub(crate) trait WritableFile: fmt::Debug + Send {
    /// Appends the pieces. On an error, truncates the file to its previous length if possible; otherwise, the next call
    /// overwrites what was written. A file from [`Directory::create_large`] must not be used after an error.
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()>;

    /// Makes the bytes written so far durable.
    fn sync(&mut self) -> io::Result<()>;

    fn id(&self) -> io::Result<FileId>;
}

/// A file that is being read.
pub(crate) trait ReadableFile: fmt::Debug + Send + Sync {
    fn len(&self) -> io::Result<u64>;

    /// Fills the buffer with the bytes at `offset`. Fails if the file has fewer.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// A file that is written through the page cache.
#[derive(Debug)]
pub(super) struct OsFile {
    file: File,
    /// Bytes written by successful appends.
    len: u64,
}

impl OsFile {
    /// Wraps an empty file.
    pub(super) fn new(file: File) -> Self {
        Self { file, len: 0 }
    }
}

/// Identifies an open file.
pub(super) fn file_id(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    Ok(FileId {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

pub(super) const SPECIAL_FILE: &str = "a pipe, socket or device";

/// Opens a regular file of a directory, without following links. A subdirectory can be opened too, but not read.
///
/// # Errors
/// `InvalidInput` for a symbolic link, pipe, socket or device.
pub(super) fn open_file(directory: BorrowedFd<'_>, name: &str, flags: OFlags) -> io::Result<File> {
    // Without `NONBLOCK`, opening a pipe would wait for its other end.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let not_regular = |file_kind: &str| {
        let text = format!("it is {file_kind}; a store uses only regular files");
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    };
    let file = match openat(directory, name, flags, FILE_MODE) {
        Err(Errno::LOOP) => return not_regular("a symbolic link"),
        Err(Errno::NXIO) => return not_regular(SPECIAL_FILE),
        opened => File::from(opened?),
    };
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return not_regular(SPECIAL_FILE);
    }
    Ok(file)
}

impl WritableFile for OsFile {
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let outcome = write_all(&mut self.file, pieces);
        if outcome.is_err() {
            // Even if truncating fails, the next append overwrites these bytes.
            let _ = self.file.set_len(self.len);
            self.file.seek(SeekFrom::Start(self.len))?;
            return outcome;
        }
        self.len += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn id(&self) -> io::Result<FileId> {
        file_id(&self.file)
    }
}

impl ReadableFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}
