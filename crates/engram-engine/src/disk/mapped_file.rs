//! The file of a replay buffer whose steps are in a mapped file.
//!
//! ```text
//! header, layout, schema, size │ slot 0 │ slot 1 │ live state │ flags │ priorities │ column │ column ...
//!   written when it is created │ `flushed` records│ ────────── memory of the buffer ───────────────
//! ```
//!
//! After the end of a process, the live state states which steps the buffer has: the system still has all that the process
//! has written to memory. After a restart of the machine, memory that was not synced is lost in any part. Then the newer
//! one of the two `flushed` records counts. It has the steps of the last flush, except those whose rows may have been
//! overwritten since, by at most `reserved` new steps per environment. Before more are added, a record with a larger
//! number is written and synced.

mod flushed;
mod head;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::ring::{BufferMemory, EnvState, StepBuffer};
use engram_core::{AlignedBytes, Error, Result, Schema};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::close_on_fork::CloseOnFork;

use super::buffer_reader::check_schema;
use super::buffer_writer::{Interrupted, SaveTarget, unfinished_name};
use super::byte_codec::UnusableData;
use super::directory::{Directory as _, file_id};
use super::directory_lock::{describe_this_process, since_if_this_process};
use super::errors::{damaged, failed};
use super::file_format::{RECORD_HEADER_BYTES, record_header};
use super::kind;
use super::mapping;
use super::ownership::lock_after_checks;
use flushed::FlushedRecord;
pub(crate) use flushed::FlushedState;
pub(crate) use head::BufferSize;
use head::{FILE_DESCRIPTION, FileLayout, Head};

/// A replay buffer's file, locked and mapped.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// Declared before the file, so that it is dropped first, as in `DirectoryLock`.
    _close_on_fork: CloseOnFork,
    file: Arc<File>,
    /// For messages.
    path: PathBuf,
    /// Random id of the file.
    id: u64,
    length: u64,
    /// Both slots, of equal size, and their offset in the file.
    slots: AlignedBytes,
    slots_offset: u64,
    /// The newest record.
    record: FlushedRecord,
    syncs: Arc<Syncs>,
    /// Number of flushes that have begun.
    begun: AtomicU64,
    /// Number of the newest flush that has ended.
    ended: u64,
}

/// A flush that has begun; see [`ReplayBuffer::begin_flush`](crate::ReplayBuffer::begin_flush).
#[derive(Debug)]
pub struct BufferFlush {
    path: PathBuf,
    file: Arc<File>,
    syncs: Arc<Syncs>,
    /// Counts the flushes of the file.
    number: u64,
    state: FlushedState,
}

/// Runs the syncs of a file one at a time. Once one has failed, all later ones fail with its error: the system may have lost
/// bytes, and reports that only once.
#[derive(Debug, Default)]
struct Syncs(Mutex<Option<Error>>);

impl Syncs {
    fn run(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut error = self.0.lock();
        if let Some(error) = &*error {
            return Err(error.clone());
        }
        let synced = sync();
        *error = synced.as_ref().err().cloned();
        synced
    }
}

/// A file and the memory that it provides for a buffer.
pub(crate) type OpenedFile = (MappedFile, BufferMemory);

