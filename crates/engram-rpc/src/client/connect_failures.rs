//! Why the server cannot be reached at present, for calls that end while their stream is still connecting.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The last failure of each connection that is being opened.
#[derive(Debug, Default)]
pub(crate) struct ConnectFailures {
    failures: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    next: u64,
    reasons: BTreeMap<u64, String>,
}

/// The attempts to open one connection. Dropping it forgets their failures.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    failures: &'a Mutex<Failures>,
    id: u64,
}

impl ConnectFailures {
    /// Begins to open a connection.
    pub(super) fn begin(&self) -> Attempts<'_> {
        let mut failures = self.failures.lock();
        failures.next += 1;
        Attempts {
            failures: &self.failures,
            id: failures.next,
        }
    }

    /// The last failure of a connection that is being opened; `None` if none has failed.
    pub(super) fn reason(&self) -> Option<String> {
        self.failures.lock().reasons.values().next().cloned()
    }
}

impl Attempts<'_> {
    /// Records that an attempt has failed; others follow.
    pub(super) fn record(&self, reason: &str) {
        let mut failures = self.failures.lock();
        failures.reasons.insert(self.id, reason.into());
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        self.failures.lock().reasons.remove(&self.id);
    }
}
