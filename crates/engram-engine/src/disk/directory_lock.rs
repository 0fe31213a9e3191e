//! The lock of a store's directory: one process at a time can have the store open, and only once.
//!
//! This file and `os_directory.rs` import each other: a directory has its lock, and takes it again if `LOCK` was removed;
//! the lock's file is opened relative to the directory.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use engram_core::{Error, Result};
use rustix::fs::OFlags;

use crate::close_on_fork::CloseOnFork;

use super::clock_reading::ClockReading;
use super::directory::{FileId, ReadableDirectory as _, file_id};
use super::errors::failed;
use super::file_names::LOCK_NAME;
use super::os_directory::OsDirectory;
use super::ownership::lock_after_checks;

/// The exclusive lock of a directory. Children that Python forks close their copy of the lock file, so that the lock
/// ends with this process.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// Declared before the file, so that it is dropped first: after the file is closed, its
    /// descriptor number may be reused for another file.
    _close_on_fork: CloseOnFork,
    file: File,
    id: FileId,
}

impl DirectoryLock {
    /// Records this process in the lock file, which it has locked.
    fn new(file: File) -> io::Result<Self> {
        file.set_len(0)?;
        (&file).rewind()?;
        writeln!(&file, "{}", describe_this_process())?;
        Ok(Self {
            _close_on_fork: CloseOnFork::new([file.as_raw_fd()]),
            id: file_id(&file)?,
            file,
        })
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn release(self) {
        // Closing the file is not enough: children that were not forked by Python may still have it open, which would
        // keep it locked.
        let _ = self.file.unlock();
    }
}

/// Checks that `path` is not empty, and not the path of a file.
///
/// # Errors
/// [`Error::InvalidArgument`] if it is empty; [`Error::Storage`] if it is the path of a file.
pub(super) fn check_not_file(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() {
        let text = "the path is empty; give the directory of a store".into();
        return Err(Error::InvalidArgument(text));
    }
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir()) {
        let text = format!("{} is a file; a store is a directory", path.display());
        return Err(Error::Storage(text));
    }
    Ok(())
}

/// Locks a directory for writing, and records this process in its `LOCK` file.
///
/// # Errors
/// [`Error::Storage`] if a process (also this one) has it open, or `LOCK` cannot be written.
pub(super) fn lock_exclusive(directory: &OsDirectory) -> Result<DirectoryLock> {
    let path = directory.path();
    let unusable = |error: io::Error| failed(&path.join(LOCK_NAME), "used", &error);
    let opened = directory.open_file(LOCK_NAME, OFlags::RDWR | OFlags::CREATE);
    let file = opened.map_err(unusable)?;
    check_locked(path, &file, lock_after_checks(|| file.try_lock()))?;
    DirectoryLock::new(file).map_err(unusable)
}

/// Creates and locks `LOCK` again after it was removed.
///
/// # Errors
/// `AlreadyExists` if another process has created it in the meantime.
pub(super) fn lock_new(directory: &OsDirectory) -> io::Result<DirectoryLock> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = directory.open_file(LOCK_NAME, flags)?;
    match lock_after_checks(|| file.try_lock()) {
        Ok(()) => DirectoryLock::new(file),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks a directory for reading, until the returned file is closed. Returns `None`, without a lock, if there is no
/// `LOCK` file, as in a copy of a store's other files.
///
/// # Errors
/// [`Error::Storage`] if a process (also this one) has it open, or `LOCK` cannot be read.
pub(super) fn lock_shared(directory: &OsDirectory) -> Result<Option<File>> {
    let path = directory.path();
    match directory.open_file(LOCK_NAME, OFlags::RDONLY) {
        Ok(file) => {
            check_locked(path, &file, file.try_lock_shared())?;
            Ok(Some(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path.join(LOCK_NAME), "used", &error)),
    }
}

/// Converts the outcome of locking `LOCK`. If it is locked already, the error names the process that opened the store last,
/// if `LOCK` contains it: that process has the lock, unless another one only reads the directory.
fn check_locked(path: &Path, file: &File, outcome: Result<(), TryLockError>) -> Result<()> {
    match outcome {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(in_use(path, &owner(file))),
        Err(TryLockError::Error(error)) => Err(failed(path, "used", &error)),
    }
}

/// Describes this process and the time for the error of another one: `process 4711 since 2026-11-22 19:14:35 UTC`.
pub(super) fn describe_this_process() -> String {
    let now = format_utc(ClockReading::now(0).system);
    format!("process {} since {now}", std::process::id())
}

/// The time in a text of [`describe_this_process`], if this process wrote it.
pub(super) fn since_if_this_process(owner: &str) -> Option<&str> {
    owner.strip_prefix(&format!("process {} since ", std::process::id()))
}

/// The error for a directory that `owner` has open.
pub(super) fn in_use(path: &Path, owner: &str) -> Error {
    let path = path.display();
    Error::Storage(match since_if_this_process(owner) {
        Some(since) => {
            format!(
                "{path} is in use by this process (since {since}), according to its file `LOCK`: close that store first; if \
                 this process does not have it open, a process in another container does, or another process reads it: \
                 try again later"
            )
        }
        None => format!(
            "{path} is in use by {owner}; only one process at a time can open a store: close it there first; if \
             that process has ended, another one reads the directory (`restore`, `engram inspect`): try again later"
        ),
    })
}

/// The process that opened a directory's store last, as recorded in its `LOCK` file.
pub(super) fn owner(mut lock: &File) -> String {
    let mut text = [0; 256];
    let read = lock.read(&mut text).unwrap_or_default();
    match String::from_utf8_lossy(&text[..read]).trim_end() {
        "" => "another process".into(),
        text => text.into(),
    }
}

/// Formats a Unix time as date and time, for example `2026-11-22 19:14:35 UTC`.
fn format_utc(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    // Days since 0000-03-01, in cycles of 400 years that begin in March: a leap day is the last day of its year.
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let leap_days = day_of_cycle / 1_460 - day_of_cycle / 36_524 + day_of_cycle / 146_096;
    let year_of_cycle = (day_of_cycle - leap_days) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = 400 * cycle + year_of_cycle + u64::from(month <= 2);
    let second = second % 60;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_times_are_formatted_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_735_689_600, "2025-01-01 00:00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(format_utc(seconds), text);
        }
    }
}
