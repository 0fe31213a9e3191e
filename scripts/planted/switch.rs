//! Switches of planted faults, copied into a crate by `scripts/plant_faults.py`.
#![allow(unsafe_code, dead_code, missing_docs, clippy::all, clippy::pedantic)]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Size of the file with one byte per fault.
const MAP_BYTES: usize = 4096;

unsafe extern "C" {
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
}

struct Switches {
    /// The number of the fault that is on; 0 if none is.
    active: usize,
    /// One byte per fault, shared by all processes of a test. `None` unless reached faults are recorded.
    map: Option<&'static [AtomicU8; MAP_BYTES]>,
}

/// Reads the environment once per process.
fn switches() -> &'static Switches {
    static SWITCHES: OnceLock<Switches> = OnceLock::new();
    SWITCHES.get_or_init(|| Switches {
        active: std::env::var("ENGRAM_FAULT").map_or(0, |number| number.parse().unwrap()),
        map: std::env::var_os("ENGRAM_FAULT_MAP").map(|path| map(path.into())),
    })
}

/// Maps a file; in a folder, the file of the running test of nextest.
fn map(mut path: PathBuf) -> &'static [AtomicU8; MAP_BYTES] {
    if path.is_dir() {
        let variable = |name| std::env::var(name).unwrap_or_default();
        path.push(format!("{} {}", variable("NEXTEST_BINARY_ID"), variable("NEXTEST_TEST_NAME")));
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(MAP_BYTES as u64).unwrap();
    // SAFETY: a new shared mapping of the whole file, readable and writable (1 | 2), that stays mapped (MAP_SHARED = 1).
    unsafe {
        let address = mmap(std::ptr::null_mut(), MAP_BYTES, 3, 1, file.as_raw_fd(), 0);
        assert!(address as isize != -1);
        &*address.cast()
    }
}

/// True if fault `number` is on. Records that it was reached.
pub(crate) fn on(number: usize) -> bool {
    let switches = switches();
    if let Some(map) = switches.map {
        map[number].store(1, Ordering::Relaxed);
    }
    switches.active == number
}

/// Returns `faulty` if fault `number` is on, otherwise `correct`. Records whether the values differ.
pub(crate) fn pick<T: PartialEq>(number: usize, correct: T, faulty: T) -> T {
    let switches = switches();
    if let Some(map) = switches.map
        && correct != faulty
    {
        map[number].store(1, Ordering::Relaxed);
    }
    if switches.active == number { faulty } else { correct }
}
