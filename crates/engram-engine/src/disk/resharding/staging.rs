//! The directory in which the new directories are written. It gets its final name when all of them are durable.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf, absolute};

use engram_core::{Error, Result};
use rustix::process::{Resource, getrlimit};

use super::super::directory::{Directory as _, ReadableDirectory as _};
use super::super::directory_setup::create_directory;
use super::super::errors::failed;
use super::super::file_names::{
    CLOSE_MARK_NAME, FileName, UNFINISHED_SUFFIX, is_shard_name, shard_name,
};
use super::super::os_directory::OsDirectory;
use super::super::ownership::{check_unlocked, check_unused, replace_unused, resolve};
use super::source::Source;

/// A directory `NAME.tmp`, locked by this process. Dropping it removes it, unless it was published as `NAME`.
#[derive(Debug)]
pub(super) struct Staging {
    /// Its final path.
    output: PathBuf,
    files: OsDirectory,
}

/// The path of the directory that becomes `output`.
fn staging_path(output: &Path) -> PathBuf {
    let mut name = output.file_name().map(OsString::from).unwrap_or_default();
    name.push(UNFINISHED_SUFFIX);
    output.with_file_name(name)
}

/// Returns the absolute path of `output`, which does not exist or is an empty directory.
///
/// # Errors
/// [`Error::InvalidArgument`] if it exists and is not an empty directory; [`Error::Storage`] if it cannot be accessed.
pub(super) fn check_output(output: &Path) -> Result<PathBuf> {
    if output.as_os_str().is_empty() {
        let text = "`output`: the path is empty; give a directory that does not exist yet, or an empty one";
        return Err(Error::InvalidArgument(text.into()));
    }
    let shown = output.display();
    let invalid = |text: String| Err(Error::InvalidArgument(text));
    let path = match fs::read_dir(output).map(|mut entries| entries.next()) {
        Ok(None) => {
            let path = fs::canonicalize(output);
            if path.as_deref().is_ok_and(is_mounted) {
                return invalid(format!(
                    "`output`: {shown} is the root of a file system, which cannot be replaced; give a directory in it that \
                     does not exist yet"
                ));
            }
            path
        }
        Ok(Some(_)) => {
            return invalid(format!(
                "`output`: {shown} exists and is not empty; give a directory that does not exist yet, or an empty one"
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return invalid(format!("`output`: {shown} is a file; give a directory"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if output.is_symlink() {
                return invalid(format!(
                    "`output`: {shown} is a symbolic link to a path that does not exist; give a directory that does not \
                     exist yet, or an empty one"
                ));
            }
            absolute(output)
        }
        Err(error) => Err(error),
    };
    let path = path.map_err(|error| failed(output, "written", &error))?;
    if path.file_name().is_none() {
        return invalid(format!(
            "`output`: {shown} has no name; give a directory that does not exist yet, or an empty one"
        ));
    }
    check_unused(&path)?;
    Ok(path)
}

/// True if another file system is mounted at this directory.
fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    match path.parent().map(|parent| (device(path), device(parent))) {
        Some((Ok(own), Ok(parent))) => own != parent,
        _ => false,
    }
}

/// Number of files that are open for each new directory: the directory, and its log twice.
const FILES_PER_SHARD: u64 = 3;

/// Files of a process that are open for other purposes, at least.
const OTHER_FILES: u64 = 16;

/// Checks that this process may have enough open files for this number of sources and new directories.
///
/// # Errors
/// [`Error::InvalidArgument`] if it may not.
pub(super) fn check_open_files(sources: usize, into: u32) -> Result<()> {
    // A source has its directory, its lock and a log open.
    let needed = FILES_PER_SHARD * u64::from(into) + 3 * sources as u64 + OTHER_FILES;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(Error::InvalidArgument(format!(
            "`into`: {into} new directories need about {needed} open files, but this process may have {limit}; raise its \
             limit (`ulimit -n {needed}`), or give a smaller `into`"
        ))),
        _ => Ok(()),
    }
}

/// Checks that no source is in the directory in which the output is written, whose files are removed, and that the
/// output is not in a source.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the source; [`Error::Storage`] if a path cannot be accessed.
pub(super) fn check_separate(output: &Path, sources: &[Source]) -> Result<()> {
    let staging = resolve(&staging_path(output))?;
    let output = resolve(output)?;
    for source in sources {
        let path = resolve(source.directory.files.path())?;
        if path.starts_with(&staging) {
            return Err(Error::InvalidArgument(format!(
                "`output`: {} is in {}, which a resharding to {} removes; give another `output`",
                source.name(),
                staging.display(),
                output.display()
            )));
        }
        if output.starts_with(&path) {
            return Err(Error::InvalidArgument(format!(
                "`output`: {} is in the source {}; give a directory outside the sources",
                output.display(),
                source.name()
            )));
        }
    }
    Ok(())
}

impl Staging {
    /// Creates the directory for an output that `check_output` has accepted; removes what an earlier call that was killed has left in it.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be written, is in use, or has other files.
    pub(super) fn create(output: PathBuf) -> Result<Self> {
        let path = staging_path(&output);
        let opened = create_directory(&path).and_then(|()| OsDirectory::open(&path));
        let files = opened.map_err(|error| failed(&path, "written", &error))?;
        if !files.lock_handle(&mut || true) {
            return Err(Error::Storage(format!(
                "{} is in use by another resharding; wait until it ends, or give another `output`",
                path.display()
            )));
        }
        let others = find_others(&path).map_err(|error| failed(&path, "written", &error))?;
        if let Some(other) = others {
            return Err(Error::Storage(format!(
                "{} is not a file of a resharding that was stopped; remove {}, or give another `output`",
                other.display(),
                path.display()
            )));
        }
        for shard in fs::read_dir(&path).into_iter().flatten().flatten() {
            check_unlocked(&shard.path())?;
        }
        remove_shards(&path).map_err(|error| failed(&path, "written", &error))?;
        Ok(Self { output, files })
    }

    /// Creates the directory of a shard.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be created.
    pub(super) fn create_shard(&self, shard: u32) -> Result<OsDirectory> {
        let path = self.files.path().join(shard_name(shard));
        let opened = create_directory(&path).and_then(|()| OsDirectory::open(&path));
        opened.map_err(|error| failed(&path, "written", &error))
    }

    /// Gives the directory its final name, durably; returns the paths of its shards.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be renamed.
    pub(super) fn publish(self, shards: u32) -> Result<Vec<PathBuf>> {
        let path = self.files.path();
        // Replaces an empty directory, and fails for one that is not empty.
        let synced = self.files.sync_directory();
        synced.map_err(|error| failed(&self.output, "written", &error))?;
        replace_unused(path, &self.output)?;
        let parent = self.output.parent().unwrap_or(Path::new("/"));
        let synced = OsDirectory::open(parent).and_then(|parent| parent.sync_directory());
        synced.map_err(|error| failed(parent, "written", &error))?;
        Ok((0..shards)
            .map(|shard| self.output.join(shard_name(shard)))
            .collect())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After `publish`, it no longer has this path. If this fails, the next call removes what is left.
        let path = self.files.path();
        if self.files.check_path().is_ok() {
            let _ = remove_shards(path).and_then(|()| fs::remove_dir(path));
        }
        self.files.unlock_handle();
    }
}

/// A file in the directory that no resharding has created; `None` if there is none.
fn find_others(path: &Path) -> io::Result<Option<PathBuf>> {
    for shard in fs::read_dir(path)? {
        let shard = shard?;
        let is_shard = shard.file_name().to_str().is_some_and(is_shard_name);
        if !is_shard || !shard.file_type()?.is_dir() {
            return Ok(Some(shard.path()));
        }
        for file in fs::read_dir(shard.path())? {
            let file = file?;
            let name = file.file_name();
            let is_known = (name.to_str())
                .is_some_and(|name| name == CLOSE_MARK_NAME || FileName::parse(name).is_some());
            if !is_known {
                return Ok(Some(file.path()));
            }
        }
    }
    Ok(None)
}

/// Removes the shards of a directory in which `find_others` has found nothing.
fn remove_shards(path: &Path) -> io::Result<()> {
    for shard in fs::read_dir(path)? {
        let shard = shard?.path();
        for file in fs::read_dir(&shard)? {
            fs::remove_file(file?.path())?;
        }
        fs::remove_dir(shard)?;
    }
    Ok(())
}
