//! One process at a time has a directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use engram_core::{Error, Result};

use crate::close_on_fork::CloseOnFork;

use super::file_names::LOCK;
use super::recover::ClockReading;

/// A directory that this process has. Forked children do not keep it when the process is gone.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// Before the file: its number may be another's as soon as it is closed.
    _inherited: CloseOnFork,
    file: File,
}

impl DirectoryLock {
    /// Lets others have it.
    pub(super) fn release(self) {
        // Children that were forked otherwise than by Python may have it, too.
        let _ = self.file.unlock();
    }
}

pub(super) fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::Storage(format!("{} cannot be used: {error}", path.display()))
}

/// Takes a directory for this process.
///
/// # Errors
/// [`Error::Storage`] where another process has it, or the lock cannot be written.
pub(super) fn lock(path: &Path) -> Result<DirectoryLock> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options
        .open(path.join(LOCK))
        .map_err(|error| unusable(path, &error))?;
    check(path, &file, file.try_lock())?;
    let text = format!(
        "process {}, since {} s after 1970\n",
        std::process::id(),
        ClockReading::new(0).system
    );
    let written = file
        .set_len(0)
        .and_then(|()| (&file).rewind())
        .and_then(|()| (&file).write_all(text.as_bytes()));
    written.map_err(|error| unusable(path, &error))?;
    Ok(DirectoryLock {
        _inherited: CloseOnFork::new([file.as_raw_fd()]),
        file,
    })
}

/// Keeps others from taking a directory that is only read, as long as what this returns lives.
///
/// # Errors
/// [`Error::Storage`] where another process has it, or it cannot be read.
pub(super) fn lock_to_read(path: &Path) -> Result<Option<File>> {
    match File::open(path.join(LOCK)) {
        Ok(file) => {
            check(path, &file, file.try_lock_shared())?;
            Ok(Some(file))
        }
        // A copy without it, which nobody has had open.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn check(path: &Path, file: &File, locked: Result<(), TryLockError>) -> Result<()> {
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Storage(format!(
            "{} is in use by {}; one process at a time may have a store open",
            path.display(),
            holder(file)
        ))),
        Err(TryLockError::Error(error)) => Err(unusable(path, &error)),
    }
}

/// Who has a directory, as its lock says.
pub(super) fn holder(mut lock: &File) -> String {
    let mut holder = [0; 256];
    let read = lock.read(&mut holder).unwrap_or_default();
    match String::from_utf8_lossy(&holder[..read]).trim_end() {
        "" => "another process".into(),
        holder => holder.into(),
    }
}
