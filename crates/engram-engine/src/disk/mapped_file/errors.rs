//! The errors about a mapped file.

use std::fmt::Display;
use std::path::Path;

use engram_core::Error;

/// Describes a mapped file in the texts of [`Error::OutOfMemory`].
pub(super) const FILE_DESCRIPTION: &str = "the file of the replay buffer";

/// The error of an operation on a file. `what` is its past participle, such as `created`.
pub(super) fn failed(path: &Path, what: &str, reason: &dyn Display) -> Error {
    Error::Storage(format!("{} cannot be {what}: {reason}", path.display()))
}

/// The error for a file with contents that cannot be used.
pub(super) fn damaged(path: &Path, reason: &str) -> Error {
    Error::Storage(format!("{} cannot be used: {reason}", path.display()))
}
