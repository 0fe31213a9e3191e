//! Everything that can go wrong, one variant per cause a caller can act on.

use std::fmt;

/// Shorthand used throughout the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was asked, what was found, what is allowed: each text says all three.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No table of that name exists.
    #[error("no table `{name}`; known tables: {}", listed(.known))]
    UnknownTable {
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// Data does not fit its column or the table's signature.
    #[error("{0}")]
    Signature(String),
    /// A priority that the table cannot hold.
    #[error("{0}")]
    Priority(String),
    /// A request or a configuration that makes no sense.
    #[error("{0}")]
    InvalidArgument(String),
    /// The deadline passed; the text says how far the call got.
    #[error("{0}")]
    DeadlineExceeded(String),
    /// The request could wait for ever: it can never be served.
    #[error("{0}")]
    Unsatisfiable(String),
    /// The store, table or writer was closed or dropped.
    #[error("{0}")]
    Closed(String),
    /// An item refers to steps that its writer no longer keeps.
    #[error("{0}")]
    ExpiredStep(String),
    /// The writer is at its bound of unconfirmed items and was told not to wait.
    #[error("{0}")]
    Backpressure(String),
    /// The server cannot be reached, or has been gone for too long.
    #[error("{0}")]
    Unavailable(String),
    /// The server is there and does not let this client in: its token, certificate or version.
    #[error("{0}")]
    Handshake(String),
    /// Stored bytes could not be read back.
    #[error("{0}")]
    Payload(String),
    /// Files that a store is to keep cannot be written or read.
    #[error("{0}")]
    Storage(String),
    /// The system does not give as much memory as a request needs. Nothing was written; what was
    /// drawn has gone back if it was leased, and counts as sampled otherwise.
    #[error("{0}")]
    OutOfMemory(String),
}

impl Error {
    /// `what` needs so many bytes, more than can be counted if `None`.
    pub fn out_of_memory(what: impl fmt::Display, bytes: Option<usize>) -> Self {
        let bytes = bytes.map_or_else(|| "2^64 or more".into(), |bytes| bytes.to_string());
        Self::OutOfMemory(format!(
            "{what} needs {bytes} bytes, more than the system gives"
        ))
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".into();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
