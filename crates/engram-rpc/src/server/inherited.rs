//! What servers listen at, for forked children: a port stays taken while anybody has it open.

#![expect(
    unsafe_code,
    reason = "the numbers of sockets are all that a child has of them"
)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Sockets = Mutex<Vec<Socket>>;

/// A forked child's list, where the one below was left locked by a thread that the child does not have.
static FRESH: AtomicPtr<Sockets> = AtomicPtr::new(ptr::null_mut());
static LISTENING: Sockets = Mutex::new(Vec::new());

fn list() -> &'static Sockets {
    let fresh = FRESH.load(Ordering::Acquire);
    // SAFETY: null, or leaked.
    unsafe { fresh.as_ref() }.unwrap_or(&LISTENING)
}

fn listening() -> MutexGuard<'static, Vec<Socket>> {
    list().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket by its number, and by what tells whether the number is another's by now.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Socket {
    fd: RawFd,
    inode: u64,
}

impl Socket {
    fn open(fd: RawFd) -> Option<Self> {
        // SAFETY: only asked about, which fails where nothing of that number is open; never closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let inode = file.metadata().ok()?.ino();
        Some(Self { fd, inode })
    }
}

/// Sockets that children close, for as long as this lives.
#[derive(Debug)]
pub(super) struct Inherited(Vec<Socket>);

impl Inherited {
    pub(super) fn new(sockets: impl Iterator<Item = RawFd>) -> Self {
        let sockets: Vec<_> = sockets.filter_map(Socket::open).collect();
        listening().extend(&sockets);
        Self(sockets)
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        listening().retain(|socket| !self.0.contains(socket));
    }
}

/// Closes what servers of this process listen at. To be called in a forked child, where none of them runs.
pub fn close_inherited() {
    // Held by a thread that is not here: then they stay open.
    let Ok(mut listening) = list().try_lock() else {
        let fresh = Box::leak(Box::default());
        return FRESH.store(fresh, Ordering::Release);
    };
    for socket in listening.drain(..) {
        if Socket::open(socket.fd) == Some(socket) {
            // SAFETY: open, and the server that owned it does not run in this process.
            drop(unsafe { File::from_raw_fd(socket.fd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_left_locked_keeps_nobody() {
        let gone = listening();
        close_inherited();
        drop(Inherited::new([0].into_iter()));
        drop(gone);
    }
}
