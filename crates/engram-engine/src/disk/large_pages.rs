//! Memory that is about to be filled, in large pages: small ones come one by one, and each takes longer than its bytes.

#![expect(unsafe_code, reason = "the system is told of memory by its address")]

use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Bytes of a large page.
const PAGE: usize = 2 << 20;

/// So many are asked for at a time: what an allocator hands out next likely lies there, and must not have been touched.
const AHEAD: usize = 32;

/// Where large pages were asked for last.
#[derive(Debug, Default)]
pub(super) struct LargePages {
    /// By their numbers.
    asked: Range<usize>,
}

impl LargePages {
    /// Asks for them behind a buffer, unless that was done.
    pub(super) fn prefer(&mut self, buffer: &mut [u8]) {
        let start = buffer.as_mut_ptr();
        let page = start.addr() / PAGE;
        if self.asked.contains(&page) && self.asked.contains(&(page + AHEAD / 2)) {
            return;
        }
        self.asked = page..page + AHEAD;
        let from = start.map_addr(|_| page * PAGE).cast();
        // SAFETY: how memory is backed changes, and not what it holds, whosever it is.
        let asked = unsafe { madvise(from, AHEAD * PAGE, Advice::LinuxHugepage) };
        // Where there are none, or not everywhere, small ones do.
        let _ = asked;
    }
}
