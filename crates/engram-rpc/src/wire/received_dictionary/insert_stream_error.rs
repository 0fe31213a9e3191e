//! Why an insert stream must be closed.

use engram_core::Error;

/// Why a stream must be closed.
#[derive(Clone, Debug, PartialEq)]
pub enum InsertStreamError {
    /// A message is invalid.
    Invalid(Error),
    /// The sender exceeded a limit.
    LimitExceeded(String),
}

impl From<Error> for InsertStreamError {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}

/// The error of an invalid message.
pub(super) fn invalid(text: String) -> InsertStreamError {
    InsertStreamError::Invalid(Error::InvalidArgument(text))
}
