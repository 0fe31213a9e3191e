//! A simulated directory whose machine loses power: bytes that were not synced are lost, partly kept, or changed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::disk::directory::{Directory, FileId, ReadableDirectory, ReadableFile, WritableFile};

/// A file's bytes. The first `synced` of them survive a power loss.
#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    synced: usize,
}

type FilesByName = BTreeMap<String, Arc<Mutex<Content>>>;

/// A directory whose machine loses power after a number of calls that change or sync the directory or its files.
#[derive(Clone, Debug, Default)]
pub(crate) struct PowerLossDirectory {
    /// The files that exist now.
    current: Arc<Mutex<FilesByName>>,
    /// The files as of the last sync of the directory.
    synced: Arc<Mutex<FilesByName>>,
    /// Number of calls that change or sync the directory or its files, left before the power loss.
    writes_left: Arc<Mutex<u64>>,
    /// Number of successful syncs of the directory before one fails; `None` if none fails.
    directory_syncs_left: Arc<Mutex<Option<u64>>>,
    /// Number of successful reads of files before one fails for lack of memory; `None` if none fails.
    reads_left: Arc<Mutex<Option<u64>>>,
    /// True if this process has lost its lock of the directory.
    lock_lost: Arc<AtomicBool>,
}

impl PowerLossDirectory {
    /// Sets the number of calls that change or sync the directory or its files before the power loss.
    pub(crate) fn set_writes_left(&self, writes: u64) {
        *self.writes_left.lock() = writes;
    }

    /// Number of these calls that are left before the power loss.
    pub(crate) fn writes_left(&self) -> u64 {
        *self.writes_left.lock()
    }

    /// Makes one sync of the directory fail, after `syncs` successful ones.
    pub(crate) fn fail_directory_sync(&self, syncs: u64) {
        *self.directory_syncs_left.lock() = Some(syncs);
    }

    /// Makes one read of a file fail for lack of memory, after `reads` successful ones.
    pub(crate) fn fail_read(&self, reads: u64) {
        *self.reads_left.lock() = Some(reads);
    }

    /// True if the failure set by [`Self::fail_read`] has not occurred yet.
    pub(crate) fn has_pending_read_failure(&self) -> bool {
        self.reads_left.lock().is_some()
    }

    /// The same directory, as used by another process that has taken over its lock: `self` has lost the lock.
    pub(crate) fn in_other_process(&self) -> Self {
        self.lock_lost.store(true, Ordering::Relaxed);
        Self {
            lock_lost: Arc::default(),
            ..self.clone()
        }
    }

    /// A directory with these files, all synced.
    pub(crate) fn from_files(files: &[(String, Vec<u8>)]) -> Self {
        let contents = files.iter().map(|(name, bytes)| {
            let content = Content {
                bytes: bytes.clone(),
                synced: bytes.len(),
            };
            (name.clone(), Arc::new(Mutex::new(content)))
        });
        let files = Self::default();
        *files.current.lock() = contents.collect();
        *files.synced.lock() = files.current.lock().clone();
        files.set_writes_left(u64::MAX);
        files
    }

