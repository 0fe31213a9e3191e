//! A directory of the operating system. Files are opened relative to its handle: they are found even after the
//! directory was moved, and a directory that replaces it at its path is never touched.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf, absolute};
use std::thread;
use std::time::Duration;

use engram_core::Result;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat};
use rustix::fs::{renameat, renameat_with, statat, unlinkat};
use rustix::io::Errno;

use super::direct_io::DirectFile;
use super::directory::{
    Directory, FileId, OsFile, ReadableDirectory, ReadableFile, WritableFile, open_file,
};
use super::directory_lock::{DirectoryLock, lock_exclusive, lock_new};
use super::file_names::LOCK_NAME;
use super::ownership::check_open_file;

/// Interval at which locks that wait try again.
pub(super) const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An open directory.
#[derive(Debug)]
pub(crate) struct OsDirectory {
    /// The path as given by the caller, for messages.
    path: PathBuf,
    /// The absolute path.
    absolute_path: PathBuf,
    handle: OwnedFd,
    /// `None` unless this process has locked the directory.
    lock: Mutex<Option<DirectoryLock>>,
}

impl OsDirectory {
    /// Opens a directory that exists. Its path may contain symbolic links.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            path: path.to_path_buf(),
            absolute_path: absolute(path).unwrap_or_else(|_| path.to_path_buf()),
            handle: rustix::fs::open(path, flags, Mode::empty())?,
            lock: Mutex::default(),
        })
    }

    /// Locks the directory for writing.
    ///
    /// # Errors
    /// Those of [`lock_exclusive`].
    pub(crate) fn lock(&self) -> Result<()> {
        *self.lock.lock() = Some(lock_exclusive(self)?);
        Ok(())
    }

    /// Waits until no other thread or process has this lock of the directory, which is not that of a store. Returns
    /// false, without the lock, once `interrupted` returns true. On file systems without locks, it does nothing.
    pub(super) fn lock_handle(&self, interrupted: &mut dyn FnMut() -> bool) -> bool {
        while let Err(Errno::WOULDBLOCK) =
            flock(&self.handle, FlockOperation::NonBlockingLockExclusive)
        {
            if interrupted() {
                return false;
            }
            thread::sleep(LOCK_POLL_INTERVAL);
        }
        true
    }

    /// Releases the lock of [`Self::lock_handle`]. Closing the handle is not enough: a forked child may have a copy of it.
    pub(super) fn unlock_handle(&self) {
        let _ = flock(&self.handle, FlockOperation::Unlock);
    }

    /// Opens a file of this directory: see [`open_file`].
    pub(super) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        open_file(self.handle.as_fd(), name, flags)
    }

    /// Names of all files; bytes that are not UTF-8 are replaced.
    pub(super) fn list_lossy(&self) -> io::Result<Vec<String>> {
        let names = Dir::read_from(&self.handle)?.map(|entry| {
            let name = entry?.file_name().to_string_lossy().into_owned();
            Ok(name)
        });
        let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
        names.retain(|name| !matches!(name.as_str(), "." | ".."));
        Ok(names)
    }

    /// Checks that a file is not in use, before it is replaced or removed. There may be none.
    fn check_unused(&self, name: &str) -> io::Result<()> {
        match self.open_file(name, OFlags::RDONLY) {
            Ok(file) => check_open_file(&self.path.join(name), &file).map_err(io::Error::other),
            Err(error) if is_missing(&error) => Ok(()),
            // It is a link, pipe, socket or device, which nothing locks.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates an empty file; removes an existing one of this name.
    fn create_file(&self, name: &str) -> io::Result<File> {
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        }
    }

    /// The directory's path now, or the words `another path` if that is unknown; `None` if the directory was removed.
    fn current_path(&self) -> Option<PathBuf> {
        let links = fstat(&self.handle).map_or(1, |stat| stat.st_nlink);
        let link = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        let current = fs::read_link(link).unwrap_or_else(|_| PathBuf::from("another path"));
        let is_removed = links == 0 || current.to_string_lossy().ends_with(" (deleted)");
        (!is_removed).then_some(current)
    }
}

/// True if an error means that there is no file of this name.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

impl ReadableDirectory for OsDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = self.list_lossy()?;
        // Names that are not UTF-8 are not Engram's.
        names.retain(|name| !name.contains(char::REPLACEMENT_CHARACTER));
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>> {
        Ok(Box::new(self.open_file(name, OFlags::RDONLY)?))
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        let stat = statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

impl Directory for OsDirectory {
    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        Ok(Box::new(OsFile::new(self.create_file(name)?)))
    }

    fn create_large(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        let file = self.create_file(name)?;
        Ok(match DirectFile::create(self.handle.as_fd(), name, file) {
            Ok(direct) => Box::new(direct),
            Err(file) => Box::new(OsFile::new(file)),
        })
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let file = self.open_file(name, OFlags::WRONLY)?;
        file.set_len(len)?;
        file.sync_data()
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.open_file(name, OFlags::RDONLY)?.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (handle, flags) = (&self.handle, RenameFlags::NOREPLACE);
        match renameat_with(handle, from, handle, to, flags) {
            // The file system does not support `NOREPLACE`.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match self.id(to) {
                Ok(_) => Err(Errno::EXIST.into()),
                Err(error) if !is_missing(&error) => Err(error),
                Err(_) => Ok(renameat(handle, from, handle, to)?),
            },
            outcome => Ok(outcome?),
        }
    }

    fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_unused(to)?;
        Ok(renameat(&self.handle, from, &self.handle, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_unused(name)?;
        Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.handle)?)
    }

    fn check_path(&self) -> Result<(), String> {
        let Ok(own) = fstat(&self.handle) else {
            return Ok(());
        };
        let replaced = match fs::metadata(&self.absolute_path) {
            Ok(other) if (other.dev(), other.ino()) == (own.st_dev, own.st_ino) => return Ok(()),
            Ok(_) => ", and another file or directory has its path",
            Err(error) if is_missing(&error) => "",
            // It is unknown whether the directory was moved.
            Err(_) => return Ok(()),
        };
        Err(match self.current_path() {
            None => format!(
                "the store's directory was removed{replaced}; its data exists only in memory"
            ),
            Some(current) => format!(
                "the store's directory was moved to {current}{replaced}; changes are still written to {current}, but \
                 no checkpoint can be written until it is moved back",
                current = current.display()
            ),
        })
    }

    fn check_lock(&self) -> io::Result<bool> {
        let mut lock = self.lock.lock();
        let Some(held) = &*lock else {
            return Ok(true);
        };
        match self.id(LOCK_NAME) {
            Ok(id) => Ok(id == held.id()),
            // `LOCK` was removed. Another process that opens the directory creates it, so none has done so yet.
            Err(error) if is_missing(&error) => match lock_new(self) {
                Ok(new) => {
                    *lock = Some(new);
                    Ok(true)
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn unlock(&self) {
        if let Some(lock) = self.lock.lock().take() {
            lock.release();
        }
    }
}