impl MappedFile {
    /// Creates a file for an empty buffer, which has this state.
    ///
    /// # Errors
    /// [`Error::Storage`] if there is a file at the path, or it cannot be created, for example because the disk is full, or
    /// `interrupted` returns true.
    pub(crate) fn create(
        path: &Path,
        schema: &Arc<Schema>,
        size: BufferSize,
        state: FlushedState,
        id: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<OpenedFile> {
        let target = SaveTarget::lock(path, interrupted)?;
        let target = target.ok_or_else(|| failed(path, "created", &"it was interrupted"))?;
        let unfinished = unfinished_name(&target.directory, &target.name, id);
        let created = Self::create_unfinished(&target, &unfinished, schema, size, state, id);
        let renamed = created.and_then(|created| {
            let files = &target.directory;
            let renamed = files.rename(&unfinished, &target.name);
            renamed
                .and_then(|()| files.sync_directory())
                .map_err(|error| failed(path, "created", &error))?;
            Ok(created)
        });
        if renamed.is_err() {
            // If this fails, the next call removes the file.
            let _ = target.directory.remove(&unfinished);
        }
        renamed
    }

    /// Creates the file under this name.
    fn create_unfinished(
        target: &SaveTarget,
        name: &str,
        schema: &Arc<Schema>,
        size: BufferSize,
        state: FlushedState,
        id: u64,
    ) -> Result<OpenedFile> {
        let path = &target.path;
        let failed = |error: io::Error| failed(path, "created", &error);
        let files = &target.directory;
        let file = files.create(name).map_err(failed)?;
        let head = Head::write(file, schema, size, id).map_err(failed)??;
        let file = files.open_file(name, OFlags::RDWR).map_err(failed)?;
        allocate(path, &file, &head, "created")?;
        lock(path, &file)?;
        let (mut file, memory) =
            Self::map(path, file, &head, |_| Ok(FlushedRecord::of_new(state)))?;
        // Without a valid record, a file that was left by a crash could not be opened.
        file.write(file.record.clone())?;
        file.file.sync_all().map_err(failed)?;
        Ok((file, memory))
    }

    /// Opens a file, whose buffer must have this schema and size; `None` if there is none. Also returns the state of the
    /// buffer.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be read or is damaged, is not the file of a mapped buffer, or is in use;
    /// [`Error::InvalidArgument`] or [`Error::Signature`] if its buffer differs.
    pub(crate) fn open(
        path: &Path,
        schema: &Schema,
        size: BufferSize,
        boot: &str,
    ) -> Result<Option<(OpenedFile, FlushedState)>> {
        let Some((file, head)) = open_locked(path)? else {
            return Ok(None);
        };
        check_schema(path, &head.schema, schema)?;
        if head.size != size {
            let [expected, got] = [head.size, size].map(BufferSize::describe);
            let path = path.display();
            return Err(Error::InvalidArgument(format!(
                "{path}: the file has {expected}, and this buffer {got}; for another `capacity`, save the buffer and \
                 restore it into another file; `num_envs` cannot change"
            )));
        }
        allocate(path, &file, &head, "opened")?; // a copy may have no disk space for zeros
        let opened = Self::map(path, file, &head, |slots| {
            let offset = head.layout.parts[0].start as u64;
            FlushedRecord::newest(slots, head.id, offset).map_err(|UnusableData(reason)| {
                damaged(
                    path,
                    &format!("both of its `flushed` records are damaged: {reason}"),
                )
            })
        })?;
        let state = opened.0.state(&opened.1, boot)?;
        Ok(Some((opened, state)))
    }

    /// Columns and nesting of the steps in a file; `None` if there is no file. Does not lock the file.
    ///
    /// # Errors
    /// As [`Self::open`], except for a file that is in use.
    pub(crate) fn schema(path: &Path) -> Result<Option<Arc<Schema>>> {
        match open_file(path) {
            Ok(file) => Head::read(path, &file).map(|head| Some(head.schema)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(path, "opened", &error)),
        }
    }

    /// Maps a locked file. `read` returns the newest record of its slots.
    fn map(
        path: &Path,
        file: File,
        head: &Head,
        read: impl FnOnce(&[u8]) -> Result<FlushedRecord>,
    ) -> Result<OpenedFile> {
        let FileLayout { parts, len, .. } = &head.layout;
        let mapped = mapping::map(&file, *len, parts).map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => Error::out_of_memory(FILE_DESCRIPTION, Some(*len)),
            _ => failed(path, "mapped", &error),
        })?;
        let mut mapped = mapped.into_iter();
        let slots = mapped.next();
        let memory = BufferMemory::from_parts(mapped.collect());
        let (Some(slots), Some(memory)) = (slots, memory) else {
            return Err(damaged(path, "it has too few parts"));
        };
        let file = Self {
            _close_on_fork: CloseOnFork::new([file.as_raw_fd()]),
            path: path.into(),
            id: head.id,
            length: head.size.length as u64,
            slots_offset: parts[0].start as u64,
            record: read(&slots)?,
            syncs: Arc::default(),
            begun: AtomicU64::new(0),
            ended: 0,
            slots,
            file: Arc::new(file),
        };
        Ok((file, memory))
    }

    /// The state of the buffer in the file, according to the newest record and the live state.
    fn state(&self, memory: &BufferMemory, boot: &str) -> Result<FlushedState> {
        let mut state = self.record.state.clone();
        if self.record.is_closed {
            return Ok(state);
        }
        if !self.record.is_of(boot) {
            state.envs = self.record.envs_after_restart(self.length);
            return Ok(state);
        }
        let live = memory.live_state();
        let envs = live.read(state.envs.len(), self.length)?;
        state.envs = envs.unwrap_or_else(|| self.record.envs_after_restart(self.length));
        Ok(state)
    }

    /// Records that this process uses the file, in the run of the machine that `boot` identifies. The steps of the last flush
    /// stay those of the record: others that the buffer has may not be on disk yet.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written.
    pub(crate) fn start(&mut self, boot: &str) -> Result<()> {
        let mut record = self.record.clone();
        record.boot = boot.into();
        record.owner = describe_this_process();
        record.is_closed = false;
        self.write(record)
    }

    /// Prepares to overwrite steps of the last flush with `steps` steps of each of `envs`.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written. Then the steps must not be added.
    pub(crate) fn reserve(
        &mut self,
        buffer: &StepBuffer,
        envs: &[usize],
        steps: usize,
    ) -> Result<()> {
        let flushed = &self.record.state.envs;
        let is_reserved = |env: &usize| {
            let end = buffer.env_steps(*env).added + steps as u64;
            self.overwriting(&flushed[*env], end) <= self.record.reserved[*env]
        };
        if envs.iter().all(is_reserved) {
            return Ok(());
        }
        let mut record = self.record.clone();
        let mut added: Vec<u64> = (0..flushed.len())
            .map(|env| buffer.env_steps(env).added)
            .collect();
        for env in envs {
            added[*env] += steps as u64;
        }
        let new = self.reservations(flushed, added.into_iter());
        // Other environments will soon need more, too.
        for (reserved, new) in record.reserved.iter_mut().zip(new) {
            *reserved = new.max(*reserved);
        }
        self.write(record)
    }

    /// Number of steps after those of a flush, if an environment overwrites some of the flush until it has had `end` steps;
    /// otherwise 0.
    fn overwriting(&self, flushed: &EnvState, end: u64) -> u64 {
        if end <= self.length {
            return 0;
        }
        end - flushed.added
    }

    /// Number of steps to reserve for each environment, which has had `added` steps: more than are needed, because writing a
    /// record for each would be slow.
    fn reservations(
        &self,
        flushed: &[EnvState],
        added: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = u64> {
        let needed = flushed.iter().zip(added);
        needed.map(|(flushed, end)| match self.overwriting(flushed, end) {
            0 => 0,
            needed => needed + self.length.div_ceil(8),
        })
    }

    /// Begins a flush of the steps that the buffer has now.
    pub(crate) fn begin_flush(&self, buffer: &StepBuffer) -> BufferFlush {
        BufferFlush {
            path: self.path.clone(),
            file: Arc::clone(&self.file),
            syncs: Arc::clone(&self.syncs),
            number: self.begun.fetch_add(1, Ordering::Relaxed) + 1,
            state: FlushedState::of(buffer),
        }
    }

    /// Ends a flush; `synced` is the outcome of its sync. `close`: the buffer has not changed since it began, and will not.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be written, or a sync has failed.
    pub(crate) fn finish_flush(
        &mut self,
        buffer: &StepBuffer,
        flush: BufferFlush,
        synced: Result<()>,
        close: bool,
    ) -> Result<()> {
        self.syncs.run(|| synced)?;
        if flush.number < self.ended {
            return Ok(()); // another thread has ended a later flush meanwhile
        }
        let flushed = &flush.state.envs;
        let added = (0..flushed.len()).map(|env| buffer.env_steps(env).added);
        let reserved = self.reservations(flushed, added).collect();
        self.write(FlushedRecord {
            is_closed: close,
            reserved,
            state: flush.state,
            ..self.record.clone()
        })?;
        self.ended = flush.number;
        Ok(())
    }

    /// Writes and syncs a record with the next number.
    fn write(&mut self, mut record: FlushedRecord) -> Result<()> {
        record.number = self.record.number + 1;
        let slot_bytes = self.slots.len() / 2;
        let start = if record.number.is_multiple_of(2) {
            0
        } else {
            slot_bytes
        };
        let body = record.body();
        let offset = self.slots_offset + start as u64;
        let header = record_header(self.id, offset, kind::FLUSHED, &[&body]);
        let Self { slots, path, .. } = self;
        self.syncs.run(|| {
            let slot = &mut slots[start..start + slot_bytes];
            let (of_header, of_body) = slot.split_at_mut(RECORD_HEADER_BYTES);
            let of_body = of_body.get_mut(..body.len());
            let of_body = of_body.ok_or_else(|| damaged(path, "its slots are too small"))?;
            of_header.copy_from_slice(&header);
            of_body.copy_from_slice(&body);
            mapping::sync(slots).map_err(|error| failed(path, "written", &error))
        })?;
        self.record = record;
        Ok(())
    }

    /// The error for one of a buffer in the memory of the file.
    pub(crate) fn to_error(&self, error: Error) -> Error {
        match error {
            Error::Payload(reason) => damaged(&self.path, &reason),
            other => other,
        }
    }

    /// Where the slots are in the file.
    #[cfg(test)]
    pub(crate) fn slots_range(&self) -> std::ops::Range<usize> {
        let start = usize::try_from(self.slots_offset).unwrap();
        start..start + self.slots.len()
    }

    /// Removes the file, if it is still at its path.
    pub(crate) fn remove(&self) {
        if is_at(&self.path, &self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that was not forked by Python may have a copy of it.
        let _ = self.file.unlock();
    }
}

impl BufferFlush {
    /// Writes all that is in memory to disk. The buffer may change meanwhile.
    ///
    /// # Errors
    /// [`Error::Storage`], also if an earlier sync of the file has failed.
    pub fn sync(&self) -> Result<()> {
        self.syncs.run(|| {
            let synced = self.file.sync_data();
            synced.map_err(|error| failed(&self.path, "written", &error))
        })
    }
}

/// Identifies the run of this machine: it is another one after a restart. Empty if it is unknown.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().chars().take(64).collect()
}

