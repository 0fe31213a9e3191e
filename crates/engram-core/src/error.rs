//! The error type of the engine: one variant per cause that a caller may handle.

use std::fmt;

use crate::{ErrorText, Printable};

/// Result with the engine's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Texts name the argument, the value given and the values allowed. Control characters are escaped,
/// because a text may contain names that a caller or a peer chose.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no table with this name.
    #[error("no table `{}`; known tables: {}", Printable(.name), quoted_list(.known))]
    UnknownTable {
        /// The requested name.
        name: String,
        /// Names of the existing tables.
        known: Vec<String>,
    },
    /// Data does not match its column, the table's signature, or the other items of a batch.
    #[error("{}", ErrorText(.0))]
    Signature(String),
    /// The table does not accept this priority.
    #[error("{}", ErrorText(.0))]
    Priority(String),
    /// An argument or option has a value that is not allowed.
    #[error("{}", ErrorText(.0))]
    InvalidArgument(String),
    /// The call timed out, or a scan was idle for too long. For a call that may complete in part, the text reports how
    /// much it had completed.
    #[error("{}", ErrorText(.0))]
    DeadlineExceeded(String),
    /// No future state of the table can satisfy the request, so waiting would never end.
    #[error("{}", ErrorText(.0))]
    Unsatisfiable(String),
    /// The store, client, stream or writer was closed, or the table was dropped.
    #[error("{}", ErrorText(.0))]
    Closed(String),
    /// An item refers to steps that its writer no longer retains, or that the end of an episode has cleared.
    #[error("{}", ErrorText(.0))]
    ExpiredStep(String),
    /// A writer could not write within its timeout, or waiting could not help: too many of its items wait for their tables
    /// or are in flight, the disk cannot keep up, or a table accepts no more items.
    #[error("{}", ErrorText(.0))]
    Backpressure(String),
    /// The server cannot be reached, or could not be reached again within the reconnect timeout. Or the system provides
    /// no threads or random numbers.
    #[error("{}", ErrorText(.0))]
    Unavailable(String),
    /// The server has returned the items of a batch to their table, because a connection was lost: the batch must not be
    /// used.
    #[error("{}", ErrorText(.0))]
    LeaseEnded(String),
    /// The server rejected the client, or is none that this client can use: token, certificates, TLS on one side only, other
    /// versions of Engram, or a gRPC server of another kind.
    #[error("{}", ErrorText(.0))]
    Handshake(String),
    /// Stored or received bytes are corrupt, so reading them again does not help.
    #[error("{}", ErrorText(.0))]
    Payload(String),
    /// The store's files cannot be read or written, lack acknowledged data, or are in use by another process.
    #[error("{}", ErrorText(.0))]
    Storage(String),
    /// An allocation failed or would exceed a limit. If the failed call had drawn items, the draws are undone.
    #[error("{}", ErrorText(.0))]
    OutOfMemory(String),
}

impl Error {
    /// The error with a text appended, if it is about an item or an argument: those have a text of their own.
    #[must_use]
    pub fn with_text(mut self, text: &str) -> Self {
        if let Self::Signature(own)
        | Self::Priority(own)
        | Self::InvalidArgument(own)
        | Self::Unsatisfiable(own) = &mut self
        {
            own.push_str(text);
        }
        self
    }

    /// An allocation of `bytes` for `what` failed; `None` stands for 2^64 bytes or more.
    pub fn out_of_memory(what: impl fmt::Display, bytes: Option<usize>) -> Self {
        let bytes = bytes.map_or_else(|| "2^64 or more".into(), |bytes| bytes.to_string());
        Self::OutOfMemory(format!(
            "{what} needs {bytes} bytes, more than can be allocated"
        ))
    }
}

fn quoted_list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".into();
    }
    let quoted: Vec<String> = names
        .iter()
        .map(|name| format!("`{}`", Printable(name)))
        .collect();
    quoted.join(", ")
}
