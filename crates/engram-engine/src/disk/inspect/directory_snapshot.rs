//! A read-only view of a directory at one moment, while its store may be running.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::directory::{Directory, ReadableFile, WritableFile};
use crate::disk::file_names::FileName;

/// Maximum number of times that a directory's files are opened because they change meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// Open files of a directory. Removed files remain readable; growing files keep their size. Nothing
/// can be written.
#[derive(Debug)]
pub(super) struct DirectorySnapshot {
    path: PathBuf,
    /// Names of all files, sorted; bytes that are not UTF-8 are replaced.
    names: Vec<String>,
    /// Engram files that could be opened.
    files: BTreeMap<String, SnapshotFile>,
}

/// An open file, and its size when it was opened.
#[derive(Clone, Debug)]
struct SnapshotFile {
    file: Arc<File>,
    len: u64,
}

impl DirectorySnapshot {
    /// Opens a directory's files. If they change meanwhile, opens them again, so that files that were
    /// created or removed together are seen together.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut names = list_names(path)?;
        for _ in 1..MAX_ATTEMPTS {
            let snapshot = Self::open_files(path, names);
            names = list_names(path)?;
            if names == snapshot.names {
                return Ok(snapshot);
            }
        }
        Ok(Self::open_files(path, names))
    }

    /// Opens the Engram files among `names`, except for those that cannot be opened.
    fn open_files(path: &Path, names: Vec<String>) -> Self {
        let engram_files = names.iter().filter(|name| FileName::parse(name).is_some());
        let opened = engram_files.filter_map(|name| {
            let file = File::open(path.join(name)).ok()?;
            let len = file.metadata().ok()?.len();
            let file = Arc::new(file);
            Some((name.clone(), SnapshotFile { file, len }))
        });
        Self {
            path: path.to_path_buf(),
            files: opened.collect(),
            names,
        }
    }
}

/// Returns all names in a directory, sorted.
fn list_names(path: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| -> io::Result<String> {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    let mut names: Vec<String> = fs::read_dir(path)?.map(name).collect::<io::Result<_>>()?;
    names.sort_unstable();
    Ok(names)
}

impl Directory for DirectorySnapshot {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names.clone())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>> {
        match self.files.get(name) {
            Some(file) => Ok(Box::new(file.clone())),
            // This fails again, with the reason why the file could not be opened.
            None => Ok(Box::new(File::open(self.path.join(name))?)),
        }
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn WritableFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn truncate(&self, _: &str, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl ReadableFile for SnapshotFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        ReadableFile::read_at(&*self.file, buffer, offset)
    }
}