    /// Name and content of each file.
    pub(crate) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let current = self.current.lock();
        let contents = current
            .iter()
            .map(|(name, content)| (name.clone(), content.lock().bytes.clone()));
        contents.collect()
    }

    /// The directory after the machine has restarted.
    pub(crate) fn after_power_loss(&self, rng: &mut Xoshiro256PlusPlus) -> Self {
        let (current, synced) = (self.current.lock(), self.synced.lock());
        let mut surviving = FilesByName::new();
        for name in current.keys().chain(synced.keys()) {
            // A creation, rename or removal that was not synced may be lost.
            let versions = [current.get(name), synced.get(name)];
            let Some(content) = versions[usize::from(rng.next_u64().is_multiple_of(2))] else {
                continue;
            };
            surviving.insert(
                name.clone(),
                Arc::new(Mutex::new(surviving_content(&content.lock(), rng))),
            );
        }
        Self {
            synced: Arc::new(Mutex::new(surviving.clone())),
            current: Arc::new(Mutex::new(surviving)),
            writes_left: Arc::new(Mutex::new(u64::MAX)),
            ..Self::default()
        }
    }

    /// Counts a call that changes or syncs the directory or a file. Fails after the power loss.
    fn count_write(&self) -> io::Result<()> {
        let mut writes_left = self.writes_left.lock();
        if *writes_left == 0 {
            return Err(io::Error::other("power loss"));
        }
        *writes_left -= 1;
        Ok(())
    }

    fn content(&self, name: &str) -> io::Result<Arc<Mutex<Content>>> {
        let content = self.current.lock().get(name).cloned();
        content.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// What a power loss leaves of a file: the synced bytes and a random number of the bytes after them,
/// of which some may be wrong.
fn surviving_content(content: &Content, rng: &mut Xoshiro256PlusPlus) -> Content {
    let unsynced = (content.bytes.len() - content.synced) as u64;
    let kept = usize::try_from(rng.next_u64() % (unsynced + 1)).unwrap();
    let mut bytes = content.bytes[..content.synced + kept].to_vec();
    match rng.next_u64() % 3 {
        // A page was not written.
        0 if kept > 0 => {
            let from = content.synced + usize::try_from(rng.next_u64() % kept as u64).unwrap();
            let to = (from + 4096).min(bytes.len());
            bytes[from..to].fill(0);
        }
        // A bit is wrong.
        1 if kept > 0 => {
            let offset = content.synced + usize::try_from(rng.next_u64() % kept as u64).unwrap();
            bytes[offset] ^= 0x10;
        }
        _ => {}
    }
    Content {
        synced: bytes.len(),
        bytes,
    }
}

impl ReadableDirectory for PowerLossDirectory {
    fn path(&self) -> &Path {
        Path::new("power-loss")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.current.lock().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadableFile>> {
        let bytes = self.content(name)?.lock().bytes.clone();
        let reads_left = Arc::clone(&self.reads_left);
        Ok(Box::new(PowerLossReader { bytes, reads_left }))
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        Ok(content_id(&self.content(name)?))
    }
}

impl Directory for PowerLossDirectory {
    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        self.count_write()?;
        let content = Arc::<Mutex<Content>>::default();
        self.current
            .lock()
            .insert(name.into(), Arc::clone(&content));
        Ok(Box::new(PowerLossWriter {
            files: self.clone(),
            content,
        }))
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        self.count_write()?;
        let content = self.content(name)?;
        let mut content = content.lock();
        content.bytes.truncate(usize::try_from(len).unwrap());
        content.synced = content.bytes.len();
        Ok(())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.count_write()?;
        let content = self.content(name)?;
        let mut content = content.lock();
        content.synced = content.bytes.len();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if self.current.lock().contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.replace(from, to)
    }

    fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        self.count_write()?;
        let content = self.content(from)?;
        let mut current = self.current.lock();
        current.remove(from);
        current.insert(to.into(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.count_write()?;
        self.current.lock().remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.count_write()?;
        let mut syncs_left = self.directory_syncs_left.lock();
        if *syncs_left == Some(0) {
            *syncs_left = None;
            return Err(io::Error::other("the directory cannot be synced"));
        }
        *syncs_left = syncs_left.map(|syncs| syncs - 1);
        *self.synced.lock() = self.current.lock().clone();
        Ok(())
    }

    fn check_lock(&self) -> io::Result<bool> {
        Ok(!self.lock_lost.load(Ordering::Relaxed))
    }
}

/// Identifies a file by the address of its content.
fn content_id(content: &Arc<Mutex<Content>>) -> FileId {
    FileId {
        device: 0,
        inode: Arc::as_ptr(content).addr() as u64,
    }
}

#[derive(Debug)]
struct PowerLossWriter {
    files: PowerLossDirectory,
    content: Arc<Mutex<Content>>,
}

impl WritableFile for PowerLossWriter {
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let counted = self.files.count_write();
        let mut content = self.content.lock();
        if counted.is_err() {
            // The power loss interrupts the write: only the first piece was written.
            content
                .bytes
                .extend(pieces.iter().take(1).flat_map(|piece| *piece));
            return counted;
        }
        content.bytes.extend(pieces.concat());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.count_write()?;
        let mut content = self.content.lock();
        content.synced = content.bytes.len();
        Ok(())
    }

    fn id(&self) -> io::Result<FileId> {
        Ok(content_id(&self.content))
    }
}

#[derive(Debug)]
struct PowerLossReader {
    bytes: Vec<u8>,
    reads_left: Arc<Mutex<Option<u64>>>,
}

impl ReadableFile for PowerLossReader {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut reads_left = self.reads_left.lock();
        if *reads_left == Some(0) {
            *reads_left = None;
            return Err(rustix::io::Errno::NOMEM.into());
        }
        *reads_left = reads_left.map(|reads| reads - 1);
        let from = usize::try_from(offset).unwrap();
        let bytes = self.bytes.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
