//! Saving a replay buffer to a file, which replaces an earlier one atomically.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_core::ring::{DeviceCells, StepBuffer, StepRun};
use engram_core::{Result, Schema};

use super::byte_codec::BodyWriter;
use super::change_codec::put_rng;
use super::checkpoint_writer::MAX_RECORD_ENTRIES;
use super::directory::Directory;
use super::errors::failed;
use super::file_format::{FileHeader, FileKind};
use super::file_names::UNFINISHED_SUFFIX;
use super::kind;
use super::os_directory::OsDirectory;
use super::ownership::check_unused;
use super::record_codec::DictionaryWriter as _;
use super::record_writer::RecordWriter;

/// Size of a `steps` record, if it has more than one step. The reader copies records of up to 256 KiB less often.
const STEPS_BYTES: usize = 192 << 10;

/// Bytes written between two checks for an interruption.
const INTERRUPT_INTERVAL: u64 = 16 << 20;

/// Returns true if the caller wants a long call to end, for example because Ctrl-C was pressed.
pub type Interrupted<'a> = &'a mut (dyn FnMut() -> bool + Send);

/// The file that a buffer is saved to. Its directory is locked: other threads and processes that save a buffer to it
/// wait.
#[derive(Debug)]
pub struct SaveTarget {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) directory: OsDirectory,
}

/// What is saved.
#[derive(Clone, Copy, Debug)]
pub struct SaveContents<'a> {
    /// The buffer.
    pub buffer: &'a StepBuffer,
    /// Copies of its cells that are on a device.
    pub device_cells: &'a DeviceCells<'a>,
    /// The schema of its steps.
    pub schema: &'a Arc<Schema>,
}

impl SaveTarget {
    /// Waits for the lock of the directory of `path`. Returns `None` if `interrupted` returns true.
    ///
    /// # Errors
    /// [`engram_core::Error::Storage`] if the directory cannot be opened, or `path` is not that of a file, or the file is in
    /// use.
    pub fn lock(path: &Path, interrupted: Interrupted<'_>) -> Result<Option<Self>> {
        let failed = |reason: &dyn Display| failed(path, "written", reason);
        let name = path.file_name().filter(|_| !path.is_dir());
        let name = name.ok_or_else(|| failed(&"it is a directory; give the path of a file"))?;
        let name = name
            .to_str()
            .ok_or_else(|| failed(&"its name is not valid UTF-8"))?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let directory = OsDirectory::open(parent)
            .map_err(|error| failed(&format_args!("{}: {error}", parent.display())))?;
        let target = Self {
            path: path.into(),
            name: name.into(),
            directory,
        };
        if !target.directory.lock_handle(interrupted) {
            return Ok(None);
        }
        check_unused(path)?;
        Ok(Some(target))
    }

