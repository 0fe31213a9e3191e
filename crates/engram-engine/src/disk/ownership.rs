//! A file or directory that is in use is neither replaced nor removed.
//!
//! What uses it holds a lock (`flock`), which ends with its process: a replay buffer that of its mapped file, a store that of
//! `LOCK` in its directory, a training run that of `engram.lock` in its own, a log that of its file, a resharding and a save
//! that of the directory they write to. The lock is that of the file: the path by which it is found does not matter.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf, absolute};
use std::thread;

use engram_core::{Error, Result};
use rustix::fs::OFlags;

use super::directory::SPECIAL_FILE;
use super::directory_lock;
use super::errors::failed;
use super::file_names::{CLOSE_MARK_NAME, FileName, LOCK_NAME, UNFINISHED_SUFFIX, is_shard_name};
use super::mapped_file;
use super::os_directory::{LOCK_POLL_INTERVAL, is_missing};

/// The lock of a training run's directory; `agents/ftw/run_directory.py` creates it.
const RUN_LOCK_NAME: &str = "engram.lock";

/// Attempts of [`lock_after_checks`], which together take 100 ms.
const LOCK_ATTEMPTS: usize = 11;

/// What a training run writes to its directory while it has the lock.
const RUN_NAMES: [&str; 4] = ["checkpoints", "train.csv", "evaluation.csv", "tensorboard"];

/// Checks that `path` may be replaced or removed, with all that is in it: it is not in use, and has not the name of a file
/// of a store that is open, or of a run that trains, in one of its parents. There may be no file.
///
/// # Errors
/// [`Error::Storage`] if it is in use, or is a pipe, socket or device.
pub fn check_unused(path: &Path) -> Result<()> {
    let resolved = fs::canonicalize(path).ok();
    let parent = path.parent().filter(|it| *it != Path::new(""));
    let own = (resolve(parent.unwrap_or(Path::new("."))).ok())
        .and_then(|parent| Some(parent.join(path.file_name()?)));
    for place in [&own, &resolved].into_iter().flatten() {
        check_resharding(path, place)?;
        check_parents(path, place, |name| {
            lock_of_store(name).or(lock_of_run(name))
        })?;
    }
    check_unlocked(path)
}

/// Checks that a directory of a store may be created: neither it nor one of its parents has the name of a file of a store that
/// is open. Unlike [`check_unused`], it may be in the directory of a run that trains, whose tables are there.
///
/// # Errors
/// [`Error::Storage`] if it has one.
pub(super) fn check_new_store(path: &Path) -> Result<()> {
    match resolve(path) {
        Ok(place) if !place.exists() => check_parents(path, &place, lock_of_store),
        _ => Ok(()),
    }
}

/// The path without symbolic links in those of its parents that exist.
///
/// # Errors
/// [`Error::Storage`] if one cannot be accessed.
pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    let path = absolute(path).map_err(|error| failed(path, "written", &error))?;
    for parent in path.ancestors() {
        match fs::canonicalize(parent) {
            Ok(resolved) => {
                let rest = path.strip_prefix(parent).unwrap_or(Path::new(""));
                return Ok(if rest.as_os_str().is_empty() {
                    resolved
                } else {
                    resolved.join(rest)
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(parent, "written", &error)),
        }
    }
    Ok(path)
}

/// [`check_unused`] without the names of a store's and a run's files: for the owner of the directory.
///
/// # Errors
/// Those of [`check_unused`].
pub fn check_unlocked(path: &Path) -> Result<()> {
    let Some(metadata) = existing(path, fs::metadata(path))? else {
        return Ok(());
    };
    if metadata.is_file() {
        return check_file(path);
    }
    if !metadata.is_dir() {
        let reason = format!("it is {SPECIAL_FILE}; give the path of a file");
        return Err(failed(path, "written", &reason));
    }
    check_file(path)?;
    for entry in existing(path, fs::read_dir(path))?.into_iter().flatten() {
        let Some(entry) = existing(path, entry)? else {
            continue;
        };
        let kind = existing(&entry.path(), entry.file_type())?;
        if kind.is_some_and(|kind| kind.is_file() || kind.is_dir()) {
            check_unlocked(&entry.path())?;
        }
    }
    Ok(())
}

/// Renames a file or directory. Replaces a file or an empty directory with the new name, unless it is in use.
///
/// # Errors
/// [`Error::Storage`] if it is in use, or the file cannot be renamed.
pub fn replace_unused(from: &Path, to: &Path) -> Result<()> {
    check_unused(to)?;
    fs::rename(from, to).map_err(|error| failed(to, "written", &error))
}

/// Checks a file or directory itself. There may be none.
///
/// # Errors
/// [`Error::Storage`] if it is in use, or it is unknown whether it is.
fn check_file(path: &Path) -> Result<()> {
    // Without `NONBLOCK`, opening a pipe would wait for its other end.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    existing(path, opened)?.map_or(Ok(()), |file| check_open_file(path, &file))
}

/// Checks an open file, which `path` names in errors. The caller closes it before it replaces or removes the file: NFS does
/// not replace an open file atomically, and SMB does not do it at all.
///
/// # Errors
/// [`Error::Storage`] if it is in use.
pub(super) fn check_open_file(path: &Path, file: &File) -> Result<()> {
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(in_use(path, file)),
        Ok(()) => {
            // Now, because a child that is forked before the file is closed would keep the lock.
            let _ = file.unlock();
            Ok(())
        }
        // Nothing of Engram uses files of a file system without locks.
        Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Locks a file. Tries again for a moment: a check of another thread or process, as in [`check_open_file`], locks it briefly.
pub(super) fn lock_after_checks(
    mut lock: impl FnMut() -> Result<(), TryLockError>,
) -> Result<(), TryLockError> {
    for _ in 1..LOCK_ATTEMPTS {
        match lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_POLL_INTERVAL),
            outcome => return outcome,
        }
    }
    lock()
}

