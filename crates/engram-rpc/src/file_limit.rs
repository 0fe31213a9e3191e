//! Errors at the limit of open files.

use std::io;

/// `ENFILE` and `EMFILE`, on Linux and macOS: the system, or this process, has too many open files.
const CODES: [i32; 2] = [23, 24];

/// What to do about an error at the limit of open files, to append to its text; empty for other errors.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(code) if CODES.contains(&code) => {
            "; close some files, or raise the limit of open files (`ulimit -n`)"
        }
        _ => "",
    }
}
