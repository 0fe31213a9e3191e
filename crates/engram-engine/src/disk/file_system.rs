//! The few things that a durable store asks of a file system: so that a test can stand in for one that loses power.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::direct_io::DirectFile;
use super::file_format::write_all;

/// A directory's files, by name.
pub(crate) trait FileSystem: fmt::Debug + Send + Sync {
    /// For messages.
    fn path(&self) -> &Path;

    fn list(&self) -> io::Result<Vec<String>>;

    /// A new file to be written from its beginning; one of that name is emptied.
    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>>;

    /// The same for a file that is written and synced once, and may be large; after a failure it is of no use.
    fn create_large(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        self.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>>;

    /// Cuts a file off.
    fn cut(&self, name: &str, len: u64) -> io::Result<()>;

    /// Makes safe what a file has.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name; whoever had that one is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names safe.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A file being written.
pub(crate) trait WritableFile: fmt::Debug + Send {
    /// Writes the pieces at the end. Where that fails, the file is cut back to where it was.
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()>;

    /// Makes what was written safe.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file being read.
pub(crate) trait Read: fmt::Debug + Send + Sync {
    fn len(&self) -> io::Result<u64>;

    /// Fills the buffer from `place` on.
    fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()>;
}

/// A directory of the system's.
#[derive(Debug)]
pub(crate) struct OsDirectory(PathBuf);

impl OsDirectory {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl FileSystem for OsDirectory {
    fn path(&self) -> &Path {
        &self.0
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<Option<String>>> = names.collect();
        // No name of ours is anything but ASCII.
        names.map(|names| names.into_iter().flatten().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        let file = File::create(self.at(name))?;
        Ok(Box::new(OsFile { file, len: 0 }))
    }

    fn create_large(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        let path = self.at(name);
        let file = File::create(&path)?;
        Ok(match DirectFile::create(&path, file) {
            Ok(direct) => Box::new(direct),
            Err(file) => Box::new(OsFile { file, len: 0 }),
        })
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(File::open(self.at(name))?))
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.at(name))?;
        file.set_len(len)?;
        file.sync_data()
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        File::open(self.at(name))?.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

#[derive(Debug)]
struct OsFile {
    file: File,
    len: u64,
}

impl WritableFile for OsFile {
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let written = write_all(&mut self.file, pieces);
        if written.is_err() {
            // The next attempt begins here again. Should cutting fail, too, it writes over what there is.
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

impl Read for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
        self.read_exact_at(buffer, place)
    }
}
