//! What a server counts of its own: connections and calls, begun and open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: Arc<Count>,
    calls: [Arc<Count>; Call::ALL.len()],
}

/// How often something began, and how often it ended.
#[derive(Debug, Default)]
pub(super) struct Count {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The calls of the protocol.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Hello,
    Manage,
    Insert,
    Sample,
    Change,
}

/// Something that goes on until this is dropped.
#[derive(Debug)]
pub(super) struct Ongoing(Arc<Count>);

impl Call {
    pub(super) const ALL: [Self; 5] = [
        Self::Hello,
        Self::Manage,
        Self::Insert,
        Self::Sample,
        Self::Change,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Manage => "manage",
            Self::Insert => "insert",
            Self::Sample => "sample",
            Self::Change => "change",
        }
    }
}

impl Counts {
    pub(super) fn of(&self, call: Call) -> &Arc<Count> {
        &self.calls[call as usize]
    }
}

impl Count {
    pub(super) fn begin(self: &Arc<Self>) -> Ongoing {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ongoing(Arc::clone(self))
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

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}
