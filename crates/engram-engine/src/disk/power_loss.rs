//! A file system that loses power: what was not synced is gone, or half there, or garbage.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::file_system::{FileSystem, Read, WritableFile};

/// Bytes of a file, of which the first `safe` outlive the power.
#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    safe: usize,
}

type Names = BTreeMap<String, Arc<Mutex<Content>>>;

/// A directory whose machine stops at a chosen write.
#[derive(Clone, Debug, Default)]
pub(super) struct PowerLossFiles {
    names: Arc<Mutex<Names>>,
    safe: Arc<Mutex<Names>>,
    /// Writes before the power goes.
    left: Arc<Mutex<u64>>,
}

impl PowerLossFiles {
    /// Has power for so many writes.
    pub(super) fn power(&self, writes: u64) {
        *self.left.lock() = writes;
    }

    /// Writes that it had power for and were not made.
    pub(super) fn left(&self) -> u64 {
        *self.left.lock()
    }

    /// A directory with these files, all of them safe.
    pub(super) fn of(files: &[(String, Vec<u8>)]) -> Self {
        let contents = files.iter().map(|(name, bytes)| {
            let content = Content {
                bytes: bytes.clone(),
                safe: bytes.len(),
            };
            (name.clone(), Arc::new(Mutex::new(content)))
        });
        let files = Self::default();
        *files.names.lock() = contents.collect();
        files.power(u64::MAX);
        files
    }

    /// What there is.
    pub(super) fn all(&self) -> Vec<(String, Vec<u8>)> {
        let names = self.names.lock();
        let contents = names
            .iter()
            .map(|(name, content)| (name.clone(), content.lock().bytes.clone()));
        contents.collect()
    }

    /// The same directory after the machine has started again.
    pub(super) fn after_power_cut(&self, rng: &mut Xoshiro256PlusPlus) -> Self {
        let (names, safe) = (self.names.lock(), self.safe.lock());
        let mut left = Names::new();
        for name in names.keys().chain(safe.keys()) {
            let either = [names.get(name), safe.get(name)];
            let Some(content) = either[usize::from(rng.next_u64().is_multiple_of(2))] else {
                continue;
            };
            left.insert(
                name.clone(),
                Arc::new(Mutex::new(half(&content.lock(), rng))),
            );
        }
        Self {
            safe: Arc::new(Mutex::new(left.clone())),
            names: Arc::new(Mutex::new(left)),
            left: Arc::new(Mutex::new(u64::MAX)),
        }
    }

    fn spend(&self) -> io::Result<()> {
        let mut left = self.left.lock();
        if *left == 0 {
            return Err(io::Error::other("the power is gone"));
        }
        *left -= 1;
        Ok(())
    }

    fn content(&self, name: &str) -> io::Result<Arc<Mutex<Content>>> {
        let found = self.names.lock().get(name).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// What is left of a file: what was synced, and of the rest anything.
fn half(content: &Content, rng: &mut Xoshiro256PlusPlus) -> Content {
    let unsafe_bytes = (content.bytes.len() - content.safe) as u64;
    let kept = usize::try_from(rng.next_u64() % (unsafe_bytes + 1)).unwrap();
    let mut bytes = content.bytes[..content.safe + kept].to_vec();
    match rng.next_u64() % 3 {
        // A page that was not written in between.
        0 if kept > 0 => {
            let from = content.safe + usize::try_from(rng.next_u64() % kept as u64).unwrap();
            let to = (from + 4096).min(bytes.len());
            bytes[from..to].fill(0);
        }
        1 if kept > 0 => {
            let at = content.safe + usize::try_from(rng.next_u64() % kept as u64).unwrap();
            bytes[at] ^= 0x10;
        }
        _ => {}
    }
    Content {
        safe: bytes.len(),
        bytes,
    }
}

impl FileSystem for PowerLossFiles {
    fn path(&self) -> &Path {
        Path::new("power")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names.lock().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn WritableFile>> {
        self.spend()?;
        let content = Arc::<Mutex<Content>>::default();
        self.names.lock().insert(name.into(), Arc::clone(&content));
        Ok(Box::new(PowerLossFile {
            files: self.clone(),
            content,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let bytes = self.content(name)?.lock().bytes.clone();
        Ok(Box::new(PowerLossRead(bytes)))
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        self.spend()?;
        let content = self.content(name)?;
        let mut content = content.lock();
        content.bytes.truncate(usize::try_from(len).unwrap());
        content.safe = content.bytes.len();
        Ok(())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.spend()?;
        let content = self.content(name)?;
        let mut content = content.lock();
        content.safe = content.bytes.len();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.spend()?;
        let content = self.content(from)?;
        let mut names = self.names.lock();
        names.remove(from);
        names.insert(to.into(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.spend()?;
        self.names.lock().remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.spend()?;
        *self.safe.lock() = self.names.lock().clone();
        Ok(())
    }
}

#[derive(Debug)]
struct PowerLossFile {
    files: PowerLossFiles,
    content: Arc<Mutex<Content>>,
}

impl WritableFile for PowerLossFile {
    fn append(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let spent = self.files.spend();
        let mut content = self.content.lock();
        if spent.is_err() {
            // Some of it may have gone out.
            content
                .bytes
                .extend(pieces.iter().take(1).flat_map(|piece| *piece));
            return spent;
        }
        content.bytes.extend(pieces.concat());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.spend()?;
        let mut content = self.content.lock();
        content.safe = content.bytes.len();
        Ok(())
    }
}

#[derive(Debug)]
struct PowerLossRead(Vec<u8>);

impl Read for PowerLossRead {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
        let from = usize::try_from(place).unwrap();
        let bytes = self.0.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
