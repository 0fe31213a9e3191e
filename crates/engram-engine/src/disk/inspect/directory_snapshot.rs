//! A read-only view of a directory at one moment, while its store may be running.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::disk::directory::{FileId, ReadableDirectory, ReadableFile};
use crate::disk::file_names::{CLOSE_MARK_NAME, FileName};
use crate::disk::os_directory::OsDirectory;

/// Maximum number of attempts to open all files while no file is created or removed.
const MAX_ATTEMPTS: usize = 10;

/// Open files of a directory. Removed files remain readable; growing files keep their size.
#[derive(Debug)]
pub(super) struct DirectorySnapshot {
    directory: OsDirectory,
    /// Names of all files, sorted; bytes that are not UTF-8 are replaced.
    names: Vec<String>,
    /// The store's files that could be opened, without `LOCK` and `.lost` files.
    files: BTreeMap<String, SnapshotFile>,
}

/// An open file, and its size when it was opened.
#[derive(Clone, Debug)]
struct SnapshotFile {
    file: Arc<File>,
    len: u64,
}

impl DirectorySnapshot {
    /// Opens a directory's files. If files were created or removed meanwhile, opens all of them again, so that
    /// the files belong to one moment. The files of attempt `MAX_ATTEMPTS` are used in any case.
    pub(super) fn open(directory: OsDirectory) -> io::Result<Self> {
        let mut names = list_names(&directory)?;
        for _ in 1..MAX_ATTEMPTS {
            let files = open_files(&directory, &names);
            let names_now = list_names(&directory)?;
            if names_now == names {
                return Ok(Self {
                    directory,
                    names,
                    files,
                });
            }
            names = names_now;
        }
        Ok(Self {
            files: open_files(&directory, &names),
            directory,
            names,
        })
    }
}

/// Opens checkpoints, logs, unfinished files and `CLOSED` among `names`, except for those that cannot be opened.
fn open_files(directory: &OsDirectory, names: &[String]) -> BTreeMap<String, SnapshotFile> {
    let is_engram_file =
        |name: &&String| *name == CLOSE_MARK_NAME || FileName::parse(name).is_some();
    let opened = names.iter().filter(is_engram_file).filter_map(|name| {
        let file = directory.open_file(name, OFlags::RDONLY).ok()?;
        let len = file.metadata().ok()?.len();
        let file = Arc::new(file);
        Some((name.clone(), SnapshotFile { file, len }))
    });
    opened.collect()
}

/// Returns all names in a directory, sorted.
fn list_names(directory: &OsDirectory) -> io::Result<Vec<String>> {
    let mut names = directory.list_lossy()?;
    names.sort_unstable();
    Ok(names)
}

impl ReadableDirectory for DirectorySnapshot {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names.clone())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>> {
        match self.files.get(name) {
            Some(file) => Ok(Box::new(file.clone())),
            // Either a file that could not be opened: opening it again returns the error. Or a file that the snapshot does
            // not open, such as a `.lost` one, which a repair has set aside.
            None => self.directory.open(name),
        }
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        self.directory.id(name)
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
