//! The errors about a mapped file.

use std::fmt::Display;
use std::path::Path;

use engram_core::Error;

/// What lacks memory, for error texts.
pub(super) const THE_FILE: &str = "the file of the replay buffer";

pub(super) fn failed(path: &Path, what: &str, reason: &dyn Display) -> Error {
    Error::Storage(format!("{} cannot be {what}: {reason}", path.display()))
}

pub(super) fn damaged(path: &Path, reason: &str) -> Error {
    Error::Storage(format!("{} cannot be used: {reason}", path.display()))
}
