//! Sessions of readers: the leases of a stream whose connection broke are kept for the reader's next stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use super::leases::Leases;
use crate::server::shutdown::ShutdownSignal;

/// The sessions that have a stream, or whose leases are kept.
#[derive(Debug, Default)]
pub(in crate::server) struct ReaderSessions {
    sessions: Arc<Mutex<HashMap<u64, Session>>>,
    /// Number of streams that have opened a session.
    streams: AtomicU64,
}

#[derive(Debug)]
struct Session {
    /// The leases that the last stream has left. Locked by a stream for as long as it lasts.
    kept: Arc<AsyncMutex<Leases>>,
    /// Ends the stream that has the session.
    stop: oneshot::Sender<()>,
    /// The stream that has the session, or had it last.
    stream: u64,
}

/// A session, as its stream has it. Dropping it ends the session.
#[derive(Debug)]
pub(super) struct OpenSession {
    pub(super) id: u64,
    /// How long the leases are kept if the connection breaks.
    keep: Duration,
    sessions: Arc<Mutex<HashMap<u64, Session>>>,
    /// `None` once the leases are kept.
    kept: Option<OwnedMutexGuard<Leases>>,
    stopped: oneshot::Receiver<()>,
    stream: u64,
}

impl ReaderSessions {
    /// Opens a session, and returns it with the leases that are kept. If another stream still has the session, because
    /// the server did not notice that its connection broke, that stream is ended first.
    pub(super) async fn open(&self, id: u64, keep: Duration) -> (OpenSession, Leases) {
        let (stop, stopped) = oneshot::channel();
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let kept = {
            let mut sessions = self.sessions.lock();
            let previous = sessions.remove(&id);
            let kept = previous.map_or_else(Default::default, |previous| {
                // An error means that no stream has the session.
                let _ = previous.stop.send(());
                previous.kept
            });
            let session = Session {
                kept: Arc::clone(&kept),
                stop,
                stream,
            };
            sessions.insert(id, session);
            kept
        };
        let mut kept = kept.lock_owned().await;
        let leases = std::mem::take(&mut *kept);
        let session = OpenSession {
            id,
            keep,
            sessions: Arc::clone(&self.sessions),
            kept: Some(kept),
            stopped,
            stream,
        };
        (session, leases)
    }
}

impl OpenSession {
    /// Waits until another stream opens the session. Must not be called again once it has returned.
    pub(super) async fn stopped(&mut self) {
        let _ = (&mut self.stopped).await;
    }

    /// Keeps the leases of a stream whose connection broke, until another stream opens the session, the time is over or
    /// the server shuts down.
    pub(super) fn keep(mut self, leases: Leases, mut shutdown: ShutdownSignal) {
        let Some(mut kept) = self.kept.take() else {
            return;
        };
        *kept = leases;
        drop(kept);
        let (keep, sessions) = (self.keep, Arc::clone(&self.sessions));
        let (id, stream) = (self.id, self.stream);
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(keep) => {}
                () = shutdown.wait() => {}
            }
            forget(&sessions, id, stream);
        });
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if self.kept.take().is_some() {
            forget(&self.sessions, self.id, self.stream);
        }
    }
}

/// Removes a session, which returns its leases, unless another stream has opened it.
fn forget(sessions: &Mutex<HashMap<u64, Session>>, id: u64, stream: u64) {
    let mut sessions = sessions.lock();
    let is_last = (sessions.get(&id)).is_some_and(|session| session.stream == stream);
    let removed = is_last.then(|| sessions.remove(&id));
    drop(sessions);
    // Without the lock, because this changes tables.
    drop(removed);
}
