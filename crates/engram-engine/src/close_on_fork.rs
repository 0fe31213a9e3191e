//! What forked children close: a port that is listened at, and a directory that is locked, stay taken while anybody
//! has them open.

#![expect(
    unsafe_code,
    reason = "their numbers are all that a child has of open files"
)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

type List = Mutex<Vec<Taken>>;

/// A forked child's list, where the one below was left locked by a thread that the child does not have.
static FRESH: AtomicPtr<List> = AtomicPtr::new(ptr::null_mut());
static TAKEN: List = Mutex::new(Vec::new());

fn list() -> &'static List {
    let fresh = FRESH.load(Ordering::Acquire);
    // SAFETY: null, or leaked.
    unsafe { fresh.as_ref() }.unwrap_or(&TAKEN)
}

fn taken() -> MutexGuard<'static, Vec<Taken>> {
    list().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket or a file by its number, and by what tells whether the number is another's by now.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Taken {
    fd: RawFd,
    device: u64,
    inode: u64,
}

impl Taken {
    fn open(fd: RawFd) -> Option<Self> {
        // SAFETY: only asked about, which fails where nothing of that number is open; never closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let found = file.metadata().ok()?;
        Some(Self {
            fd,
            device: found.dev(),
            inode: found.ino(),
        })
    }
}

/// Sockets and files that children close, for as long as this lives.
#[derive(Debug)]
pub struct CloseOnFork(Vec<Taken>);

impl CloseOnFork {
    /// Of these numbers, those that are open.
    pub fn new(numbers: impl IntoIterator<Item = RawFd>) -> Self {
        let opened: Vec<_> = numbers.into_iter().filter_map(Taken::open).collect();
        taken().extend(&opened);
        Self(opened)
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        taken().retain(|open| !self.0.contains(open));
    }
}

/// Closes what servers and stores of the parent have open. To be called in a forked child, where none of them runs.
pub fn close_after_fork() {
    // Held by a thread that is not here: then they stay open.
    let Ok(mut taken) = list().try_lock() else {
        let fresh = Box::leak(Box::default());
        return FRESH.store(fresh, Ordering::Release);
    };
    for open in taken.drain(..) {
        if Taken::open(open.fd) == Some(open) {
            // SAFETY: open, and what owned it does not run in this process.
            drop(unsafe { File::from_raw_fd(open.fd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_left_locked_keeps_nobody() {
        let gone = taken();
        close_after_fork();
        drop(CloseOnFork::new([0]));
        drop(gone);
    }
}