/// Opens a file for reading and writing.
fn open_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is not a file"))
}

/// Opens and locks the file at a path; `None` if there is none.
///
/// # Errors
/// [`Error::Storage`] if it cannot be read, is not the file of a mapped buffer, or is in use.
fn open_locked(path: &Path) -> Result<Option<(File, Head)>> {
    loop {
        let file = match open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path, "opened", &error)),
        };
        let head = Head::read(path, &file)?;
        lock(path, &file)?;
        // Until it was locked, another file may have replaced it.
        if is_at(path, &file) {
            return Ok(Some((file, head)));
        }
    }
}

/// True if `path` is that of this file.
fn is_at(path: &Path, file: &File) -> bool {
    let found = File::open(path).and_then(|found| file_id(&found));
    found.is_ok_and(|found| file_id(file).is_ok_and(|id| id == found))
}

/// Locks a file.
fn lock(path: &Path, file: &File) -> Result<()> {
    match lock_after_checks(|| file.try_lock()) {
        Ok(()) => Ok(()),
        Err(TryLockError::Error(error)) => Err(failed(path, "locked", &error)),
        Err(TryLockError::WouldBlock) => {
            let error = in_use_if_mapped(path, file);
            Err(error.unwrap_or_else(|| in_use(path, "another process")))
        }
    }
}

