//! Preparing a directory before its store is used: creating it, and completing a recovery.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use super::directory::Directory;
use super::directory_reader::Recovered;
use super::file_names::{FileName, UNFINISHED_SUFFIX, free_lost_name, log_name};

/// Removes unfinished files and syncs all logs that were read. Without a repair, also truncates a torn log; if
/// intact records follow the tear, the log's tail is copied to a `.lost` file first.
pub(super) fn finish_recovery(files: &dyn Directory, recovered: &Recovered) -> io::Result<()> {
    for name in files.list()? {
        if FileName::parse(&name) == Some(FileName::Unfinished) {
            files.remove(&name)?;
        }
    }
    if let (Some((log, tear_offset)), false) = (recovered.torn, recovered.repaired) {
        if recovered.intact_after_tear > 0 {
            copy_tail(files, &log_name(log), tear_offset)?;
        }
        files.truncate(&log_name(log), tear_offset)?;
    }
    for log in recovered.logs.iter().map(|log| log.usage().log) {
        files.sync(&log_name(log))?;
    }
    files.sync_directory()
}

/// Copies a file's bytes from offset `start` on to a new file with the suffix `.lost`, durably.
fn copy_tail(files: &dyn Directory, name: &str, start: u64) -> io::Result<()> {
    let file = files.open(name)?;
    let len = file.len()?;
    let unfinished = format!("{name}{UNFINISHED_SUFFIX}");
    let mut out = files.create(&unfinished)?;
    let mut offset = start;
    while offset < len {
        let left = usize::try_from(len - offset).unwrap_or(usize::MAX);
        let mut block = vec![0; left.min(1 << 20)];
        file.read_at(&mut block, offset)?;
        out.append(&[&block])?;
        offset += block.len() as u64;
    }
    out.sync()?;
    files.rename(&unfinished, &free_lost_name(&files.list()?, name))?;
    files.sync_directory()
}

/// Creates a directory that other users cannot read, and its parents if they are missing. Tries to make the names of
/// the created directories durable.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        fs::create_dir_all(parent)?;
    }
    let mut builder = DirBuilder::new();
    // With `recursive`, this succeeds even if another process has created the directory in the meantime.
    builder.recursive(true).mode(0o700).create(path)?;
    for created in missing {
        let parent = created.parent().filter(|parent| *parent != Path::new(""));
        // Best effort: this process may not be allowed to open the parent.
        let _ = File::open(parent.unwrap_or(Path::new("."))).and_then(|parent| parent.sync_all());
    }
    Ok(())
}

/// Names of the checkpoints and logs that a repair did not use. They may contain acknowledged data.
pub(super) fn unused_files(
    files: &dyn Directory,
    recovered: &Recovered,
) -> io::Result<Vec<String>> {
    let has_used_chunks = |log: u64| {
        let usages = recovered.logs.iter().map(|log| log.usage());
        usages
            .filter(|usage| usage.used_bytes > 0)
            .any(|usage| usage.log == log)
    };
    let checkpoint = recovered
        .checkpoint_headers
        .iter()
        .find(|(number, _)| Some(*number) == recovered.checkpoint_read);
    let checkpoint_requires = |log: u64| {
        checkpoint
            .is_some_and(|(_, header)| header.earlier_logs.iter().any(|(other, _)| *other == log))
    };
    let mut names = files.list()?;
    names.retain(|name| match FileName::parse(name) {
        Some(FileName::Checkpoint(number)) => Some(number) != recovered.checkpoint_read,
        Some(FileName::Log(log)) => {
            !(recovered.replayed_logs.contains(&log)
                || has_used_chunks(log)
                || checkpoint_requires(log))
        }
        _ => false,
    });
    Ok(names)
}
