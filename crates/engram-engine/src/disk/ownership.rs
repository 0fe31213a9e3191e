//! A file or directory that is in use is neither replaced nor removed.
//!
//! What uses it holds a lock (`flock`), which ends with its process: a replay buffer that of its mapped file, a store that of
//! `LOCK` in its directory, a training run that of `engram.lock` in its own, a log that of its file, a resharding and a save
//! that of the directory they write to. The lock is that of the file: the path by which it is found does not matter.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use engram_core::{Error, Result};
use rustix::fs::OFlags;

use super::directory::SPECIAL_FILE;
use super::directory_lock;
use super::errors::failed;
use super::file_names::{CLOSE_MARK_NAME, FileName, LOCK_NAME};
use super::mapped_file;

/// The lock of a training run's directory; `agents/ftw/run_directory.py` creates it.
const RUN_LOCK_NAME: &str = "engram.lock";

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
    let own = (fs::canonicalize(parent.unwrap_or(Path::new("."))).ok())
        .and_then(|parent| Some(parent.join(path.file_name()?)));
    for place in [&own, &resolved].into_iter().flatten() {
        check_parents(path, place)?;
    }
    check_unlocked(path)
}

/// [`check_unused`] without the names of a store's and a run's files: for the owner of the directory.
///
/// # Errors
/// Those of [`check_unused`].
pub fn check_unlocked(path: &Path) -> Result<()> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    if metadata.is_file() {
        return hold(path).map(drop);
    }
    if !metadata.is_dir() {
        let reason = format!("it is {SPECIAL_FILE}; give the path of a file");
        return Err(failed(path, "written", &reason));
    }
    hold(path)?;
    // Entries that cannot be listed cannot be removed either.
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let kind = entry.file_type();
        if kind.is_ok_and(|kind| kind.is_file() || kind.is_dir()) {
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
    let held = hold(to)?;
    let renamed = fs::rename(from, to).map_err(|error| failed(to, "written", &error));
    drop(held);
    renamed
}

/// Locks a file or directory until it is dropped, so that nothing begins to use it. `None` if there is none, and if it
/// cannot be locked, as on file systems without locks: nothing of Engram uses it then.
///
/// # Errors
/// [`Error::Storage`] if it is in use.
fn hold(path: &Path) -> Result<Option<File>> {
    // Without `NONBLOCK`, opening a pipe would wait for its other end.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return Ok(None);
    };
    hold_file(path, file)
}

/// [`hold`] for an open file, which `path` names in errors.
pub(super) fn hold_file(path: &Path, file: File) -> Result<Option<File>> {
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(in_use(path, &file)),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// The error for a file or directory that is locked.
fn in_use(path: &Path, file: &File) -> Error {
    let is_named = |name| path.file_name().is_some_and(|it| it == name);
    let parent = path.parent().unwrap_or(Path::new("."));
    if is_named(LOCK_NAME) {
        return directory_lock::in_use(parent, &directory_lock::owner(file));
    }
    if is_named(RUN_LOCK_NAME) {
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
        "another process trains in {}; wait until it ends, or give another path",
        directory.display()
    )
}

/// Checks that `place`, where `path` leads to, is not that of a file of an open store, or of a run that trains.
fn check_parents(path: &Path, place: &Path) -> Result<()> {
    for entry in place.ancestors() {
        let name = entry.file_name().and_then(|name| name.to_str());
        let (Some(name), Some(parent)) = (name, entry.parent()) else {
            continue;
        };
        let lock = if is_of_store(name) {
            LOCK_NAME
        } else if is_of_run(name) {
            RUN_LOCK_NAME
        } else {
            continue;
        };
        hold(&parent.join(lock)).map_err(|error| {
            Error::Storage(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    Ok(())
}

fn is_of_store(name: &str) -> bool {
    [LOCK_NAME, CLOSE_MARK_NAME].contains(&name) || FileName::without_suffix(name).is_some()
}

fn is_of_run(name: &str) -> bool {
    name == RUN_LOCK_NAME || RUN_NAMES.contains(&name)
}