/// The error for a file that is locked, if it is that of a mapped buffer.
pub(super) fn in_use_if_mapped(path: &Path, file: &File) -> Option<Error> {
    let head = Head::read(path, file).ok()?;
    Some(in_use(path, &read_owner(file, &head)?))
}

/// The error for a file that `owner` uses.
fn in_use(path: &Path, owner: &str) -> Error {
    let path = path.display();
    Error::Storage(match since_if_this_process(owner) {
        Some(since) => format!(
            "{path} is in use by this process (since {since}), according to the file: close that buffer first; if \
             this process does not have it open, a process in another container does: close the buffer there first"
        ),
        None => format!(
            "{path} is in use by {owner}; only one process at a time can use it: close the buffer there first"
        ),
    })
}

/// The process that uses a file, as its newest record states.
fn read_owner(file: &File, head: &Head) -> Option<String> {
    let slots = head.layout.parts[0].clone();
    let mut bytes = vec![0; slots.len()];
    file.read_exact_at(&mut bytes, slots.start as u64).ok()?;
    let record = FlushedRecord::newest(&bytes, head.id, slots.start as u64);
    record.ok().map(|record| record.owner)
}

/// Provides disk space for all bytes of a file, so that writing to a mapping cannot fail. `what` is done with the file.
fn allocate(path: &Path, file: &File, head: &Head, what: &str) -> Result<()> {
    let len = head.layout.len;
    let allocated = loop {
        match fallocate(file, FallocateFlags::empty(), 0, len as u64) {
            Err(Errno::INTR) => {}
            // The file system does not support it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break fill(file, len as u64),
            allocated => break allocated.map_err(io::Error::from),
        }
    };
    allocated.map_err(|error| {
        let reason = format!("its {len} bytes cannot be allocated: {error}");
        failed(path, what, &reason)
    })
}

/// Writes zeros to the rest of a file.
fn fill(file: &File, len: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut offset = file.metadata()?.len();
    while offset < len {
        let bytes = usize::try_from(len - offset).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_all_at(&zeros[..bytes], offset)?;
        offset += bytes as u64;
    }
    Ok(())
}
