//! A directory as it was at one moment, whatever its store does meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::file_names::Name;
use crate::disk::file_system::{FileSystem, Read, WritableFile};

/// Times that a directory is listed whose files come and go meanwhile.
const TRIES: usize = 10;

/// FileSystem of ours, open: those removed since are read all the same, those that grew up to where they were.
/// Nothing can be written through it.
#[derive(Debug)]
pub(super) struct DirectorySnapshot {
    path: PathBuf,
    /// In order; those not UTF-8 with signs in place of what is not.
    names: Vec<String>,
    files: BTreeMap<String, SnapshotFile>,
}

#[derive(Clone, Debug)]
struct SnapshotFile {
    file: Arc<File>,
    len: u64,
}

impl DirectorySnapshot {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut names = list(path)?;
        for _ in 1..TRIES {
            let still = Self::with(path, names);
            // A file that came or went may belong to another that did.
            names = list(path)?;
            if names == still.names {
                return Ok(still);
            }
        }
        Ok(Self::with(path, names))
    }

    /// Opens those of these that are ours and can be opened.
    fn with(path: &Path, names: Vec<String>) -> Self {
        let ours = names.iter().filter(|name| Name::of(name).is_some());
        let opened = ours.filter_map(|name| {
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

/// All names in a directory, in order.
fn list(path: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| -> io::Result<String> {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    let mut names: Vec<String> = fs::read_dir(path)?.map(name).collect::<io::Result<_>>()?;
    names.sort_unstable();
    Ok(names)
}

impl FileSystem for DirectorySnapshot {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names.clone())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        match self.files.get(name) {
            Some(file) => Ok(Box::new(file.clone())),
            // Says why that is so.
            None => Ok(Box::new(File::open(self.path.join(name))?)),
        }
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn WritableFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn cut(&self, _: &str, _: u64) -> io::Result<()> {
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

impl Read for SnapshotFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
        Read::read_at(&*self.file, buffer, place)
    }
}
