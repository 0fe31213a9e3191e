//! Counters of connections and calls: how many have begun, and how many are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: Arc<OpenCounter>,
    calls: [Arc<OpenCounter>; Call::ALL.len()],
}

/// Counts how many connections or calls of one kind have begun and ended.
#[derive(Debug, Default)]
pub(super) struct OpenCounter {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The calls of both protocols.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Hello,
    Manage,
    Insert,
    Sample,
    Change,
    Scan,
    // Calls of dm-reverb's service:
    InsertStream,
    SampleStream,
    MutatePriorities,
    Reset,
    Checkpoint,
    ServerInfo,
    InitializeConnection,
}

/// An open connection or call; dropping it counts the end.
#[derive(Debug)]
pub(super) struct OpenGuard(Arc<OpenCounter>);

impl Call {
    pub(super) const ALL: [Self; 13] = [
        Self::Hello,
        Self::Manage,
        Self::Insert,
        Self::Sample,
        Self::Change,
        Self::Scan,
        Self::InsertStream,
        Self::SampleStream,
        Self::MutatePriorities,
        Self::Reset,
        Self::Checkpoint,
        Self::ServerInfo,
        Self::InitializeConnection,
    ];

    /// Returns the call for a method name of dm-reverb's service, `None` if it has no method of this name.
    pub(super) fn from_reverb_method(method: &str) -> Option<Self> {
        Some(match method {
            "InsertStream" => Self::InsertStream,
            "SampleStream" => Self::SampleStream,
            "MutatePriorities" => Self::MutatePriorities,
            "Reset" => Self::Reset,
            "Checkpoint" => Self::Checkpoint,
            "ServerInfo" => Self::ServerInfo,
            "InitializeConnection" => Self::InitializeConnection,
            _ => return None,
        })
    }

    /// The protocol and the name of the call, as metric labels.
    pub(super) fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Hello => ("engram", "hello"),
            Self::Manage => ("engram", "manage"),
            Self::Insert => ("engram", "insert"),
            Self::Sample => ("engram", "sample"),
            Self::Change => ("engram", "change"),
            Self::Scan => ("engram", "scan"),
            Self::InsertStream => ("reverb", "insert_stream"),
            Self::SampleStream => ("reverb", "sample_stream"),
            Self::MutatePriorities => ("reverb", "mutate_priorities"),
            Self::Reset => ("reverb", "reset"),
            Self::Checkpoint => ("reverb", "checkpoint"),
            Self::ServerInfo => ("reverb", "server_info"),
            Self::InitializeConnection => ("reverb", "initialize_connection"),
        }
    }
}

impl Counters {
    pub(super) fn get(&self, call: Call) -> &Arc<OpenCounter> {
        &self.calls[call as usize]
    }
}

impl OpenCounter {
    /// Counts a connection or call as begun, and as open until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> OpenGuard {
        self.begun.fetch_add(1, Ordering::Relaxed);
        OpenGuard(Arc::clone(self))
    }

    /// How many have begun so far.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many are open now.
    pub(super) fn open(&self) -> u64 {
        // Read before `begun`, so that `ended` does not include calls that `begun` lacks.
        let ended = self.ended.load(Ordering::Acquire);
        self.begun().saturating_sub(ended)
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}
