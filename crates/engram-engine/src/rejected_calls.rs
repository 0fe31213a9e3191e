//! How many calls a table has rejected, by the kind of the error.

use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::Error;

/// Why a call was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// The data does not match the signature.
    Signature,
    /// The table does not accept a priority.
    Priority,
    /// Another argument is invalid.
    InvalidArgument,
    /// The call could never succeed.
    Unsatisfiable,
    /// The call timed out.
    DeadlineExceeded,
}

impl RejectionReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Signature,
        Self::Priority,
        Self::InvalidArgument,
        Self::Unsatisfiable,
        Self::DeadlineExceeded,
    ];

    /// The reason of an error. `None` if it is not about the call, for example because the store was closed.
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Signature(_) => Some(Self::Signature),
            Error::Priority(_) => Some(Self::Priority),
            Error::InvalidArgument(_) => Some(Self::InvalidArgument),
            Error::Unsatisfiable(_) => Some(Self::Unsatisfiable),
            Error::DeadlineExceeded(_) => Some(Self::DeadlineExceeded),
            _ => None,
        }
    }
}

/// Counts the rejected calls of a table.
#[derive(Debug, Default)]
pub(crate) struct RejectedCalls([AtomicU64; RejectionReason::ALL.len()]);

impl RejectedCalls {
    /// Counts a call that failed with this error; returns the error.
    pub(crate) fn count(&self, error: Error) -> Error {
        if let Some(reason) = RejectionReason::of(&error) {
            self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
        }
        error
    }

    /// The reasons for which calls were rejected, with the numbers of calls.
    pub(crate) fn counts(&self) -> Vec<(RejectionReason, u64)> {
        let counts = RejectionReason::ALL.map(|reason| {
            let count = self.0[reason as usize].load(Ordering::Relaxed);
            (reason, count)
        });
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn reset(&self) {
        for count in &self.0 {
            count.store(0, Ordering::Relaxed);
        }
    }
}
