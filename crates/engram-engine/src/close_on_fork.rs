//! File descriptors that forked children close. Otherwise, the parent's listening ports and directory
//! locks would stay in use by a child after the parent has closed them.

#![expect(
    unsafe_code,
    reason = "a child knows the inherited files only by their descriptor numbers"
)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Registry = Mutex<Vec<OpenFile>>;

/// Replaces `REGISTRY` in a child whose parent forked while another thread held the registry's lock.
static REPLACEMENT: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());
static REGISTRY: Registry = Mutex::new(Vec::new());

fn registry() -> &'static Registry {
    let replacement = REPLACEMENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or points to a leaked box.
    unsafe { replacement.as_ref() }.unwrap_or(&REGISTRY)
}

fn lock_registry() -> MutexGuard<'static, Vec<OpenFile>> {
    registry().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor with the identity of its file, to detect a descriptor number that was reused.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OpenFile {
    fd: RawFd,
    device: u64,
    inode: u64,
}

impl OpenFile {
    /// Returns `None` if the descriptor is not open.
    fn new(fd: RawFd) -> Option<Self> {
        // SAFETY: only its metadata is read, which fails for a closed descriptor; `ManuallyDrop` never closes it.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let metadata = file.metadata().ok()?;
        Some(Self {
            fd,
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

/// Sockets and files that forked children close. Dropping this value ends that.
#[derive(Debug)]
pub struct CloseOnFork(Vec<OpenFile>);

impl CloseOnFork {
    /// Registers those of the descriptors that are open.
    pub fn new(descriptors: impl IntoIterator<Item = RawFd>) -> Self {
        let files: Vec<_> = descriptors.into_iter().filter_map(OpenFile::new).collect();
        lock_registry().extend(&files);
        Self(files)
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        lock_registry().retain(|file| !self.0.contains(file));
    }
}

/// Closes the files that the parent's servers and stores have open. Call it in a forked child, in
/// which no server or store runs.
pub fn close_after_fork() {
    // A thread that exists only in the parent may have locked the registry: then the files stay open.
    let Ok(mut files) = registry().try_lock() else {
        let replacement = Box::leak(Box::default());
        return REPLACEMENT.store(replacement, Ordering::Release);
    };
    for file in files.drain(..) {
        if OpenFile::new(file.fd) == Some(file) {
            // SAFETY: the descriptor is open, and its owner does not run in this process.
            drop(unsafe { File::from_raw_fd(file.fd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_was_locked_at_the_fork_is_replaced() {
        let guard = lock_registry();
        close_after_fork();
        drop(CloseOnFork::new([0]));
        drop(guard);
    }
}
