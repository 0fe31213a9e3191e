//! Huge pages for memory that is about to be filled: with small pages, page faults take longer than
//! copying the bytes, and random reads need a second access to find the page.

#![expect(unsafe_code, reason = "`madvise` takes memory by its address")]

use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Size of a huge page in bytes.
const PAGE_BYTES: usize = 2 << 20;

/// Number of pages requested at a time. The allocator's next buffers likely follow the current one,
/// and the advice must come before their memory is first touched.
const PAGES_AHEAD: usize = 32;

/// Requests huge pages, and remembers for which memory they were requested last.
#[derive(Debug, Default)]
pub(crate) struct HugePages {
    /// Page numbers: addresses divided by `PAGE_BYTES`.
    requested: Range<usize>,
}

impl HugePages {
    /// Requests huge pages for the memory from the buffer's start on. Does nothing if the last request covers at least
    /// the next `PAGES_AHEAD / 2` pages.
    pub(crate) fn request(&mut self, buffer: &mut [u8]) {
        let start = buffer.as_mut_ptr();
        let page = start.addr() / PAGE_BYTES;
        if self.requested.contains(&page) && self.requested.contains(&(page + PAGES_AHEAD / 2)) {
            return;
        }
        self.requested = page..page + PAGES_AHEAD;
        advise(start.map_addr(|_| page * PAGE_BYTES), PAGES_AHEAD);
    }
}

/// Requests huge pages for a buffer that was not used yet. Its first and last bytes may stay in small pages: they do
/// not fill a huge page.
pub(crate) fn request_huge_pages(buffer: &mut [u8]) {
    let start = buffer.as_mut_ptr();
    let first = start.addr().div_ceil(PAGE_BYTES);
    let end = (start.addr() + buffer.len()) / PAGE_BYTES;
    if first < end {
        advise(start.map_addr(|_| first * PAGE_BYTES), end - first);
    }
}

/// Requests huge pages for the memory of `pages` huge pages, from `start` on.
fn advise(start: *mut u8, pages: usize) {
    // SAFETY: the advice changes how memory is backed, never its content.
    let advised = unsafe { madvise(start.cast(), pages * PAGE_BYTES, Advice::LinuxHugepage) };
    // If huge pages are not available, small pages work too.
    let _ = advised;
}
