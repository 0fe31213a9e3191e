//! The file operations that a durable store needs, as a trait. Tests use an implementation that
//! simulates power loss.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::direct_io::DirectFile;
use super::file_format::write_all;

/// One directory: operations on its files, by name.
pub(crate) trait Directory: fmt::Debug + Send + Sync {
    /// Path of the directory, for messages.
    fn path(&self) -> &Path;

    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file; truncates an existing one.
    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>>;

    /// Creates or truncates a file that may be large, is written sequentially and synced once, at the
    /// end. Unlike a file of `create`, it must not be used after an error.
    fn create_large(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        self.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>>;

    /// Truncates a file to `len` bytes and makes this durable.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;

    /// Makes a file's bytes durable.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Renames a file, replacing any file with the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all earlier creations, renames and removals of files durable.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A file that is being written.
pub(crate) trait WritableFile: fmt::Debug + Send {
    /// Appends the pieces. On an error, truncates the file to its previous length.
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()>;

    /// Makes the bytes written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is being read.
pub(crate) trait ReadableFile: fmt::Debug + Send + Sync {
    fn len(&self) -> io::Result<u64>;

    /// Fills the buffer from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// A directory of the operating system.
#[derive(Debug)]
pub(crate) struct OsDirectory(PathBuf);

impl OsDirectory {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Directory for OsDirectory {
    fn path(&self) -> &Path {
        &self.0
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<Option<String>>> = names.collect();
        // Names that are not UTF-8 are not Engram's.
        names.map(|names| names.into_iter().flatten().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        let file = File::create(self.path_of(name))?;
        Ok(Box::new(OsFile { file, len: 0 }))
    }

    fn create_large(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        let path = self.path_of(name);
        let file = File::create(&path)?;
        Ok(match DirectFile::create(&path, file) {
            Ok(direct) => Box::new(direct),
            Err(file) => Box::new(OsFile { file, len: 0 }),
        })
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>> {
        Ok(Box::new(File::open(self.path_of(name))?))
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path_of(name))?;
        file.set_len(len)?;
        file.sync_data()
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        File::open(self.path_of(name))?.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path_of(from), self.path_of(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path_of(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

/// A file that is being written with ordinary writes.
#[derive(Debug)]
struct OsFile {
    file: File,
    /// Bytes written by successful appends.
    len: u64,
}

impl WritableFile for OsFile {
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let written = write_all(&mut self.file, pieces);
        if written.is_err() {
            // Even if truncating fails, the next attempt overwrites these bytes.
            let _ = self.file.set_len(self.len);
            self.file.seek(SeekFrom::Start(self.len))?;
            return written;
        }
        self.len += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
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