/// `None` if an error means that there is no file.
fn existing<T>(path: &Path, found: io::Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(failed(path, "written", &error)),
    }
}

/// The error for a file or directory that is locked.
fn in_use(path: &Path, file: &File) -> Error {
    let parent = path.parent().unwrap_or(Path::new("."));
    if is_named(path, |name| name == LOCK_NAME) {
        return directory_lock::in_use(parent, &directory_lock::owner(file));
    }
    if is_named(path, |name| name == RUN_LOCK_NAME) {
        return Error::Storage(training(parent));
    }
    mapped_file::in_use_if_mapped(path, file).unwrap_or_else(|| {
        Error::Storage(format!(
            "{} is in use: something writes to it and has locked it; wait until that ends, or give another path",
            path.display()
        ))
    })
}

fn training(directory: &Path) -> String {
    format!(
        "a run trains in {}; wait until it ends, or give another path",
        directory.display()
    )
}

/// Checks that `place`, where `path` leads to, is not that of a file of an open store, or of a run that trains: `lock_of` is
/// the lock of the directory of a file with this name.
fn check_parents(
    path: &Path,
    place: &Path,
    lock_of: impl Fn(&str) -> Option<&'static str>,
) -> Result<()> {
    for entry in place.ancestors() {
        let lock = (entry.file_name())
            .and_then(|name| name.to_str())
            .and_then(&lock_of);
        if let (Some(lock), Some(parent)) = (lock, entry.parent()) {
            check_file(&parent.join(lock)).map_err(|error| not_written(path, &error))?;
        }
    }
    Ok(())
}

/// Checks that `place`, where `path` leads to, is not in a directory that a resharding writes. That locks its parent.
fn check_resharding(path: &Path, place: &Path) -> Result<()> {
    for shard in place.ancestors().skip(1) {
        let staging = shard.parent().filter(|_| is_named(shard, is_shard_name));
        if let Some(staging) =
            staging.filter(|it| is_named(it, |name| name.ends_with(UNFINISHED_SUFFIX)))
        {
            check_file(staging).map_err(|error| not_written(path, &error))?;
        }
    }
    Ok(())
}

fn not_written(path: &Path, error: &Error) -> Error {
    Error::Storage(format!("{} cannot be written: {error}", path.display()))
}

fn is_named(path: &Path, is_name: impl Fn(&str) -> bool) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(is_name)
}

fn lock_of_store(name: &str) -> Option<&'static str> {
    let is_of_store =
        [LOCK_NAME, CLOSE_MARK_NAME].contains(&name) || FileName::without_suffix(name).is_some();
    is_of_store.then_some(LOCK_NAME)
}

fn lock_of_run(name: &str) -> Option<&'static str> {
    (name == RUN_LOCK_NAME || RUN_NAMES.contains(&name)).then_some(RUN_LOCK_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_waits_for_checks_and_not_for_other_users() {
        for (failures, attempts) in [(0, 1), (3, 4), (LOCK_ATTEMPTS, LOCK_ATTEMPTS)] {
            let mut count = 0;
            let outcome = lock_after_checks(|| {
                count += 1;
                (count > failures)
                    .then_some(())
                    .ok_or(TryLockError::WouldBlock)
            });
            assert_eq!(
                (count, outcome.is_ok()),
                (attempts, failures < LOCK_ATTEMPTS)
            );
        }
    }
}
