//! The errors about a file or a directory.

use std::fmt::Display;
use std::path::Path;

use engram_core::Error;

/// The error of an operation on a file or directory. `what` is its past participle, such as `created`.
pub(super) fn failed(path: &Path, what: &str, reason: &dyn Display) -> Error {
    Error::Storage(format!("{} cannot be {what}: {reason}", path.display()))
}

/// The error for a file with contents that cannot be used.
pub(super) fn damaged(path: &Path, reason: &str) -> Error {
    failed(path, "used", &reason)
}
