//! What a server counters of its own: connections and calls, begun and open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: Arc<OpenCounter>,
    calls: [Arc<OpenCounter>; Call::ALL.len()],
}

/// How often something began, and how often it ended.
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
    /// dm-reverb's, from here on.
    InsertStream,
    SampleStream,
    MutatePriorities,
    Reset,
    Checkpoint,
    ServerInfo,
    InitializeConnection,
}

/// Something that goes on until this is dropped.
#[derive(Debug)]
pub(super) struct OpenGuard(Arc<OpenCounter>);

impl Call {
    pub(super) const ALL: [Self; 12] = [
        Self::Hello,
        Self::Manage,
        Self::Insert,
        Self::Sample,
        Self::Change,
        Self::InsertStream,
        Self::SampleStream,
        Self::MutatePriorities,
        Self::Reset,
        Self::Checkpoint,
        Self::ServerInfo,
        Self::InitializeConnection,
    ];

    /// The call of dm-reverb's service that its clients name so.
    pub(super) fn of_reverb(method: &str) -> Option<Self> {
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

    /// Whose call it is, and what it is called there.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Hello => ("engram", "hello"),
            Self::Manage => ("engram", "manage"),
            Self::Insert => ("engram", "insert"),
            Self::Sample => ("engram", "sample"),
            Self::Change => ("engram", "change"),
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
    pub(super) fn of(&self, call: Call) -> &Arc<OpenCounter> {
        &self.calls[call as usize]
    }
}

impl OpenCounter {
    pub(super) fn begin(self: &Arc<Self>) -> OpenGuard {
        self.begun.fetch_add(1, Ordering::Relaxed);
        OpenGuard(Arc::clone(self))
    }

    /// How often it began so far.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many go on now.
    pub(super) fn open(&self) -> u64 {
        // Read first: what ends meanwhile has begun before.
        let ended = self.ended.load(Ordering::Acquire);
        self.begun().saturating_sub(ended)
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}
