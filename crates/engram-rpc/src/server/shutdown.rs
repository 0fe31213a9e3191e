//! How streams learn that their server stops, and what they tell their callers.

use std::net::SocketAddr;

use engram_core::Error;
use tokio::sync::watch;
use tonic::Status;

/// Resolves once the server stops.
#[derive(Clone, Debug)]
pub(super) struct ShutdownSignal {
    stopped: watch::Receiver<bool>,
    address: SocketAddr,
}

impl ShutdownSignal {
    pub(super) fn new(stopped: watch::Receiver<bool>, address: SocketAddr) -> Self {
        Self { stopped, address }
    }

    /// Becomes true once the server stops.
    pub(super) fn signal(&self) -> watch::Receiver<bool> {
        self.stopped.clone()
    }

    /// Waits until the server stops.
    pub(super) async fn wait(&mut self) {
        // An error: the server is gone, which is as good.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
    }

    /// What a call that waits ends with.
    pub(super) fn error(&self) -> Error {
        Error::Closed(self.text())
    }

    /// What a stream ends with.
    pub(super) fn status(&self) -> Status {
        Status::unavailable(self.text())
    }

    fn text(&self) -> String {
        format!("the server at {} is shutdown", self.address)
    }
}
