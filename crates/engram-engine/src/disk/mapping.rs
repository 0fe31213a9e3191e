//! A file in memory.

#![expect(unsafe_code, reason = "mapped memory has no safe API")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use engram_core::AlignedBytes;
use engram_core::aligned::MemoryOwner;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

/// Alignment of the parts of a file, in bytes: a multiple of the page size of any machine.
pub(super) const PART_ALIGNMENT: usize = 64 << 10;

/// The memory of a whole file.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: mapped memory belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; the parts, which give access to the memory, do not overlap.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: all parts hold a reference to the mapping, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        // It fails only for an invalid range.
        let _ = unmapped;
    }
}

/// A part of a mapping.
#[derive(Debug)]
struct Part {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

// SAFETY: the part lies within the mapping, which it keeps alive, and overlaps no other one. It begins at a multiple of the
// page size.
unsafe impl MemoryOwner for Part {
    fn bytes(&mut self) -> NonNull<[u8]> {
        // SAFETY: `map` has checked that the range lies within the mapping.
        let start = unsafe { self.mapping.start.add(self.range.start) };
        NonNull::slice_from_raw_parts(start, self.range.len())
    }
}

/// Maps a file of `len` bytes for reading and writing; returns these parts of it, in the same order. Forked children do not
/// inherit the memory: otherwise they would keep the lock of the file.
///
/// The file must have memory or disk space for all of its bytes, and must not be truncated while it is mapped: accessing a
/// byte that cannot be provided ends the process.
///
/// # Errors
/// An error of the system; `InvalidInput` if a part is not within the file, overlaps another one or is not aligned.
pub(super) fn map(
    file: &File,
    len: usize,
    parts: &[Range<usize>],
) -> io::Result<Vec<AlignedBytes>> {
    let mut end = 0;
    for part in parts {
        if part.start < end || part.end < part.start || part.start % PART_ALIGNMENT != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        end = part.end;
    }
    if end > len {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the system chooses.
    let start = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    let mapping = Arc::new(Mapping { start, len });
    // SAFETY: the advice concerns only forked children, which do not use the memory.
    unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
    let parts = parts.iter().map(|range| {
        let (mapping, range) = (Arc::clone(&mapping), range.clone());
        AlignedBytes::from_owner(Box::new(Part { mapping, range }))
    });
    Ok(parts.collect())
}

/// Writes a part that [`map`] has returned to disk.
pub(super) fn sync(part: &mut AlignedBytes) -> io::Result<()> {
    // SAFETY: the memory is that of the part, which begins at a page.
    Ok(unsafe { msync(part.as_mut_ptr().cast(), part.len(), MsyncFlags::SYNC) }?)
}