    /// Saves a buffer; returns the size of the file in bytes. The file is durable when this returns. It replaces an earlier
    /// one only then: after an error or a crash, that one is unchanged. Returns `None` if `interrupted` returns true; then,
    /// too, an earlier file is unchanged. `id` must differ each time.
    ///
    /// # Errors
    /// [`engram_core::Error::Storage`] if the file cannot be written.
    pub fn save(
        &self,
        contents: SaveContents<'_>,
        id: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<Option<u64>> {
        let written = write(&self.directory, &self.name, contents, id, interrupted);
        written.map_err(|error| failed(&self.path, "written", &error))
    }
}

impl Drop for SaveTarget {
    fn drop(&mut self) {
        self.directory.unlock_handle();
    }
}

/// The name of a file until it is complete, unlike that of any other file: `id` differs each time. Removes the unfinished
/// files of calls for the same file that were killed.
pub(super) fn unfinished_name(files: &dyn Directory, name: &str, id: u64) -> String {
    for other in files.list().unwrap_or_default() {
        let rest = other.strip_prefix(name).and_then(|it| it.strip_prefix('.'));
        let id = rest.and_then(|rest| rest.strip_suffix(UNFINISHED_SUFFIX));
        if id.is_some_and(|id| id.len() == 16 && u64::from_str_radix(id, 16).is_ok()) {
            // If this fails, the next call removes it.
            let _ = files.remove(&other);
        }
    }
    format!("{name}.{id:016x}{UNFINISHED_SUFFIX}")
}

/// [`SaveTarget::save`] to this file of a directory.
pub(super) fn write(
    files: &dyn Directory,
    name: &str,
    contents: SaveContents<'_>,
    id: u64,
    interrupted: Interrupted<'_>,
) -> io::Result<Option<u64>> {
    let unfinished = unfinished_name(files, name, id);
    let written = write_unfinished(files, &unfinished, contents, id, interrupted);
    let replaced = written.and_then(|bytes| {
        if bytes.is_some() {
            files.replace(&unfinished, name)?;
        }
        Ok(bytes)
    });
    match replaced {
        Ok(Some(bytes)) => {
            files.sync_directory()?;
            Ok(Some(bytes))
        }
        failed => {
            // If this fails, the next save to this path removes the file.
            let _ = files.remove(&unfinished);
            failed
        }
    }
}

/// Writes and syncs the whole file under this name.
fn write_unfinished(
    files: &dyn Directory,
    name: &str,
    contents: SaveContents<'_>,
    id: u64,
    interrupted: Interrupted<'_>,
) -> io::Result<Option<u64>> {
    let SaveContents { buffer, schema, .. } = contents;
    let header = FileHeader {
        kind: FileKind::SavedBuffer,
        store: id,
        number: id,
    };
    let mut out = RecordWriter::new(files.create_large(name)?, header);
    write_header(&mut out, buffer, schema);
    let mut bytes_until_check = 0_u64;
    for run in (0..buffer.num_envs()).flat_map(|env| buffer.runs(env, steps_per_record(schema))) {
        let bytes = write_steps(&mut out, contents, run);
        out.check()?;
        bytes_until_check = match bytes_until_check.checked_sub(bytes) {
            Some(left) => left,
            None if interrupted() => return Ok(None),
            None => INTERRUPT_INTERVAL,
        };
    }
    let mut body = Vec::new();
    body.put_u32(0); // tables
    body.put_u64(out.count());
    out.write_record(kind::END, &body);
    out.finish().map(Some)
}

/// Number of steps of a `steps` record.
fn steps_per_record(schema: &Schema) -> usize {
    let step_bytes: usize = schema.cells.iter().map(|cell| cell.bytes() + 9).sum();
    (STEPS_BYTES / step_bytes.max(1)).max(1)
}

/// Writes everything except the steps.
fn write_header(out: &mut RecordWriter, buffer: &StepBuffer, schema: &Arc<Schema>) {
    let mut body = Vec::new();
    body.put_u32(out.schema_number(schema));
    body.put_u64(buffer.num_envs() as u64);
    body.put_u8(buffer.has_flags().into());
    body.put_u8(buffer.has_priorities().into());
    put_rng(&mut body, buffer.rng());
    out.write_record(kind::BUFFER, &body);
    let envs: Vec<usize> = (0..buffer.num_envs()).collect();
    for part in envs.chunks(MAX_RECORD_ENTRIES) {
        let mut body = Vec::new();
        body.put_len(part.len());
        for env in part {
            let steps = buffer.env_steps(*env);
            body.put_u64(steps.added);
            body.put_u64(steps.stored);
        }
        out.write_record(kind::ENVIRONMENTS, &body);
    }
}

/// Writes consecutive steps; returns the size of the record.
fn write_steps(out: &mut RecordWriter, contents: SaveContents<'_>, run: StepRun) -> u64 {
    let SaveContents {
        buffer,
        device_cells,
        ..
    } = contents;
    let mut head = Vec::new();
    head.put_u64(run.env as u64);
    head.put_u64(run.position);
    head.put_len(run.len);
    head.put(buffer.flags(run).unwrap_or_default());
    for priority in buffer.priorities(run).into_iter().flatten() {
        head.put_f64(priority);
    }
    let pieces: Vec<&[u8]> = std::iter::once(&head[..])
        .chain(buffer.cells(run, device_cells))
        .collect();
    out.add(kind::STEPS, &pieces)
}
