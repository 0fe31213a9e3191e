//! What servers listen at, for forked children: a port stays taken while anybody has it open.

#![expect(
    unsafe_code,
    reason = "the numbers of sockets are all that a child has of them"
)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

static LISTENING: Mutex<Vec<Socket>> = Mutex::new(Vec::new());

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
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        listening.extend(&sockets);
        Self(sockets)
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        listening.retain(|socket| !self.0.contains(socket));
    }
}

/// Closes what servers of this process listen at. To be called in a forked child, where none of them runs.
pub fn close_inherited() {
    // Held by a thread that is not here: then they stay open.
    let Ok(mut listening) = LISTENING.try_lock() else {
        return;
    };
    for socket in listening.drain(..) {
        if Socket::open(socket.fd) == Some(socket) {
            // SAFETY: open, and the server that owned it does not run in this process.
            drop(unsafe { File::from_raw_fd(socket.fd) });
        }
    }
}
